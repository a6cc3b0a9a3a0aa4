//! Bytes in JSON: standard base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are written as base64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Bytes).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_base64_with_padding() {
        assert_eq!(serde_json::to_string(&Bytes(b"hi\n".to_vec())).unwrap(), "\"aGkK\"");
        assert_eq!(serde_json::to_string(&Bytes(b"h".to_vec())).unwrap(), "\"aA==\"");
        assert_eq!(serde_json::from_str::<Bytes>("\"aA\\u003d=\"").unwrap(), Bytes(b"h".to_vec()));
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for wrong in ["\"a\"", "\"!!!!\"", "1", "null"] {
            assert!(serde_json::from_str::<Bytes>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = serde_json::to_string(&Bytes(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap().0, bytes);
        }
    }
}
