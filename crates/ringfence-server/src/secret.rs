//! Random text that cannot be guessed.

use ringfence_core::to_hex;
use rustix::rand::{GetRandomFlags, getrandom};

/// Letters and digits that are valid in a host name, five bits each.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Returns `LENGTH` random bytes.
fn random<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(filled, Ok(LENGTH), "getrandom(2) gives up to 256 bytes whole, and waits for them");
    bytes
}

/// Returns `LENGTH` random bytes in hexadecimal.
pub(crate) fn hexadecimal<const LENGTH: usize>() -> String {
    to_hex(&random::<LENGTH>())
}

/// Returns a unique name for a sandbox that cannot be guessed and is valid in a host name.
pub(crate) fn name() -> String {
    random::<20>().iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_sandboxs_and_a_part_of_a_host_name() {
        let (one, other) = (name(), name());
        assert_ne!(one, other);
        assert_eq!((one.len(), hexadecimal::<20>().len()), (20, 40));
        ringfence::Name::new(&one).unwrap();
        assert!(one.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
    }
}
