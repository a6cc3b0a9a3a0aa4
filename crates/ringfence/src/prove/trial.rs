//! Makes one attempt twice: inside a sandbox of the policy, and without a sandbox.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use ringfence_attempts::{AttemptAmounts, AttemptContext};
use ringfence_core::policy::{PathGlob, Size, Workspace};
use ringfence_core::{Backend, Clause, ExecutionResult, Plan, Policy, Support};
use rustix::process::Signal;

use super::certificate::{Proof, Verdict};
use super::marked::MarkedProcesses;
use super::scene::HostScene;
use super::shared::SharedSandbox;
use super::tree::AttemptTree;
use super::{Attempt, AttemptOutcome, Observation, unclaimed};
use crate::backends;
use crate::{Command, Engine, RunError};

/// Limits for the attempts on limits, here and in the five constants below. They are well below
/// what the attempts try to use.
const MEMORY_LIMIT: Size = Size::mebibytes(64);
const PROCESS_LIMIT: u32 = 16;
const CPU_LIMIT: f64 = 0.2;
const OUTPUT_LIMIT: Size = Size::from_bytes(64 << 10);
const TMP_LIMIT: Size = Size::mebibytes(1);
const TIME_LIMIT: Duration = Duration::from_millis(400);
/// Longest time that ringfence may take to start a container on a busy host.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that the kernel may take to end the processes that a run leaves, on a busy host.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Name of the attempt during which ringfence itself is killed.
const KILLED_ATTEMPT: &str = "outlive-supervisor";
/// Name of the attempt that runs until the deadline.
const DEADLINE_ATTEMPT: &str = "outlive-deadline";
/// Name of the attempt whose control run is given the descriptor that the attempt looks for.
const DESCRIPTOR_ATTEMPT: &str = "use-descriptor";

/// The attempts of a proof, which are made one after the other.
pub(super) struct AttemptRunner<'a> {
    engine: &'a Engine,
    policy: &'a Policy,
    scene: &'a HostScene,
    program: PathBuf,
    plan: Plan,
    /// The container for attempts that need no container of their own.
    shared: RefCell<Option<SharedSandbox>>,
}

/// An attempt that is ready to be made.
struct PreparedAttempt {
    tree: AttemptTree,
    context: AttemptContext,
    policy: Policy,
    command: Command,
}

/// An observation, or the reason why there is none.
type ObservedAttempt = Result<Observation, String>;

impl<'a> AttemptRunner<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        policy: &'a Policy,
        scene: &'a HostScene,
    ) -> Result<AttemptRunner<'a>, RunError> {
        let program = program(engine).map_err(failed)?;
        let plan = engine.plan(policy, &Command::new("sh"))?.plan;
        Ok(AttemptRunner { engine, policy, scene, program, plan, shared: RefCell::default() })
    }

    /// Returns the plan for the policy itself.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Makes an attempt inside a sandbox. If the attempt is denied there, makes it without a
    /// sandbox, too.
    pub(super) fn make_attempt(&self, attempt: &Attempt) -> Result<(Support, Proof), RunError> {
        let in_shared = if self.is_shared(attempt) { self.make_in_shared(attempt)? } else { None };
        let (claimed, observed) = match in_shared {
            Some(observed) => observed,
            None => self.make_alone(attempt)?,
        };
        let (verdict, control) =
            Verdict::from_observations(&observed, || self.without_sandbox(attempt));
        let observed = observed.map_or_else(|why| why, |observation| observation.observed);
        let name = attempt.name.to_owned();
        Ok((claimed, Proof { attempt: name, clause: attempt.clause, verdict, observed, control }))
    }

    /// Makes an attempt in a sandbox that is started for this attempt alone.
    fn make_alone(&self, attempt: &Attempt) -> Result<(Support, ObservedAttempt), RunError> {
        let trial = self.inside(attempt)?;
        let plan = self.engine.plan(&trial.policy, &trial.command)?.plan;
        let observed = if attempt.name == KILLED_ATTEMPT {
            self.kill_supervisor(&trial)
        } else {
            let result =
                self.engine.run_captured(&trial.policy, &trial.command, Vec::new(), None)?;
            observe_result(attempt.clause, &result, &trial.context.mark)
        };
        Ok((claimed(&plan, attempt.clause), observed))
    }

    /// Tells whether an attempt is made in the shared sandbox. A backend that starts a sandbox for
    /// each run, such as a container, takes a second for that. So attempts under the policy itself
    /// share a sandbox, as long as none of them gets through.
    fn is_shared(&self, attempt: &Attempt) -> bool {
        let starts_sandbox = backends::get(self.plan.backend)
            .is_ok_and(|backend| backend.process_launch().is_none());
        starts_sandbox && !has_own_policy(attempt.clause)
    }

    /// Makes an attempt in the shared sandbox. Returns `None` if the attempt's command could not be
    /// run to its end because the sandbox is broken.
    fn make_in_shared(
        &self,
        attempt: &Attempt,
    ) -> Result<Option<(Support, ObservedAttempt)>, RunError> {
        let shared = match self.shared.take() {
            Some(shared) => shared,
            None => {
                let (tree, _) = self.scene.prepare_attempt().map_err(failed)?;
                let policy = self.policy_for(&tree);
                let plan = self.engine.plan(&policy, &Command::new("sh"))?.plan;
                SharedSandbox::start(self.engine, policy, plan, tree)?
            }
        };
        let context = self.scene.context(shared.tree());
        let command = self.command(attempt, &context, shared.tree())?;
        let Ok(result) = shared.capture(self.engine, &command) else { return Ok(None) };
        let observed = observe_result(attempt.clause, &result, &context.mark);
        let claimed = claimed(shared.plan(), attempt.clause);
        if matches!(observed, Ok(Observation { outcome: AttemptOutcome::Denied, .. })) {
            self.shared.replace(Some(shared));
        }
        Ok(Some((claimed, observed)))
    }

    fn inside(&self, attempt: &Attempt) -> Result<PreparedAttempt, RunError> {
        let (tree, context) = self.scene.prepare_attempt().map_err(failed)?;
        let policy = with_limit(self.policy_for(&tree), attempt);
        let command = self.command(attempt, &context, &tree)?;
        Ok(PreparedAttempt { tree, context, policy, command })
    }

    /// Returns the policy for the files of a tree, which have the same paths inside as outside.
    fn policy_for(&self, tree: &AttemptTree) -> Policy {
        let mut policy = self.policy.clone().backend(self.plan.backend);
        let (source, destination) = (tree.workspace(), Some(tree.workspace()));
        policy.filesystem.workspace = Some(Workspace { source, destination });
        policy = policy.read(tree.readable()).read(&self.program);
        let hidden = AttemptTree::HIDDEN_PATTERNS
            .into_iter()
            .map(|text| text.parse().expect("each is a pattern"));
        policy = hidden.fold(policy, Policy::hide);
        let guards = Policy::DEFAULT_PROTECTED.map(PathGlob::literal);
        policy.filesystem.protect.get_or_insert_default().extend(guards);
        policy.allow_weaker(Clause::Hide).allow_weaker(Clause::Protect)
    }

    fn command(
        &self,
        attempt: &Attempt,
        context: &AttemptContext,
        tree: &AttemptTree,
    ) -> Result<Command, RunError> {
        let context = serde_json::to_string(context).map_err(io::Error::from).map_err(failed)?;
        let words = ["attempt", attempt.name, "--context", &context];
        Ok(Command::new(&self.program).arguments(words).directory(tree.workspace()))
    }

    /// Makes the attempt without a sandbox, where nothing prevents it.
    fn without_sandbox(&self, attempt: &Attempt) -> ObservedAttempt {
        let cannot = |error: &dyn std::error::Error| {
            format!("the attempt cannot be made: {}", crate::chain(error))
        };
        let (tree, context) = self.scene.prepare_attempt().map_err(|error| cannot(&error))?;
        let command = self.command(attempt, &context, &tree).map_err(|error| cannot(&error))?;
        if attempt.clause == Clause::Cleanup {
            return self
                .without_ringfence(attempt, &command, &context.mark)
                .map_err(|error| cannot(&error));
        }
        let policy = Policy::default().backend(Backend::Local).workspace(tree.workspace());
        let passed = self.passed(attempt).map_err(|error| cannot(&error))?;
        let result = self
            .engine
            .run_captured(&policy, &command, passed, None)
            .map_err(|error| cannot(&error))?;
        observe_result(attempt.clause, &result, &context.mark)
    }

    /// Returns the descriptors that an attempt without a sandbox gets. The `local` backend cleans
    /// up and closes descriptors as the other backends do. So an attempt on cleanup gets through
    /// only without ringfence, and a descriptor is available only if it is passed explicitly.
    fn passed(&self, attempt: &Attempt) -> io::Result<Vec<(i32, OwnedFd)>> {
        if attempt.name != DESCRIPTOR_ATTEMPT {
            return Ok(Vec::new());
        }
        let inherited = self.scene.inherited();
        Ok(vec![(inherited.as_raw_fd(), inherited.try_clone()?.into_file().into())])
    }

    fn without_ringfence(
        &self,
        attempt: &Attempt,
        command: &Command,
        mark: &str,
    ) -> io::Result<Observation> {
        if attempt.name == KILLED_ATTEMPT {
            let mut child = self.lingering(mark).spawn()?;
            // The shell's own arguments contain the mark, too, so wait for another process.
            MarkedProcesses::from_mark(mark).other_than(child.id()).wait_for_any(END_TIMEOUT);
            child.kill()?;
            child.wait()?;
        } else {
            let mut plain = std::process::Command::new(&command.program);
            plain
                .args(&command.arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            plain.status()?;
        }
        let marked = MarkedProcesses::from_mark(mark);
        marked.wait_for_any(END_TIMEOUT);
        Ok(observe_leftovers(&marked, Duration::ZERO))
    }

    /// Returns a command for a shell that waits for a lingering process in the background.
    fn lingering(&self, mark: &str) -> std::process::Command {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "\"$@\" & wait", "sh"]).arg(&self.program).args([
            "attempt",
            KILLED_ATTEMPT,
            "--mark",
            mark,
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts another ringfence process, kills it while the attempt runs, and looks for processes
    /// that are left.
    fn kill_supervisor(&self, trial: &PreparedAttempt) -> ObservedAttempt {
        let cannot = |error: io::Error| format!("the attempt cannot be made: {error}");
        let policy = trial.tree.policy();
        let text = serde_json::to_string(&trial.policy).map_err(|error| cannot(error.into()))?;
        fs_err::write(&policy, text).map_err(cannot)?;
        let mut command = std::process::Command::new(&self.program);
        command.args(["run", "--policy"]).arg(policy);
        if let Some(image) = &self.engine.settings().container.image {
            command.args(["--pull", "never", "--image", image]);
        }
        command.arg("--").arg(&self.program);
        command
            .args(["attempt", KILLED_ATTEMPT, "--mark", &trial.context.mark])
            .current_dir(&trial.context.paths.workspace);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let marked = MarkedProcesses::from_mark(&trial.context.mark);
        let mut child = command.spawn().map_err(cannot)?;
        // The arguments of ringfence itself contain the mark, too. The command that ringfence runs
        // is another process.
        let has_started = marked.other_than(child.id()).wait_for_any(START_TIMEOUT);
        child.kill().map_err(cannot)?;
        child.wait().map_err(cannot)?;
        if has_started {
            Ok(observe_leftovers(&marked, END_TIMEOUT))
        } else {
            Err("it did not start".to_owned())
        }
    }
}

/// Returns the path of the `ringfence` binary, which makes the attempts.
pub(super) fn program(engine: &Engine) -> io::Result<PathBuf> {
    let named = engine.settings().launcher.clone();
    fs_err::canonicalize(named.map_or_else(std::env::current_exe, Ok)?)
}

fn failed(source: io::Error) -> RunError {
    RunError::Setup { step: "prepare an attempt".to_owned(), source }
}

/// Tells whether attempts on a clause need a policy of their own, or depend on the end of their
/// sandbox.
fn has_own_policy(clause: Clause) -> bool {
    use Clause::{Cleanup, Cpus, Memory, Output, ProcessCount, Time, Tmp};
    matches!(clause, Cleanup | Cpus | Memory | Output | ProcessCount | Time | Tmp)
}

/// Returns the support that a plan claims for a clause.
fn claimed(plan: &Plan, clause: Clause) -> Support {
    plan.held.get(&clause).cloned().unwrap_or_else(unclaimed)
}

/// Adds to a policy the limit that the attempt tries to exceed.
fn with_limit(mut policy: Policy, attempt: &Attempt) -> Policy {
    let limits = &mut policy.limits;
    match attempt.clause {
        Clause::Memory => limits.memory = Some(MEMORY_LIMIT),
        Clause::ProcessCount => limits.processes = Some(PROCESS_LIMIT),
        Clause::Cpus => limits.cpus = Some(CPU_LIMIT),
        Clause::Output => limits.output = Some(OUTPUT_LIMIT),
        Clause::Tmp => limits.tmp = Some(TMP_LIMIT),
        Clause::Time => limits.time = Some(TIME_LIMIT.into()),
        Clause::Cleanup => {
            limits.time = (attempt.name == DEADLINE_ATTEMPT).then(|| TIME_LIMIT.into())
        }
        _ => return policy,
    }
    policy.allow_weaker(attempt.clause)
}

/// Derives the observation of an attempt from the result of its run.
fn observe_result(clause: Clause, result: &ExecutionResult, mark: &str) -> ObservedAttempt {
    let denied = |observed: String| {
        Ok(Observation { outcome: AttemptOutcome::Denied, errno: None, observed })
    };
    match clause {
        Clause::Time if result.timed_out => denied("the deadline ended it".to_owned()),
        // A container engine does not say why the kernel killed the process.
        Clause::Memory if result.oom_killed || result.signal == Some(Signal::KILL.as_raw()) => {
            denied("it was ended at the limit".to_owned())
        }
        // A filter that libseccomp compiled kills a process that makes a system call through the
        // entry point of another architecture.
        Clause::Kernel if result.signal == Some(Signal::SYS.as_raw()) => {
            denied("the filter ended it".to_owned())
        }
        Clause::Output if result.stdout.len() < AttemptAmounts::OUTPUT => denied(format!(
            "{} bytes were kept, {} dropped",
            result.stdout.len(),
            result.dropped.stdout
        )),
        Clause::Cleanup => Ok(observe_leftovers(&MarkedProcesses::from_mark(mark), END_TIMEOUT)),
        _ => {
            let last = result.stdout.lines().last().unwrap_or_default();
            serde_json::from_str(last).map_err(|_| {
                let said = result.stderr.lines().last().unwrap_or("nothing");
                format!(
                    "it ended with {:?}, {:?}, and said {said}",
                    result.exit_code, result.signal
                )
            })
        }
    }
}

/// Looks for processes that an attempt left, and kills them.
fn observe_leftovers(marked: &MarkedProcesses, timeout: Duration) -> Observation {
    if marked.wait_for_none(timeout) {
        let observed = "nothing was left behind".to_owned();
        return Observation { outcome: AttemptOutcome::Denied, errno: None, observed };
    }
    let count = marked.kill();
    let observed = format!("{count} processes were left behind");
    Observation { outcome: AttemptOutcome::Succeeded, errno: None, observed }
}
