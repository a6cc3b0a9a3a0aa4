//! First stage of a run: chooses a backend for a policy, and plans what the backend enforces.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ringfence_core::plan::demands;
use ringfence_core::result::RunMetadata;
use ringfence_core::settings::{
    BackendSelection, ChooseError, ChosenBackend, NoticeLevel, ValueSource, detect_container,
    resolve,
};
use ringfence_core::{
    Backend, Capabilities, Clause, Plan, Policy, Refusal, Support, WorkspaceFacts, plan,
};

use crate::backends::{self, Freshness, ProbeRequest, Unavailable};
use crate::caller::streams::CallerStreams;
use crate::egress::LoadedCredentials;
use crate::engine::Core;
use crate::host_paths::granted::{Grants, MountTable};
use crate::host_paths::workspace::{self, ResolvedWorkspace};
use crate::records::known_directories;
use crate::view::Guarded;
use crate::{ContainerSpec, RunError};

/// The facts about a run that its result contains, besides how the run ended.
#[derive(Debug)]
pub(crate) struct PlannedRun {
    pub(crate) plan: Plan,
    pub(crate) because: String,
    pub(crate) workspace: ResolvedWorkspace,
    /// The paths that no sandbox may be given, as they were when the policy was checked.
    pub(crate) grants: Grants,
    pub(crate) guarded: Guarded,
    /// Name of the sandbox, if the sandbox is one that stays.
    pub(crate) sandbox: Option<String>,
    pub(crate) lifetime: SandboxLifetime,
    /// The credentials that the proxy of the sandbox shows to hosts outside.
    pub(crate) credentials: Option<LoadedCredentials>,
    /// The standard streams of this process that the command does not get unchanged.
    pub(crate) streams: CallerStreams,
}

/// Lifetime of a sandbox with a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxLifetime {
    /// The sandbox is made for one command, and ends with it.
    OneCommand,
    /// The sandbox stays until it is stopped or its lease ends.
    Stays,
}

impl PlannedRun {
    /// Returns the longest time that one command may take.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.plan.policy.limits.time.map(|time| time.duration())
    }

    /// Returns the part of a result that is known before the run has ended.
    pub(crate) fn meta(&self) -> RunMetadata {
        let plan = &self.plan;
        let held =
            plan.held.iter().map(|(clause, support)| (*clause, support.to_string())).collect();
        let (sha256, limits) = (plan.policy_sha256.clone(), plan.policy.limits.clone());
        RunMetadata::new(plan.backend, self.because.clone(), held, sha256, limits)
    }
}

/// A plan, and the reason why its backend was chosen.
#[derive(Debug, Clone)]
pub(crate) struct ChosenPlan {
    pub(crate) plan: Plan,
    pub(crate) because: String,
}

/// Reason why a backend cannot be used.
#[derive(Debug, Clone)]
enum UnusableBackend {
    Unavailable(Unavailable),
    Refused(Refusal),
}

impl UnusableBackend {
    fn why(&self) -> String {
        match self {
            UnusableBackend::Unavailable(unavailable) => unavailable.why.clone(),
            UnusableBackend::Refused(refusal) => refusal.to_string().replace('\n', ";"),
        }
    }

    fn into_error(self, backend: Backend) -> RunError {
        match self {
            UnusableBackend::Refused(refusal) => RunError::Refused(refusal),
            UnusableBackend::Unavailable(Unavailable { why, fix }) => {
                RunError::Unavailable { backend, why, fix }
            }
        }
    }
}

impl Core {
    /// Resolves the workspace of `policy`, and makes a plan for the policy there.
    pub(crate) fn plan_run(
        &self,
        policy: &Policy,
        container: &ContainerSpec,
    ) -> Result<PlannedRun, RunError> {
        let host = &self.settings.host;
        let grants = Grants::on(host);
        let mut workspace =
            workspace::resolve(policy, host, &self.settings.workspace_rules(), &grants)?;
        workspace.granted = grants.grant_paths(policy, host, &workspace)?;
        let guarded = self.guarded(policy, &workspace, grants.locations())?;
        let facts = WorkspaceFacts { protected_paths_exist: guarded.protects_something() };
        let ChosenPlan { plan, because } = self.choose_backend(policy, facts, container)?;
        tracing::info!(backend = %plan.backend, because, "a backend was chosen");
        Ok(PlannedRun {
            plan,
            because,
            workspace,
            grants,
            guarded,
            sandbox: None,
            lifetime: SandboxLifetime::Stays,
            credentials: None,
            streams: CallerStreams::default(),
        })
    }

    /// Finds the guarded paths of a workspace, as they are now.
    ///
    /// The records of runs are guarded, too, because they are evidence. Neither the code that a
    /// record is about nor any other code in a sandbox may edit a record.
    pub(crate) fn guarded(
        &self,
        policy: &Policy,
        workspace: &ResolvedWorkspace,
        locations: &MountTable,
    ) -> Result<Guarded, RunError> {
        let host = &self.settings.host;
        let granted = workspace.granted.iter().map(|granted| granted.source.as_path());
        let trees: Vec<&Path> = granted.chain([workspace.source.as_path()]).collect();
        let mut records = known_directories(host, &trees);
        records.push(host.absolute(&self.settings.audit.dir));
        let policy = policy.with_defaults();
        Ok(Guarded::find(&policy, workspace, host, locations, &records)?)
    }

    /// Returns the backend of a plan.
    pub(crate) fn backend(plan: &Plan) -> Result<&'static dyn backends::Backend, RunError> {
        backends::get(plan.backend)
            .map_err(|declined| UnusableBackend::Unavailable(declined).into_error(plan.backend))
    }

    /// Chooses a backend that can enforce the whole policy.
    pub(crate) fn choose_backend(
        &self,
        policy: &Policy,
        facts: WorkspaceFacts,
        container: &ContainerSpec,
    ) -> Result<ChosenPlan, RunError> {
        let (selection, asked_by) = match policy.backend {
            Some(choice) if Some(choice) != self.settings.policy.backend => {
                (choice.into(), "the policy".to_owned())
            }
            _ => (self.settings.selection, self.settings.selected_by().to_string()),
        };
        if let BackendSelection::Only(backend) = selection {
            let because = format!("asked for by {asked_by}");
            let plan =
                self.plan_on(backend, policy, facts, container).map_err(
                    |declined| match declined {
                        UnusableBackend::Unavailable(Unavailable { why, fix })
                            if *self.settings.selected_by()
                                == ValueSource::Variable("SANDBOX_MODE".to_owned()) =>
                        {
                            ChooseError::BwrapRequired { why: format!("{why}; {fix}") }.into()
                        }
                        declined => declined.into_error(backend),
                    },
                )?;
            return Ok(ChosenPlan { plan, because });
        }
        let tried: RefCell<BTreeMap<Backend, Result<Plan, UnusableBackend>>> = RefCell::default();
        let available = |backend: Backend| {
            let outcome = self.plan_on(backend, policy, facts, container);
            let answer = outcome.as_ref().map(|_| ()).map_err(UnusableBackend::why);
            tried.borrow_mut().insert(backend, outcome);
            answer
        };
        let around = detect_container(&self.settings.host);
        let chosen = resolve(selection, self.settings.selected_by(), available, around.as_ref());
        let mut tried = tried.into_inner();
        let ChosenBackend { backend, because, notices } = match chosen {
            Ok(chosen) => chosen,
            Err(error) => {
                return Err(
                    preferred_refusal(tried).map_or_else(|| error.into(), RunError::Refused)
                );
            }
        };
        for notice in notices {
            match notice.level {
                NoticeLevel::Info => tracing::info!("{}", notice.message),
                NoticeLevel::Warning => tracing::warn!("{}", notice.message),
            }
        }
        match tried
            .remove(&backend)
            .unwrap_or_else(|| self.plan_on(backend, policy, facts, container))
        {
            Ok(plan) => Ok(ChosenPlan { plan, because }),
            Err(declined) => Err(preferred_refusal(tried)
                .map_or_else(|| declined.into_error(backend), RunError::Refused)),
        }
    }

    fn plan_on(
        &self,
        backend: Backend,
        policy: &Policy,
        facts: WorkspaceFacts,
        container: &ContainerSpec,
    ) -> Result<Plan, UnusableBackend> {
        let mut completed = backends::get(backend)
            .map_err(UnusableBackend::Unavailable)?
            .complete(policy, container);
        let added = added_limits(policy, &completed);
        let policy = &completed;
        let clauses = demands(policy, facts).into_keys().collect();
        let request = ProbeRequest {
            host: &self.settings.host,
            launcher: &self.launcher,
            policy,
            clauses,
            container,
            kubernetes: &self.settings.kubernetes,
            freshness: Freshness::Remembered,
        };
        let capabilities =
            probe_backend(backend, &request).map_err(UnusableBackend::Unavailable)?;
        tracing::debug!(%backend, summary = capabilities.summary, "probed");
        // Nobody asked for a limit that the backend adds, so nobody has to accept that the limit
        // holds only in part.
        let is_in_part =
            |clause: &Clause| matches!(capabilities.support(*clause), Support::Weaker { .. });
        completed.allow_weaker.extend(added.into_iter().filter(is_in_part));
        plan(&completed, facts, &capabilities).map_err(UnusableBackend::Refused)
    }
}

/// Returns the limits that a backend added to a policy.
fn added_limits(policy: &Policy, completed: &Policy) -> Vec<Clause> {
    let (asked, all) = (&policy.limits, &completed.limits);
    let added = [
        (Clause::Memory, asked.memory.is_none() && all.memory.is_some()),
        (Clause::Cpus, asked.cpus.is_none() && all.cpus.is_some()),
        (Clause::ProcessCount, asked.processes.is_none() && all.processes.is_some()),
    ];
    added.into_iter().filter(|(_, is_added)| *is_added).map(|(clause, _)| clause).collect()
}

/// Returns the refusal of the preferred backend, if that backend works and refuses. The refusal
/// tells more than an error that no other backend can be used, either.
fn preferred_refusal(
    mut tried: BTreeMap<Backend, Result<Plan, UnusableBackend>>,
) -> Option<Refusal> {
    match tried.remove(&backends::PREFERRED) {
        Some(Err(UnusableBackend::Refused(refusal))) => Some(refusal),
        _ => None,
    }
}

/// Asks one backend for its capabilities.
pub(crate) fn probe_backend(
    backend: Backend,
    request: &ProbeRequest<'_>,
) -> Result<Capabilities, Unavailable> {
    backends::get(backend)?.probe(request)
}
