//! Reading of policies from TOML and JSON, with errors that name the line and the key.

use std::collections::BTreeMap;
use std::ops::Range;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use crate::Policy;

/// Error of reading a document, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct DocumentError {
    /// Line of the error, counted from 1.
    pub line: usize,
    /// Column of the error in characters, counted from 1.
    pub column: usize,
    /// The wrong key with the tables that contain it, such as `limits.memory`.
    ///
    /// The key is absent when the document is not well-formed, or when no key encloses the
    /// position.
    pub key: Option<String>,
    /// The known key that is most like an unknown key, if one is similar enough.
    pub nearest: Option<String>,
    is_unknown_key: bool,
    what: String,
}

impl DocumentError {
    /// Returns a command that helps with an unknown key; other errors have no hint.
    pub fn hint(&self) -> Option<String> {
        self.is_unknown_key.then(|| "`ringfence config schema` lists every key".to_owned())
    }

    fn new<T: JsonSchema>(text: &str, at: usize, key: Option<String>, message: &str) -> Self {
        let before = &text[..text.floor_char_boundary(at)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|character| *character != '\n').count() + 1;
        let is_unknown_key = message.starts_with("unknown field");
        let nearest =
            key.as_ref().filter(|_| is_unknown_key).and_then(|key| nearest(key, known_keys::<T>()));
        let what = match (&key, &nearest) {
            (Some(key), Some(nearest)) => format!("unknown key `{key}`, did you mean `{nearest}`?"),
            (Some(key), None) if is_unknown_key => format!("unknown key `{key}`"),
            (Some(key), None) => {
                format!(
                    "`{key}`: {}",
                    message.replace("expected usize", "expected 0 or more, a whole number")
                )
            }
            (None, _) => message.replace('\n', ", "),
        };
        DocumentError { line, column, key, nearest, is_unknown_key, what }
    }
}

impl Policy {
    /// Reads a policy from TOML.
    pub fn from_toml(text: &str) -> Result<Policy, DocumentError> {
        parse_toml(text)
    }

    /// Reads a policy from JSON.
    pub fn from_json(text: &str) -> Result<Policy, DocumentError> {
        serde_json::from_str(text).map_err(|error| {
            let at = offset(text, error.line(), error.column());
            let message = error.to_string();
            let message =
                message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
            let key = if error.is_data() { json_key_before(text, at) } else { None };
            DocumentError::new::<Policy>(text, at, key, message)
        })
    }
}

/// Returns the JSON Schema of a policy.
pub fn schema() -> Value {
    schemars::schema_for!(Policy).to_value()
}

/// Reads a document of type `T`, a policy or a configuration, from TOML.
pub(crate) fn parse_toml<T: DeserializeOwned + JsonSchema>(text: &str) -> Result<T, DocumentError> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let key = DeTable::parse(text).ok().and_then(|table| toml_key_at(table.get_ref(), &span));
        DocumentError::new::<T>(text, span.start, key, error.message())
    })
}

/// Line numbers of the keys of a TOML document.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyLines(BTreeMap<String, usize>);

impl KeyLines {
    /// Collects the line numbers of all keys in `text`; text that is not valid TOML has no keys.
    pub(crate) fn from_toml(text: &str) -> Self {
        let mut lines = BTreeMap::new();
        if let Ok(table) = DeTable::parse(text) {
            collect_lines(text, table.get_ref(), "", &mut lines);
        }
        KeyLines(lines)
    }

    /// Returns the line of `key`, counted from 1, or else the line of the innermost table around
    /// the key that is in the document.
    pub(crate) fn line(&self, key: &str) -> Option<usize> {
        let mut with_tables = std::iter::successors(Some(key), |key| Some(key.rsplit_once('.')?.0));
        with_tables.find_map(|key| self.0.get(key)).copied()
    }
}

fn collect_lines(
    text: &str,
    table: &DeTable<'_>,
    prefix: &str,
    lines: &mut BTreeMap<String, usize>,
) {
    for (key, value) in table {
        let path = format!("{prefix}{}", key.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            collect_lines(text, inner, &format!("{path}."), lines);
        }
        lines.insert(path, text[..key.span().start].matches('\n').count() + 1);
    }
}

/// Returns the innermost key, with its tables, whose name or value contains a span of the text.
fn toml_key_at(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    // The span of a `[table]` header does not contain the keys of the table, so the search enters
    // every table.
    let inner = table.iter().find_map(|(key, value)| match value.get_ref() {
        DeValue::Table(inner) => {
            toml_key_at(inner, span).map(|rest| format!("{}.{rest}", key.get_ref()))
        }
        DeValue::Array(items) => items.iter().find_map(|item| match item.get_ref() {
            DeValue::Table(inner) => {
                toml_key_at(inner, span).map(|rest| format!("{}.{rest}", key.get_ref()))
            }
            _ => None,
        }),
        _ => None,
    });
    let own = || table.iter().find(|(key, value)| holds(key.span()) || holds(value.span()));
    inner.or_else(|| own().map(|(key, _)| key.get_ref().to_string()))
}

/// Returns the byte offset of a line and a column, which both count from 1.
///
/// The column counts bytes, as in the errors of `serde_json`.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// Returns the keys that enclose the byte offset `at` of a JSON document, with dots between.
///
/// The document must be well-formed in front of `at`.
fn json_key_before(text: &str, at: usize) -> Option<String> {
    // One entry per open bracket: the key that was read last inside it. An array has no key.
    let mut open: Vec<Option<String>> = Vec::new();
    let mut characters = text.char_indices();
    while let Some((place, character)) = characters.next() {
        if place >= at {
            break;
        }
        match character {
            '{' | '[' => open.push(None),
            '}' | ']' => drop(open.pop()),
            '"' => {
                let end = loop {
                    match characters.next()? {
                        (_, '\\') => drop(characters.next()),
                        (end, '"') => break end,
                        _ => {}
                    }
                };
                let is_key = text[end + 1..].trim_start().starts_with(':');
                if let (true, Some(key)) = (is_key, open.last_mut()) {
                    *key = Some(text[place + 1..end].to_owned());
                }
            }
            _ => {}
        }
    }
    let keys: Vec<String> = open.into_iter().flatten().collect();
    (!keys.is_empty()).then(|| keys.join("."))
}

/// Returns the known key that is most like `key`, if one is similar enough.
///
/// Keys are compared by the whole path and by the last part of the path; the better match counts.
pub(crate) fn nearest(key: &str, known: impl IntoIterator<Item = String>) -> Option<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |candidate: &str| {
        let whole = strsim::normalized_damerau_levenshtein(key, candidate);
        // The last part alone counts slightly less, so that a key in the same table wins.
        let part = strsim::normalized_damerau_levenshtein(&last(key), &last(candidate)) * 0.95;
        whole.max(part)
    };
    let scored = known.into_iter().map(|candidate| (likeness(&candidate), candidate));
    let (likeness, candidate) = scored.max_by(|(left, _), (right, _)| left.total_cmp(right))?;
    (likeness >= 0.6).then_some(candidate)
}

/// Returns every key that a document of type `T` may have, according to the schema of `T`.
fn known_keys<T: JsonSchema>() -> Vec<String> {
    let schema = schemars::schema_for!(T).to_value();
    let mut keys = Vec::new();
    collect_keys(&schema, &schema, "", &mut keys);
    keys
}

fn collect_keys(root: &Value, schema: &Value, prefix: &str, keys: &mut Vec<String>) {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str)
        && let Some(target) = root.pointer(target.trim_start_matches('#'))
    {
        collect_keys(root, target, prefix, keys);
    }
    for choice in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        collect_keys(root, choice, prefix, keys);
    }
    // A table with keys of any name, such as `code.languages`, is listed with `NAME` as the key.
    if let Some(named) = schema.get("additionalProperties").filter(|named| named.is_object()) {
        collect_keys(root, named, &format!("{prefix}NAME."), keys);
    }
    if let Some(items) = schema.get("items") {
        collect_keys(root, items, prefix, keys);
    }
    for (key, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        keys.push(format!("{prefix}{key}"));
        collect_keys(root, inner, &format!("{prefix}{key}."), keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Network, Size};

    #[track_caller]
    fn refuse_toml(text: &str, message: &str) {
        assert_eq!(Policy::from_toml(text).unwrap_err().to_string(), message);
    }

    #[track_caller]
    fn refuse_json(text: &str, message: &str) {
        assert_eq!(Policy::from_json(text).unwrap_err().to_string(), message);
    }

    #[test]
    fn a_policy_reads_the_same_from_toml_and_json() {
        let toml = "backend = 'native'\n[limits]\nmemory = '512M'\n[network]\nmode = 'closed'\n\
            [env]\nset = { A = '1' }";
        let json = concat!(
            r#"{"backend":"native","limits":{"memory":"512M"},"#,
            r#""network":{"mode":"closed"},"env":{"set":{"A":"1"}}}"#
        );
        let policy = Policy::from_toml(toml).unwrap();
        assert_eq!(policy, Policy::from_json(json).unwrap());
        assert_eq!(policy.limits.memory, Some(Size::mebibytes(512)));
        assert_eq!(policy.network, Some(Network::Closed));
        let again = Policy::from_json(&serde_json::to_string(&policy).unwrap()).unwrap();
        assert_eq!(again.sha256(), policy.sha256());
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        refuse_toml(
            "[filesystem]\nhid = []",
            "line 2, column 1: unknown key `filesystem.hid`, did you mean `filesystem.hide`?",
        );
        refuse_toml(
            "hide = ['a']",
            "line 1, column 1: unknown key `hide`, did you mean `filesystem.hide`?",
        );
        refuse_toml(
            "limits = { memroy = '1G' }",
            "line 1, column 12: unknown key `limits.memroy`, did you mean `limits.memory`?",
        );
        refuse_toml(
            "\n[netwrk]\nmode = 'open'",
            "line 2, column 2: unknown key `netwrk`, did you mean `network`?",
        );
        refuse_toml(
            "[network]\nalow = []",
            "line 2, column 1: unknown key `network.alow`, did you mean `network.allow`?",
        );
        refuse_toml("zzzzzz = 1", "line 1, column 1: unknown key `zzzzzz`");
        refuse_json(
            "{\n  \"limits\": { \"memroy\": \"1G\" } }",
            "line 2, column 22: unknown key `limits.memroy`, did you mean `limits.memory`?",
        );
    }

    #[test]
    fn a_wrong_value_names_its_key_and_place() {
        refuse_toml(
            "[limits]\nmemory = '1Q'",
            "line 2, column 10: `limits.memory`: `1Q` has an unknown unit `Q`: it is one of K, M, \
             G, T (each 1024 of the one before)",
        );
        refuse_toml(
            "require = ['netwrok']",
            "line 1, column 12: `require`: unknown variant `netwrok`, expected one of \
             `filesystem`, `hide`, `protect`, \
             `network`, `egress`, `processes`, `ipc`, `privilege`, `kernel`, `terminal`, \
             `environment`, `cleanup`, \
             `time`, `output`, `memory`, `cpus`, `process-count`, `tmp`, `disk`",
        );
        refuse_json(
            r#"{"backend":"native","limits":{"cpus":0}}"#,
            "line 1, column 39: `limits.cpus`: `0` processors: it is a number from 0.01, such as \
             0.5 or 2",
        );
    }

    #[test]
    fn text_that_is_no_document_is_refused_with_its_position() {
        let error = Policy::from_toml("a = \n").unwrap_err();
        assert_eq!((error.line, error.key), (1, None));
        let error = Policy::from_json("{\n\"limits\": }").unwrap_err();
        assert_eq!((error.line, error.key), (2, None));
        assert!(Policy::from_json("").is_err());
    }

    #[test]
    fn every_key_of_a_document_knows_its_line() {
        let lines = KeyLines::from_toml(
            "backend = 'native'\n[limits]\n\nmemory = '1G'\n[env]\nset = { A = '1' }\n",
        );
        assert_eq!(lines.line("backend"), Some(1));
        assert_eq!(lines.line("limits.memory"), Some(4));
        assert_eq!(lines.line("limits.time"), Some(2));
        assert_eq!(lines.line("env.set.A"), Some(6));
        assert_eq!(lines.line("network.mode"), None);
    }

    #[test]
    fn a_path_that_is_not_utf_8_still_has_a_hash() {
        use std::os::unix::ffi::OsStringExt;
        let path = std::ffi::OsString::from_vec(vec![b'/', 0xff]);
        assert_eq!(Policy::default().read(path).sha256().len(), 64);
    }
}
