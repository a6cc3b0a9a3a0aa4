//! What was let through, judged again whenever the rules change.

use std::net::IpAddr;

use crate::proxy::{Mode, Proxy};
use crate::{Denial, Reason, Rules, Target, Verdict, Via};

/// A way that was let through.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    pub(crate) target: Target,
    pub(crate) via: Via,
    /// The address at its other end; absent where an upstream proxy chose it.
    pub(crate) address: Option<IpAddr>,
}

impl Proxy {
    /// Waits until the rules no longer let through what they did. Whoever carries something polls this first, each time:
    /// then nothing is carried by rules that were replaced.
    pub(crate) async fn withdrawn(&self, pass: &Pass) -> Denial {
        self.until_denied(|rules| self.denial(rules, pass)).await
    }

    /// The same for a name that is said inside a tunnel to an address: it may be any that no rule denies.
    pub(crate) async fn denied_inside(&self, named: &Target) -> Denial {
        let denial = |rules: &Rules| match rules.judge(named) {
            Verdict::Denied(reason @ Reason::Listed { .. }) => Some(Denial::of(named, Via::Tls, reason)),
            _ => None,
        };
        self.until_denied(denial).await
    }

    /// Why what was let through would not be now, if it would not.
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
                return std::future::pending().await; // the proxy has ended, and with it all that it carries
            }
        }
    }

    fn denial(&self, rules: &Rules, pass: &Pass) -> Option<Denial> {
        let by_name = match rules.judge(&pass.target) {
            Verdict::Denied(Reason::Unlisted) if self.settings().mode == Mode::Observe => Verdict::Allowed,
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
            proxy.withdrawn(&pass).now_or_never().is_none() && proxy.denied_inside(&target).now_or_never().is_none()
        );

        proxy.set_rules(Rules::new(&[], &["origin.test".parse().unwrap()]));
        for denial in [proxy.withdrawn(&pass).now_or_never(), proxy.denied_inside(&target).now_or_never()] {
            assert_eq!(denial.expect("it is denied at once").reason.code(), "listed");
        }
        proxy.set_rules(rules("origin.test"));
        assert!(proxy.withdrawn(&pass).now_or_never().is_none());
    }
}
