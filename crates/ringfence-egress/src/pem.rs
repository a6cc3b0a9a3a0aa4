//! Certificates and keys as text.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// How long a line is, RFC 7468, 2.
const LINE: usize = 64;

/// The text of a certificate or key, whose `label` says which it is.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(LINE) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}
