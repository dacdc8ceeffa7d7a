//! What identifies an intent: strict JSON, the canonical form, hashes and keys.

mod hashes;
mod hostile;
mod json;
mod keys;
mod numbers;
mod properties;
mod rfc8785;
mod support;
