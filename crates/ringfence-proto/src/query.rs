//! Query of a URL.

use crate::code::{Code, Failure};

/// Decoded parameters of a URL's query, in the order of the URL.
#[derive(Debug, Default)]
pub struct UrlQuery(Vec<(String, String)>);

impl UrlQuery {
    /// Parses the query of a URL, which is the part after the `?`.
    pub fn parse(text: &str) -> Result<UrlQuery, Failure> {
        let mut parameters = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = decode_parameter(name).zip(decode_parameter(value));
            let wrong =
                || Failure::new(Code::InvalidArgument, "the URL's query is not encoded text");
            parameters.push(decoded.ok_or_else(wrong)?);
        }
        Ok(UrlQuery(parameters))
    }

    /// Returns the value of a parameter, or `None` if the query does not have the parameter. If the
    /// parameter occurs several times, the first value is returned.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Returns the value of each occurrence of a parameter, in order.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns all parameters as pairs of name and value, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Decodes text from a query, where a plus sign stands for a space.
fn decode_parameter(text: &str) -> Option<String> {
    percent_decode(&text.replace('+', " "))
}

/// Decodes percent-encoded text. Returns `None` if the encoding is malformed or the result is not
/// UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (
                    char::from(rest.next()?).to_digit(16)?,
                    char::from(rest.next()?).to_digit(16)?,
                );
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
        let query = UrlQuery::parse("path=%2Ftmp%2Fa+b%C3%A4&username=&x&path=second")
            .expect("is well-formed");
        assert_eq!(query.get("path"), Some("/tmp/a bä"));
        assert_eq!(query.all("path").collect::<Vec<_>>(), ["/tmp/a bä", "second"]);
        assert_eq!(query.get("username"), Some(""));
        assert_eq!(query.get("signature"), None);
    }

    #[test]
    fn a_plus_means_a_space_only_in_a_query() {
        assert_eq!(percent_decode("a%2Fb+c%3Ad").as_deref(), Some("a/b+c:d"));
        assert_eq!(percent_decode("%f"), None);
    }

    #[test]
    fn a_broken_encoding_is_refused() {
        for wrong in ["path=%", "path=%2", "path=%zz", "path=%ff", "%=x"] {
            assert_eq!(UrlQuery::parse(wrong).expect_err(wrong).code, Code::InvalidArgument);
        }
    }
}
