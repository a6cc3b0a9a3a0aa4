//! Checks that any bytes are a request to the server's control plane or an error, and that any text
//! is a query or an error. Parsing never panics, and no signature is valid that was not made with
//! the token.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfence_proto::query::UrlQuery;
use ringfence_proto::signature::{SignatureClaim, SignaturePurpose};
use ringfence_server::requests;

/// Token that no input was signed with.
const TOKEN: &str = "5b5a0f3e1c9d4478a6b2c7e8f9012345";

fuzz_target!(|input: (&[u8], &str)| {
    let (body, text) = input;
    drop(serde_json::from_slice::<requests::NewSandbox>(body));
    drop(serde_json::from_slice::<requests::NetworkRequest>(body));
    drop(serde_json::from_slice::<requests::NetworkChange>(body));
    drop(serde_json::from_slice::<requests::NewSnapshot>(body));
    drop(serde_json::from_slice::<requests::LeaseRequest>(body));
    drop(serde_json::from_slice::<requests::PauseRequest>(body));
    let Ok(query) = UrlQuery::parse(text) else { return };
    for (name, value) in query.pairs() {
        assert!(query.all(name).any(|found| found == value));
    }
    for purpose in [SignaturePurpose::Read, SignaturePurpose::Write] {
        if let Ok(claim) = SignatureClaim::from_query(&query, purpose) {
            assert!(claim.check(TOKEN, 0).is_err());
        }
    }
});
