//! The demo: one purchase requisition, one lost answer, and what is true in the other system afterwards.
//!
//! Real processes: a throwaway PostgreSQL server with the extension preloaded, and an ERP that stores a requisition
//! and loses its answer. Exit status 0 when everything went as the story says; everything is stopped and removed.

mod erp_process;
mod intent;
mod screen;
mod story;

use std::process::ExitCode;

use screen::Screen;

fn main() -> ExitCode {
    let mut screen = Screen::new();
    if let Err(error) = story::tell(&mut screen) {
        screen.broken(&error);
    }
    match screen.failures() {
        0 => {
            println!("\nAs expected. Everything that was started is stopped and removed.");
            ExitCode::SUCCESS
        }
        failures => {
            println!("\n{failures} expectation(s) failed.");
            ExitCode::FAILURE
        }
    }
}
