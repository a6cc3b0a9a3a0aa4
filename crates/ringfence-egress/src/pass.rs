//! Connections that were allowed, and their new check whenever the rules change.

use std::net::IpAddr;

use crate::proxy::{Proxy, ProxyMode};
use crate::{Denial, DenialReason, RequestKind, Rules, Target, Verdict};

/// Connection that was allowed.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionPass {
    pub(crate) target: Target,
    pub(crate) via: RequestKind,
    /// Address that was connected to, or `None` if an upstream proxy chose the address.
    pub(crate) address: Option<IpAddr>,
}

impl Proxy {
    /// Waits until the rules no longer allow `pass`, and returns the denial. Code that carries a
    /// connection polls this future first, each time, so that no byte passes under rules that were
    /// replaced.
    pub(crate) async fn wait_until_withdrawn(&self, pass: &ConnectionPass) -> Denial {
        self.wait_until_denied(|rules| self.find_denial_in(rules, pass)).await
    }

    /// Waits until a rule denies `named`, a host name that a client uses inside a tunnel to an
    /// address. Every name that no rule denies is allowed there.
    pub(crate) async fn wait_until_name_denied(&self, named: &Target) -> Denial {
        let denial = |rules: &Rules| match rules.judge(named) {
            Verdict::Denied(reason @ DenialReason::Listed { .. }) => {
                Some(Denial::for_target(named, RequestKind::Tls, reason))
            }
            _ => None,
        };
        self.wait_until_denied(denial).await
    }

    /// Returns the denial of a connection that was allowed before, or `None` if the current rules
    /// still allow it.
    pub(crate) fn find_denial(&self, pass: &ConnectionPass) -> Option<Denial> {
        self.find_denial_in(&self.rules(), pass)
    }

    async fn wait_until_denied(&self, denial: impl Fn(&Rules) -> Option<Denial>) -> Denial {
        let mut rules = self.rule_changes();
        loop {
            let denial = denial(&rules.borrow_and_update());
            if let Some(denial) = denial {
                return denial;
            }
            if rules.changed().await.is_err() {
                // The proxy has ended, and so have its connections.
                return std::future::pending().await;
            }
        }
    }

    fn find_denial_in(&self, rules: &Rules, pass: &ConnectionPass) -> Option<Denial> {
        let by_name = match rules.judge(&pass.target) {
            Verdict::Denied(DenialReason::Unlisted)
                if self.settings().mode == ProxyMode::Observe =>
            {
                Verdict::Allowed
            }
            verdict => verdict,
        };
        let by_address = pass.address.map(|address| rules.judge_address(&pass.target, address));
        [Some(by_name), by_address].into_iter().flatten().find_map(|verdict| match verdict {
            Verdict::Allowed => None,
            Verdict::Denied(reason) => Some(Denial::for_target(&pass.target, pass.via, reason)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_util::FutureExt;

    use super::*;
    use crate::{ClientLimits, ProxySettings, Resolver};

    #[test]
    fn replaced_rules_end_a_wait_that_begins_later() {
        let rules = |text: &str| Rules::new(&[text.parse().unwrap()], &[]);
        let nobody: SocketAddr = ([127, 0, 0, 1], 9).into();
        let resolver = Resolver::for_server(nobody).unwrap();
        let (mode, limits) = (ProxyMode::Enforce, ClientLimits::default());
        let settings = ProxySettings { mode, upstream: None, limits, resolver, credentials: None };
        let proxy = Proxy::new(rules("origin.test"), settings, |_| ());
        let target = Target::from_parts("origin.test", 443).unwrap();
        let pass =
            ConnectionPass { target: target.clone(), via: RequestKind::Connect, address: None };
        assert!(
            proxy.wait_until_withdrawn(&pass).now_or_never().is_none()
                && proxy.wait_until_name_denied(&target).now_or_never().is_none()
        );

        proxy.set_rules(Rules::new(&[], &["origin.test".parse().unwrap()]));
        for denial in [
            proxy.wait_until_withdrawn(&pass).now_or_never(),
            proxy.wait_until_name_denied(&target).now_or_never(),
        ] {
            assert_eq!(denial.expect("it is denied at once").reason.code(), "listed");
        }
        proxy.set_rules(rules("origin.test"));
        assert!(proxy.wait_until_withdrawn(&pass).now_or_never().is_none());
    }
}
