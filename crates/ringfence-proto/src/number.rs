//! 64-bit integers in JSON messages. The integers are written as text, because JavaScript would
//! round a number. JSON numbers are accepted, too.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// Serializes a number as text.
pub fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// Deserializes a number from text or from a JSON number.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Number(i64),
        Text(String),
    }
    match TextOrNumber::deserialize(deserializer)? {
        TextOrNumber::Number(number) => Ok(number),
        TextOrNumber::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Serialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct NumberAsText(#[serde(with = "crate::number")] i64);

    #[test]
    fn a_number_is_written_as_text_and_read_from_text_or_number() {
        assert_eq!(
            serde_json::to_string(&NumberAsText(1 << 60)).unwrap(),
            "\"1152921504606846976\""
        );
        assert_eq!(serde_json::from_str::<NumberAsText>("12").unwrap(), NumberAsText(12));
        assert_eq!(serde_json::from_str::<NumberAsText>("\"12\"").unwrap(), NumberAsText(12));
    }

    #[test]
    fn text_that_is_not_a_number_is_refused() {
        for wrong in ["\"\"", "\"x\"", "1.5", "\"9223372036854775808\"", "null", "{}"] {
            assert!(serde_json::from_str::<NumberAsText>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_number_survives_serialisation(number: i64) {
            let text = serde_json::to_string(&NumberAsText(number)).unwrap();
            let read = serde_json::from_str::<NumberAsText>(&text).unwrap();
            prop_assert_eq!(read, NumberAsText(number));
        }
    }
}
