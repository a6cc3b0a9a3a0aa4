//! Network rules of a policy: no network, some hosts, or everything that the host can reach.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::policy::HostRule;

/// Network that can be reached from a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "NetworkTable", into = "NetworkTable")]
pub enum Network {
    /// Nothing can be reached.
    Closed,
    /// Only the hosts that the [`Egress`] rules permit can be reached.
    Allow(Egress),
    /// Everything that the host itself can reach can be reached.
    Open,
}

/// Rules for the traffic that leaves a sandbox in mode `allow`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress {
    /// Hosts that can be reached. An empty list allows no host.
    pub allow: Vec<HostRule>,
    /// Hosts that cannot be reached, even if `allow` names them.
    pub deny: Vec<HostRule>,
    /// `true` if programs that do not use a proxy can reach the same hosts.
    pub transparent: bool,
    /// `true` if hosts that are in neither list can be reached as well, and are recorded.
    pub observe: bool,
}

impl Network {
    /// Returns a network that can reach only these hosts.
    pub fn only(hosts: impl IntoIterator<Item = HostRule>) -> Self {
        Network::Allow(Egress { allow: hosts.into_iter().collect(), ..Egress::default() })
    }

    /// Returns the name of the mode in documents and flags.
    pub const fn mode(&self) -> &'static str {
        match self {
            Network::Closed => "closed",
            Network::Allow(_) => "allow",
            Network::Open => "open",
        }
    }

    /// Returns the egress rules in mode `allow`; the other modes have none.
    pub const fn egress(&self) -> Option<&Egress> {
        match self {
            Network::Allow(egress) => Some(egress),
            Network::Closed | Network::Open => None,
        }
    }

    /// Returns the hosts of `allow`; the list is empty in the modes `closed` and `open`.
    pub fn rules(&self) -> &[HostRule] {
        self.egress().map_or(&[], |egress| &egress.allow)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode())
    }
}

/// Mode of the network of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Mode")]
pub enum NetworkMode {
    /// Nothing can be reached.
    Closed,
    /// Only the hosts of `allow` can be reached.
    Allow,
    /// Everything that the host can reach can be reached.
    Open,
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetworkMode::Closed => "closed",
            NetworkMode::Allow => "allow",
            NetworkMode::Open => "open",
        })
    }
}

impl std::str::FromStr for NetworkMode {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let modes = [NetworkMode::Closed, NetworkMode::Allow, NetworkMode::Open];
        let named = modes.into_iter().find(|mode| mode.to_string() == text);
        named.ok_or_else(|| NetworkError::UnknownMode(text.to_owned()))
    }
}

/// Error in the network rules of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The table has neither `mode` nor `allow`, and `observe` is not `true`.
    #[error("the network needs a `mode` (closed, allow or open) or a list `allow`")]
    Unsaid,
    /// A key has a value that only mode `allow` can use, and the mode is another one.
    #[error(
        "network mode `{mode}` and `{key}` contradict each other: write mode `allow`, or drop \
         `{key}`"
    )]
    Contradiction {
        /// Mode that the table states: `closed` or `open`.
        mode: NetworkMode,
        /// Name of the key that contradicts the mode.
        key: &'static str,
    },
    /// The text is not the name of a mode.
    #[error("unknown network mode `{0}`: it is one of closed, allow, open")]
    UnknownMode(String),
}

/// Network of a sandbox, as written in documents and layers of settings. Each key is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Network")]
pub struct NetworkTable {
    /// Mode of the network. Without `mode`, the mode is `allow` if `allow` is present or `observe`
    /// is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// Hosts that can be reached in mode `allow`. A rule without a port means ports 80 and 443.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<HostRule>>,
    /// Hosts that cannot be reached, even if `allow` contains them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny: Option<Vec<HostRule>>,
    /// True if programs that do not use a proxy can reach the same hosts; the default is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent: Option<bool>,
    /// True if public hosts that are in neither list can be reached, too, and are recorded; the
    /// default is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observe: Option<bool>,
}

impl NetworkTable {
    /// Refuses a table that states the mode `closed` or `open` and also has rules for single hosts.
    pub fn check(&self) -> Result<(), NetworkError> {
        let Some(mode) = self.mode.filter(|mode| *mode != NetworkMode::Allow) else {
            return Ok(());
        };
        let names_hosts =
            |list: &Option<Vec<HostRule>>| list.as_ref().is_some_and(|list| !list.is_empty());
        let useless = [
            ("allow", names_hosts(&self.allow)),
            ("deny", names_hosts(&self.deny)),
            ("transparent", self.transparent == Some(true)),
            ("observe", self.observe == Some(true)),
        ];
        match useless.into_iter().find(|(_, is_said)| *is_said) {
            Some((key, _)) => Err(NetworkError::Contradiction { mode, key }),
            None => Ok(()),
        }
    }

    /// Returns the network that the table states, without the keys that its mode does not use.
    ///
    /// A table without `mode` means mode `allow` if `allow` is stated or `observe` is `true`. Any
    /// other table without `mode` states no network.
    pub fn network(&self) -> Option<Network> {
        let implied =
            (self.allow.is_some() || self.observe == Some(true)).then_some(NetworkMode::Allow);
        Some(match self.mode.or(implied)? {
            NetworkMode::Closed => Network::Closed,
            NetworkMode::Open => Network::Open,
            NetworkMode::Allow => Network::Allow(Egress {
                allow: self.allow.clone().unwrap_or_default(),
                deny: self.deny.clone().unwrap_or_default(),
                transparent: self.transparent.unwrap_or_default(),
                observe: self.observe.unwrap_or_default(),
            }),
        })
    }

    /// Returns `true` if the table states no key.
    pub fn is_unsaid(&self) -> bool {
        *self == NetworkTable::default()
    }

    /// Reads a table and refuses one that contradicts itself.
    pub(crate) fn consistent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = NetworkTable::deserialize(deserializer)?;
        table.check().map_err(D::Error::custom)?;
        Ok(table)
    }
}

impl TryFrom<NetworkTable> for Network {
    type Error = NetworkError;

    fn try_from(table: NetworkTable) -> Result<Self, Self::Error> {
        table.check()?;
        table.network().ok_or(NetworkError::Unsaid)
    }
}

impl From<Network> for NetworkTable {
    fn from(network: Network) -> Self {
        let mode = |mode| NetworkTable { mode: Some(mode), ..NetworkTable::default() };
        match network {
            Network::Closed => mode(NetworkMode::Closed),
            Network::Open => mode(NetworkMode::Open),
            Network::Allow(Egress { allow, deny, transparent, observe }) => NetworkTable {
                allow: Some(allow),
                deny: (!deny.is_empty()).then_some(deny),
                transparent: transparent.then_some(true),
                observe: observe.then_some(true),
                ..mode(NetworkMode::Allow)
            },
        }
    }
}

impl JsonSchema for Network {
    fn schema_name() -> Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        NetworkTable::json_schema(generator)
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
        check("mode = 'closed'\nallow = []\ntransparent = false", Network::Closed);
        check("mode = 'open'", Network::Open);
        check("mode = 'allow'\nallow = ['example.org']", Network::only(rules(&["example.org"])));
        check("allow = ['*.example.org:443']", Network::only(rules(&["*.example.org:443"])));
        let full = Egress {
            allow: rules(&["*.example.org"]),
            deny: rules(&["a.example.org", "10.0.0.0/8"]),
            transparent: true,
            observe: true,
        };
        check(
            "mode = 'allow'\nallow = ['*.example.org']\ndeny = ['a.example.org', '10.0.0.0/8']\n\
             transparent = true\nobserve = true",
            Network::Allow(full),
        );
        check("observe = true", Network::Allow(Egress { observe: true, ..Egress::default() }));
    }

    #[test]
    fn an_empty_list_allows_nothing_rather_than_everything() {
        check("allow = []", Network::only([]));
        check("mode = 'allow'", Network::only([]));
        check("mode = 'allow'\ndeny = []", Network::only([]));
    }

    #[test]
    fn contradictions_and_unknown_words_are_refused() {
        for mode in ["open", "closed"] {
            for (key, value) in [
                ("allow", "['a.org']"),
                ("deny", "['a.org']"),
                ("transparent", "true"),
                ("observe", "true"),
            ] {
                refuse(
                    &format!("mode = '{mode}'\n{key} = {value}"),
                    &format!(
                        "network mode `{mode}` and `{key}` contradict each other: write mode \
                         `allow`, or drop `{key}`"
                    ),
                );
            }
        }
        for unsaid in ["", "deny = ['a.org']", "transparent = true"] {
            refuse(unsaid, "the network needs a `mode` (closed, allow or open) or a list `allow`");
        }
        refuse(
            "mode = 'ajar'",
            "unknown variant `ajar`, expected one of `closed`, `allow`, `open`",
        );
        refuse(
            "hosts = []",
            "unknown field `hosts`, expected one of `mode`, `allow`, `deny`, `transparent`, \
             `observe`",
        );
        assert_eq!(
            "ajar".parse::<NetworkMode>().unwrap_err().to_string(),
            "unknown network mode `ajar`: it is one of closed, allow, open"
        );
    }
}
