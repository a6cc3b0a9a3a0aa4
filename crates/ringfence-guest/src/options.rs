//! Command line of the guest.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Summary of all options on one line.
pub(crate) const USAGE: &str = "ringfence-guest [--listener FD | --handover PATH | --socket PATH \
                                | --listen ADDRESS:PORT] [--link ADDRESS:PORT | --link-socket \
                                PATH] [--link-lifetime SECONDS] [--directory DIR] [--token-file \
                                FILE | --token-hash SHA256] [--leash FILE] [--owner FD] [--gate] \
                                [--end-without-link] \
                                [--hold-until-denied SECONDS] | ringfence-guest --carry PATH | \
                                ringfence-guest --install PATH | ringfence-guest --try-network \
                                SECONDS";

/// Options that say where to listen, of which at most one can be given.
const LISTEN_OPTIONS: &str = "--listener, --handover, --socket, --listen";
/// Options that say where to accept carriers of links, of which at most one can be given.
const LINK_OPTIONS: &str = "--link, --link-socket";
/// Options that give the guest another task than to serve. Each takes one value.
const MODE_OPTIONS: [&str; 3] = ["--carry", "--install", "--try-network"];
/// Options that say which token callers must present, of which at most one can be given.
const TOKEN_OPTIONS: &str = "--token-file, --token-hash";
/// Time for which a link without a carrier is kept if no option says otherwise.
const DEFAULT_LINK_LIFETIME: Duration = Duration::from_secs(600);

/// Task of the guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GuestMode {
    /// Serve the sandbox.
    Serve(GuestOptions),
    /// Join the standard streams to the Unix socket at this path.
    Carry(PathBuf),
    /// Copy the program to this path.
    Install(PathBuf),
    /// Report what the network reaches. If the time is not zero, wait that long for a denial.
    TryNetwork(Duration),
}

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GuestOptions {
    /// Socket on which the guest accepts connections.
    pub(crate) listen: Option<ListenOption>,
    /// Socket on which the guest accepts carriers of links.
    pub(crate) link: Option<ListenOption>,
    /// Time for which a link without a carrier is kept.
    pub(crate) link_lifetime: Duration,
    /// Directory in which commands start by default; the user's home directory if absent.
    pub(crate) directory: Option<PathBuf>,
    /// Access token that callers must present. If absent, callers need no token.
    pub(crate) token: Option<TokenOption>,
    /// True to end when no carrier of a link has been there for the lifetime of links, because then
    /// nobody keeps the sandbox.
    pub(crate) ends_without_link: bool,
    /// Time in which the network must deny all connections before the guest serves anybody.
    pub(crate) hold_until_denied: Option<Duration>,
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

/// Origin of the access token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenOption {
    /// File that contains the token.
    File(PathBuf),
    /// SHA-256 hash of the token, in hexadecimal.
    Hash(String),
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
    #[error("`{option}` takes a value and no `{word}`")]
    BesideMode { option: &'static str, word: String },
    #[error("nothing says where to listen")]
    NowhereToListen,
}

impl GuestMode {
    /// Parses the words that follow the program's name.
    pub(crate) fn parse(words: impl Iterator<Item = OsString>) -> Result<GuestMode, OptionsError> {
        let mut words = words.peekable();
        let is_mode = |word: &OsString| MODE_OPTIONS.iter().any(|option| word == option);
        let Some(word) = words.next_if(is_mode) else {
            return GuestOptions::parse(words).map(GuestMode::Serve);
        };
        let option = MODE_OPTIONS.into_iter().find(|option| word == *option);
        let option = option.expect("the word is one of the options");
        let value = words.next().ok_or(OptionsError::NoValue(option))?;
        if let Some(word) = words.next() {
            let word = word.to_string_lossy().into_owned();
            return Err(OptionsError::BesideMode { option, word });
        }
        Ok(match option {
            "--carry" => GuestMode::Carry(value.into()),
            "--install" => GuestMode::Install(value.into()),
            _ => GuestMode::TryNetwork(parse_seconds(option, &value)?),
        })
    }
}

impl GuestOptions {
    /// Parses the words that follow the program's name.
    pub(crate) fn parse(
        words: impl Iterator<Item = OsString>,
    ) -> Result<GuestOptions, OptionsError> {
        let (mut listen, mut directory, mut token) = (None, None, None);
        let (mut leash, mut owner, mut gate) = (None, None, false);
        let mut ends_without_link = false;
        let (mut link, mut link_lifetime, mut hold_until_denied) = (None, None, None);
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
                Some("--link") => {
                    let address =
                        parse_value("--link", &value("--link")?, "an address and a port")?;
                    set_once(LINK_OPTIONS, &mut link, ListenOption::Address(address))?;
                }
                Some("--link-socket") => set_once(
                    LINK_OPTIONS,
                    &mut link,
                    ListenOption::Path(value("--link-socket")?.into()),
                )?,
                Some("--link-lifetime") => {
                    let lifetime = parse_seconds("--link-lifetime", &value("--link-lifetime")?)?;
                    set_once("--link-lifetime", &mut link_lifetime, lifetime)?;
                }
                Some("--hold-until-denied") => {
                    let option = "--hold-until-denied";
                    let limit = parse_seconds(option, &value(option)?)?;
                    set_once(option, &mut hold_until_denied, limit)?;
                }
                Some("--directory") => {
                    set_once("--directory", &mut directory, value("--directory")?.into())?
                }
                Some("--token-file") => {
                    let file = TokenOption::File(value("--token-file")?.into());
                    set_once(TOKEN_OPTIONS, &mut token, file)?
                }
                Some("--token-hash") => {
                    let hash = value("--token-hash")?.to_string_lossy().into_owned();
                    set_once(TOKEN_OPTIONS, &mut token, TokenOption::Hash(hash))?
                }
                Some("--leash") => set_once("--leash", &mut leash, value("--leash")?.into())?,
                Some("--gate") => gate = true,
                Some("--end-without-link") => ends_without_link = true,
                _ => return Err(OptionsError::Unknown(word.to_string_lossy().into_owned())),
            }
        }
        if listen.is_none() && link.is_none() {
            return Err(OptionsError::NowhereToListen);
        }
        let link_lifetime = link_lifetime.unwrap_or(DEFAULT_LINK_LIFETIME);
        Ok(GuestOptions {
            listen,
            link,
            link_lifetime,
            directory,
            token,
            ends_without_link,
            hold_until_denied,
            leash,
            owner,
            gate,
        })
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

fn parse_seconds(option: &'static str, value: &OsString) -> Result<Duration, OptionsError> {
    parse_value(option, value, "a number of seconds").map(Duration::from_secs)
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
        let listen = |line| parse(line).unwrap().listen.unwrap();
        assert_eq!(listen("--listener 3"), ListenOption::Inherited(3));
        assert_eq!(
            listen("--handover /run/handover"),
            ListenOption::Handed("/run/handover".into())
        );
        assert_eq!(
            listen("--socket /run/guest.sock"),
            ListenOption::Path("/run/guest.sock".into())
        );
        assert_eq!(
            listen("--listen 127.0.0.1:49983"),
            ListenOption::Address(SocketAddr::from(([127, 0, 0, 1], 49983)))
        );
    }

    #[test]
    fn links_are_accepted_beside_connections_or_alone() {
        let alone = parse("--link 127.0.0.1:49984").unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 49984));
        assert_eq!(alone.link, Some(ListenOption::Address(address)));
        assert_eq!(alone.listen, None);
        assert_eq!(alone.link_lifetime, Duration::from_secs(600));
        let beside = parse("--listener 3 --link-socket /run/link.sock --link-lifetime 5").unwrap();
        assert_eq!(beside.listen, Some(ListenOption::Inherited(3)));
        assert_eq!(beside.link, Some(ListenOption::Path("/run/link.sock".into())));
        assert_eq!(beside.link_lifetime, Duration::from_secs(5));
    }

    #[test]
    fn a_carrier_takes_a_path_and_no_other_option() {
        let mode = |line: &str| GuestMode::parse(line.split_whitespace().map(OsString::from));
        assert_eq!(mode("--carry /run/link.sock"), Ok(GuestMode::Carry("/run/link.sock".into())));
        assert_eq!(mode("--install /run/guest"), Ok(GuestMode::Install("/run/guest".into())));
        assert_eq!(mode("--try-network 0"), Ok(GuestMode::TryNetwork(Duration::ZERO)));
        assert_eq!(mode("--carry"), Err(OptionsError::NoValue("--carry")));
        let beside = mode("--carry /run/link.sock --gate").unwrap_err();
        assert_eq!(beside.to_string(), "`--carry` takes a value and no `--gate`");
        assert!(matches!(mode("--link-socket /a"), Ok(GuestMode::Serve(_))));
    }

    #[test]
    fn an_invalid_command_line_is_refused_with_the_reason() {
        refused("", "nothing says where to listen");
        refused("--lisen x", "`--lisen` is not an option");
        refused("--socket", "`--socket` needs a value");
        refused("--link-lifetime 5", "nothing says where to listen");
        refused("--link a:b", "`a:b` is not an address and a port, which `--link` needs");
        refused("--link-socket a --link 127.0.0.1:1", "`--link, --link-socket` is given twice");
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
