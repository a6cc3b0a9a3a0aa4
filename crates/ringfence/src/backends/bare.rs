//! Backends without isolation of their own. `local` is an explicit choice; `outer` relies on the
//! container or VM around ringfence.

use std::io;

use futures_util::future::BoxFuture;
use ringfence_core::settings::detect_container;
use ringfence_core::{Backend as Name, Capabilities, Clause, Plan, Support, UnstatedClauses};
use ringfence_linux::Confinement;

use super::limits::{self, CgroupAccess};
use super::{
    Backend, BackendStart, GroupNeed, KeptSandbox, LaunchInputs, Preparation, PrepareError,
    ProbeRequest, ProcessLaunch, SandboxFacets, StartedSandbox, Unavailable, exec, process_tree,
};
use crate::{Command, StartError};

/// Backend that only supervises the command.
pub(super) struct UnisolatedBackend {
    name: Name,
}

/// Backend without isolation, by explicit choice.
pub(super) const LOCAL: UnisolatedBackend = UnisolatedBackend { name: Name::Local };
/// Backend that trusts the container or VM that ringfence runs in.
pub(super) const OUTER: UnisolatedBackend = UnisolatedBackend { name: Name::Outer };

impl Backend for UnisolatedBackend {
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable> {
        let summary = match (self.name, detect_container(request.host)) {
            (Name::Outer, Some(container)) => format!("trusts the {} around it", container.name),
            (Name::Outer, None) => {
                "trusts whatever is around it; no container was detected".to_owned()
            }
            _ => "no isolation, by explicit choice".to_owned(),
        };
        let mut support = limits::support(request, CgroupAccess::Callers);
        if request.clauses.contains(&Clause::Cleanup) {
            support.insert(
                Clause::Cleanup,
                limits::tree_cleanup_support(request, CgroupAccess::Callers),
            );
        }
        for clause in Clause::ALL {
            let why = || format!("backend `{}` isolates nothing itself", self.name);
            let absent =
                || Support::absent(why(), "choose a backend that isolates: `--backend auto`");
            support.entry(clause).or_insert_with(absent);
        }
        Ok(Capabilities { backend: self.name, summary, defaults: UnstatedClauses::Waived, support })
    }

    fn isolates(&self) -> bool {
        false
    }

    fn start<'a>(
        &'a self,
        request: BackendStart<'a>,
    ) -> BoxFuture<'a, Result<StartedSandbox, StartError>> {
        Box::pin(process_tree::start(self, request))
    }

    fn attach(&self, sandbox: KeptSandbox<'_>) -> io::Result<SandboxFacets> {
        process_tree::attach(sandbox)
    }

    fn process_launch(&self) -> Option<&dyn ProcessLaunch> {
        Some(self)
    }
}

impl ProcessLaunch for UnisolatedBackend {
    fn prepare(
        &self,
        inputs: &LaunchInputs<'_>,
        command: &Command,
    ) -> Result<Preparation, PrepareError> {
        let mut variables = inputs.host.variables.clone();
        let set = &inputs.plan.policy.env.set;
        variables.extend(set.iter().map(|(name, value)| (name.into(), value.into())));
        let directory = command.starting_directory(inputs.host, &inputs.workspace.source);
        Ok(Preparation {
            exec: exec(command, variables, directory)?,
            confinement: Confinement::Bare,
            passed: Vec::new(),
            gate: None,
            holder: None,
            described: Vec::new(),
            group: GroupNeed::for_tree(inputs.plan),
            own_processes: 1,
            private: None,
        })
    }

    fn shares_paths(&self, _plan: &Plan) -> bool {
        true
    }
}
