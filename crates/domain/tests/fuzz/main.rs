//! Fuzzing on a stable toolchain: a kept corpus, changed at random from a seed, against a property for each target.
//!
//! Every run makes a bounded number of inputs and is the same each time. For longer:
//! `FUZZ_SECONDS=600 FUZZ_SEED=7 cargo test -p command_ledger_domain --test fuzz`. A failure prints the shortest input
//! that was found and writes it to a file, to be kept in the corpus when it is mended.
//!
//! Each property takes the function that it is about, so that a second test can give it a wrong one and see that it is
//! found.

mod answer;
mod canonical;
mod config;
mod driver;
mod keys;
mod template;
