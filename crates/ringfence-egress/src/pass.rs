//! Connections that were allowed, and their new check whenever the rules change.

use std::net::IpAddr;

use crate::proxy::{Mode, Proxy};
use crate::{Denial, Reason, Rules, Target, Verdict, Via};

/// Connection that was allowed.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    pub(crate) target: Target,
    pub(crate) via: Via,
    /// Address that was connected to, or `None` if an upstream proxy chose the address.
    pub(crate) address: Option<IpAddr>,
}

impl Proxy {
    /// Waits until the rules no longer allow `pass`, and returns the denial. Code that carries a
    /// connection polls this future first, each time, so that no byte passes under rules that were
    /// replaced.
    pub(crate) async fn withdrawn(&self, pass: &Pass) -> Denial {
        self.until_denied(|rules| self.denial(rules, pass)).await
    }

    /// Waits until a rule denies `named`, a host name that a client uses inside a tunnel to an
    /// address. Every name that no rule denies is allowed there.
    pub(crate) async fn denied_inside(&self, named: &Target) -> Denial {
        let denial = |rules: &Rules| match rules.judge(named) {
            Verdict::Denied(reason @ Reason::Listed { .. }) => {
                Some(Denial::of(named, Via::Tls, reason))
            }
            _ => None,
        };
        self.until_denied(denial).await
    }

    /// Returns the denial of a connection that was allowed before, or `None` if the current rules
    /// still allow it.
    pub(crate) fn objection(&self, pass: &Pass) -> Option<Denial> {
        self.denial(&self.rules(), pass)
    }

    async fn until_denied(&self, denial: impl Fn(&Rules) -> Option<Denial>) -> Denial {
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

    fn denial(&self, rules: &Rules, pass: &Pass) -> Option<Denial> {
        let by_name = match rules.judge(&pass.target) {
            Verdict::Denied(Reason::Unlisted) if self.settings().mode == Mode::Observe => {
                Verdict::Allowed
            }
            verdict => verdict,
        };
        let by_address = pass.address.map(|address| rules.judge_address(&pass.target, address));
        [Some(by_name), by_address].into_iter().flatten().find_map(|verdict| match verdict {
            Verdict::Allowed => None,
            Verdict::Denied(reason) => Some(Denial::of(&pass.target, pass.via, reason)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_util::FutureExt;

    use super::*;
    use crate::{Limits, Resolver, Settings};

    #[test]
    fn rules_that_were_replaced_before_anybody_waited_for_that_count() {
        let rules = |text: &str| Rules::new(&[text.parse().unwrap()], &[]);
        let nobody: SocketAddr = ([127, 0, 0, 1], 9).into();
        let resolver = Resolver::at(nobody).unwrap();
        let (mode, limits) = (Mode::Enforce, Limits::default());
        let settings = Settings { mode, upstream: None, limits, resolver, credentials: None };
        let proxy = Proxy::new(rules("origin.test"), settings, |_| ());
        let target = Target::from_parts("origin.test", 443).unwrap();
        let pass = Pass { target: target.clone(), via: Via::Connect, address: None };
        assert!(
            proxy.withdrawn(&pass).now_or_never().is_none()
                && proxy.denied_inside(&target).now_or_never().is_none()
        );

        proxy.set_rules(Rules::new(&[], &["origin.test".parse().unwrap()]));
        for denial in
            [proxy.withdrawn(&pass).now_or_never(), proxy.denied_inside(&target).now_or_never()]
        {
            assert_eq!(denial.expect("it is denied at once").reason.code(), "listed");
        }
        proxy.set_rules(rules("origin.test"));
        assert!(proxy.withdrawn(&pass).now_or_never().is_none());
    }
}
