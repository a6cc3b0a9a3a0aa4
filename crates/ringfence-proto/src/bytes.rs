//! Byte strings in JSON messages, as the protobuf JSON mapping has them: standard base64.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Byte string that JSON carries as standard base64 with padding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base64Bytes(pub Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Base64Bytes, D::Error> {
        deserializer.deserialize_str(Base64Visitor)
    }
}

/// Visitor that decodes base64 directly from the deserializer's input. Text without escapes is not
/// copied first.
struct Base64Visitor;

impl Visitor<'_> for Base64Visitor {
    type Value = Base64Bytes;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("bytes in base64")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Base64Bytes, E> {
        STANDARD.decode(text).map(Base64Bytes).map_err(E::custom)
    }
}

/// Appends the base64 form of `bytes` to `text`.
pub(crate) fn encode_onto(bytes: &[u8], text: &mut Vec<u8>) {
    let start = text.len();
    let length = base64::encoded_len(bytes.len(), true)
        .expect("messages are far smaller than the address space");
    text.resize(start + length, 0);
    STANDARD.encode_slice(bytes, &mut text[start..]).expect("there is room for all of it");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_base64_with_padding() {
        assert_eq!(serde_json::to_string(&Base64Bytes(b"hi\n".to_vec())).unwrap(), "\"aGkK\"");
        assert_eq!(serde_json::to_string(&Base64Bytes(b"h".to_vec())).unwrap(), "\"aA==\"");
        assert_eq!(
            serde_json::from_str::<Base64Bytes>("\"aA\\u003d=\"").unwrap(),
            Base64Bytes(b"h".to_vec())
        );
    }

    #[test]
    fn text_that_is_not_base64_is_refused() {
        for wrong in ["\"a\"", "\"!!!!\"", "1", "null"] {
            assert!(serde_json::from_str::<Base64Bytes>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_survive_serialisation(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = serde_json::to_string(&Base64Bytes(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<Base64Bytes>(&text).unwrap().0, bytes);
        }
    }
}
