//! Serialization of types that a document writes as one string.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::{SerializeSeq, Serializer};

/// Implements `Serialize`, `Deserialize` and `JsonSchema` for a type with `Display` and `FromStr`.
///
/// A document holds the text of `Display`. The schema and the errors show `$description`. The
/// schema is called `$schema_name`, or like the type if no name is given.
macro_rules! serde_as_text {
    ($type:ty, $description:literal) => {
        $crate::policy::text::serde_as_text!($type, $description, stringify!($type));
    };
    ($type:ty, $description:literal, $schema_name:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::policy::text::parsed(deserializer, $description)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $schema_name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": $description })
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Reads one string and parses it as a `T`.
///
/// `description` names the expected value in the error for a value that is not a string.
pub(crate) fn parsed<'de, D, T>(deserializer: D, description: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    deserializer.deserialize_str(TextVisitor { description, parsed: PhantomData })
}

struct TextVisitor<T> {
    description: &'static str,
    parsed: PhantomData<T>,
}

impl<T: FromStr<Err: Display>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Writes paths, with a replacement character for bytes that are not UTF-8.
///
/// A document cannot hold such bytes, and serialization must not fail, because every policy must
/// have a hash.
pub(crate) fn paths<S: Serializer>(
    paths: &Option<Vec<PathBuf>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Some(paths) = paths else { return serializer.serialize_none() };
    let mut sequence = serializer.serialize_seq(Some(paths.len()))?;
    for path in paths {
        sequence.serialize_element(&path.to_string_lossy())?;
    }
    sequence.end()
}
