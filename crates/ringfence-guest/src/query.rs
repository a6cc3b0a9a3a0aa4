//! What the query of a URL says.

use std::collections::HashMap;

use hyper::Uri;
use ringfence_proto::code::{Code, Failure};

/// The parameters of a URL; of one that is given twice, the first.
#[derive(Debug, Default)]
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    /// Those of a request's URL.
    pub(crate) fn of(uri: &Uri) -> Result<Query, Failure> {
        let mut parameters = HashMap::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = decode(name).zip(decode(value));
            let (name, value) =
                decoded.ok_or_else(|| Failure::new(Code::InvalidArgument, "the URL's query is not encoded text"))?;
            parameters.entry(name).or_insert(value);
        }
        Ok(Query(parameters))
    }

    /// What a parameter says, if it is given.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Text out of its encoding in a query, where a space may be a plus.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (char::from(rest.next()?).to_digit(16)?, char::from(rest.next()?).to_digit(16)?);
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Result<Query, Failure> {
        Query::of(&format!("/files?{text}").parse().expect("is a URL"))
    }

    #[test]
    fn parameters_are_decoded() {
        let query = query("path=%2Ftmp%2Fa+b%C3%A4&username=&x&path=second").expect("is well-formed");
        assert_eq!(query.get("path"), Some("/tmp/a bä"));
        assert_eq!(query.get("username"), Some(""));
        assert_eq!(query.get("signature"), None);
    }

    #[test]
    fn a_broken_encoding_is_refused() {
        for wrong in ["path=%", "path=%2", "path=%zz", "path=%ff", "%=x"] {
            assert_eq!(query(wrong).expect_err(wrong).code, Code::InvalidArgument);
        }
    }
}
