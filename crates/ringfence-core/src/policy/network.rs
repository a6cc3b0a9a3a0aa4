//! What can be reached.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::policy::HostRule;

/// What can be reached from a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Table", into = "Table")]
pub enum Network {
    /// Nothing.
    Closed,
    /// These hosts; none when the list is empty.
    Allow(Vec<HostRule>),
    /// Whatever the host itself can reach.
    Open,
}

impl Network {
    /// The name in documents and flags.
    pub const fn mode(&self) -> &'static str {
        match self {
            Network::Closed => "closed",
            Network::Allow(_) => "allow",
            Network::Open => "open",
        }
    }

    /// The hosts that are named.
    pub fn rules(&self) -> &[HostRule] {
        match self {
            Network::Allow(rules) => rules,
            Network::Closed | Network::Open => &[],
        }
    }

    /// Puts together what was said of the mode and of the hosts; each may be unsaid.
    pub fn from_parts(mode: Option<Mode>, allow: Option<Vec<HostRule>>) -> Result<Self, NetworkError> {
        match (mode, allow) {
            (None, None) => Err(NetworkError::Unsaid),
            (None | Some(Mode::Allow), Some(rules)) => Ok(Network::Allow(rules)),
            (Some(Mode::Allow), None) => Ok(Network::Allow(Vec::new())),
            (Some(mode), Some(rules)) if !rules.is_empty() => Err(NetworkError::Contradiction(mode)),
            (Some(Mode::Closed), _) => Ok(Network::Closed),
            (Some(Mode::Open), _) => Ok(Network::Open),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode())
    }
}

/// The three kinds of network, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing can be reached.
    Closed,
    /// The hosts of `allow` can be reached, and nothing else.
    Allow,
    /// Everything can be reached.
    Open,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Closed => "closed",
            Mode::Allow => "allow",
            Mode::Open => "open",
        })
    }
}

impl std::str::FromStr for Mode {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let modes = [Mode::Closed, Mode::Allow, Mode::Open];
        let named = modes.into_iter().find(|mode| mode.to_string() == text);
        named.ok_or_else(|| NetworkError::UnknownMode(text.to_owned()))
    }
}

/// Why a network is not well said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Neither the mode nor the hosts are there.
    #[error("the network needs a `mode` (closed, allow or open) or a list `allow`")]
    Unsaid,
    /// Hosts are listed that the mode has no use for.
    #[error("network mode `{0}` and a list `allow` contradict each other: write mode `allow`, or drop the list")]
    Contradiction(Mode),
    /// The mode is none of ours.
    #[error("unknown network mode `{0}`: it is one of closed, allow, open")]
    UnknownMode(String),
}

/// The network as documents write it.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Nothing, the hosts of `allow`, or everything; `allow` when only hosts are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    /// The hosts that can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allow: Option<Vec<HostRule>>,
}

impl TryFrom<Table> for Network {
    type Error = NetworkError;

    fn try_from(table: Table) -> Result<Self, Self::Error> {
        Network::from_parts(table.mode, table.allow)
    }
}

impl From<Network> for Table {
    fn from(network: Network) -> Self {
        match network {
            Network::Closed => Table { mode: Some(Mode::Closed), allow: None },
            Network::Allow(rules) => Table { mode: Some(Mode::Allow), allow: Some(rules) },
            Network::Open => Table { mode: Some(Mode::Open), allow: None },
        }
    }
}

impl JsonSchema for Network {
    fn schema_name() -> Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Table::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<HostRule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[track_caller]
    fn check(document: &str, expected: Network) {
        let network: Network = toml::from_str(document).unwrap();
        assert_eq!(network, expected);
        let again: Network = toml::from_str(&toml::to_string(&network).unwrap()).unwrap();
        assert_eq!(again, expected);
    }

    #[track_caller]
    fn refuse(document: &str, message: &str) {
        assert_eq!(toml::from_str::<Network>(document).unwrap_err().message(), message);
    }

    #[test]
    fn a_network_is_closed_open_or_a_list_of_hosts() {
        check("mode = 'closed'", Network::Closed);
        check("mode = 'closed'\nallow = []", Network::Closed);
        check("mode = 'open'", Network::Open);
        check("mode = 'allow'\nallow = ['example.org']", Network::Allow(rules(&["example.org"])));
        check("allow = ['*.example.org:443']", Network::Allow(rules(&["*.example.org:443"])));
    }

    #[test]
    fn an_empty_list_allows_nothing_rather_than_everything() {
        check("allow = []", Network::Allow(vec![]));
        check("mode = 'allow'", Network::Allow(vec![]));
    }

    #[test]
    fn contradictions_and_unknown_words_are_refused() {
        refuse(
            "mode = 'open'\nallow = ['a.org']",
            "network mode `open` and a list `allow` contradict each other: write mode `allow`, or drop the list",
        );
        refuse(
            "mode = 'closed'\nallow = ['a.org']",
            "network mode `closed` and a list `allow` contradict each other: write mode `allow`, or drop the list",
        );
        refuse("", "the network needs a `mode` (closed, allow or open) or a list `allow`");
        refuse("mode = 'ajar'", "unknown variant `ajar`, expected one of `closed`, `allow`, `open`");
        refuse("hosts = []", "unknown field `hosts`, expected `mode` or `allow`");
        assert_eq!(
            "ajar".parse::<Mode>().unwrap_err().to_string(),
            "unknown network mode `ajar`: it is one of closed, allow, open"
        );
    }
}
