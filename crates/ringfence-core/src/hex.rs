//! Bytes as hexadecimal digits: the form of hashes in results, records and names of files.

/// Returns the lower-case hexadecimal digits of `bytes`, two for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_lower_case_digits() {
        assert_eq!(to_hex(&[0x00, 0x0f, 0xab, 0xff]), "000fabff");
        assert_eq!(to_hex(&[]), "");
    }
}
