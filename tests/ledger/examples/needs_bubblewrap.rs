//! Example of a test with a need. Without bubblewrap, the program ends before its last line.
#![expect(clippy::print_stdout, reason = "it shows how far it came")]

use ringfence_test_ledger::require;

fn main() {
    require!(bwrap);
    println!("ran");
}
