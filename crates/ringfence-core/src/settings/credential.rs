//! Credentials: secrets that the egress proxy shows to outside hosts and that no sandbox sees.
//!
//! A credential states the host, the origin of the secret, and the header that presents the secret.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::text::serde_as_text;
use crate::policy::{Environment, Host, HostRule, VariableError};

/// Text that marks the place of the secret in a header template.
const SECRET_PLACEHOLDER: &str = "{secret}";
/// Headers that control how a message is read or transported, and so cannot present a secret.
const TRANSPORT_HEADERS: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "accept-encoding",
];

/// Secret of the host that the proxy adds to requests to some outside hosts. The settings contain
/// the origin of the secret, not the secret itself: exactly one of `file`, `command` and
/// `variable`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "CredentialTable", into = "CredentialTable")]
pub struct Credential {
    /// Hosts that get the secret.
    pub host: HostRule,
    /// Origin of the secret on the host.
    pub origin: SecretOrigin,
    /// Header that presents the secret.
    pub header: HeaderTemplate,
    /// Variable of the sandbox that has a placeholder as its value, for clients that do not start
    /// without the variable.
    pub placeholder: Option<String>,
}

/// Origin of a secret on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretOrigin {
    /// The content of the file with this path.
    File(PathBuf),
    /// The output of a program; the first word is the program, the others are its arguments.
    Command(Vec<String>),
    /// The value of the caller's variable with this name.
    Variable(String),
}

/// A header with a place for a secret, written as `Authorization: Bearer {secret}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTemplate {
    name: String,
    before: String,
    after: String,
}

/// Reason why a credential is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The host is an address. A secret needs a name, which its host can prove to have.
    #[error("`{0}` is an address: a secret is for a name, which its host proves to have")]
    Address(HostRule),
    /// The host is a wildcard under a public suffix, where each name can have another owner.
    #[error("`{0}` names hosts of many owners: name the one that the secret is for")]
    ManyOwners(HostRule),
    /// The credential states no origin, or more than one.
    #[error("a secret comes from one place: write `file`, `command` or `variable`")]
    Origin,
    /// The command is an empty list.
    #[error(
        "`command` is empty: write the program and its arguments, as in \
         [\"pass\", \"show\", \"api\"]"
    )]
    Command,
    /// The text of `variable` or `placeholder` is not a valid name of a variable.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The text is not a header with exactly one `{secret}` in its value.
    #[error(
        "`{0}` is no header with one `{{secret}}` in its value: write for example `Authorization: \
         Bearer {{secret}}`"
    )]
    Header(String),
    /// The header controls how a request is transported. Holds the name of the header.
    #[error("`{0}` says how a request is carried: a secret is presented in another header")]
    Reserved(String),
}

/// Credential, as written in a document.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Credential")]
struct CredentialTable {
    /// Hosts that get the secret: a name such as `api.example.org`, or all names below a name, such
    /// as `*.example.org`.
    host: HostRule,
    /// File that contains the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// Program that prints the secret, and its arguments; no shell interprets the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    /// Name of the caller's variable that contains the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    /// Header that presents the secret, with `{secret}` in place of the secret. The default is
    /// `Authorization: Bearer {secret}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    header: Option<HeaderTemplate>,
    /// Name of a variable of the sandbox that gets a placeholder as its value, for clients that do
    /// not start without the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placeholder: Option<String>,
}

impl Default for HeaderTemplate {
    fn default() -> HeaderTemplate {
        HeaderTemplate {
            name: "Authorization".to_owned(),
            before: "Bearer ".to_owned(),
            after: String::new(),
        }
    }
}

impl HeaderTemplate {
    /// Returns the name of the header.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value of the header with `secret` filled in.
    ///
    /// The function leaves no copy of the secret in freed memory, because it allocates the whole
    /// value at once.
    pub fn filled_with(&self, secret: &[u8]) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.before.len() + secret.len() + self.after.len());
        value.extend_from_slice(self.before.as_bytes());
        value.extend_from_slice(secret);
        value.extend_from_slice(self.after.as_bytes());
        value
    }
}

impl FromStr for HeaderTemplate {
    type Err = CredentialError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || CredentialError::Header(text.to_owned());
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let (before, after) = value.trim().split_once(SECRET_PLACEHOLDER).ok_or_else(wrong)?;
        // RFC 9110, sections 5.1 and 5.6.2: the name of a header is a token of these bytes.
        let is_token_byte =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let is_text = |part: &str| part.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if name.is_empty()
            || !name.bytes().all(is_token_byte)
            || !is_text(value)
            || after.contains(SECRET_PLACEHOLDER)
        {
            return Err(wrong());
        }
        let folded = name.to_ascii_lowercase();
        if TRANSPORT_HEADERS.contains(&folded.as_str()) || folded.starts_with("proxy-") {
            return Err(CredentialError::Reserved(name.to_owned()));
        }
        Ok(HeaderTemplate {
            name: name.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }
}

impl fmt::Display for HeaderTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{SECRET_PLACEHOLDER}{}", self.name, self.before, self.after)
    }
}

serde_as_text!(HeaderTemplate, "a header such as `Authorization: Bearer {secret}`");

impl TryFrom<CredentialTable> for Credential {
    type Error = CredentialError;

    fn try_from(table: CredentialTable) -> Result<Self, Self::Error> {
        let CredentialTable { host, file, command, variable, header, placeholder } = table;
        match &host.host {
            Host::Network { .. } => return Err(CredentialError::Address(host)),
            // A company can give the names beneath its suffix to different owners.
            Host::Beneath(parent) if parent.is_public_suffix() => {
                return Err(CredentialError::ManyOwners(host));
            }
            Host::Beneath(_) | Host::Name(_) => {}
        }
        let origin = match (file, command, variable) {
            (Some(file), None, None) => SecretOrigin::File(file),
            (None, Some(words), None) if words.is_empty() => return Err(CredentialError::Command),
            (None, Some(words), None) => SecretOrigin::Command(words),
            (None, None, Some(name)) => SecretOrigin::Variable(name),
            _ => return Err(CredentialError::Origin),
        };
        if let SecretOrigin::Variable(name) = &origin {
            Environment::check_name(name)?;
        }
        placeholder.as_deref().map(Environment::check_name).transpose()?;
        Ok(Credential { host, origin, header: header.unwrap_or_default(), placeholder })
    }
}

impl From<Credential> for CredentialTable {
    fn from(credential: Credential) -> CredentialTable {
        let Credential { host, origin, header, placeholder } = credential;
        let mut table = CredentialTable {
            host,
            file: None,
            command: None,
            variable: None,
            header: Some(header),
            placeholder,
        };
        match origin {
            SecretOrigin::File(path) => table.file = Some(path),
            SecretOrigin::Command(words) => table.command = Some(words),
            SecretOrigin::Variable(name) => table.variable = Some(name),
        }
        table
    }
}

/// Shows the origin to people. The arguments of a program may be secret, so only its name is shown.
impl fmt::Display for SecretOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretOrigin::File(path) => write!(f, "file {}", path.display()),
            SecretOrigin::Command(words) => {
                write!(f, "command {}", words.first().map_or("", String::as_str))
            }
            SecretOrigin::Variable(name) => write!(f, "variable {name}"),
        }
    }
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} from {}", self.host, self.header.name(), self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Credential, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[track_caller]
    fn refuse(text: &str, message: &str) {
        assert_eq!(read(text).unwrap_err(), message);
    }

    #[test]
    fn a_credential_has_a_host_an_origin_and_a_header() {
        let credential = read("host = 'api.example.org'\nvariable = 'API_KEY'").unwrap();
        assert_eq!(credential.header.to_string(), "Authorization: Bearer {secret}");
        assert_eq!(credential.header.filled_with(b"s3"), b"Bearer s3");
        assert_eq!(credential.origin, SecretOrigin::Variable("API_KEY".to_owned()));
        let text = "host = '*.example.org:8443'\ncommand = ['pass', 'show', 'x']\n\
            header = 'X-Key:{secret};v=1'\n\
            placeholder = 'KEY'";
        let credential = read(text).unwrap();
        assert_eq!(credential.header.name(), "X-Key");
        assert_eq!(credential.header.filled_with(b"s3"), b"s3;v=1");
        assert_eq!(credential.to_string(), "*.example.org:8443: X-Key from command pass");
        let again: Credential = toml::from_str(&toml::to_string(&credential).unwrap()).unwrap();
        assert_eq!(again, credential);
    }

    #[test]
    fn a_secret_has_one_origin_and_is_for_a_name_with_one_owner() {
        refuse(
            "host = '192.0.2.1'\nfile = '/x'",
            "`192.0.2.1` is an address: a secret is for a name, which its host proves to have",
        );
        refuse(
            "host = '*.github.io'\nfile = '/x'",
            "`*.github.io` names hosts of many owners: name the one that the secret is for",
        );
        assert!(read("host = '*.example.org'\nfile = '/x'").is_ok());
        let origin = "a secret comes from one place: write `file`, `command` or `variable`";
        refuse("host = 'a.org'", origin);
        refuse("host = 'a.org'\nfile = '/x'\nvariable = 'X'", origin);
        assert!(
            read("host = 'a.org'\ncommand = []").unwrap_err().starts_with("`command` is empty")
        );
        assert!(
            read("host = 'a.org'\nvariable = 'A=B'")
                .unwrap_err()
                .contains("is no name of a variable")
        );
        assert!(
            read("host = 'a.org'\nfile = '/x'\nplaceholder = ''")
                .unwrap_err()
                .contains("no name of a variable")
        );
    }

    #[test]
    fn a_header_has_one_secret_and_is_no_transport_header() {
        for wrong in [
            "Authorization",
            "X: y",
            "X: {secret}{secret}",
            ": {secret}",
            "X Y: {secret}",
            "X: {secret}\u{e9}",
        ] {
            assert_eq!(
                wrong.parse::<HeaderTemplate>(),
                Err(CredentialError::Header(wrong.to_owned())),
                "{wrong}"
            );
        }
        assert!("X: \r\nY: {secret}".parse::<HeaderTemplate>().is_err());
        for name in
            ["Host", "content-length", "Proxy-Authorization", "Transfer-Encoding", "Connection"]
        {
            let error = format!("{name}: {{secret}}").parse::<HeaderTemplate>().unwrap_err();
            assert_eq!(error, CredentialError::Reserved(name.to_owned()));
        }
    }
}
