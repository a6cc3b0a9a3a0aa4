//! Checks that any bytes are a result or an error, and that a result parses again from its written
//! form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfence_core::ExecutionResult;
use ringfence_core::audit::{RunRecord, verify_chain};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(result) = serde_json::from_slice::<ExecutionResult>(bytes) {
        let json = serde_json::to_vec(&result).expect("a result can be written");
        let again: ExecutionResult =
            serde_json::from_slice(&json).expect("what was written can be read");
        assert_eq!(result, again);
    }
    if let Ok(record) = serde_json::from_slice::<RunRecord>(bytes) {
        drop(verify_chain([("a record", &record)]));
    }
});
