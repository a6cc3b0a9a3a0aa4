//! Tests of values, errors and code that a harness does not expect. They may cost their own cell,
//! but no state of the context.

use std::collections::BTreeMap;

use ringfence::Policy;
use ringfence::contexts::{CellEvent, CodeContext};
use ringfence_test_ledger::require;
use serde_json::json;

use super::{behind, in_python, interrupted, raised, run, value};

/// Number of characters that is more than a message of a harness may contain.
const LONG: usize = 17 << 20;

/// Checks that an error was reported in part, with its type and its end.
async fn is_reported_in_part(context: &CodeContext, code: &str, name: &str, end: &str) {
    let error = raised(context, code).await;
    assert_eq!(error.name, name, "{code}");
    for text in [&error.value, &error.traceback] {
        assert!(
            text.len() < 1 << 20 && text.contains(" characters left out]\n"),
            "{code}: {}",
            text.len()
        );
    }
    assert!(error.traceback.trim_end().ends_with(end), "{code}");
}

#[test]
fn an_error_of_python_that_is_too_long_is_reported_in_part() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        run(context, "x = 7").await;
        is_reported_in_part(
            context,
            &format!("raise ValueError('y' * {LONG} + 'z')"),
            "ValueError",
            "yz",
        )
        .await;
        is_reported_in_part(context, &format!("open('y' * {LONG})"), "OSError", "y'").await;
        let named =
            raised(context, &format!("raise type('E' * {LONG}, (Exception,), {{}})('no')")).await;
        assert!(named.name.len() < 1 << 20 && named.value == "no");
        assert_eq!(value(context, "x").await, "7");
    });
}

#[test]
fn an_error_of_python_that_cannot_be_printed_ends_its_cell() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        for raises in ["KeyboardInterrupt", "SystemExit", "BaseException"] {
            let code = format!("class E(Exception):\n def __str__(self): raise {raises}\nraise E");
            let error = raised(context, &code).await;
            assert_eq!(
                (error.name.as_str(), error.value.as_str()),
                ("E", "<an error that cannot be told>"),
                "{raises}"
            );
        }
        // An error whose text takes forever to compute can be interrupted: once for its text, and
        // once for its traceback. The code counts before it writes, because the interrupt follows
        // what it writes.
        let endless = "class E(Exception):\n def __str__(self):\n  n = E.n = getattr(E, 'n', 0) + \
            1\n  print(1)\n  while n < 2: pass\n  return 'found'\nraise E";
        let error = interrupted(context, endless).await;
        assert_eq!(
            (error.name.as_str(), error.value.as_str()),
            ("E", "<an error that cannot be told>")
        );
        assert!(error.traceback.ends_with("E: found\n"), "{error:?}");
        assert_eq!(value(context, "1").await, "1");
    });
}

#[test]
fn a_form_of_python_that_cannot_be_read_is_left_out() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        run(
            context,
            "class Rich:\n def __init__(self, value): self.value = value\n def __repr__(self): \
             return 'plain'\n def _repr_html_(self): return '<b>'\n def _repr_json_(self): return \
             self.value",
        )
        .await;
        let deep = "deep = 1\nfor _ in range(200): deep = [deep]";
        run(context, deep).await;
        for wrong in ["deep", "{'a': 10 ** 400}", "[-10 ** 400]", "[float('nan')]", "{(1, 2): 3}"] {
            let outcome = run(context, &format!("Rich({wrong})")).await;
            assert!(
                outcome.error.is_none() && outcome.omitted.is_nothing(),
                "{wrong}: {outcome:?}"
            );
            let forms = [("text/plain", json!("plain")), ("text/html", json!("<b>"))];
            assert_eq!(
                outcome.results[0].formats,
                forms.map(|(kind, form)| (kind.to_owned(), form)).into(),
                "{wrong}"
            );
        }
        let right = run(context, "Rich({'a': [10 ** 30, True, 1.5, None]})").await;
        assert_eq!(
            right.results[0].formats["application/json"],
            json!({"a": [1e30, true, 1.5, null]})
        );
    });
}

#[test]
fn a_result_that_the_host_cannot_read_is_counted() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let forge = "import gc\nhost = next(o for o in gc.get_objects() if type(o).__name__ == \
            'Host')\nx = 7";
        run(context, forge).await;
        let forged = "host.send(host.output, \
            b'{\"type\":\"result\",\"is_main_result\":false,\"formats\":{\"x\":1e999}}')\nx";
        let outcome = run(context, forged).await;
        assert_eq!((outcome.omitted.results, outcome.results.len()), (1, 1), "{outcome:?}");
        assert_eq!(value(context, "x").await, "7");
    });
}

#[test]
fn an_error_is_reported_after_any_amount_of_output() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let outcome = run(
            context,
            "for _ in range(9): display('z' * (10 << 20))\nraise ValueError('w' * (10 << 20))",
        )
        .await;
        assert_eq!((outcome.results.len(), outcome.omitted.results), (6, 3));
        assert_eq!(outcome.error.map(|error| error.name).as_deref(), Some("ValueError"));
        // Fewer than 200 bytes are left for this error.
        let filled = run(context, "for _ in range(64): display('z' * ((1 << 20) - 80))\n1/0").await;
        assert_eq!((filled.results.len(), filled.omitted.is_nothing()), (64, true));
        assert_eq!(filled.error.map(|error| error.name).as_deref(), Some("ZeroDivisionError"));
    });
}

#[test]
fn a_context_keeps_the_descriptors_that_it_needs() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        run(context, "import os, subprocess\nx = 7").await;
        for code in [
            "os.closerange(3, 100)",
            "os.closerange(0, 1000)",
            "os.closerange(3, os.sysconf('SC_OPEN_MAX'))",
            "for n in range(1000):\n try: os.close(n)\n except OSError: pass",
        ] {
            let outcome = run(context, &format!("{code}\nNone")).await;
            assert_eq!(outcome.error, None, "{code}");
            assert_eq!(value(context, "x").await, "7", "after {code}");
            assert_eq!(
                run(context, "print('said')\n!echo heard").await.stdout,
                "said\nheard\n",
                "after {code}"
            );
        }
        // Programs do not inherit the descriptors, and a process that the code forks may close
        // them.
        assert_eq!(run(context, "!ls /proc/self/fd | wc -l").await.stdout.trim(), "4");
        let forked = "if os.fork() == 0:\n os.closerange(3, os.sysconf('SC_OPEN_MAX'))\n \
                      print(max(map(int, os.listdir('/proc/self/fd'))) < 10)\n os._exit(0)\n\
                      os.wait()[1]";
        let outcome = run(context, forked).await;
        assert_eq!(
            (outcome.stdout.as_str(), outcome.results[0].text()),
            ("True\n", Some("0")),
            "{outcome:?}"
        );
    });
}

#[test]
fn streams_that_code_closed_work_in_the_next_cell() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        for code in [
            "import sys; sys.stdout.close(); sys.stderr.close()",
            "sys.stdout.detach()\nNone",
            "del sys.stdout, sys.stderr",
            "sys.stdout = None",
        ] {
            assert_eq!(run(context, code).await.error, None, "{code}");
            let outcome = run(context, "print('out'); print('err', file=sys.stderr); 5").await;
            assert_eq!(
                (outcome.stdout.as_str(), outcome.stderr.as_str()),
                ("out\n", "err\n"),
                "after {code}"
            );
            assert_eq!(outcome.results[0].text(), Some("5"), "after {code}");
        }
        assert_eq!(value(context, "sys.stdout.close(); 6").await, "6");
        // Streams that the code puts in their place stay there.
        let own = "class Own:\n def __init__(self): self.said = ''\n def write(self, text): \
            self.said += text\n\
            sys.stdout, before = Own(), sys.stdout";
        run(context, own).await;
        assert_eq!(run(context, "print('kept')").await.stdout, "");
        assert_eq!(
            value(context, "own, sys.stdout = sys.stdout, before; own.said").await,
            r"'kept\n'"
        );
    });
}

#[test]
fn output_of_a_fork_of_a_cell_is_reported() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        let code = "import os\nchild = os.fork()\nif child == 0: print('child', end='')\n\
            else: os.waitpid(child, 0)\nNone";
        let outcome = run(context, code).await;
        assert_eq!((outcome.stdout.as_str(), outcome.error), ("child", None));
    });
}

#[test]
fn lines_of_python_end_where_python_ends_them() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        for character in ["\x0c", "\u{2028}", "\u{85}", "\x1c"] {
            let outcome = run(context, &format!("x = 'a{character}b'\n!echo hi\nlen(x)")).await;
            assert_eq!((outcome.stdout.as_str(), &outcome.error), ("hi\n", &None), "{character:?}");
            assert_eq!(outcome.results[0].text(), Some("3"), "{character:?}");
            let error =
                raised(context, &format!("x = 'a{character}b'\nraise ValueError  # here")).await;
            assert!(
                error.traceback.contains("line 2, in <module>\n    raise ValueError  # here\n"),
                "{error:?}"
            );
        }
        assert_eq!(run(context, "!echo one\r\n!echo two\r\nNone").await.stdout, "one\ntwo\n");
    });
}

#[test]
fn a_semicolon_hides_a_value_and_one_in_a_comment_does_not() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        run(context, "x = 'é'").await;
        for shown in ["x # trailing;", "x\n# trailing;", "(x)", "('é',\n x)[1]"] {
            assert_eq!(value(context, shown).await, "'é'", "{shown}");
        }
        for hidden in ["x;", "x ; # trailing", "x;\n\n# trailing\n", "('é',\n x);", "'é' + x;  "]
        {
            assert_eq!(value(context, hidden).await, "", "{hidden}");
        }
    });
}

#[test]
fn errors_and_values_of_javascript_that_cannot_be_printed_cost_no_state() {
    require!(user_namespaces, binary, node);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("javascript", None).await.unwrap();
        run(&context, "const kept = 7").await;
        is_reported_in_part(
            &context,
            &format!("throw new Error('x'.repeat({LONG}))"),
            "Error",
            ")",
        )
        .await;
        for (thrown, told) in [
            ("Object.create(null)", "[Object: null prototype] {}"),
            ("{ get message() { throw 1 } }", "{ message: [Getter] }"),
            ("{ message: Symbol('s') }", "Symbol(s)"),
            ("Object.assign(new Error('x'), { message: Symbol('s') })", "Symbol(s)"),
            ("{ get err() { throw 1 }, message: 'm' }", "m"),
            ("new Error('half \\ud800')", "half \u{fffd}"),
            (
                "{ [Symbol.for('nodejs.util.inspect.custom')]() { throw 1 }, get message() { throw \
                 1 } }",
                "<an error that cannot be told>",
            ),
        ] {
            for code in [format!("throw {thrown}"), format!("await Promise.reject({thrown})")] {
                assert_eq!(raised(&context, &code).await.value, told, "{code}");
            }
        }
        run(&context, "let deep = 1; for (let i = 0; i < 200; i++) deep = [deep]").await;
        for wrong in ["deep", "{ a: 1n }", "{ get a() { throw 1 } }"] {
            let code = format!(
                "display({{ [Symbol.for('Jupyter.display')]: () => \
                 ({{ 'text/plain': 'p', 'text/html': '\\ud800', 'application/json': {wrong} }}) }})"
            );
            let outcome = run(&context, &code).await;
            assert!(
                outcome.error.is_none() && outcome.omitted.is_nothing(),
                "{wrong}: {outcome:?}"
            );
            let forms = [("text/plain", json!("p")), ("text/html", json!("\u{fffd}"))];
            assert_eq!(
                outcome.results[0].formats,
                forms.map(|(kind, form)| (kind.to_owned(), form)).into(),
                "{wrong}"
            );
        }
        let long = run(
            &context,
            "({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': 'y'.repeat(40 << 20) }) })",
        )
        .await;
        assert!(
            long.stderr.contains("too long to be shown") && long.error.is_none(),
            "{:?}",
            long.stderr
        );
        assert_eq!(value(&context, "kept").await, "7");
    });
}

#[test]
fn a_failure_in_a_shell_with_errexit_ends_the_cell() {
    require!(user_namespaces, binary);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("bash", None).await.unwrap();
        for (code, status, said) in [
            ("x=7; set -e; echo a; (exit 3); echo no", "3", "a\n"),
            ("false; echo no", "1", ""), // `set -e` holds in the next cell, too
            ("f() { echo f; (exit 5); echo no; }; f; echo no", "5", "f\n"),
            ("(echo sub; false; echo no); echo no", "1", "sub\n"),
            ("trap '' INT; false; echo no", "1", ""),
            ("set -o pipefail; false | true; echo no", "1", ""),
        ] {
            let outcome = run(&context, code).await;
            let error = outcome.error.unwrap_or_else(|| panic!("{code}"));
            assert_eq!((error.name.as_str(), error.value.as_str()), ("ExitCode", status), "{code}");
            assert_eq!(outcome.stdout, said, "{code}");
        }
        let outcome =
            run(&context, "false || echo or; if false; then :; fi; ! true; echo \"$x\"").await;
        assert_eq!((outcome.stdout.as_str(), outcome.error), ("or\n7\n", None));
        assert_eq!(interrupted(&context, "echo 1; sleep 600").await.value, "130");
        let outcome = run(&context, "set +e; false; echo went on").await;
        assert_eq!((outcome.stdout.as_str(), outcome.error), ("went on\n", None));
        assert_eq!(interrupted(&context, "false; echo 1; sleep 600").await.value, "130");
    });
}

#[test]
fn names_of_a_shell_are_the_codes_own() {
    require!(user_namespaces, binary);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("bash", None).await.unwrap();
        run(&context, "readonly status=3").await;
        assert_eq!(run(&context, "true").await.error, None);
        assert_eq!(raised(&context, "(exit 4)").await.value, "4");
        let traced = run(&context, "set -x; false; true").await;
        assert!(traced.error.is_none() && !traced.stderr.contains("fail"), "{traced:?}");
    });
}

#[test]
fn output_of_a_python_cell_until_its_interrupt_is_reported_once() {
    require!(user_namespaces, binary, python3);
    in_python(async |context| {
        for _ in 0..10 {
            let code = "number = 0\nwhile True:\n    print(number)\n    number += 1";
            let mut cell = context.execute(code, &BTreeMap::new()).await.unwrap();
            let (mut said, mut is_asked) = (String::new(), false);
            while let Some(event) = cell.next().await {
                if let CellEvent::Stdout(text) = event.unwrap() {
                    said.push_str(&text);
                    if !std::mem::replace(&mut is_asked, true) {
                        context.interrupt().await.unwrap();
                    }
                }
            }
            let numbers: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
            assert!(numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
        }
    });
}

#[test]
fn a_cell_of_javascript_waits_for_whatever_it_awaits() {
    require!(user_namespaces, binary, node);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("javascript", None).await.unwrap();
        run(&context, "const data = await (async () => 7)()").await;
        for (code, expected) in [
            ("data", "7"),
            ("await (async () => 42)()", "42"),
            ("await [1][0]", "1"),
            ("async function f() { return await (2) }; await f()", "2"),
            ("'await (3)'", "'await (3)'"),
            ("with ({ x: 4 }) x // await", "4"),
        ] {
            assert_eq!(value(&context, code).await, expected, "{code}");
        }
        for code in
            ["await Promise.reject(undefined)", "await Promise.reject(0)", "await 0; throw ''"]
        {
            raised(&context, code).await;
        }
    });
}

#[test]
fn a_process_that_waits_for_its_reader_gets_a_long_cell() {
    require!(user_namespaces, binary, node);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("javascript", None).await.unwrap();
        run(&context, "setInterval(() => console.log('x'.repeat(4000)), 1)").await;
        // Wait until the output is more than pipes and buffers hold, because nobody reads it.
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let long = format!("/* {} */ 42", "long ".repeat(100_000));
        assert_eq!(value(&context, &long).await, "42");
    });
}
