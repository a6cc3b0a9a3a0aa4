//! Command line of the guest.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Summary of all options on one line.
pub(crate) const USAGE: &str = "ringfence-guest [--listener FD | --handover PATH | --socket PATH | --listen ADDRESS:PORT] [--directory DIR] [--token-file FILE] \
     [--leash FILE] [--owner FD] [--gate]";

/// Options that say where to listen, of which exactly one must be given.
const LISTEN: &str = "--listener, --handover, --socket, --listen";

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Socket on which the guest accepts connections.
    pub(crate) listen: Listen,
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
pub(crate) enum Listen {
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

impl Options {
    /// Parses the words that follow the program's name.
    pub(crate) fn parse(words: impl Iterator<Item = OsString>) -> Result<Options, OptionsError> {
        let (mut listen, mut directory, mut token_file) = (None, None, None);
        let (mut leash, mut owner, mut gate) = (None, None, false);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = |option| words.next().ok_or(OptionsError::NoValue(option));
            match word.to_str() {
                Some("--listener") => {
                    let number = descriptor("--listener", &value("--listener")?)?;
                    once(LISTEN, &mut listen, Listen::Inherited(number))?;
                }
                Some("--owner") => {
                    once("--owner", &mut owner, descriptor("--owner", &value("--owner")?)?)?
                }
                Some("--handover") => {
                    once(LISTEN, &mut listen, Listen::Handed(value("--handover")?.into()))?
                }
                Some("--socket") => {
                    once(LISTEN, &mut listen, Listen::Path(value("--socket")?.into()))?
                }
                Some("--listen") => {
                    let address = parsed("--listen", &value("--listen")?, "an address and a port")?;
                    once(LISTEN, &mut listen, Listen::Address(address))?;
                }
                Some("--directory") => {
                    once("--directory", &mut directory, value("--directory")?.into())?
                }
                Some("--token-file") => {
                    once("--token-file", &mut token_file, value("--token-file")?.into())?
                }
                Some("--leash") => once("--leash", &mut leash, value("--leash")?.into())?,
                Some("--gate") => gate = true,
                _ => return Err(OptionsError::Unknown(word.to_string_lossy().into_owned())),
            }
        }
        let listen = listen.ok_or(OptionsError::NowhereToListen)?;
        Ok(Options { listen, directory, token_file, leash, owner, gate })
    }
}

fn once<T>(option: &'static str, place: &mut Option<T>, value: T) -> Result<(), OptionsError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(OptionsError::Twice { option }),
    }
}

/// Parses a descriptor number. The standard streams (0 to 2) are refused.
fn descriptor(option: &'static str, value: &OsString) -> Result<i32, OptionsError> {
    match parsed(option, value, "the number of a descriptor above 2")? {
        number @ 3.. => Ok(number),
        number => Err(OptionsError::Value {
            option,
            value: number.to_string(),
            expected: "a number above 2",
        }),
    }
}

fn parsed<T: std::str::FromStr>(
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

    fn parse(line: &str) -> Result<Options, OptionsError> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[track_caller]
    fn refused(line: &str, message: &str) {
        assert_eq!(parse(line).unwrap_err().to_string(), message);
    }

    #[test]
    fn each_way_to_listen_is_understood() {
        assert_eq!(parse("--listener 3").unwrap().listen, Listen::Inherited(3));
        assert_eq!(
            parse("--handover /run/handover").unwrap().listen,
            Listen::Handed("/run/handover".into())
        );
        assert_eq!(
            parse("--socket /run/guest.sock").unwrap().listen,
            Listen::Path("/run/guest.sock".into())
        );
        assert_eq!(
            parse("--listen 127.0.0.1:49983").unwrap().listen,
            Listen::Address(SocketAddr::from(([127, 0, 0, 1], 49983)))
        );
    }

    #[test]
    fn a_command_line_that_makes_no_sense_is_refused_with_the_reason() {
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
