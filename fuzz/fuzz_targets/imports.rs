//! Any text is read for imports: never a panic, an overflow of the stack, or a place outside the text.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ringfence_core::settings::{Code, Module};

// The library carries a guest, which is no business of a fuzzer's.
#[path = "../../crates/ringfence/src/code/imports/mod.rs"]
mod imports;

static LISTED: LazyLock<Vec<Module>> = LazyLock::new(|| Code::default().imports);

fuzz_target!(|text: &str| {
    let lines = text.split(['\n', '\r']).count();
    let imports::Examined { found, error } = imports::find(text, &LISTED);
    assert!(error.is_none_or(|(line, column)| (1..=lines).contains(&line) && column >= 1), "{error:?}");
    for found in found {
        assert!((1..=lines).contains(&found.line) && found.column >= 1, "{found:?}");
        assert!(found.module.is_empty() || LISTED.iter().any(|module| module.holds(&found.module)), "{found:?}");
    }
});
