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
    enum Either {
        Number(i64),
        Text(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Serialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Size(#[serde(with = "crate::number")] i64);

    #[test]
    fn a_number_is_written_as_text_and_read_from_either() {
        assert_eq!(serde_json::to_string(&Size(1 << 60)).unwrap(), "\"1152921504606846976\"");
        assert_eq!(serde_json::from_str::<Size>("12").unwrap(), Size(12));
        assert_eq!(serde_json::from_str::<Size>("\"12\"").unwrap(), Size(12));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for wrong in ["\"\"", "\"x\"", "1.5", "\"9223372036854775808\"", "null", "{}"] {
            assert!(serde_json::from_str::<Size>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_number_comes_back(number: i64) {
            let text = serde_json::to_string(&Size(number)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Size>(&text).unwrap(), Size(number));
        }
    }
}
