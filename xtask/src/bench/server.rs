//! Measurement of the sandboxes of a server: the time from a call to the end of the first command,
//! and the time of a command in a sandbox that is up.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use ringfence_test_ledger::client::{CallError, Client, Sandbox};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::contenders::{AS_USUAL, Contender, PLAIN, RunMethod, bwrap_as_usual};
use super::driver::BenchDriver;
use super::staying_sandboxes::{COMMAND, DOCKER_RUN, StayingSandboxes};

pub(super) const POOLED: &str = "ringfence, API warm pool";
pub(super) const UNPOOLED: &str = "ringfence, API no pool";
const SDK_POOLED: &str = "ringfence, SDK warm pool";
const SDK_UNPOOLED: &str = "ringfence, SDK no pool";
const API_EXEC: &str = "ringfence, API exec";
const SDK_EXEC: &str = "ringfence, SDK exec";

/// Settings of the templates. `base` starts a sandbox for each call; `pooled` keeps sandboxes
/// waiting.
const TEMPLATES: &str = "[templates.base]\n[templates.pooled]\nwarm = 2\n";
const POOL_SIZE: u64 = 2;
/// Program that answers lines as `bench_session` does, with the Python package of E2B.
const SDK: &str = include_str!("server.py");
/// Lifetime of a sandbox in seconds, longer than all measurements together.
const LIFETIME_SECONDS: u64 = 3 * 3600;
/// Time limit for the server to fill its pool.
const POOL_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of commands in a running sandbox that are timed per request.
const RUNS_PER_REQUEST: usize = 10;

/// A server and its callers.
pub(super) struct ServerBench {
    caller: Result<Rc<RefCell<HttpCaller>>, String>,
    sdk: Result<Rc<BenchDriver>, String>,
    // The last field, because fields are dropped in order and the callers must end first.
    _server: Option<BenchServer>,
}

/// Caller that speaks HTTP to the server directly, without an SDK.
struct HttpCaller {
    client: Client,
    /// Sandbox that is up during all measurements.
    sandbox: Sandbox,
}

struct BenchServer {
    process: Child,
    _home: TempDir,
}

impl ServerBench {
    /// Starts a server of `program`. `python` is an interpreter with the package of E2B, if there
    /// is one.
    pub(super) fn start(program: &Path, python: Option<&Path>) -> Self {
        match BenchServer::start(program)
            .and_then(|(server, url)| Ok((HttpCaller::new(&url)?, server, url)))
        {
            Ok((caller, server, url)) => {
                let sdk = match python {
                    Some(python) => BenchDriver::start(python, &["-c", SDK, &url], &[])
                        .map_err(|error| format!("{error:#}")),
                    None => Err("its package is not installed".to_owned()),
                };
                Self {
                    caller: Ok(Rc::new(RefCell::new(caller))),
                    sdk: sdk.map(Rc::new),
                    _server: Some(server),
                }
            }
            Err(error) => {
                let why = format!("{error:#}");
                Self { caller: Err(why.clone()), sdk: Err(why), _server: None }
            }
        }
    }

    /// Returns the contenders that go from a call to the end of the first command.
    pub(super) fn up(&self, stays: &StayingSandboxes) -> Vec<Contender> {
        let called = |template: &'static str| {
            let done = |caller: Rc<RefCell<HttpCaller>>| -> RunMethod {
                RunMethod::Done(Box::new(move || caller.borrow_mut().first_command(template)))
            };
            self.caller.clone().map(done)
        };
        let asked = |template: &str| self.asked(format!("start {template} {COMMAND}"), 1);
        vec![
            Contender { name: AS_USUAL, start: bwrap_as_usual(&[COMMAND.into()]) },
            Contender { name: POOLED, start: called("pooled") },
            Contender { name: UNPOOLED, start: called("base") },
            Contender { name: SDK_POOLED, start: asked("pooled") },
            Contender { name: SDK_UNPOOLED, start: asked("base") },
            Contender { name: DOCKER_RUN, start: stays.docker_run() },
        ]
    }

    /// Returns the contenders that run a command while everything is up.
    pub(super) fn exec(&self) -> Vec<Contender> {
        let done = |caller: Rc<RefCell<HttpCaller>>| -> RunMethod {
            RunMethod::Done(Box::new(move || caller.borrow_mut().command()))
        };
        vec![
            Contender { name: PLAIN, start: Ok(RunMethod::Spawn(vec![COMMAND.into()])) },
            Contender { name: API_EXEC, start: self.caller.clone().map(done) },
            Contender {
                name: SDK_EXEC,
                start: self.asked(format!("exec {RUNS_PER_REQUEST} {COMMAND}"), RUNS_PER_REQUEST),
            },
        ]
    }

    fn asked(&self, line: String, runs: usize) -> Result<RunMethod, String> {
        self.sdk.clone().map(|driver| RunMethod::Asked { driver, line, runs })
    }
}

impl HttpCaller {
    fn new(url: &str) -> Result<Self> {
        let mut client = Client::for_url(url);
        let sandbox = client.create("base", LIFETIME_SECONDS).map_err(call_failure)?;
        let mut caller = Self { client, sandbox };
        caller.wait_until_pool_is_full()?;
        Ok(caller)
    }

    /// Returns the time from the call that creates a sandbox to the end of its first command.
    fn first_command(&mut self, template: &str) -> Result<Duration> {
        let start = Instant::now();
        let sandbox = self.client.create(template, LIFETIME_SECONDS).map_err(call_failure)?;
        let code = self.client.run(&sandbox, &[COMMAND]).map_err(call_failure)?;
        let time = start.elapsed();
        ensure!(code == 0, "the command exited with {code}");
        self.client.kill(&sandbox.id).map_err(call_failure)?;
        self.wait_until_pool_is_full()?;
        Ok(time)
    }

    fn command(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let code = self.client.run(&self.sandbox, &[COMMAND]).map_err(call_failure)?;
        let time = start.elapsed();
        ensure!(code == 0, "the command exited with {code}");
        Ok(time)
    }

    /// Waits until the pool is full, so that the next run does not share the machine with starting
    /// sandboxes.
    fn wait_until_pool_is_full(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.client.figure("ringfence_sandboxes_waiting").map_err(call_failure)? < POOL_SIZE {
            ensure!(begun.elapsed() < POOL_TIMEOUT, "no sandbox waits");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

fn call_failure(error: CallError) -> anyhow::Error {
    match error {
        CallError::Broken(error) => anyhow!(error).context("the server broke off"),
        CallError::Refused { status, words } => {
            anyhow!("the server refused with {status}: {words}")
        }
    }
}

impl BenchServer {
    /// Starts a server with its own home and returns its URL.
    fn start(program: &Path) -> Result<(Self, String)> {
        let home = tempfile::tempdir_in("/var/tmp")?;
        let config = home.path().join("server.toml");
        fs_err::write(&config, TEMPLATES)?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config)
            .env("HOME", home.path());
        // Each request writes a line to a log file, as on a service whose log goes to a file.
        let log = fs_err::File::create(home.path().join("log"))?;
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(log.into_file())
            .spawn()
            .context("cannot serve")?;
        let output = process.stdout.take().context("its output is not piped")?;
        let server = Self { process, _home: home };
        let mut url = String::new();
        BufReader::new(output).read_line(&mut url)?;
        let log = || fs_err::read_to_string(server._home.path().join("log")).unwrap_or_default();
        ensure!(url.starts_with("http://"), "it does not say where it listens: {}", log().trim());
        let url = url.trim_end().to_owned();
        Ok((server, url))
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        // The server may have ended.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait(); // the server may have ended
    }
}
