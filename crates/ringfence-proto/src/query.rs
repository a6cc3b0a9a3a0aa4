//! What the query of a URL says.

use crate::code::{Code, Failure};

/// The parameters of a URL, in their order.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the query of a URL, which stands behind its `?`.
    pub fn of(text: &str) -> Result<Query, Failure> {
        let mut parameters = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = decode(name).zip(decode(value));
            let wrong = || Failure::new(Code::InvalidArgument, "the URL's query is not encoded text");
            parameters.push(decoded.ok_or_else(wrong)?);
        }
        Ok(Query(parameters))
    }

    /// What a parameter says, if it is given; of one that is given twice, the first.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// What a parameter says each time that it is given.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// All parameters.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Text out of its encoding in a query, where a space may be a plus.
fn decode(text: &str) -> Option<String> {
    unescaped(&text.replace('+', " "))
}

/// Text out of its encoding in a URL, if it is such.
pub fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (char::from(rest.next()?).to_digit(16)?, char::from(rest.next()?).to_digit(16)?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::of("path=%2Ftmp%2Fa+b%C3%A4&username=&x&path=second").expect("is well-formed");
        assert_eq!(query.get("path"), Some("/tmp/a bä"));
        assert_eq!(query.all("path").collect::<Vec<_>>(), ["/tmp/a bä", "second"]);
        assert_eq!(query.get("username"), Some(""));
        assert_eq!(query.get("signature"), None);
    }

    #[test]
    fn a_plus_is_a_space_in_a_query_alone() {
        assert_eq!(unescaped("a%2Fb+c%3Ad").as_deref(), Some("a/b+c:d"));
        assert_eq!(unescaped("%f"), None);
    }

    #[test]
    fn a_broken_encoding_is_refused() {
        for wrong in ["path=%", "path=%2", "path=%zz", "path=%ff", "%=x"] {
            assert_eq!(Query::of(wrong).expect_err(wrong).code, Code::InvalidArgument);
        }
    }
}
