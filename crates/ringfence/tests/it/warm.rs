//! Tests of waiting interpreters: code in them behaves as in a cold run.

use std::path::Path;
use std::time::Duration;

use ringfence::{Backend, BlockImports, CodeError, Engine, ExecutionResult, Interpreters, Policy};
use ringfence_test_ledger::require;

use crate::{engine, eventually, is_running, place, runtime};

/// Longest time that anything may take here.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Variable that tells a test process that it is an owner that will be killed. Its value is the
/// file to which the owner writes the home of its interpreters.
const OWNER: &str = "WARM_OWNER";

/// Waits until interpreters wait, and runs code in one of them.
pub(crate) async fn run(
    interpreters: &Interpreters,
    code: &str,
    time: Option<Duration>,
) -> ExecutionResult {
    ready(interpreters).await;
    let result =
        interpreters.execute_code(code, time).await.unwrap_or_else(|error| panic!("{error:?}"));
    assert!(result.meta.warm, "none was waiting: {result:?}");
    result
}

pub(crate) async fn ready(interpreters: &Interpreters) {
    tokio::time::timeout(READY_TIMEOUT, interpreters.ready()).await.expect("they come to wait");
    assert_eq!(interpreters.trouble(), None);
}

/// Returns an engine that keeps `warm` interpreters, which import `preload` in advance.
pub(crate) fn engine_of(home: &Path, warm: usize, preload: &[&str]) -> Engine {
    let mut settings = engine(home).settings().clone();
    let mut code = settings.code.clone();
    code.warm = warm;
    code.preload = Some(preload.iter().map(|name| name.parse().unwrap()).collect());
    settings = settings.with_code(code);
    Engine::new(settings).unwrap()
}

/// Returns the process ids of the interpreters of a test, which shares its home with no other test.
pub(crate) fn interpreters_at(home: &Path) -> Vec<i32> {
    let processes = fs_err::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let home = format!("HOME={}", home.display());
    let is_one = |process: &i32| {
        let read = |name: &str| fs_err::read(format!("/proc/{process}/{name}")).unwrap_or_default();
        let has_home =
            read("environ").split(|byte| *byte == 0).any(|variable| variable == home.as_bytes());
        has_home && read("cmdline").ends_with(b"/main.py\0")
    };
    numbers.filter(is_one).collect()
}

/// Replaces numbers in a text, because the paths of files differ between any two runs.
fn without_numbers(text: &str) -> String {
    let parts = text.split(|character: char| character.is_ascii_digit());
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("0")
}

/// Runs programs cold and in waiting interpreters, and compares the results.
pub(crate) fn assert_same(programs: &[&str]) {
    let home = place();
    let engine = engine_of(home.path(), 2, &["json", "re"]);
    runtime().block_on(async {
        let policy = Policy::default();
        let interpreters = engine.interpreters(&policy, "python").unwrap();
        for &code in programs {
            let cold = engine.execute_code(&policy, code, "python", None).await.unwrap();
            let warm = run(&interpreters, code, None).await;
            let seen = |result: &ExecutionResult| {
                let texts = (result.stdout.clone(), without_numbers(&result.stderr));
                (texts, result.exit_code, result.signal, result.ok, result.dropped)
            };
            assert_eq!(seen(&warm), seen(&cold), "{code}");
            let same = |result: &ExecutionResult| {
                let meta = &result.meta;
                (meta.backend, meta.held.clone(), meta.policy_sha256.clone(), meta.limits.clone())
            };
            assert_eq!(same(&warm), same(&cold), "{code}");
            assert!(
                warm.meta.usage.max_rss > 1 << 20 && warm.meta.usage.cpu_seconds > 0.0,
                "{warm:?}"
            );
        }
    });
}

#[test]
fn code_behaves_in_a_waiting_interpreter_as_it_does_cold() {
    require!(user_namespaces, bwrap, binary, python3);
    let programs = [
        "print(1)",
        "",
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)",
        "raise SystemExit('said so')",
        "raise SystemExit",
        "import sys\nsys.exit(-1)",
        "def f():\n    raise ValueError('no')\nf()",
        "try:\n    1/0\nexcept Exception as error:\n    raise KeyError('k') from error",
        "print('never')\nx = = 1\n",
        "import atexit\natexit.register(print, 'bye')\nprint('hello')\n1/0",
        "import threading, time\ndef late():\n    time.sleep(.2)\n    print('late')\n\
         threading.Thread(target=late).start()",
        "import threading, time\ndef idle():\n    while True: time.sleep(.001)\n\
         threading.Thread(target=idle, daemon=True).start()\nraise SystemExit(4)",
        "print(__name__, __doc__, __package__, __spec__, sorted(globals()), \
         type(__loader__).__name__)",
        "import os, sys\nprint([os.path.basename(word) for word in sys.argv], \
         os.path.basename(__file__), os.listdir('.'))",
        "import os, sys\nprint(os.path.dirname(__file__) == sys.path[0], os.listdir(sys.path[0]))",
        "import sys\nprint(repr(sys.stdin.read()))\ninput()",
        "import os\nprint(os.open('/dev/null', 0))",
        "file = open('kept', 'w')\nfile.write('kept')\n\
         class Last:\n    def __del__(self, open=open): print(open('kept').read())\nlast = Last()",
        "class A:\n    def __del__(self): print('gone')\na = A()\nb = A()\nb.b = b",
        "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', kind.__name__, \
         trace.tb_lineno)\n1/0",
        "import sys\ndef hook(*error): raise RuntimeError('in it')\nsys.excepthook = hook\n1/0",
        "import atexit, sys\natexit.register(lambda: print([name for name in dir(sys) if \
         name.startswith('last_')]))\n1/0",
        "raise KeyboardInterrupt",
        "import os\nprint('x', flush=True)\nos._exit(7)",
        "import os\nos.kill(os.getpid(), 11)",
        "import os\nif os.fork() == 0:\n    print('child')\n    raise SystemExit(5)\n\
         print(os.wait()[1])",
        "import os\nos.execvp('sh', ['sh', '-c', 'echo other; exit 6'])",
        "import subprocess\nprint(subprocess.run(['sh', '-c', 'exit 9']).returncode)",
        "import multiprocessing\nif __name__ == '__main__':\n    process = \
         multiprocessing.get_context('spawn').Process(\
         target=print, \
         args=('spawned',))\n    process.start()\n    process.join()\n    print(process.exitcode)",
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print('a')\n\
         asyncio.run(main())",
        "import logging, warnings\nlogging.warning('logged')\nwarnings.warn('warned')",
        "from __future__ import annotations\ndef f(x: Nope): pass\nprint(f.__annotations__)",
        "# -*- coding: latin-1 -*-\nprint(len('é'))",
        "import os, tempfile\nprint(os.listdir(tempfile.gettempdir()) == [], \
         os.environ.get('HOME') is not None)",
        "print('x' * 3_000_000)",
        "print(open(__file__).read())",
        "import concurrent.futures as futures\n\
         print(futures.ThreadPoolExecutor().submit(len, 'abc').result())",
        "import sys\nsys.modules.clear()",
        &format!(
            "{}print(len(open(__file__).read()))",
            "# a line of a long program\n".repeat(4000)
        ),
    ];
    assert_same(&programs);
}

#[test]
fn an_execution_has_no_state_of_the_one_before() {
    require!(user_namespaces, bwrap, binary, python3);
    let home = place();
    for backend in [Backend::Native, Backend::Bwrap, Backend::Local] {
        let engine = engine_of(home.path(), 1, &["json", "random"]);
        runtime().block_on(async {
            let policy = Policy::default().backend(backend);
            let interpreters = engine.interpreters(&policy, "python").unwrap();
            let marker = format!("75{}", std::process::id());
            let code = format!(
                "import json, os, random, subprocess\n\
                 print(os.listdir('.'), hasattr(json, 'planted'))\n\
                 print(random.random(), hash('a'))\njson.planted = True\nopen('left', 'w')\n\
                 if '{backend}' != \
                 'local':\n    print(os.path.exists('/tmp/left'))\n    open('/tmp/left', 'w')\n\
                 subprocess.Popen(['sleep', '{marker}'], start_new_session=True)"
            );
            let (first, second) =
                (run(&interpreters, &code, None).await, run(&interpreters, &code, None).await);
            let lines = |result: &ExecutionResult| {
                result.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
            };
            let (first, second) = (lines(&first), lines(&second));
            assert_eq!((&*first[0], &*second[0]), ("[] False", "[] False"), "{backend}");
            assert_ne!(first[1], second[1], "{backend}: the same random numbers");
            assert!(
                first.iter().chain(&second).all(|line| line != "True"),
                "{backend}: {second:?}"
            );
            assert!(
                eventually(|| !is_running(&marker)),
                "{backend}: a process outlived its execution"
            );
        });
    }
}

#[test]
fn a_module_that_cannot_be_imported_beforehand_is_reported_and_stops_no_code() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine_of(home.path(), 1, &["json", "no_such_module", "re"]);
    runtime().block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
        let result = run(
            &interpreters,
            "import sys\nprint('json' in sys.modules, 're' in sys.modules)",
            None,
        )
        .await;
        assert_eq!(result.stdout, "True True\n", "{result:?}");
        let told = interpreters.not_imported();
        assert!(
            told.len() == 1 && told[0].starts_with("no_such_module: ModuleNotFoundError"),
            "{told:?}"
        );
    });
    // Modules of the default preload list are imported only if they are installed.
    let mut settings = engine.settings().clone();
    let code = ringfence::CodeSettings { preload: None, ..settings.code.clone() };
    settings = settings.with_code(code);
    let engine = Engine::new(settings).unwrap();
    runtime().block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
        ready(&interpreters).await;
        assert_eq!(interpreters.not_imported(), Vec::<String>::new());
    });
}

#[test]
fn an_interpreter_that_dies_while_it_waits_is_replaced() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine_of(home.path(), 1, &[]);
    runtime().block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
        ready(&interpreters).await;
        let before = interpreters_at(home.path());
        assert!(!before.is_empty());
        for process in &before {
            let process = rustix::process::Pid::from_raw(*process).unwrap();
            // The process may be gone already.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
        // Code is run at any moment, even while an interpreter is being replaced.
        let result = interpreters.execute_code("print(1)", None).await.unwrap();
        assert_eq!(result.stdout, "1\n", "{result:?}");
        assert_eq!(run(&interpreters, "print(2)", None).await.stdout, "2\n");
    });
}

#[test]
fn the_deadline_and_the_limit_of_output_count_from_the_call() {
    require!(user_namespaces, bwrap, binary, python3);
    let home = place();
    for backend in [Backend::Native, Backend::Bwrap] {
        let engine = engine_of(home.path(), 1, &[]);
        runtime().block_on(async {
            let mut policy = Policy::default().backend(backend).time(Duration::from_secs(2));
            policy.limits.output = Some("1K".parse().unwrap());
            let interpreters = engine.interpreters(&policy, "python").unwrap();
            ready(&interpreters).await;
            // The interpreter has waited for longer than its code may take.
            tokio::time::sleep(Duration::from_millis(2100)).await;
            let result = run(&interpreters, "print('x' * 5000)", None).await;
            assert!(result.ok && result.dropped.stdout == 5001 - 1024, "{result:?}");
            assert!(result.duration < 2.0, "{result:?}");
            let time = Some(Duration::from_millis(300));
            let result =
                run(&interpreters, "print('begun', flush=True)\nwhile True: pass", time).await;
            assert!(result.timed_out && !result.ok && result.stdout == "begun\n", "{result:?}");
            assert_eq!(result.meta.limits.time, Some(Duration::from_millis(300).into()));
        });
    }
}

#[test]
fn more_calls_than_interpreters_are_all_answered() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine_of(home.path(), 3, &[]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
        ready(&interpreters).await;
        let call = |number: i32| {
            let interpreters = interpreters.clone();
            tokio::spawn(async move {
                interpreters.execute_code(&format!("print({number})"), None).await
            })
        };
        let calls: Vec<_> = (0..24).map(call).collect();
        let mut warm = 0;
        for (number, call) in calls.into_iter().enumerate() {
            let result = call.await.unwrap().unwrap();
            assert_eq!(result.stdout, format!("{number}\n"));
            warm += usize::from(result.meta.warm);
        }
        assert!(warm >= 3, "{warm} of them were warm");
        ready(&interpreters).await;
        assert_eq!(interpreters.waiting(), 3);
    });
}

#[test]
fn the_lint_looks_at_code_for_waiting_interpreters_too() {
    require!(user_namespaces, binary, python3);
    let home = place();
    for degree in [BlockImports::Warn, BlockImports::Block] {
        let engine = engine_of(home.path(), 1, &[]);
        let engine = Engine::new(engine.settings().clone().with_block_imports(degree)).unwrap();
        runtime().block_on(async {
            let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
            ready(&interpreters).await;
            let result = interpreters.execute_code("import os\nprint('ran')", None).await.unwrap();
            assert_eq!(result.stdout == "ran\n", degree == BlockImports::Warn, "{result:?}");
            assert_eq!(result.meta.blocked_imports.len(), 1);
            assert_eq!(result.meta.warm, degree == BlockImports::Warn);
        });
    }
}

#[test]
fn interpreters_that_cannot_be_kept_are_refused_or_reported() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine_of(home.path(), 1, &[]);
    let refused = engine.interpreters(&Policy::default(), "bash").unwrap_err();
    assert!(matches!(refused, CodeError::NotPython { .. }), "{refused:?}");
    let mut code = engine.settings().code.clone();
    let broken =
        ringfence::Language::new(["python3", "-c", "raise SystemExit('out of order')"], ".py")
            .unwrap();
    code.languages.insert("broken".to_owned(), broken);
    let engine = Engine::new(engine.settings().clone().with_code(code)).unwrap();
    runtime().block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "broken").unwrap();
        tokio::time::timeout(READY_TIMEOUT, interpreters.ready()).await.unwrap();
        let trouble = interpreters.trouble().unwrap();
        assert!(trouble.ends_with("it exited with 1; out of order"), "{trouble}");
        // A cold run shows the error of the program.
        let result = interpreters.execute_code("", None).await.unwrap();
        assert!(!result.meta.warm && result.stderr == "out of order\n", "{result:?}");
    });
}

#[test]
fn dropping_a_call_or_the_handle_ends_interpreters() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine_of(home.path(), 1, &[]);
    runtime().block_on(async {
        let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
        ready(&interpreters).await;
        let marker = format!("76{}", std::process::id());
        let code = format!("import subprocess\nsubprocess.run(['sleep', '{marker}'])");
        let has_begun = async {
            while !is_running(&marker) {
                tokio::time::sleep(Duration::from_millis(10)).await
            }
        };
        tokio::select! {
            _ = interpreters.execute_code(&code, None) => panic!("it ended by itself"),
            () = has_begun => {}
        }
        assert!(eventually(|| !is_running(&marker)), "a dropped call goes on");
    });
}

#[test]
fn no_interpreter_outlives_an_owner_that_is_dropped_or_killed() {
    require!(user_namespaces, binary, python3);
    if let Some(told) = std::env::var_os(OWNER) {
        let home = place();
        let engine = engine_of(home.path(), 2, &[]);
        runtime().block_on(async {
            let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
            ready(&interpreters).await;
            assert_eq!(interpreters_at(home.path()).len(), 2);
            drop(interpreters);
            assert!(
                eventually(|| interpreters_at(home.path()).is_empty()),
                "the handle is gone, and they are not"
            );
            let interpreters = engine.interpreters(&Policy::default(), "python").unwrap();
            ready(&interpreters).await;
            fs_err::write(told, home.path().as_os_str().as_encoded_bytes()).unwrap();
            tokio::time::sleep(READY_TIMEOUT).await;
        });
        panic!("nobody killed it");
    }
    let home = place();
    let told = home.path().join("told");
    let name = "warm::no_interpreter_outlives_an_owner_that_is_dropped_or_killed";
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(OWNER, &told);
    let mut owner = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let home_of_owner = || fs_err::read_to_string(&told).unwrap_or_default();
    assert!(eventually(|| !home_of_owner().is_empty()), "the owner keeps none");
    let home_of_owner = Path::new(&home_of_owner()).to_owned();
    assert_eq!(interpreters_at(&home_of_owner).len(), 2);
    owner.kill().unwrap();
    owner.wait().unwrap();
    fs_err::remove_dir_all(&home_of_owner).unwrap();
    assert!(eventually(|| interpreters_at(&home_of_owner).is_empty()), "they outlived their owner");
}

#[test]
fn files_hidden_since_the_start_are_hidden_from_a_waiting_interpreter() {
    require!(user_namespaces, python3);
    let (home, workspace) = (place(), place());
    let policy = Policy::default().workspace(workspace.path()).hide("**/.env".parse().unwrap());
    runtime().block_on(async {
        let interpreters = engine_of(home.path(), 1, &[]).interpreters(&policy, "python").unwrap();
        let look = "import os; print(os.path.exists('note') and open('note').read(), \
            os.path.exists('.env'))\n\
            try: print(open('.env').read())\n\
            except OSError as error: print(type(error).__name__)";
        assert_eq!(run(&interpreters, look, None).await.stdout, "False False\nFileNotFoundError\n");
        ready(&interpreters).await;
        fs_err::write(workspace.path().join("note"), "kept").unwrap();
        assert_eq!(run(&interpreters, look, None).await.stdout, "kept False\nFileNotFoundError\n");
        ready(&interpreters).await;
        fs_err::write(workspace.path().join(".env"), "SECRET").unwrap();
        let result = interpreters.execute_code(look, None).await.unwrap();
        assert!(!result.meta.warm && !result.stdout.contains("SECRET"), "{result:?}");
        let result = run(&interpreters, look, None).await;
        assert!(!result.stdout.contains("SECRET"), "{result:?}");
    });
}
