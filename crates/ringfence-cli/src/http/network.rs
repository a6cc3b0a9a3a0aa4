//! What a client wants of a sandbox's network, against what its template lets it reach: it may only narrow that.

use std::ffi::OsString;

use ringfence::policy::{HostRule, Network};

use super::reply::Refusal;
use super::requests::NetworkRequest;

/// What stands for everything in a client's list.
const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The flags of `ringfence up` that keep what a client asks for. What cannot be kept is refused.
pub(super) fn words(
    template: &Network,
    allows_internet: Option<bool>,
    asked: Option<&NetworkRequest>,
) -> Result<Vec<OsString>, Refusal> {
    let closed = || match template {
        Network::Closed => Ok(Vec::new()),
        _ => Ok(vec!["--net".into(), "closed".into()]),
    };
    if allows_internet == Some(false) {
        return closed();
    }
    let Some(asked) = asked else { return Ok(Vec::new()) };
    if let Some(field) = unkept(asked) {
        return Err(Refusal::wrong(format!("`network.{field}` cannot be kept by this server: leave it out")));
    }
    let (allowed, denied) = (list(asked.allow_out.as_ref()), list(asked.deny_out.as_ref()));
    let (everything, denied): (Vec<&str>, Vec<&str>) = denied.into_iter().partition(|rule| EVERYTHING.contains(rule));
    if everything.is_empty() {
        // Without a denial of everything, what a client allows is allowed already.
        return match (template, denied.as_slice()) {
            (_, []) | (Network::Closed, _) => Ok(Vec::new()),
            (Network::Allow(_), denied) => flags("--deny", &rules("denyOut", denied)?),
            (Network::Open, _) => Err(Refusal::wrong(
                "`network.denyOut` can be kept where all else is denied, too: add 0.0.0.0/0 to it, and what is needed to \
                 `network.allowOut`",
            )),
        };
    }
    if allowed.is_empty() {
        return closed();
    }
    let allowed = rules("allowOut", &allowed)?;
    match template {
        Network::Open => {}
        Network::Allow(egress) => {
            if let Some(rule) = allowed.iter().find(|rule| !rule.is_covered_by(&egress.allow)) {
                return Err(Refusal::wrong(format!("the template does not let `{rule}` be reached")));
            }
        }
        Network::Closed => return Err(Refusal::wrong("the template lets nothing be reached")),
    }
    let mut words = flags("--allow", &allowed)?;
    words.extend(flags("--deny", &rules("denyOut", &denied)?)?);
    Ok(words)
}

/// A field that is asked for and not kept.
fn unkept(asked: &NetworkRequest) -> Option<&'static str> {
    let given = [
        ("maskRequestHost", asked.mask_request_host.is_some()),
        ("dnsServers", asked.dns_servers.as_ref().is_some_and(|servers| !servers.is_empty())),
        ("egressProxy", asked.egress_proxy.as_ref().is_some_and(|proxy| !proxy.is_null())),
        ("httpsPorts", asked.https_ports.as_ref().is_some_and(|ports| !ports.is_empty())),
        ("rules", asked.rules.as_ref().is_some_and(|rules| !rules.is_empty())),
    ];
    given.into_iter().find_map(|(field, is_given)| is_given.then_some(field))
}

fn list(rules: Option<&Vec<String>>) -> Vec<&str> {
    rules.into_iter().flatten().map(String::as_str).collect()
}

fn rules(field: &str, texts: &[&str]) -> Result<Vec<HostRule>, Refusal> {
    let parse = |text: &&str| {
        let wrong = |error| Refusal::wrong(format!("`network.{field}`: {}", ringfence::chain(&error)));
        text.parse::<HostRule>().map_err(wrong)
    };
    texts.iter().map(parse).collect()
}

fn flags(flag: &str, rules: &[HostRule]) -> Result<Vec<OsString>, Refusal> {
    Ok(rules.iter().flat_map(|rule| [flag.into(), rule.to_string().into()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(template: &Network, asked: &str, expected: Result<&str, &str>) {
        let asked: NetworkRequest = serde_json::from_str(asked).unwrap();
        let found = words(template, Some(true), Some(&asked));
        let found = found.map(|words| words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "));
        match expected {
            Ok(words) => assert_eq!(found.unwrap(), words),
            Err(why) => assert!(found.as_ref().is_err_and(|refusal| refusal.message.contains(why)), "{found:?}"),
        }
    }

    #[test]
    fn a_client_may_narrow_what_its_template_lets_be_reached() {
        let open = Network::Open;
        check(&open, "{}", Ok(""));
        check(&open, r#"{"denyOut": ["0.0.0.0/0"]}"#, Ok("--net closed"));
        let one = r#"{"allowOut": ["example.org"], "denyOut": ["0.0.0.0/0"]}"#;
        check(&open, one, Ok("--allow example.org"));
        check(&open, r#"{"allowOut": ["example.org"]}"#, Ok(""));
        check(&open, r#"{"denyOut": ["example.org"]}"#, Err("add 0.0.0.0/0"));
        check(&open, r#"{"dnsServers": ["9.9.9.9"]}"#, Err("`network.dnsServers` cannot be kept"));

        let some = Network::only(["*.example.org".parse().unwrap()]);
        check(&some, r#"{"allowOut": ["a.example.org"], "denyOut": ["0.0.0.0/0"]}"#, Ok("--allow a.example.org"));
        check(&some, r#"{"allowOut": ["example.net"], "denyOut": ["0.0.0.0/0"]}"#, Err("`example.net`"));
        check(&some, r#"{"denyOut": ["b.example.org"]}"#, Ok("--deny b.example.org"));
        check(&Network::Closed, one, Err("lets nothing be reached"));
        check(&Network::Closed, "{}", Ok(""));
    }

    #[test]
    fn no_internet_is_none_whatever_the_template_says() {
        assert_eq!(words(&Network::Open, Some(false), None).unwrap(), ["--net", "closed"]);
        assert_eq!(words(&Network::Open, None, None).unwrap(), [""; 0]);
        assert_eq!(words(&Network::Closed, Some(false), None).unwrap(), [""; 0]);
    }

    #[test]
    fn a_wish_that_is_not_known_is_not_overlooked() {
        assert!(serde_json::from_str::<NetworkRequest>(r#"{"denyIn": ["0.0.0.0/0"]}"#).is_err());
    }
}
