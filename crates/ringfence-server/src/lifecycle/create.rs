//! Creation of a sandbox. The server turns the request of a client into flags of `ringfence up`, or
//! hands out a sandbox that already waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{Request, StatusCode};
use jiff::Timestamp;
use ringfence::Settings;
use ringfence::monitor::MonitorRequest;
use ringfence::policy::{Environment, Network};
use ringfence_service::exchange::RequestBody;
use ringfence_service::telemetry::Caller;

use crate::api::control::{OwnerCalls, bytes, decode};
use crate::api::network::{self, WantedNetwork};
use crate::api::reply::Refusal;
use crate::api::requests::{NetworkRequest, NewSandbox};
use crate::error::ServerError;
use crate::forwarding::executions::caller;
use crate::forwarding::route::text;
use crate::lifecycle::expiry::{Expiry, ExpiryAction, after, left};
use crate::lifecycle::pool::{WarmPool, WarmSandbox};
use crate::lifecycle::registry::{ManagedSandbox, Registry};
use crate::lifecycle::template::Template;
use crate::run_to_completion;
use crate::secret::{hexadecimal, name};
use crate::server::Server;
use crate::storage::snapshots::{HeldSnapshot, Snapshot};
use crate::storage::store::SandboxRecord;
use crate::tenants::fair_semaphore::{FairPermit, PERMIT_TIMEOUT};
use crate::tenants::quota::StartReservation;

/// Maximum number of variables that a client may set. With more variables than the kernel accepts,
/// no command would start.
const MOST_VARIABLES: usize = 4096;

/// Maximum size of the metadata of a sandbox, in bytes, because every list contains all metadata.
const LONGEST_METADATA: usize = 8 << 10;

/// Header that marks a repeated request.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Sandbox that a client asked for and may have.
#[derive(Debug)]
struct CreatePlan {
    record: SandboxRecord,
    /// Settings of the template.
    settings: Settings,
    /// Network of the sandbox, if it is narrower than that of the template.
    narrower: Option<Network>,
    variables: BTreeMap<String, String>,
    /// Snapshot whose files the sandbox starts with.
    snapshot: Option<HeldSnapshot>,
}

impl OwnerCalls<'_> {
    /// Creates the sandbox that a request asks for, or finds the sandbox that an earlier request
    /// with the same key created.
    pub(crate) async fn create_once(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Arc<ManagedSandbox>, Refusal> {
        let key = text(request.headers(), IDEMPOTENCY_KEY).map(str::to_owned);
        let caller = caller(&request);
        let body = bytes(request).await?;
        let asked: NewSandbox = decode(&body)?;
        let Some(key) = key else { return self.create(asked, caller).await };
        let outcome = self.server.idempotency_cache.outcome(&self.owner, &key, &body)?;
        let (server, owner, quota) = (Arc::clone(self.server), self.owner.clone(), self.quota);
        // A client repeats a request because it stopped waiting for the first one, so the first one
        // must continue.
        let made = run_to_completion(async move {
            let calls = OwnerCalls { server: &server, owner, quota };
            let create = || async { Ok(calls.create(asked, caller).await?.record.id.clone()) };
            outcome.get_or_try_init(create).await.cloned()
        });
        self.find(&made.await?)
    }

    /// Creates a sandbox, subject to the quota of the owner.
    async fn create(
        &self,
        asked: NewSandbox,
        caller: Caller,
    ) -> Result<Arc<ManagedSandbox>, Refusal> {
        let begun = Instant::now();
        let plan = self.plan(asked, &caller)?;
        let asked_at = plan.record.started;
        let reserved = self.reserve()?;
        // Take the permit to copy before the permit to start, so that requests that wait to copy do
        // not block starts that copy nothing.
        let copying = match plan.snapshot {
            Some(_) => Some(self.server.snapshots.take_copy_permit(&self.owner).await?),
            None => None,
        };
        // A warm sandbox is already up and needs no permit to start.
        let warm = plan.warm(&self.server.pool);
        let permit = match warm {
            Some(_) => None,
            None => Some(self.take_start_permit().await?),
        };
        // If the client stops waiting, the start still completes, and the client finds the sandbox
        // in its list.
        let (server, template) = (Arc::clone(self.server), plan.record.template.clone());
        let starting = run_to_completion(async move {
            let made = plan.fulfil(&server, warm).await;
            drop((reserved, copying, permit));
            made
        });
        let managed = starting.await.map_err(|failure| {
            self.server.counters.not_started();
            tracing::error!(template, error = failure.message(), "cannot start a sandbox");
            let telemetry = &self.server.registry.telemetry;
            telemetry.no_sandbox(&template, &caller, asked_at.into(), failure.message());
            self.server.registry.failed("the sandbox could not be started")
        })?;
        self.server.counters.started(begun.elapsed());
        let backend = managed.sandbox.manifest().backend;
        tracing::info!(id = managed.record.id, template, %backend, "started a sandbox");
        Ok(managed)
    }

    async fn take_start_permit(&self) -> Result<FairPermit, Refusal> {
        let permit = self.server.starting.take(&self.owner).await;
        permit.ok_or_else(|| {
            Refusal::busy("too many sandboxes are being started", PERMIT_TIMEOUT.as_secs())
        })
    }

    /// Checks a request and turns it into a [`CreatePlan`], or refuses it.
    fn plan(&self, asked: NewSandbox, caller: &Caller) -> Result<CreatePlan, Refusal> {
        let snapshot = match self.server.templates.contains_key(&asked.template_id) {
            true => None,
            false => self.server.snapshots.hold(&self.owner, &asked.template_id),
        };
        let taken = snapshot.as_ref().map(|held| &held.snapshot);
        let (template_name, template) = self.template(&asked.template_id, taken)?;
        let unsupported = [
            ("autoPauseMemory", asked.auto_pause_memory == Some(false)),
            ("mcp", asked.mcp.as_ref().is_some_and(|mcp| !mcp.is_null())),
            ("iam", asked.iam.as_ref().is_some_and(|iam| !iam.is_null())),
            ("volumeMounts", asked.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty())),
        ];
        if let Some((field, _)) = unsupported.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Refusal::wrong(format!(
                "this server does not support `{field}`: leave it out"
            )));
        }
        let metadata = asked.metadata.unwrap_or_default();
        let length: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        if length > LONGEST_METADATA {
            let message =
                format!("`metadata` has {length} bytes, and the maximum is {LONGEST_METADATA}");
            return Err(Refusal::wrong(message));
        }
        let variables = asked.env_vars.unwrap_or_default();
        if variables.len() > MOST_VARIABLES {
            return Err(Refusal::wrong(format!(
                "`envVars` has at most {MOST_VARIABLES} variables"
            )));
        }
        for (variable, value) in &variables {
            Environment::check(variable, value)
                .map_err(|error| Refusal::wrong(format!("`envVars`: {error}")))?;
        }
        let mut wanted = WantedNetwork::from_request(
            &template.network,
            asked.allow_internet_access,
            asked.network.as_ref(),
        )?;
        if let Some(snapshot) = taken
            && !network::is_requested(asked.allow_internet_access, asked.network.as_ref())
        {
            // The snapshot's network is checked against the current template, which may have
            // changed.
            wanted =
                WantedNetwork::from_request(&template.network, None, snapshot.network.as_ref())?;
        }
        let narrower = wanted.narrowed(&template.network);
        let started = Timestamp::now();
        let public = |network: Option<&NetworkRequest>| {
            network.and_then(|network| network.allow_public_traffic)
        };
        let before = taken.and_then(|snapshot| snapshot.network.as_ref());
        let has_public_ports =
            public(asked.network.as_ref()).or_else(|| public(before)) != Some(false);
        let record = SandboxRecord {
            id: name(),
            template: template_name,
            owner: self.owner.clone(),
            started,
            expiry: Expiry::until(self.ends(
                started,
                after(started, self.quota.longest()),
                asked.timeout,
            )?),
            at_end: if asked.auto_pause == Some(true) {
                ExpiryAction::Pause
            } else {
                ExpiryAction::Kill
            },
            is_woken: asked.auto_resume.is_some_and(|resume| resume.enabled),
            token: hexadecimal::<32>(),
            traffic_token: (!has_public_ports).then(hexadecimal::<32>),
            metadata,
            trace_parent: caller.text(),
        };
        let settings = template.settings.clone();
        Ok(CreatePlan { record, settings, narrower, variables, snapshot })
    }

    /// Returns the template with the name `id`, or the template of the snapshot, with its name.
    fn template(
        &self,
        id: &str,
        snapshot: Option<&Snapshot>,
    ) -> Result<(String, &Template), Refusal> {
        let templates = &self.server.templates;
        let name = snapshot.map_or(id, |snapshot| &snapshot.template);
        let template = templates.get(name).ok_or_else(|| {
            let names: Vec<&str> = templates.keys().map(String::as_str).collect();
            let of = if snapshot.is_some() {
                format!(", on which snapshot `{id}` is based")
            } else {
                String::new()
            };
            let message = format!(
                "there is no template `{name}`{of}; the templates are {}",
                names.join(", ")
            );
            Refusal::new(StatusCode::NOT_FOUND, message)
        })?;
        Ok((name.to_owned(), template))
    }

    /// Reserves a place for one more sandbox, if the quota of this owner allows it.
    fn reserve(&self) -> Result<StartReservation, Refusal> {
        let managed = self.server.registry.list_for_owner(&self.owner);
        let next = managed.iter().map(|managed| managed.expiry().ends).min().unwrap_or_default();
        let soon = left(next, Timestamp::now());
        self.server.key_usages().reserve(&self.owner, &self.quota, managed.len(), soon)
    }
}

impl CreatePlan {
    /// Takes a waiting sandbox from the pool, if the plan is exactly a plain sandbox of its
    /// template.
    fn warm(&self, pool: &WarmPool) -> Option<WarmSandbox> {
        let is_plain = self.narrower.is_none() && self.snapshot.is_none();
        is_plain.then(|| pool.take(&self.record.template)).flatten()
    }

    /// Creates the sandbox: hands over the waiting sandbox if it can be prepared, else starts a new
    /// one.
    async fn fulfil(
        mut self,
        server: &Server,
        warm: Option<WarmSandbox>,
    ) -> Result<Arc<ManagedSandbox>, ServerError> {
        let registry = &server.registry;
        if let Some(warm) = warm {
            match self.prepare(&warm).await {
                Ok(()) => {
                    self.record.id = warm.id;
                    return registry.hand_over(self.record, warm.launched).await;
                }
                Err(failure) => {
                    tracing::warn!(
                        id = warm.id,
                        error = failure.message(),
                        "cannot use a waiting sandbox; starting a new sandbox"
                    );
                    registry.discard(&warm.id, warm.launched).await;
                }
            }
        }
        if let Some(held) = self.snapshot.take() {
            let copied =
                server.snapshots.copy_out(&held, registry.workspace(&self.record.id)).await;
            let hint = || {
                "check the disk with df -h, and `snapshot_size` in the settings of the server"
                    .to_owned()
            };
            copied.map_err(|error| {
                ServerError::new(ringfence::chain(&error), [hint()], error.fault())
            })?;
        }
        let request = self.request(registry)?;
        registry.start(self.record, request).await
    }

    /// Prepares a waiting sandbox for the plan: sets its variables and its lease.
    async fn prepare(&self, warm: &WarmSandbox) -> Result<(), ServerError> {
        let sandbox = &warm.launched.sandbox;
        if !self.variables.is_empty() {
            let added = sandbox.add_variables(self.variables.clone()).await;
            added.map_err(|error| ServerError::from_session(&error, &warm.id))?;
            // Running interpreters keep their old variables, so remove them.
            for context in sandbox.contexts().list() {
                let removed = sandbox.contexts().remove(context.id()).await;
                removed.map_err(|error| {
                    ServerError::failed(ringfence::chain(&error), "ringfence doctor")
                })?;
            }
        }
        Ok(sandbox.renew(self.lease())?)
    }

    fn request(&self, registry: &Registry) -> Result<MonitorRequest, ServerError> {
        registry.request(&self.record.id, self.lease(), &self.settings, |policy| {
            policy.env.set.extend(self.variables.clone());
            if let Some(network) = &self.narrower {
                policy.network = Some(network.clone());
            }
        })
    }

    fn lease(&self) -> Duration {
        self.record.expiry.lease(self.record.at_end)
    }
}
