//! Tests of properties of single languages, and of languages that have no contexts.

use ringfence::contexts::ContextError;
use ringfence::{Backend, BlockImports, CodeSettings, Engine, Language, Policy};
use ringfence_test_ledger::require;
use serde_json::json;

use super::{behind, inside, interrupted, raised, run, try_run, value};
use crate::code::settings;
use crate::{engine, place};

#[test]
fn a_shell_keeps_its_state_and_survives_interrupts() {
    require!(user_namespaces, binary);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("bash", Some("/tmp")).await.unwrap();
        let outcome =
            run(&context, "x='it'\"'\"'s'; f() { echo \"$x $1 $PWD\"; }\ncd /; echo e >&2").await;
        assert_eq!((outcome.stderr.as_str(), outcome.error), ("e\n", None));
        let cell = context
            .execute("f \"$A\"; cat", &[("A".to_owned(), "it's !x".to_owned())].into())
            .await
            .unwrap();
        assert_eq!(cell.outcome().await.unwrap().stdout, "it's it's !x /\n");
        assert_eq!(run(&context, "echo \"${A-unset}\"").await.stdout, "unset\n");
        let failed = run(&context, "(exit 3)").await.error.unwrap();
        assert_eq!((failed.name.as_str(), failed.value.as_str()), ("ExitCode", "3"));
        assert_eq!(raised(&context, "if").await.value, "2");
        // Both parts of the last pipeline run when it is interrupted.
        for code in [
            "echo 1; while :; do :; done",
            "echo 1; sleep 600; echo no",
            "f() { echo 1; sleep 600; }; f | cat",
        ] {
            assert_eq!(interrupted(&context, code).await.value, "130", "{code}");
        }
        let hostile =
            run(&context, "set -xv; exec >/dev/null 2>&1; trap '' INT; echo lost; set").await;
        assert!(hostile.error.is_none(), "{hostile:?}");
        assert_eq!(run(&context, "set +xv; echo \"$x\"").await.stdout, "it's\n");
        let error = try_run(&context, "exit 4").await.unwrap_err();
        assert!(
            matches!(&error, ContextError::Ended { how, .. } if how == "its process exited with 4"),
            "{error:?}"
        );
        context.restart().await.unwrap();
        assert_eq!(run(&context, "echo \"${x-unset}\"; pwd").await.stdout, "unset\n/tmp\n");
    });
}

#[test]
fn javascript_keeps_its_state_and_survives_interrupts() {
    require!(user_namespaces, binary, node);
    behind(Policy::default(), async |sandbox| {
        let context = sandbox.contexts().create("javascript", None).await.unwrap();
        let outcome =
            run(&context, "const x = 41; console.log('out'); console.error('err'); x + 1").await;
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(outcome.results[0].text(), Some("42"));
        assert_eq!(value(&context, "const y = await Promise.resolve(x); y").await, "41");
        assert_eq!(value(&context, "({ y })").await, "{ y: 41 }");
        let error = raised(&context, "null.x").await;
        assert_eq!(error.name, "TypeError");
        assert!(error.traceback.contains("cell 4:1"), "{error:?}");
        let cell = context
            .execute("process.env.A", &[("A".to_owned(), "b=c".to_owned())].into())
            .await
            .unwrap();
        assert_eq!(cell.outcome().await.unwrap().results[0].text(), Some("'b=c'"));
        for code in
            ["console.log(1); while (true) {}", "console.log(1); await new Promise(() => {})"]
        {
            assert_eq!(interrupted(&context, code).await.name, "Interrupted", "{code}");
            assert_eq!(value(&context, "y").await, "41");
        }
        for _ in 0..5 {
            let error = interrupted(&context, "while (true) console.log('y')").await;
            assert_eq!(error.name, "Interrupted", "{error:?}");
            assert_eq!(run(&context, "console.log('heard')").await.stdout, "heard\n");
        }
        let rich = "display({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<b>' }) })";
        assert_eq!(run(&context, rich).await.results[0].formats["text/html"], json!("<b>"));
        let error = try_run(&context, "process.exit(4)").await.unwrap_err();
        assert!(
            matches!(&error, ContextError::Ended { how, .. } if how == "its process exited with 4"),
            "{error:?}"
        );
    });
}

#[test]
fn a_language_without_contexts_or_program_is_an_error_that_lists_the_others() {
    require!(user_namespaces, binary);
    let home = place();
    let mut code = CodeSettings::default();
    code.languages.insert("r".to_owned(), Language::new(["Rscript"], ".r").unwrap());
    code.languages.insert("snake".to_owned(), Language::new(["no-such-python"], ".py").unwrap());
    code.languages.insert("quick".to_owned(), Language::new(["true"], ".py").unwrap());
    inside(&engine(home.path()), Policy::default(), async |sandbox| {
        let sandbox = sandbox.clone().with_code(code.clone());
        let refuse = async |language: &str, words: &str| {
            let error = sandbox.contexts().create(language, None).await.unwrap_err();
            assert!(error.to_string().starts_with(words), "{error:?}");
            assert!(!error.hints().is_empty(), "{error:?}");
        };
        refuse("cobol", "unknown language `cobol`: it is one of bash, javascript, python").await;
        refuse(
            "r",
            "cannot keep state for r: contexts are for bash, javascript, python, quick, snake",
        )
        .await;
        refuse("snake", "cannot find `no-such-python`, which runs snake, inside the sandbox").await;
        refuse("quick", "cannot start a context for quick: its process exited with 0").await;
        let error = sandbox.contexts().create("bash", Some("/no/such")).await.unwrap_err();
        assert!(matches!(error, ContextError::Session(_)), "{error:?}");
        assert!(sandbox.contexts().list().is_empty());
    });
}

#[test]
fn the_lint_of_imports_also_examines_cells() {
    require!(user_namespaces, binary, python3);
    let home = place();
    for degree in [BlockImports::Off, BlockImports::Block] {
        let settings = settings(home.path(), "", "").with_block_imports(degree);
        inside(&Engine::new(settings).unwrap(), Policy::default(), async |sandbox| {
            let context = sandbox.contexts().create("python", None).await.unwrap();
            let outcome = run(&context, "import os\nprint('ran')").await;
            match degree {
                BlockImports::Block => {
                    let error = outcome.error.unwrap();
                    assert_eq!(
                        (error.name.as_str(), outcome.stdout.as_str(), outcome.count),
                        ("BlockedImports", "", 0)
                    );
                    assert!(error.traceback.contains("line 1, column 8: import os"), "{error:?}");
                }
                _ => assert_eq!((outcome.stdout.as_str(), outcome.error), ("ran\n", None)),
            }
            assert_eq!(value(&context, "1").await, "1");
        });
    }
}

#[test]
fn tables_of_pandas_and_figures_of_matplotlib_are_shown() {
    require!(user_namespaces, binary, plotting_python);
    let python = ringfence_test_ledger::plotting_python().unwrap();
    let mut code = CodeSettings::default();
    code.languages
        .insert("python".to_owned(), Language::new([python.to_str().unwrap()], ".py").unwrap());
    let home = place();
    // Use the `local` backend, because the interpreter may lie where a sandbox cannot see it.
    inside(&engine(home.path()), Policy::default().backend(Backend::Local), async |sandbox| {
        let sandbox = sandbox.clone().with_code(code.clone());
        let context = sandbox.contexts().create("python", None).await.unwrap();
        let table =
            run(&context, "import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', None]})").await;
        assert_eq!(table.error, None, "{table:?}");
        let shown = &table.results[0].formats;
        assert!(
            shown["text/html"].as_str().is_some_and(|html| html.contains("<table")),
            "{table:?}"
        );
        assert_eq!(shown["e2b/data"], json!({"a": [1, 2], "b": ["x", null]}));
        // Two figures are shown by `show`, and one is still open at the end.
        let figures = "import matplotlib.pyplot as plt\n\
            for _ in range(2):\n    plt.plot([1, 2]); plt.show()\n\
            figure = plt.figure(); figure.gca().plot([3]); None";
        let drawn = run(&context, figures).await;
        assert_eq!(
            (drawn.stderr.as_str(), drawn.error, drawn.results.len()),
            ("", None, 3),
            "{:?}",
            drawn.stdout
        );
        for shown in &drawn.results {
            assert!(
                shown.formats["image/png"]
                    .as_str()
                    .is_some_and(|png| png.starts_with("iVBORw0KGgo"))
            );
        }
        let value = run(&context, "figure").await;
        assert_eq!((value.results.len(), value.results[0].is_main_result), (1, true));
    });
}
