//! Checks that any text can be searched for imports without a panic or a stack overflow, and that
//! every reported position is inside the text.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ringfence_core::settings::{CodeSettings, PythonModule};

// Include the module by path, because the library embeds a guest binary that a fuzzer does not
// need.
#[path = "../../crates/ringfence/src/code/imports/mod.rs"]
mod imports;

static LISTED: LazyLock<Vec<PythonModule>> = LazyLock::new(|| CodeSettings::default().imports);

fuzz_target!(|text: &str| {
    let lines = text.split(['\n', '\r']).count();
    let imports::ExaminedCode { found, error } = imports::find(text, &LISTED);
    assert!(
        error.is_none_or(|(line, column)| (1..=lines).contains(&line) && column >= 1),
        "{error:?}"
    );
    for found in found {
        assert!((1..=lines).contains(&found.line) && found.column >= 1, "{found:?}");
        assert!(
            found.module.is_empty() || LISTED.iter().any(|module| module.holds(&found.module)),
            "{found:?}"
        );
    }
});
