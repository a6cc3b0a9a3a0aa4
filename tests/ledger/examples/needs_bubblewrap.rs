//! What a test with a need looks like; without bubblewrap it ends before its last line.
#![expect(clippy::print_stdout, reason = "it shows how far it came")]

use ringfence_test_ledger::require;

fn main() {
    require!(bwrap);
    println!("ran");
}
