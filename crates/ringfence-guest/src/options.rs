//! How the guest is started: its command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What can be asked for, in one line.
pub(crate) const USAGE: &str = "ringfence-guest [--listener FD | --handover PATH | --socket PATH | --listen ADDRESS:PORT] [--directory DIR] [--token-file FILE] \
     [--leash FILE] [--owner FD] [--gate]";

/// The options of which one says where to listen.
const LISTEN: &str = "--listener, --handover, --socket, --listen";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Where it takes calls.
    pub(crate) listen: Listen,
    /// Where commands start; at home when absent.
    pub(crate) directory: Option<PathBuf>,
    /// Holds what every caller must know.
    pub(crate) token_file: Option<PathBuf>,
    /// A file that is locked as long as somebody wants the sandbox.
    pub(crate) leash: Option<PathBuf>,
    /// A pipe, by its number, that has another end as long as somebody wants the sandbox.
    pub(crate) owner: Option<i32>,
    /// Whether a gate of the sandbox's network is made, and given for the socket that is handed over.
    pub(crate) gate: bool,
}

/// Where calls are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    /// On a Unix socket that listens already, by its number.
    Inherited(i32),
    /// On a Unix socket that listens already, and that whoever listens at this path hands over.
    Handed(PathBuf),
    /// On a Unix socket that is made at this path.
    Path(PathBuf),
    /// On a TCP port.
    Address(SocketAddr),
}

/// The command line makes no sense.
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
    /// Reads the words after the program's name.
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
                Some("--owner") => once("--owner", &mut owner, descriptor("--owner", &value("--owner")?)?)?,
                Some("--handover") => once(LISTEN, &mut listen, Listen::Handed(value("--handover")?.into()))?,
                Some("--socket") => once(LISTEN, &mut listen, Listen::Path(value("--socket")?.into()))?,
                Some("--listen") => {
                    let address = parsed("--listen", &value("--listen")?, "an address and a port")?;
                    once(LISTEN, &mut listen, Listen::Address(address))?;
                }
                Some("--directory") => once("--directory", &mut directory, value("--directory")?.into())?,
                Some("--token-file") => once("--token-file", &mut token_file, value("--token-file")?.into())?,
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

/// The number of a descriptor that is none of the standard streams.
fn descriptor(option: &'static str, value: &OsString) -> Result<i32, OptionsError> {
    match parsed(option, value, "the number of a descriptor above 2")? {
        number @ 3.. => Ok(number),
        number => Err(OptionsError::Value { option, value: number.to_string(), expected: "a number above 2" }),
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
        assert_eq!(parse("--handover /run/handover").unwrap().listen, Listen::Handed("/run/handover".into()));
        assert_eq!(parse("--socket /run/guest.sock").unwrap().listen, Listen::Path("/run/guest.sock".into()));
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
        refused("--listener x", "`x` is not the number of a descriptor above 2, which `--listener` needs");
        refused("--listen nowhere", "`nowhere` is not an address and a port, which `--listen` needs");
        refused("--socket a --listener 3", "`--listener, --handover, --socket, --listen` is given twice");
    }
}
