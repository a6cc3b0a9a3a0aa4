//! Tests of contexts that outlive the process that started them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ringfence::contexts::{CellEvent, CodeContext, ContextError};
use ringfence::{Engine, Exec, Policy, Sandbox, StartRequest};
use ringfence_test_ledger::require;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{SOON, interrupted, raised, run, try_run, value};
use crate::{engine, eventually, is_running, place, runtime};

/// A sandbox that several processes use, one after the other.
struct Stays {
    home: TempDir,
    engine: Engine,
    runtime: Runtime,
    sandbox: Sandbox,
}

impl Stays {
    fn new() -> Stays {
        let home = place();
        let (engine, runtime) = (engine(home.path()), runtime());
        let sandbox = runtime
            .block_on(engine.start(StartRequest::new(Policy::default()).name("one")))
            .unwrap();
        Stays { home, engine, runtime, sandbox }
    }

    /// Calls `act` as one process that uses the sandbox. Afterwards that process and all its tasks
    /// are gone, as after `kill -9`.
    fn process<T>(&self, act: impl AsyncFnOnce(&Sandbox) -> T) -> T {
        runtime().block_on(async {
            let sandbox = Sandbox::attach(&self.engine.settings().host, "one").await.unwrap();
            tokio::time::timeout(SOON, act(&sandbox)).await.expect("it has an end")
        })
    }

    /// Calls `act` as one process that also keeps its contexts.
    fn keeper<T>(&self, act: impl AsyncFnOnce(&Sandbox) -> T) -> T {
        self.process(async |sandbox| {
            sandbox.contexts().keep().await.unwrap();
            act(sandbox).await
        })
    }

    fn notes(&self) -> PathBuf {
        self.home.path().join(".local/state/ringfence/sandboxes/one/contexts")
    }

    fn end(self) {
        let notes = self.notes();
        self.runtime.block_on(self.sandbox.stop()).unwrap();
        assert!(!notes.exists(), "what was written down is left");
    }
}

fn listed(sandbox: &Sandbox) -> Vec<[String; 3]> {
    let told = |context: &CodeContext| {
        [context.id(), context.language(), context.directory()].map(str::to_owned)
    };
    sandbox.contexts().list().iter().map(told).collect()
}

/// Returns the only context of a sandbox.
fn only(sandbox: &Sandbox) -> CodeContext {
    let all = sandbox.contexts().list();
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

/// Runs a cell until it has written something, and drops it while it still runs.
async fn leave_running(context: &CodeContext, code: &str) {
    let mut cell = context.execute(code, &BTreeMap::new()).await.unwrap();
    while !matches!(cell.next().await.unwrap().unwrap(), CellEvent::Stdout(_)) {}
}

/// Returns the number of processes that run in the sandbox.
async fn running(sandbox: &Sandbox) -> usize {
    sandbox.session().processes().await.unwrap().len()
}

#[test]
fn contexts_go_on_for_the_next_process() {
    require!(user_namespaces, binary, python3, node);
    let stays = Stays::new();
    let before = stays.keeper(async |sandbox| {
        let contexts = sandbox.contexts();
        run(&contexts.usual("python").await.unwrap(), "x = 41").await;
        run(&contexts.create("bash", Some("/tmp")).await.unwrap(), "x=42; cd /").await;
        run(&contexts.create("javascript", None).await.unwrap(), "const x = 43").await;
        run(&contexts.create("python", Some("/tmp")).await.unwrap(), "x = 44").await;
        listed(sandbox)
    });
    for round in 2..4 {
        stays.keeper(async |sandbox| {
            assert_eq!(listed(sandbox), before);
            let [python, bash, javascript, other] = &sandbox.contexts().list()[..] else {
                panic!("{before:?}")
            };
            assert_eq!(sandbox.contexts().usual("python").await.unwrap().id(), python.id());
            let outcome = run(python, "x").await;
            assert_eq!(
                (outcome.results[0].text(), outcome.count),
                (Some("41"), round),
                "{outcome:?}"
            );
            assert_eq!(run(bash, "echo $x $PWD").await.stdout, "42 /\n");
            assert_eq!(value(javascript, "x").await, "43");
            assert_eq!(value(other, "x").await, "44");
            assert_eq!(running(sandbox).await, 4);
        });
    }
    stays.keeper(async |sandbox| {
        let [python, bash, javascript, other] = &sandbox.contexts().list()[..] else {
            panic!("{before:?}")
        };
        assert_eq!(
            interrupted(python, "print(1)\nwhile True: pass").await.name,
            "KeyboardInterrupt"
        );
        assert_eq!(interrupted(bash, "echo 1; sleep 600").await.value, "130");
        other.restart().await.unwrap();
        assert_eq!(raised(other, "x").await.name, "NameError");
        run(other, "x = 45").await;
        sandbox.contexts().remove(javascript.id()).await.unwrap();
        sandbox.contexts().remove(python.id()).await.unwrap();
    });
    stays.keeper(async |sandbox| {
        assert_eq!(listed(sandbox), [before[1].clone(), before[3].clone()]);
        assert_eq!(value(&sandbox.contexts().get(&before[3][0]).unwrap(), "x").await, "45");
        let usual = sandbox.contexts().usual("python").await.unwrap();
        assert_eq!(raised(&usual, "x").await.name, "NameError");
        for context in sandbox.contexts().list() {
            sandbox.contexts().remove(context.id()).await.unwrap();
        }
        assert_eq!(fs_err::read_dir(stays.notes()).unwrap().count(), 0);
        while running(sandbox).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    stays.keeper(async |sandbox| assert_eq!(listed(sandbox), <[[String; 3]; 0]>::default()));
    stays.end();
}

#[test]
fn a_cell_without_a_listener_is_interrupted_and_its_output_is_lost() {
    require!(user_namespaces, binary, python3, node);
    for (language, cells, check, result) in [
        (
            "python",
            [
                "x = 1; print(1)\nwhile True: print('y' * 9999)",
                "print(1)\nwhile True: display('y' * 99999)",
            ],
            "print(x)",
            "1\n",
        ),
        ("bash", ["x=1; echo 1; sleep 600", "echo 1; while :; do echo y; done"], "echo $x", "1\n"),
        (
            "javascript",
            [
                "globalThis.x = 1; console.log(1); while (true) console.log('y')",
                "console.log(1); await new Promise(() => {})",
            ],
            "console.log(x)",
            "1\n",
        ),
    ] {
        let stays = Stays::new();
        stays.keeper(async |sandbox| {
            leave_running(&sandbox.contexts().create(language, None).await.unwrap(), cells[0])
                .await;
        });
        stays.keeper(async |sandbox| leave_running(&only(sandbox), cells[1]).await);
        stays.keeper(async |sandbox| {
            let outcome = run(&only(sandbox), check).await;
            assert_eq!(
                (outcome.stdout.as_str(), outcome.count, &outcome.error),
                (result, 3, &None),
                "{outcome:?}"
            );
            assert!(outcome.results.is_empty() && outcome.stderr.is_empty(), "{outcome:?}");
        });
        stays.end();
    }
}

#[test]
fn processes_that_a_context_started_go_on_with_it() {
    require!(user_namespaces, binary, python3);
    let stays = Stays::new();
    let marker = format!("77{}", std::process::id());
    stays.keeper(async |sandbox| {
        let context = sandbox.contexts().create("python", None).await.unwrap();
        run(
            &context,
            &format!("import subprocess\nchild = subprocess.Popen(['sleep', '{marker}'])"),
        )
        .await;
        assert!(eventually(|| is_running(&marker)));
    });
    stays.keeper(async |sandbox| {
        assert_eq!(value(&only(sandbox), "child.poll() is None").await, "True");
        sandbox.contexts().remove(only(sandbox).id()).await.unwrap();
        assert!(eventually(|| !is_running(&marker)));
    });
    stays.end();
}

#[test]
fn a_cell_that_does_not_end_ends_its_context() {
    require!(user_namespaces, binary, python3);
    let stays = Stays::new();
    let stubborn = "import time\nprint(1)\nwhile True:\n try:\n  while True: time.sleep(1)\n \
        except KeyboardInterrupt: pass";
    stays.keeper(async |sandbox| {
        leave_running(&sandbox.contexts().create("python", None).await.unwrap(), stubborn).await;
    });
    stays.keeper(async |sandbox| {
        let context = only(sandbox);
        let error = try_run(&context, "1").await.unwrap_err();
        let ContextError::Ended { how, .. } = &error else { panic!("{error:?}") };
        assert_eq!(how, "its cell did not end within 20 s of an interrupt");
        assert!(error.hints()[0].contains("restart"));
        context.restart().await.unwrap();
        assert_eq!(value(&context, "1").await, "1");
        assert_eq!(running(sandbox).await, 1);
    });
    stays.end();
}

#[test]
fn a_cell_that_was_sent_in_part_is_never_run() {
    require!(user_namespaces, binary, python3);
    let stays = Stays::new();
    stays.keeper(async |sandbox| {
        let context = sandbox.contexts().create("python", None).await.unwrap();
        let long = |code: &str| format!("{code}\n{}", "#".repeat(300 << 10));
        run(&context, &long("x = 1")).await; // the interpreter receives all of this cell
        let pid = sandbox.session().processes().await.unwrap()[0].pid;
        assert!(sandbox.execute(&format!("kill -STOP {pid}"), None).await.unwrap().ok);
        let mut cell = context.execute(&long("open('half', 'w')"), &BTreeMap::new()).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(500), cell.next()).await.is_err());
    });
    stays.keeper(async |sandbox| {
        let context = only(sandbox);
        let error = try_run(&context, "1").await.unwrap_err();
        assert!(
            matches!(&error, ContextError::Ended { how, .. } if how.contains("half of a cell")),
            "{error:?}"
        );
        context.restart().await.unwrap();
        assert_eq!(value(&context, "import os; os.path.exists('half')").await, "False");
        assert_eq!(running(sandbox).await, 1);
    });
    stays.end();
}

#[test]
fn a_context_whose_process_ended_meanwhile_says_so() {
    require!(user_namespaces, binary, python3);
    let stays = Stays::new();
    stays.keeper(async |sandbox| {
        run(&sandbox.contexts().usual("python").await.unwrap(), "x = 1").await
    });
    stays.process(async |sandbox| {
        let pid = sandbox.session().processes().await.unwrap()[0].pid;
        let mut execution = sandbox.session().reconnect(pid).await.unwrap();
        execution.input().kill().await.unwrap();
        assert!(execution.next().await.is_none());
        // A process with the same id, or the same tag, is not the context.
        let tag = format!("ringfence-context-{pid}");
        sandbox
            .session()
            .exec(&Exec::new("sleep").argument("600").tag(tag))
            .await
            .unwrap()
            .detach();
        sandbox.session().exec(&Exec::new("sleep").argument("600")).await.unwrap().detach();
    });
    stays.keeper(async |sandbox| {
        let context = only(sandbox);
        let error = try_run(&context, "x").await.unwrap_err();
        let ContextError::Ended { how, .. } = &error else { panic!("{error:?}") };
        assert_eq!(how, "its process ended while no ringfence process watched it");
        // A process that only has the tag of a context is ended, because no context is known for
        // it.
        while running(sandbox).await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let usual = sandbox.contexts().usual("python").await.unwrap();
        assert_eq!((usual.id(), value(&usual, "1").await.as_str()), (context.id(), "1"));
    });
    stays.keeper(async |sandbox| assert_eq!(value(&only(sandbox), "2").await, "2"));
    stays.end();
}

#[test]
fn contexts_belong_to_one_process_at_a_time() {
    require!(user_namespaces, binary, python3);
    let stays = Stays::new();
    stays.keeper(async |sandbox| {
        run(&sandbox.contexts().create("python", None).await.unwrap(), "x = 1").await;
        let other = Sandbox::attach(&stays.engine.settings().host, "one").await.unwrap();
        let own = other.contexts().create("python", None).await.unwrap();
        run(&own, "x = 2").await;
        assert!(matches!(other.contexts().keep().await, Err(ContextError::Held { .. })));
        assert_eq!((listed(sandbox).len(), listed(&other).len()), (1, 1));
        // The process that keeps its own contexts does not take those of another, either.
        let third = Sandbox::attach(&stays.engine.settings().host, "one").await.unwrap();
        assert!(matches!(third.contexts().keep().await, Err(ContextError::Held { .. })));
        assert_eq!(
            (value(&only(sandbox), "x").await.as_str(), value(&own, "x").await.as_str()),
            ("1", "2")
        );
        assert_eq!(running(sandbox).await, 2);
        // Contexts that no process keeps end with their handle.
        drop((own, other));
        while running(sandbox).await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    stays.process(async |sandbox| {
        let own = sandbox.contexts().create("python", None).await.unwrap();
        run(&own, "x = 3").await;
        let next = Sandbox::attach(&stays.engine.settings().host, "one").await.unwrap();
        next.contexts().keep().await.unwrap();
        assert_eq!(value(&only(&next), "x").await, "1");
        assert_eq!(value(&own, "x").await, "3");
    });
    stays.end();
}
