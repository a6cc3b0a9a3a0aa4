//! Command line of the guest.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Summary of all options on one line.
pub(crate) const USAGE: &str = "ringfence-guest [--listener FD | --handover PATH | --socket PATH \
                                | --listen ADDRESS:PORT] [--directory DIR] [--token-file FILE] \
     [--leash FILE] [--owner FD] [--gate]";

/// Options that say where to listen, of which exactly one must be given.
const LISTEN_OPTIONS: &str = "--listener, --handover, --socket, --listen";

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GuestOptions {
    /// Socket on which the guest accepts connections.
    pub(crate) listen: ListenOption,
    /// Directory in which commands start by default; the user's home directory if absent.
    pub(crate) directory: Option<PathBuf>,
    /// File that contains the access token. If absent, callers need no token.
    pub(crate) token_file: Option<PathBuf>,
    /// Leash: a file that is locked for as long as the process that keeps the sandbox lives.
    pub(crate) leash: Option<PathBuf>,
    /// Descriptor of a pipe whose other end is open for as long as the process that keeps the
    /// sandbox lives.
    pub(crate) owner: Option<i32>,
    /// True to open a gate in the sandbox's network, and to send the gate to the process that hands
    /// over the listening socket.
    pub(crate) gate: bool,
}

/// Socket on which the guest accepts connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenOption {
    /// Unix socket that listens already, inherited under this descriptor number.
    Inherited(i32),
    /// Unix socket that listens already, received from the process that listens at this path.
    Handed(PathBuf),
    /// Unix socket that the guest creates at this path.
    Path(PathBuf),
    /// TCP socket that the guest binds to this address and port.
    Address(SocketAddr),
}

/// Error in the command line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OptionsError {
    #[error("`{0}` is not an option")]
    Unknown(String),
    #[error("`{0}` needs a value")]
    NoValue(&'static str),
    #[error("`{option}` is given twice")]
    Twice { option: &'static str },
    #[error("`{value}` is not {expected}, which `{option}` needs")]
    Value { option: &'static str, value: String, expected: &'static str },
    #[error("nothing says where to listen")]
    NowhereToListen,
}

impl GuestOptions {
    /// Parses the words that follow the program's name.
    pub(crate) fn parse(
        words: impl Iterator<Item = OsString>,
    ) -> Result<GuestOptions, OptionsError> {
        let (mut listen, mut directory, mut token_file) = (None, None, None);
        let (mut leash, mut owner, mut gate) = (None, None, false);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = |option| words.next().ok_or(OptionsError::NoValue(option));
            match word.to_str() {
                Some("--listener") => {
                    let number = parse_descriptor("--listener", &value("--listener")?)?;
                    set_once(LISTEN_OPTIONS, &mut listen, ListenOption::Inherited(number))?;
                }
                Some("--owner") => set_once(
                    "--owner",
                    &mut owner,
                    parse_descriptor("--owner", &value("--owner")?)?,
                )?,
                Some("--handover") => set_once(
                    LISTEN_OPTIONS,
                    &mut listen,
                    ListenOption::Handed(value("--handover")?.into()),
                )?,
                Some("--socket") => set_once(
                    LISTEN_OPTIONS,
                    &mut listen,
                    ListenOption::Path(value("--socket")?.into()),
                )?,
                Some("--listen") => {
                    let address =
                        parse_value("--listen", &value("--listen")?, "an address and a port")?;
                    set_once(LISTEN_OPTIONS, &mut listen, ListenOption::Address(address))?;
                }
                Some("--directory") => {
                    set_once("--directory", &mut directory, value("--directory")?.into())?
                }
                Some("--token-file") => {
                    set_once("--token-file", &mut token_file, value("--token-file")?.into())?
                }
                Some("--leash") => set_once("--leash", &mut leash, value("--leash")?.into())?,
                Some("--gate") => gate = true,
                _ => return Err(OptionsError::Unknown(word.to_string_lossy().into_owned())),
            }
        }
        let listen = listen.ok_or(OptionsError::NowhereToListen)?;
        Ok(GuestOptions { listen, directory, token_file, leash, owner, gate })
    }
}

fn set_once<T>(option: &'static str, place: &mut Option<T>, value: T) -> Result<(), OptionsError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(OptionsError::Twice { option }),
    }
}

/// Parses a descriptor number. The standard streams (0 to 2) are refused.
fn parse_descriptor(option: &'static str, value: &OsString) -> Result<i32, OptionsError> {
    match parse_value(option, value, "the number of a descriptor above 2")? {
        number @ 3.. => Ok(number),
        number => Err(OptionsError::Value {
            option,
            value: number.to_string(),
            expected: "a number above 2",
        }),
    }
}

fn parse_value<T: std::str::FromStr>(
    option: &'static str,
    value: &OsString,
    expected: &'static str,
) -> Result<T, OptionsError> {
    value.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let value = value.to_string_lossy().into_owned();
        OptionsError::Value { option, value, expected }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<GuestOptions, OptionsError> {
        GuestOptions::parse(line.split_whitespace().map(OsString::from))
    }

    #[track_caller]
    fn refused(line: &str, message: &str) {
        assert_eq!(parse(line).unwrap_err().to_string(), message);
    }

    #[test]
    fn each_listen_option_is_parsed() {
        assert_eq!(parse("--listener 3").unwrap().listen, ListenOption::Inherited(3));
        assert_eq!(
            parse("--handover /run/handover").unwrap().listen,
            ListenOption::Handed("/run/handover".into())
        );
        assert_eq!(
            parse("--socket /run/guest.sock").unwrap().listen,
            ListenOption::Path("/run/guest.sock".into())
        );
        assert_eq!(
            parse("--listen 127.0.0.1:49983").unwrap().listen,
            ListenOption::Address(SocketAddr::from(([127, 0, 0, 1], 49983)))
        );
    }

    #[test]
    fn an_invalid_command_line_is_refused_with_the_reason() {
        refused("", "nothing says where to listen");
        refused("--lisen x", "`--lisen` is not an option");
        refused("--socket", "`--socket` needs a value");
        refused("--listener 2", "`2` is not a number above 2, which `--listener` needs");
        refused(
            "--listener x",
            "`x` is not the number of a descriptor above 2, which `--listener` needs",
        );
        refused(
            "--listen nowhere",
            "`nowhere` is not an address and a port, which `--listen` needs",
        );
        refused(
            "--socket a --listener 3",
            "`--listener, --handover, --socket, --listen` is given twice",
        );
    }
}
