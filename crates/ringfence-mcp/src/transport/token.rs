//! Secret token that clients of the HTTP address must show.

use ringfence_proto::signature::is_same_secret;
use sha2::{Digest as _, Sha256};

/// Minimum length of a token that cannot be guessed, in characters.
const MIN_TOKEN_LENGTH: usize = 16;

/// Secret token, of which only the hash is kept in memory.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// Creates a token from its text. The error says what is wrong with the text.
    pub fn new(text: &str) -> Result<Token, String> {
        let text = text.trim();
        if text.len() < MIN_TOKEN_LENGTH {
            return Err(format!(
                "the token is shorter than {MIN_TOKEN_LENGTH} characters, and could be guessed"
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "the token has characters that no header can carry: use only visible ASCII \
                 characters"
                    .to_owned(),
            );
        }
        Ok(Token(Sha256::digest(text).into()))
    }

    /// Returns whether an `Authorization` header contains the token. The comparison takes constant
    /// time, so that its duration reveals nothing about the token.
    pub(crate) fn is_shown_by(&self, header: &[u8]) -> bool {
        let Some((scheme, shown)) = header.split_at_checked("bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && is_same_secret(Sha256::digest(shown), self.0)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_whole_or_not_at_all() {
        let token = Token::new("0123456789abcdef\n").unwrap();
        assert!(token.is_shown_by(b"Bearer 0123456789abcdef"));
        assert!(token.is_shown_by(b"bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
        ] {
            assert!(!token.is_shown_by(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token(***)");
    }

    #[test]
    fn a_token_that_could_be_guessed_or_not_be_shown_is_refused() {
        assert!(Token::new("short").unwrap_err().contains("could be guessed"));
        assert!(Token::new("with space 0123456789").unwrap_err().contains("no header"));
    }
}
