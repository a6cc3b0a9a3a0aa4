//! Environment variables that the guest of a container or pod receives for its commands.

use std::collections::BTreeMap;

use crate::egress::{self, ContainerEgress, LoadedCredentials};
use crate::engine::Core;
use crate::run::plan::PlannedRun;

/// Returns the variables that a policy names, with their values, and those for the proxy and for
/// secrets.
pub(crate) fn named_variables(
    core: &Core,
    context: &PlannedRun,
    way_out: Option<&ContainerEgress>,
) -> BTreeMap<String, String> {
    let environment = &context.plan.policy.env;
    let passed = environment.pass.iter().flatten();
    let passed =
        passed.filter_map(|name| Some((name.clone(), core.settings.host.text(name)?.to_owned())));
    let of_proxy = match way_out {
        Some(ContainerEgress::Gate(_)) => egress::variables(),
        Some(ContainerEgress::Proxy(proxy)) => egress::remote_variables(proxy),
        None => Vec::new(),
    };
    let of_proxy = of_proxy.into_iter().map(|(name, value)| (name.to_owned(), value));
    // A variable that stands for a secret replaces the caller's variable of the same name, even if
    // that one is passed.
    let of_secrets = context.credentials.iter().flat_map(LoadedCredentials::variables);
    of_proxy.chain(passed).chain(of_secrets).chain(environment.set.clone()).collect()
}
