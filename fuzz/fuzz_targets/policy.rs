//! Checks that any text is a policy or an error, that parsing never panics, and that a policy
//! parses again from its written form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfence_core::Policy;

fuzz_target!(|text: &str| {
    for parsed in [Policy::from_toml(text), Policy::from_json(text)] {
        match parsed {
            Ok(policy) => {
                let json = serde_json::to_string(&policy).expect("a policy can be written");
                let again = Policy::from_json(&json).expect("what was written can be read");
                assert_eq!(policy, again);
                assert_eq!(policy.sha256(), again.sha256());
                drop(policy.with_defaults());
            }
            Err(error) => drop(error.to_string()),
        }
    }
});
