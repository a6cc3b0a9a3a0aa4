//! Tests of waiting interpreters in a sandbox that stays. The tests in `code` check that code in
//! them behaves as in a cold run.

use std::time::Duration;

use ringfence::{Backend, BlockImports, CodeError, Engine, Policy, Sandbox, StartRequest};
use ringfence_test_ledger::require;

use crate::{engine, place, runtime};

/// Calls `happens` with a sandbox whose waiting interpreters import `preload` in advance.
fn check(preload: &[&str], block_imports: BlockImports, happens: impl AsyncFnOnce(&Sandbox)) {
    let home = place();
    let settings = engine(home.path()).settings().clone();
    let mut code = settings.code.clone();
    code.preload = Some(preload.iter().map(|name| name.parse().unwrap()).collect());
    code.block_imports = block_imports;
    let engine = Engine::new(settings.with_code(code)).unwrap();
    runtime().block_on(async {
        let sandbox = engine
            .start(StartRequest::new(Policy::default().backend(Backend::Native)))
            .await
            .unwrap();
        happens(&sandbox).await;
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_spare_interpreter_runs_code_among_the_files_of_its_sandbox() {
    require!(user_namespaces, binary, python3);
    check(&["json"], BlockImports::Off, async |sandbox| {
        sandbox.files().write("/tmp/note", b"kept".to_vec()).await.unwrap();
        let spare = sandbox.spare_interpreter("python").await.unwrap();
        assert_eq!(spare.not_imported(), [""; 0]);
        let text = "import sys\nprint('json' in sys.modules, 'json' in globals(), \
            open('/tmp/note').read())\n\
            print(repr(sys.stdin.read()), __import__('os').listdir('/proc/self/fd'))";
        let result = spare.execute_code(text, None).await.unwrap();
        let cold = sandbox.execute_code(text, "python", None).await.unwrap();
        assert_eq!(result.stdout, cold.stdout.replace("False False", "True False"), "{result:?}");
        assert!(result.meta.warm && !cold.meta.warm);
    });
}

#[test]
fn a_module_that_cannot_be_imported_is_reported_and_code_runs_without_it() {
    require!(user_namespaces, binary, python3);
    check(&["no_such_module", "re"], BlockImports::Off, async |sandbox| {
        let spare = sandbox.spare_interpreter("python").await.unwrap();
        let told = spare.not_imported();
        assert!(
            told.len() == 1 && told[0].starts_with("no_such_module: ModuleNotFoundError"),
            "{told:?}"
        );
        assert_eq!(spare.execute_code("print(1)", None).await.unwrap().stdout, "1\n");
    });
}

#[test]
fn code_runs_cold_if_the_spare_interpreter_is_gone() {
    require!(user_namespaces, binary, python3);
    check(&[], BlockImports::Off, async |sandbox| {
        let spare = sandbox.spare_interpreter("python").await.unwrap();
        let killed = "for p in /proc/[0-9]*; do grep -qa main[.]py $p/cmdline && kill -9 \
            ${p#/proc/}; done; exit 0";
        assert!(sandbox.execute(killed, None).await.unwrap().ok);
        let gone = "for p in /proc/[0-9]*; do grep -qa main[.]py $p/cmdline 2> /dev/null && exit \
            1; done; exit 0";
        while !sandbox.execute(gone, Some(Duration::from_secs(30))).await.unwrap().ok {}
        let result = spare.execute_code("print(6 * 7)", None).await.unwrap();
        assert_eq!((result.stdout.as_str(), result.meta.warm), ("42\n", false), "{result:?}");
    });
}

#[test]
fn the_lint_examines_code_for_spare_interpreters_of_python() {
    require!(user_namespaces, binary, python3);
    check(&[], BlockImports::Block, async |sandbox| {
        let spare = sandbox.spare_interpreter("python").await.unwrap();
        let result = spare.execute_code("import socket", None).await.unwrap();
        assert!(result.meta.not_run.is_some() && !result.ok, "{result:?}");
        let refused = sandbox.spare_interpreter("bash").await;
        assert!(matches!(refused, Err(CodeError::NotPython { .. })), "{refused:?}");
    });
}
