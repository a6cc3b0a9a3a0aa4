//! Text form of certificates and keys.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// Number of characters in a line, RFC 7468, 2.
const LINE_LENGTH: usize = 64;

/// Returns the PEM text of a certificate or key. `label` states its type, for example
/// `CERTIFICATE`.
pub fn encode_pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(LINE_LENGTH) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}
