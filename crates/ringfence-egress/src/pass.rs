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
