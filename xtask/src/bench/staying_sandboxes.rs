//! Measurement of sandboxes that stay: a command in a running sandbox, the time to the first
//! command, copied files, and concurrent commands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::contenders::{AS_USUAL, Contender, PLAIN, RunMethod, bwrap_as_usual};
use super::driver::BenchDriver;
use super::engines::{DOCKER, EngineNames, IdleEngine, PODMAN};

pub(super) const WARM_NATIVE: &str = "ringfence, native warm";
pub(super) const WARM_DOCKER: &str = "ringfence, docker warm";
pub(super) const WARM_PODMAN: &str = "ringfence, podman warm";
pub(super) const UP_NATIVE: &str = "ringfence, native up";
pub(super) const DOCKER_EXEC: &str = "docker exec";
pub(super) const DOCKER_RUN: &str = "docker run";

/// The command that every contender runs.
pub(super) const COMMAND: &str = "true";
/// Number of commands in a running sandbox that are timed per request. A block of them ends before
/// the next contender is warm.
const RUNS_PER_REQUEST: usize = 10;

/// All sandboxes and containers that are up while commands are timed. The sandboxes end before the
/// engines' own containers.
pub(super) struct StayingSandboxes {
    native: Result<Rc<BenchDriver>, String>,
    containers: Vec<EngineSandbox>,
}

/// One engine, with a sandbox of ringfence on it and a container of its own.
struct EngineSandbox {
    names: EngineContenders,
    driver: Result<Rc<BenchDriver>, String>,
    engine: Result<IdleEngine, String>,
}

/// Names of the contenders that use one engine.
struct EngineContenders {
    kind: EngineNames,
    warm: &'static str,
    up: &'static str,
    exec: &'static str,
    run: &'static str,
    copy: &'static str,
}

const ENGINES: [EngineContenders; 2] = [
    EngineContenders {
        kind: DOCKER,
        warm: WARM_DOCKER,
        up: "ringfence, docker up",
        exec: DOCKER_EXEC,
        run: DOCKER_RUN,
        copy: "docker cp",
    },
    EngineContenders {
        kind: PODMAN,
        warm: WARM_PODMAN,
        up: "ringfence, podman up",
        exec: "podman exec",
        run: "podman run",
        copy: "podman cp",
    },
];

/// Name of a way to repeat an action, with the way itself or the reason why it is missing on this
/// host.
pub(super) type ContenderMethod<T> = (&'static str, Result<T, String>);

/// The way in which concurrent commands run.
pub(super) enum ConcurrentRun {
    Asked(Rc<BenchDriver>),
    Plain(Vec<OsString>),
    /// Commands that the program of a container engine starts one by one.
    Engine(Vec<OsString>),
}

/// The way in which a file is copied in and out.
pub(super) enum CopyMethod {
    Asked(Rc<BenchDriver>),
    Spawned { inwards: Vec<OsString>, outwards: Vec<OsString> },
}

/// Paths on the host of a copied file: the original, and the destination of the copy that comes
/// back.
pub(super) struct CopyPaths {
    pub(super) original: PathBuf,
    pub(super) returned: PathBuf,
}

impl StayingSandboxes {
    /// Starts a sandbox and a container on every backend that works on this host.
    pub(super) fn start(program: &Path) -> Self {
        let drive = |backend: &[&str], variables: &[(&str, &str)]| match BenchDriver::start(
            program, backend, variables,
        ) {
            Ok(driver) => Ok(Rc::new(driver)),
            Err(error) => Err(format!("{error:#}")),
        };
        let container = |names: EngineContenders| {
            let engine = IdleEngine::find(names.kind);
            let driver = engine.as_ref().map_err(Clone::clone).and_then(|engine| {
                let (backend, variables) = engine.backend();
                drive(&backend, &variables)
            });
            EngineSandbox { names, driver, engine }
        };
        Self { native: drive(&["native"], &[]), containers: ENGINES.map(container).into() }
    }

    /// Returns the contenders that run a command while everything is up.
    pub(super) fn warm(&self) -> Vec<Contender> {
        let asked = |driver: &Result<Rc<BenchDriver>, String>| {
            let asked = |driver| RunMethod::Asked {
                driver,
                line: format!("exec {RUNS_PER_REQUEST} {COMMAND}"),
                runs: RUNS_PER_REQUEST,
            };
            driver.clone().map(asked)
        };
        let mut contenders = vec![
            Contender { name: PLAIN, start: Ok(RunMethod::Spawn(vec![COMMAND.into()])) },
            Contender { name: WARM_NATIVE, start: asked(&self.native) },
        ];
        for EngineSandbox { names, driver, engine } in &self.containers {
            contenders.push(Contender { name: names.warm, start: asked(driver) });
            let exec = |engine: &IdleEngine| RunMethod::Spawn(engine.exec(&[COMMAND]));
            contenders.push(Contender {
                name: names.exec,
                start: engine.as_ref().map(exec).map_err(Clone::clone),
            });
        }
        contenders
    }

    /// Returns the contenders that go from nothing to the end of the first command.
    pub(super) fn up(&self) -> Vec<Contender> {
        let asked = |driver: &Result<Rc<BenchDriver>, String>| {
            driver.clone().map(|driver| RunMethod::Asked {
                driver,
                line: format!("start {COMMAND}"),
                runs: 1,
            })
        };
        let mut contenders = vec![
            Contender { name: AS_USUAL, start: bwrap_as_usual(&[COMMAND.into()]) },
            Contender { name: UP_NATIVE, start: asked(&self.native) },
        ];
        for EngineSandbox { names, driver, engine } in &self.containers {
            contenders.push(Contender { name: names.up, start: asked(driver) });
            let run = |engine: &IdleEngine| RunMethod::Spawn(engine.run(&[COMMAND]));
            contenders.push(Contender {
                name: names.run,
                start: engine.as_ref().map(run).map_err(Clone::clone),
            });
        }
        contenders
    }

    /// Returns the contender that runs a command in a new Docker container, as most people do.
    pub(super) fn docker_run(&self) -> Result<RunMethod, String> {
        let docker = self.containers.iter().find(|container| container.names.run == DOCKER_RUN);
        let engine =
            docker.ok_or("docker is not measured")?.engine.as_ref().map_err(Clone::clone)?;
        Ok(RunMethod::Spawn(engine.run(&[COMMAND])))
    }

    /// Returns the ways to run concurrent commands.
    pub(super) fn many(&self) -> Vec<ContenderMethod<ConcurrentRun>> {
        let mut ways = vec![
            (PLAIN, Ok(ConcurrentRun::Plain(vec![COMMAND.into()]))),
            (WARM_NATIVE, self.native.clone().map(ConcurrentRun::Asked)),
        ];
        for EngineSandbox { names, driver, engine } in &self.containers {
            ways.push((names.warm, driver.clone().map(ConcurrentRun::Asked)));
            let exec = |engine: &IdleEngine| ConcurrentRun::Engine(engine.exec(&[COMMAND]));
            ways.push((names.exec, engine.as_ref().map(exec).map_err(Clone::clone)));
        }
        ways
    }

    /// Returns the ways to copy a file in and out.
    pub(super) fn copying(&self, places: &CopyPaths) -> Vec<ContenderMethod<CopyMethod>> {
        /// Path of the copy in an engine's own container.
        const INSIDE: &str = "/tmp/copy";
        let CopyPaths { original, returned } = places;
        let plain = |from: &Path, to: &Path| vec!["cp".into(), from.into(), to.into()];
        let copy = original.with_extension("copy");
        let plain = CopyMethod::Spawned {
            inwards: plain(original, &copy),
            outwards: plain(&copy, returned),
        };
        let mut ways = vec![
            ("plain cp", Ok(plain)),
            (WARM_NATIVE, self.native.clone().map(CopyMethod::Asked)),
        ];
        for EngineSandbox { names, driver, engine } in &self.containers {
            ways.push((names.warm, driver.clone().map(CopyMethod::Asked)));
            let copying = |engine: &IdleEngine| CopyMethod::Spawned {
                inwards: engine.copy_in(original, INSIDE),
                outwards: engine.copy_out(INSIDE, returned),
            };
            ways.push((names.copy, engine.as_ref().map(copying).map_err(Clone::clone)));
        }
        ways
    }
}
