//! Tests of contexts: interpreters that keep their state.

mod hostile;
mod kept;
mod languages;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringfence::contexts::{
    CellEvent, CellOutcome, CodeContext, ContextError, RaisedError, ShownValue,
};
use ringfence::policy::Size;
use ringfence::{Backend, Engine, Policy, Sandbox, StartRequest};
use ringfence_test_ledger::require;
use serde_json::json;

use crate::{engine, eventually, is_running, place, runtime};

/// Longest time that any of these tests may take.
const SOON: Duration = Duration::from_secs(60);

/// Calls `check` with a sandbox that has the given policy.
fn behind(policy: Policy, check: impl AsyncFn(&Sandbox)) {
    let home = place();
    inside(&engine(home.path()), policy, check);
}

fn inside(engine: &Engine, policy: Policy, check: impl AsyncFn(&Sandbox)) {
    runtime().block_on(async {
        let checked = engine.scoped(StartRequest::new(policy), async |sandbox| {
            tokio::time::timeout(SOON, check(sandbox)).await.expect("it has an end");
        });
        checked.await.unwrap_or_else(|error| panic!("{error:?}"));
    });
}

/// Calls `check` with a context for Python.
fn in_python(check: impl AsyncFn(&CodeContext)) {
    behind(Policy::default(), async |sandbox| {
        check(&sandbox.contexts().create("python", None).await.unwrap()).await;
    });
}

async fn try_run(context: &CodeContext, code: &str) -> Result<CellOutcome, ContextError> {
    context.execute(code, &BTreeMap::new()).await?.outcome().await
}

async fn run(context: &CodeContext, code: &str) -> CellOutcome {
    try_run(context, code).await.unwrap_or_else(|error| panic!("{code}: {error:?}"))
}

/// Returns the value of the last expression of a cell, as text.
async fn value(context: &CodeContext, code: &str) -> String {
    let outcome = run(context, code).await;
    assert_eq!(outcome.error, None, "{code}: {outcome:?}");
    let main = outcome.results.iter().find(|shown| shown.is_main_result);
    main.and_then(ShownValue::text).unwrap_or_default().to_owned()
}

async fn raised(context: &CodeContext, code: &str) -> RaisedError {
    run(context, code).await.error.unwrap_or_else(|| panic!("{code} raises nothing"))
}

/// Runs a cell until it has begun and written something, interrupts it once, and returns the error
/// with which it ended. A second interrupt could reach the next cell.
async fn interrupted(context: &CodeContext, code: &str) -> RaisedError {
    let mut cell = context.execute(code, &BTreeMap::new()).await.unwrap();
    let (mut error, mut is_asked) = (None, false);
    while let Some(event) = cell.next().await {
        match event.unwrap() {
            CellEvent::Stdout(_) if !std::mem::replace(&mut is_asked, true) => {
                context.interrupt().await.unwrap()
            }
            CellEvent::Error(raised) => error = Some(raised),
            _ => {}
        }
    }
    error.unwrap_or_else(|| panic!("{code} was not interrupted"))
}

#[test]
fn state_lives_on_from_cell_to_cell_on_every_backend() {
    require!(user_namespaces, bwrap, binary, python3);
    for backend in [Backend::Native, Backend::Bwrap, Backend::Local] {
        behind(Policy::default().backend(backend), async |sandbox| {
            let context = sandbox.contexts().usual("python").await.unwrap();
            let first =
                run(&context, "import sys\nx = 41\ndef f(): return x + 1\nprint('out')").await;
            assert_eq!(
                (first.count, first.stdout.as_str(), first.results.len()),
                (1, "out\n", 0),
                "{first:?}"
            );
            assert_eq!(value(&context, "f()").await, "42");
            assert_eq!(value(&context, "_ + 1").await, "43");
            assert_eq!(value(&context, "x;").await, "");
            let again = sandbox.contexts().usual("python").await.unwrap();
            assert_eq!((again.id(), value(&again, "x").await.as_str()), (context.id(), "41"));
            let inside = sandbox.manifest().workspace_inside.to_str().unwrap().to_owned();
            assert_eq!(context.directory(), inside);
            assert_eq!(value(&context, "import os; os.getcwd()").await, format!("'{inside}'"));
        });
    }
}

#[test]
fn a_line_that_begins_with_an_exclamation_mark_is_a_command() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let code =
            "for number in (1, 2):\n    !echo said; exit 3\ntext = '''\n!echo unsaid\n'''\ntext";
        let outcome = run(context, code).await;
        assert_eq!(
            (outcome.stdout.as_str(), &outcome.error),
            ("said\nsaid\n", &None),
            "{outcome:?}"
        );
        assert_eq!(outcome.results[0].text(), Some(r"'\n!echo unsaid\n'"), "{outcome:?}");
        let pip = run(context, "%pip --no-such-option").await;
        assert!(!pip.stderr.is_empty() && pip.error.is_none(), "{pip:?}");
        for wrong in ["!echo said\n1 +", "x = !echo said", "%nothing"] {
            let outcome = run(context, wrong).await;
            assert_eq!(outcome.stdout, "", "{outcome:?}");
            assert!(outcome.error.is_some_and(|error| error.name == "SyntaxError"), "{wrong}");
        }
    });
}

#[test]
fn a_value_is_shown_in_every_form_that_it_has() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let forms = "class Rich:\n def __repr__(self): return 'plain'\n def _repr_html_(self): \
            return '<b>'\n def _repr_markdown_(self): return '# m'\n def _repr_svg_(self): return \
            '<svg/>'\n \
            def _repr_png_(self): return b'png'\n def _repr_jpeg_(self): return (b'jpeg', {})\n \
            def _repr_pdf_(self): return b'pdf'\n def _repr_latex_(self): return '$x$'\n \
            def _repr_json_(self): return {'a': [1]}\n def _repr_javascript_(self): return 'f()'\n\
            display(Rich())\nRich()";
        let outcome = run(context, forms).await;
        let [displayed, main] = &outcome.results[..] else { panic!("{outcome:?}") };
        assert!(!displayed.is_main_result && main.is_main_result);
        assert_eq!(displayed.formats, main.formats);
        let expected = [
            ("text/plain", json!("plain")),
            ("text/html", json!("<b>")),
            ("text/markdown", json!("# m")),
            ("image/svg+xml", json!("<svg/>")),
            ("image/png", json!("cG5n")),
            ("image/jpeg", json!("anBlZw==")),
            ("application/pdf", json!("cGRm")),
            ("text/latex", json!("$x$")),
            ("application/json", json!({"a": [1]})),
            ("application/javascript", json!("f()")),
        ];
        assert_eq!(main.formats, expected.map(|(kind, value)| (kind.to_owned(), value)).into());

        let bundle = "class Own:\n def _repr_mimebundle_(self, include=None, exclude=None):\n  \
                      return {'text/x-own': 'o', 'application/json': float('nan')}\nOwn()";
        let outcome = run(context, bundle).await;
        assert_eq!(outcome.results[0].formats["text/x-own"], json!("o"), "{outcome:?}");
        let broken = run(context, "class Broken:\n def _repr_html_(self): 1 / 0\nBroken()").await;
        assert!(
            broken.stderr.contains("ZeroDivisionError") && broken.error.is_none(),
            "{broken:?}"
        );
        assert!(
            broken.results[0].text().is_some_and(|text| text.contains("Broken object")),
            "{broken:?}"
        );
    });
}

#[test]
fn output_comes_in_order_from_prints_threads_and_programs() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let code = "import sys, os, threading, subprocess\nprint('1')\n\
            print('2', file=sys.stderr)\nprint('3')\n\
            os.system('echo 4')\nprint('5', file=sys.stderr)\n\
            subprocess.run(['sh', '-c', 'echo 6 >&2'])\n\
            print('7')\nthread = threading.Thread(target=print, args=('8',))\n\
            thread.start(); thread.join()\nos.write(1, b'9')";
        let mut cell = context.execute(code, &BTreeMap::new()).await.unwrap();
        let mut heard = String::new();
        while let Some(event) = cell.next().await {
            match event.unwrap() {
                CellEvent::Stdout(text) => heard.push_str(&text.replace('\n', "o")),
                CellEvent::Stderr(text) => heard.push_str(&text.replace('\n', "e")),
                _ => {}
            }
        }
        assert_eq!(heard, "1o2e3o4o5e6e7o8o9");
    });
}

#[test]
fn output_comes_as_it_is_written() {
    require!(user_namespaces, binary, python3);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("python", Some("/tmp")).await.unwrap();
        // The cell waits for a file, which is made only after its first line was read.
        let code = "import os, time\nprint('é')\nwhile not os.path.exists('go'): time.sleep(0.01)\n\
            print('second')";
        let mut cell = context.execute(code, &BTreeMap::new()).await.unwrap();
        assert_eq!(cell.next().await.unwrap().unwrap(), CellEvent::Begun { count: 1 });
        assert_eq!(cell.next().await.unwrap().unwrap(), CellEvent::Stdout("é\n".to_owned()));
        sandbox.files().write("/tmp/go", Vec::new()).await.unwrap();
        assert_eq!(cell.next().await.unwrap().unwrap(), CellEvent::Stdout("second\n".to_owned()));
        assert!(matches!(
            cell.next().await.unwrap().unwrap(),
            CellEvent::Ended(left) if left.is_nothing()
        ));
        assert!(cell.next().await.is_none());
    });
}

#[test]
fn an_error_is_reported_with_its_traceback_and_ends_no_context() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let error = raised(context, "def f():\n    raise ValueError('no')\nf()").await;
        assert_eq!((error.name.as_str(), error.value.as_str()), ("ValueError", "no"));
        let expected = "Traceback (most recent call last):\n  File \"<cell 1>\", line 3, in \
            <module>\n    f()\n  File \"<cell 1>\", line 2, in f\n    raise ValueError('no')\n\
            ValueError: no\n";
        assert_eq!(error.traceback, expected);
        assert_eq!(raised(context, "x = = 1").await.name, "SyntaxError");
        assert_eq!(raised(context, "import sys; sys.exit(3)").await.name, "SystemExit");
        assert_eq!(
            raised(context, "class E(Exception):\n def __str__(self): 1/0\nraise E").await.name,
            "E"
        );
        assert_eq!(raised(context, "input()").await.name, "EOFError");
        assert_eq!(value(context, "1 + 1").await, "2");
    });
}

#[test]
fn a_cell_may_await_outside_a_function() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let code =
            "import asyncio\nasync def f(): return 5\ny = await f()\nawait asyncio.sleep(0, y + 1)";
        assert_eq!(value(context, code).await, "6");
        assert_eq!(value(context, "asyncio.run(f()) + y").await, "10");
    });
}

#[test]
fn an_interrupt_ends_a_cell_and_not_its_context() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        run(context, "import time, asyncio, subprocess\nx = 7").await;
        context.interrupt().await.unwrap(); // no cell runs
        for code in [
            "print(1)\nwhile True: pass",
            "print(1)\ntime.sleep(600)",
            "print(1)\nawait asyncio.sleep(600)",
            "print(1)\nsubprocess.run(['sleep', '600'])",
        ] {
            let error = interrupted(context, code).await;
            assert_eq!(error.name, "KeyboardInterrupt", "{error:?}");
            assert_eq!(value(context, "x").await, "7", "after {code}");
        }
        // Nobody listens to this cell any more.
        let mut cell =
            context.execute("x = 8\nprint(1)\nwhile True: pass", &BTreeMap::new()).await.unwrap();
        while !matches!(cell.next().await.unwrap().unwrap(), CellEvent::Stdout(_)) {}
        drop(cell);
        // Nobody ever listened to this cell.
        drop(context.execute("while True: pass", &BTreeMap::new()).await.unwrap());
        assert_eq!(value(context, "x").await, "8");
    });
}

#[test]
fn variables_of_a_cell_are_for_it_alone() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let env: BTreeMap<String, String> = [("A".to_owned(), "it's\n1".to_owned())].into();
        let cell = context.execute("import os; os.environ['A']", &env).await.unwrap();
        assert_eq!(cell.outcome().await.unwrap().results[0].text(), Some("\"it's\\n1\""));
        assert_eq!(value(context, "'A' in os.environ").await, "False");
        for name in ["", "a b", "1x", "é"] {
            let refused =
                context.execute("1", &[(name.to_owned(), String::new())].into()).await.unwrap_err();
            assert!(matches!(refused, ContextError::Unsound { .. }), "{refused:?}");
        }
        assert!(matches!(try_run(context, "'\0'").await, Err(ContextError::Unsound { .. })));
    });
}

#[test]
fn several_contexts_are_apart_and_run_at_once() {
    require!(user_namespaces, binary, python3);
    behind(Policy::default(), async |sandbox| {
        let contexts = sandbox.contexts();
        let (one, two) = (
            contexts.create("python", None).await.unwrap(),
            contexts.create("python", None).await.unwrap(),
        );
        let listed: Vec<String> =
            contexts.list().iter().map(|context| context.id().to_owned()).collect();
        assert_eq!(listed, [one.id(), two.id()]);
        run(&one, "x = 1").await;
        assert_eq!(raised(&two, "x").await.name, "NameError");
        // One context waits for a file that the other makes.
        let waits =
            "import os, time\nwhile not os.path.exists('/tmp/mark'): time.sleep(0.01)\n'seen'";
        let (seen, _) = tokio::join!(value(&one, waits), run(&two, "open('/tmp/mark', 'w')"));
        assert_eq!(seen, "'seen'");
        contexts.remove(one.id()).await.unwrap();
        assert!(matches!(contexts.get(one.id()), Err(ContextError::Absent { .. })));
        assert!(matches!(try_run(&one, "1").await, Err(ContextError::Ended { .. })));
        assert_eq!(contexts.list().len(), 1);
        assert_eq!(value(&two, "1").await, "1");
    });
}

#[test]
fn a_restart_begins_anew_even_while_a_cell_runs() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        run(context, "x = 1").await;
        let marker = format!("85{}", std::process::id());
        let mut cell = context
            .execute(
                &format!(
                    "import os; os.system('setsid sleep {marker} &'); print(1)\nwhile True: pass"
                ),
                &BTreeMap::new(),
            )
            .await
            .unwrap();
        while !matches!(cell.next().await.unwrap().unwrap(), CellEvent::Stdout(_)) {}
        assert!(eventually(|| is_running(&marker)));
        context.restart().await.unwrap();
        assert!(eventually(|| !is_running(&marker)), "what a cell started outlives its context");
        assert!(matches!(cell.next().await, Some(Err(ContextError::Ended { .. }))));
        assert_eq!(raised(context, "x").await.name, "NameError");
        assert_eq!(run(context, "1").await.count, 2);
    });
}

#[test]
fn a_context_whose_process_died_says_so_until_it_is_restarted() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        for (code, how) in [
            ("import os; os._exit(3)", "its process exited with 3"),
            ("import os; os.kill(os.getpid(), 9)", "its process was ended by signal 9"),
        ] {
            let error = try_run(context, code).await.unwrap_err();
            assert!(
                matches!(&error, ContextError::Ended { how: said, .. } if said.starts_with(how)),
                "{code}: {error:?}"
            );
            let error = try_run(context, "1").await.unwrap_err();
            assert!(
                matches!(&error, ContextError::Ended { how: said, .. } if said.starts_with(how)),
                "after {code}: {error:?}"
            );
            assert!(error.hints()[0].contains("restart"));
            context.restart().await.unwrap();
            assert_eq!(value(context, "1").await, "1");
        }
    });
}

/// Runs a cell without naming a context, so that it runs in the usual context of its language.
async fn run_unnamed(
    sandbox: &Sandbox,
    language: &str,
    code: &str,
) -> Result<CellOutcome, ContextError> {
    sandbox.contexts().execute(language, code, &BTreeMap::new()).await?.outcome().await
}

#[test]
fn the_usual_context_begins_anew_after_its_end() {
    require!(user_namespaces, binary, python3, node);
    behind(Policy::default(), async |sandbox| {
        for (language, code, how) in [
            ("bash", "exit 1", "its process exited with 1"),
            ("python", "import os; os._exit(3)", "its process exited with 3"),
            ("python", "os = __import__('os'); os.abort()", "its process was ended by signal 6"),
            ("javascript", "process.exit(1)", "its process exited with 1"),
        ] {
            let error = run_unnamed(sandbox, language, code).await.unwrap_err();
            let ContextError::Ended { how: said, id } = &error else { panic!("{code}: {error:?}") };
            assert_eq!(said, how, "{code}");
            // A caller that names the context is told that the context lost its variables.
            let context = sandbox.contexts().get(id).unwrap();
            assert!(
                matches!(try_run(&context, "1").await, Err(ContextError::Ended { .. })),
                "{code}"
            );
            let outcome = run_unnamed(sandbox, language, "1;true").await;
            assert_eq!(outcome.map(|outcome| outcome.count).unwrap(), 1, "{code}");
            run(&context, "1;true").await; // the usual context is the same one
        }
        assert_eq!(sandbox.contexts().list().len(), 3);
        // Cells that wait for their turn meanwhile are run, too, and all in one new context.
        let ends = run_unnamed(sandbox, "bash", "x=1; sleep 0.5; exit 1");
        let waits = async |code| {
            tokio::time::sleep(Duration::from_millis(200)).await;
            run_unnamed(sandbox, "bash", code).await.unwrap().stdout
        };
        let (ended, one, other) = tokio::join!(ends, waits("echo one $x"), waits("echo other $x"));
        assert!(matches!(ended, Err(ContextError::Ended { .. })), "{ended:?}");
        assert_eq!((one.as_str(), other.as_str()), ("one\n", "other\n"));
        assert_eq!(
            (sandbox.contexts().list().len(), sandbox.session().processes().await.unwrap().len()),
            (3, 3)
        );
    });
}

#[test]
fn a_cell_that_survives_an_interrupt_ends_its_context() {
    require!(user_namespaces, binary, python3);
    const HOW: &str = "its cell did not end within 20 s of an interrupt";
    let stubborn = "import signal, time\nsignal.signal(2, signal.SIG_IGN)\nprint(1)\n\
        while True: time.sleep(1)";
    behind(Policy::default(), async |sandbox| {
        // The listener of a cell goes away while another cell waits for its turn.
        let left = async {
            let mut cell =
                sandbox.contexts().execute("python", stubborn, &BTreeMap::new()).await.unwrap();
            while !matches!(cell.next().await.unwrap().unwrap(), CellEvent::Stdout(_)) {}
            let begun = Instant::now();
            drop(cell);
            let usual = sandbox.contexts().usual("python").await.unwrap();
            let (named, unnamed) =
                tokio::join!(try_run(&usual, "5"), run_unnamed(sandbox, "python", "5"));
            assert!(
                matches!(&named, Err(ContextError::Ended { how, .. }) if how == HOW),
                "{named:?}"
            );
            assert_eq!(unnamed.unwrap().results[0].text(), Some("5"));
            assert!(
                begun.elapsed() >= Duration::from_secs(20),
                "it had {:?} to end",
                begun.elapsed()
            );
        };
        // This cell has a listener.
        let heard = async {
            let context = sandbox.contexts().create("python", None).await.unwrap();
            let mut cell = context.execute(stubborn, &BTreeMap::new()).await.unwrap();
            while !matches!(cell.next().await.unwrap().unwrap(), CellEvent::Stdout(_)) {}
            context.interrupt().await.unwrap();
            let error = cell.next().await.unwrap().unwrap_err();
            assert!(matches!(&error, ContextError::Ended { how, .. } if how == HOW), "{error:?}");
            let error = try_run(&context, "1").await.unwrap_err();
            assert!(matches!(&error, ContextError::Ended { how, .. } if how == HOW), "{error:?}");
            context.restart().await.unwrap();
            assert_eq!(value(&context, "1").await, "1");
        };
        // A cell that was interrupted and ended does not affect later cells.
        let later = async {
            let context = sandbox.contexts().create("bash", None).await.unwrap();
            assert_eq!(interrupted(&context, "echo 1; sleep 600").await.value, "130");
            assert_eq!(run(&context, "sleep 23; echo slept").await.stdout, "slept\n");
        };
        tokio::join!(left, heard, later);
        while sandbox.session().processes().await.unwrap().len() > 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn garbage_on_every_descriptor_harms_nothing_but_output() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let garbage = "import os\nfor fd in range(256):\n for _ in range(20):\n  \
                       try: os.write(fd, b'\\x1e\\x00\\xff{\"type\"' * 9)\n  except OSError: pass";
        let outcome = run(context, garbage).await;
        assert!(outcome.error.is_none() && outcome.stdout.contains('\u{fffd}'), "{outcome:?}");
        assert_eq!(value(context, "1 + 1").await, "2");
        // Code that finds the mark can send any message. Such a message is either invalid, or is
        // believed only for the cell of that code.
        let forged = "import gc\nhost = next(o for o in gc.get_objects() if type(o).__name__ == \
            'Host')\n\
            os.write(1, b'\\x1e' + host.mark + b'.0004nope')";
        let error = try_run(context, forged).await.unwrap_err();
        assert!(matches!(error, ContextError::Nonsense { .. }), "{error:?}");
        context.restart().await.unwrap();
        assert_eq!(value(context, "1 + 1").await, "2");
    });
}

#[test]
fn excess_output_is_left_out_and_counted() {
    require!(user_namespaces, binary, python3);
    let limited = Policy::default().output(Size::mebibytes(1));
    behind(limited, async |sandbox| {
        let context = sandbox.contexts().create("python", None).await.unwrap();
        let outcome = run(&context, "for _ in range(3): print('x' * ((1 << 20) - 1))\n1").await;
        assert_eq!((outcome.stdout.len(), outcome.omitted.stdout), (1 << 20, 2 << 20));
        assert_eq!(outcome.results[0].text(), Some("1"));
        let long = run(&context, "'y' * (40 << 20)").await;
        assert!(
            long.stderr.contains("too long to be shown") && long.omitted.is_nothing(),
            "{:?}",
            long.stderr
        );
        assert!(long.results[0].text().is_some_and(|text| text.len() < 5000));
        let many = run(&context, "for _ in range(9): display('z' * (10 << 20))").await;
        assert_eq!((many.results.len(), many.omitted.results), (6, 3));
    });
}

#[test]
fn a_cell_has_the_time_that_the_policy_gives() {
    require!(user_namespaces, binary, python3);
    behind(Policy::default().time(Duration::from_secs(2)), async |sandbox| {
        let context = sandbox.contexts().create("python", None).await.unwrap();
        let began = Instant::now();
        let error = try_run(&context, "import time; time.sleep(50)").await.unwrap_err();
        assert!(matches!(error, ContextError::TimedOut { .. }), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
        context.restart().await.unwrap();
        assert_eq!(value(&context, "1").await, "1");
    });
}

#[test]
fn no_process_of_a_context_is_left_when_its_sandbox_ends() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = engine(home.path());
    let marker = format!("86{}", std::process::id());
    runtime().block_on(async {
        let sandbox = engine.start(StartRequest::new(Policy::default())).await.unwrap();
        let context = sandbox.contexts().create("python", None).await.unwrap();
        run(&context, &format!("import subprocess\nsubprocess.Popen(['sleep', '{marker}'])\nNone"))
            .await;
        assert!(eventually(|| is_running(&marker)));
        sandbox.stop().await.unwrap();
        assert!(eventually(|| !is_running(&marker)));
        assert!(try_run(&context, "1").await.is_err());
    });
}
