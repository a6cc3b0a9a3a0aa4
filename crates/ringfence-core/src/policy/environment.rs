//! Environment variables of a sandbox.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Upper bound on the length of `NAME=value` in bytes; a variable must be shorter.
///
/// The kernel accepts at most 32 pages for one string, with the NUL at its end (execve(2)).
const MAX_VARIABLE_BYTES: usize = 128 * 1024;

/// Environment variables of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// Names of the caller's variables that the sandbox gets.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "names")]
    pub pass: Option<Vec<String>>,
    /// Further variables that the sandbox gets, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "values")]
    pub set: BTreeMap<String, String>,
}

/// Reason why a variable cannot be part of an environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VariableError {
    /// The name is empty, or has `=` or NUL, so that a program would read another name.
    #[error(
        "`{}` is no name of a variable: it is not empty and has neither `=` nor NUL",
        .0.escape_default()
    )]
    Name(String),
    /// The value contains NUL, at which a program would cut the value short. Holds the name.
    #[error("the value of `{0}` contains NUL")]
    Value(String),
    /// The variable is so long that the kernel would start no command with it.
    #[error(
        "`{name}` has {length} bytes with its value: the kernel starts no command with a variable \
         of {MAX_VARIABLE_BYTES} or more"
    )]
    TooLong {
        /// Name of the variable.
        name: String,
        /// Length of `NAME=value` in bytes.
        length: usize,
    },
}

impl Environment {
    /// Checks that a name denotes the variable that it seems to denote: `A=B` would set `A`.
    pub fn check_name(name: &str) -> Result<(), VariableError> {
        if name.is_empty() || name.contains(['=', '\0']) {
            Err(VariableError::Name(name.to_owned()))
        } else {
            Ok(())
        }
    }

    /// Checks that a name and its value reach a command unchanged.
    pub fn check(name: &str, value: &str) -> Result<(), VariableError> {
        Self::check_name(name)?;
        if value.contains('\0') {
            return Err(VariableError::Value(name.to_owned()));
        }
        let length = name.len() + 1 + value.len();
        if length >= MAX_VARIABLE_BYTES {
            Err(VariableError::TooLong { name: name.to_owned(), length })
        } else {
            Ok(())
        }
    }
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let names = Option::<Vec<String>>::deserialize(deserializer)?;
    names
        .iter()
        .flatten()
        .try_for_each(|name| Environment::check_name(name))
        .map_err(serde::de::Error::custom)?;
    Ok(names)
}

fn values<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, String>::deserialize(deserializer)?;
    let checked = values.iter().try_for_each(|(name, value)| Environment::check(name, value));
    checked.map_err(serde::de::Error::custom)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuse(document: &str, message: &str) {
        assert_eq!(toml::from_str::<Environment>(document).unwrap_err().message(), message);
    }

    #[test]
    fn a_name_that_would_read_back_as_another_is_refused() {
        let rule = "is no name of a variable: it is not empty and has neither `=` nor NUL";
        refuse("pass = ['PROXY=evil']", &format!("`PROXY=evil` {rule}"));
        refuse("pass = ['']", &format!("`` {rule}"));
        refuse("set = { 'PROXY=evil' = '' }", &format!("`PROXY=evil` {rule}"));
        refuse(r#"set = { "A\u0000" = '' }"#, &format!("`A\\u{{0}}` {rule}"));
        refuse(r#"set = { A = "\u0000" }"#, "the value of `A` contains NUL");
        let most = "x".repeat(MAX_VARIABLE_BYTES - 3);
        assert_eq!(Environment::check("A", &most), Ok(()));
        let beyond = VariableError::TooLong { name: "A".to_owned(), length: MAX_VARIABLE_BYTES };
        assert_eq!(Environment::check("A", &format!("{most}x")), Err(beyond));
        let environment: Environment = toml::from_str("pass = ['A']\nset = { B = 'x=y' }").unwrap();
        assert_eq!(
            (environment.pass, environment.set["B"].as_str()),
            (Some(vec!["A".to_owned()]), "x=y")
        );
    }
}
