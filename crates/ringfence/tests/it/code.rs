//! Tests of code, in a sandbox of its own and in a sandbox that stays.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use ringfence::policy::Size;
use ringfence::result::{ImportedBy, NotRunReason};
use ringfence::{
    Backend, BlockImports, CodeError, ContainerSpec, Engine, ExecutionResult, Host, Language,
    Policy, Pull, Records, Sandbox, Settings, StartRequest,
};
use ringfence_test_ledger::engine::{DOCKER_VARIABLE, PODMAN_VARIABLE, TINY_IMAGE};
use ringfence_test_ledger::require;

use crate::{engine, engine_with, eventually, is_running, place, runtime};

/// The place in which code is run.
enum Where<'a> {
    /// A sandbox of its own.
    Alone(&'a Engine, &'a Policy),
    /// A sandbox that stays.
    Staying(&'a Sandbox),
    /// A sandbox that stays, in a waiting interpreter if the language has such.
    Waiting(&'a Sandbox),
}

impl Where<'_> {
    async fn try_run(
        &self,
        code: &str,
        language: &str,
        time: Option<Duration>,
    ) -> Result<ExecutionResult, CodeError> {
        match self {
            Where::Alone(engine, policy) => engine.execute_code(policy, code, language, time).await,
            Where::Staying(sandbox) => sandbox.execute_code(code, language, time).await,
            Where::Waiting(sandbox) => match sandbox.spare_interpreter(language).await {
                Ok(spare) => {
                    let result = spare.execute_code(code, time).await?;
                    assert!(result.meta.warm, "{result:?}");
                    Ok(result)
                }
                Err(_) => sandbox.execute_code(code, language, time).await,
            },
        }
    }

    /// Returns the sandbox that stays, if the code runs in one.
    fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Where::Alone(..) => None,
            Where::Staying(sandbox) | Where::Waiting(sandbox) => Some(sandbox),
        }
    }

    async fn run(&self, code: &str, language: &str) -> ExecutionResult {
        self.try_run(code, language, None).await.unwrap_or_else(|error| panic!("{error:?}"))
    }

    async fn python(&self, code: &str) -> ExecutionResult {
        self.run(code, "python").await
    }
}

/// Calls `check` for every place in which code can be run without a container.
fn everywhere(check: impl AsyncFn(Where<'_>)) {
    let home = place();
    let engine = engine(home.path());
    for backend in [Backend::Native, Backend::Bwrap, Backend::Local] {
        let policy = Policy::default().backend(backend);
        runtime().block_on(async {
            check(Where::Alone(&engine, &policy)).await;
            let started = engine.start(StartRequest::new(policy)).await;
            let sandbox = started.unwrap_or_else(|error| panic!("{backend}: {error:?}"));
            check(Where::Staying(&sandbox)).await;
            check(Where::Waiting(&sandbox)).await;
            sandbox.stop().await.unwrap();
        });
    }
}

/// Returns settings of a host whose user file and project file have the given content.
pub(crate) fn settings(home: &Path, user: &str, project: &str) -> Settings {
    fs_err::create_dir_all(home.join(".config/ringfence")).unwrap();
    fs_err::write(home.join(".config/ringfence/config.toml"), user).unwrap();
    fs_err::write(home.join("workspace/ringfence.toml"), project).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let variables: BTreeMap<OsString, OsString> =
        [("PATH".into(), path), ("HOME".into(), home.into())].into();
    let host = Host::new(variables, home.join("workspace"));
    let settings = Settings::load(host, Vec::new(), Default::default())
        .unwrap_or_else(|error| panic!("{error:?}"));
    settings.with_launcher(ringfence_test_ledger::binary())
}

#[test]
fn code_returns_its_output_its_exit_code_and_what_held() {
    require!(user_namespaces, bwrap, binary, python3);
    everywhere(async |code| {
        let result = code
            .python("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
            .await;
        assert_eq!(
            (result.stdout.as_str(), result.stderr.as_str()),
            ("out\n", "err\n"),
            "{result:?}"
        );
        assert_eq!((result.exit_code, result.ok, result.timed_out), (Some(3), false, false));
        assert!(!result.meta.held.is_empty() && result.meta.blocked_imports.is_empty());
        let result = code.run("echo \"$BASH_VERSION\" | grep -c .", "bash").await;
        assert_eq!((result.stdout.as_str(), result.ok), ("1\n", true), "{result:?}");
        let traced = code.python("def f():\n    raise ValueError('no')\nf()").await;
        assert!(traced.stderr.contains("line 2, in f\n    raise ValueError('no')"), "{traced:?}");
    });
}

#[test]
fn javascript_is_run_by_node() {
    require!(user_namespaces, bwrap, binary, node);
    everywhere(async |code| {
        let text = "const fs = require('fs');\nconsole.log(6 * 7, fs.readdirSync('.').length);\n\
            process.exit(4);";
        let result = code.run(text, "javascript").await;
        assert_eq!((result.stdout.as_str(), result.exit_code), ("42 0\n", Some(4)), "{result:?}");
    });
}

#[test]
fn each_execution_starts_in_an_empty_directory_and_leaves_none() {
    require!(user_namespaces, bwrap, binary, python3);
    everywhere(async |code| {
        // A closed directory, and one deeper than a path can be, are hard to remove.
        let text = "import os, tempfile\nprint(os.listdir('.'))\nopen('a', 'w').write('x')\n\
            print(os.listdir('.'))\n\
            os.mkdir('closed')\nopen('closed/b', 'w')\nos.chmod('closed', 0)\n\
            tempfile.mkdtemp()\nprint(os.getcwd())\nprint(__file__)\n\
            for _ in range(3000): os.mkdir('deep'); os.chdir('deep')";
        for _ in 0..2 {
            let result = code.python(text).await;
            let lines: Vec<&str> = result.stdout.lines().collect();
            let [before, after, directory, file] = lines[..] else { panic!("{result:?}") };
            assert_eq!((before, after), ("[]", "['a']"), "{result:?}");
            assert!(file.ends_with("/main.py") && !Path::new(file).exists(), "{file}");
            assert!(!Path::new(directory).exists(), "{directory}");
            if let Some(sandbox) = code.sandbox() {
                assert!(
                    sandbox.files().stat(directory).await.is_err(),
                    "{directory} is still inside"
                );
                assert!(sandbox.files().stat(file).await.is_err(), "{file} is still inside");
            }
        }
    });
}

#[test]
fn no_process_of_an_execution_is_left() {
    require!(user_namespaces, bwrap, binary);
    everywhere(async |code| {
        let marker = format!("73{}", std::process::id());
        let result = code.run(&format!("setsid sleep {marker} & echo started"), "bash").await;
        assert_eq!(result.stdout, "started\n", "{result:?}");
        assert!(eventually(|| !is_running(&marker)), "a daemon outlived its execution");
    });
}

#[test]
fn the_code_is_in_no_argument_list() {
    require!(user_namespaces, bwrap, binary, python3);
    everywhere(async |code| {
        let text = "secret = 'in the code'\nprint([b'in the' in open(f'/proc/{p}/cmdline', \
            'rb').read() \
            for p in ('self', 1)], len(open('/proc/self/environ').read().split('in the')))";
        let result = code.python(text).await;
        assert_eq!(result.stdout, "[False, False] 1\n", "{result:?}");
    });
}

#[test]
fn code_is_ended_by_its_deadline() {
    require!(user_namespaces, bwrap, binary, python3);
    everywhere(async |code| {
        let time = Some(Duration::from_secs(2)); // the start of the interpreter counts, too
        let result = code.try_run("echo begun; sleep 60", "bash", time).await.unwrap();
        assert!(result.timed_out && !result.ok, "{result:?}");
        assert_eq!(result.stdout, "begun\n");
        let text = "import time\nprint('begun', flush=True)\ntime.sleep(60)";
        let result = code.try_run(text, "python", time).await.unwrap();
        assert!(result.timed_out && !result.ok && result.duration < 30.0, "{result:?}");
        assert_eq!((result.stdout.as_str(), result.signal), ("begun\n", Some(9)));
    });
}

#[test]
fn code_without_a_workspace_does_not_see_the_callers_directory() {
    require!(user_namespaces, binary, python3);
    let home = place();
    fs_err::write(home.path().join("workspace/note"), "kept").unwrap();
    let engine = engine(home.path());
    let note = home.path().join("workspace/note");
    let code =
        format!("import os\nprint(os.path.exists('{}'), os.path.exists('note'))", note.display());
    runtime().block_on(async {
        let alone = engine.execute_code(&Policy::default(), &code, "python", None).await.unwrap();
        assert_eq!(alone.stdout, "False False\n", "{alone:?}");
        let named = Policy::default().workspace(home.path().join("workspace"));
        let shown = engine.execute_code(&named, &code, "python", None).await.unwrap();
        assert_eq!(shown.stdout, "True True\n", "{shown:?}");
        // The same policy has the same hash, wherever the directory of an execution is.
        let again = engine.execute_code(&Policy::default(), &code, "python", None).await.unwrap();
        assert_eq!(alone.meta.policy_sha256, again.meta.policy_sha256);
    });
}

#[test]
fn an_operators_tree_for_workspaces_does_not_keep_code_from_its_own_directory() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let rule = format!("workspace_root = '{}'", home.path().display());
    let engine = Engine::new(settings(home.path(), &rule, "filesystem.workspace = '.'")).unwrap();
    let result = runtime().block_on(engine.execute_code(
        &engine.settings().policy,
        "print(1)",
        "python",
        None,
    ));
    assert_eq!(result.unwrap().stdout, "1\n");
}

#[test]
fn a_disk_limit_for_code_is_refused_and_not_ignored() {
    require!(user_namespaces, bwrap, binary);
    let home = place();
    let engine = engine(home.path());
    let code = "with open('grown', 'wb') as file: file.write(bytes(2 << 20))";
    runtime().block_on(async {
        for backend in [Backend::Native, Backend::Bwrap] {
            let free = Policy::default().backend(backend);
            let result = engine.execute_code(&free, code, "python", None).await.unwrap();
            assert!(result.ok, "{result:?}");
            let mut bounded = free.clone();
            bounded.limits.disk = Some(Size::from_bytes(1 << 20));
            let error = engine.execute_code(&bounded, code, "python", None).await.unwrap_err();
            let told = ringfence::chain(&error);
            assert!(told.contains("disk: cannot be enforced"), "{told}");
            assert_eq!(error.exit_status().code(), 125);
        }
    });
}

#[test]
fn an_unknown_language_is_an_error_that_lists_the_known_ones() {
    require!(user_namespaces, bwrap, binary);
    everywhere(async |code| {
        let error = code.try_run("", "cobol", None).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown language `cobol`: it is one of bash, javascript, python"
        );
        assert!(error.hints()[0].contains("[code.languages.cobol]"), "{:?}", error.hints());
    });
}

#[test]
fn a_language_whose_program_is_not_inside_is_an_error_that_says_so() {
    require!(user_namespaces, bwrap, binary);
    let home = place();
    let cobol = "[code.languages.cobol]\ncommand = ['no-such-cobol', '-x']\nsuffix = '.cob'";
    let engine = Engine::new(settings(home.path(), cobol, "")).unwrap();
    runtime().block_on(async {
        for backend in [Backend::Native, Backend::Bwrap, Backend::Local] {
            let policy = Policy::default().backend(backend);
            let sandbox = engine.start(StartRequest::new(policy.clone())).await.unwrap();
            for place in [Where::Alone(&engine, &policy), Where::Staying(&sandbox)] {
                let error = place.try_run("", "cobol", None).await.unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "cannot find `no-such-cobol`, which runs cobol, inside the sandbox"
                );
                assert_eq!(error.exit_status().code(), 127);
            }
            sandbox.stop().await.unwrap();
        }
    });
}

#[test]
fn a_projects_language_runs_in_a_sandbox_and_never_on_the_host() {
    require!(user_namespaces, binary);
    let home = place();
    let own = "[code.languages.shell]\ncommand = ['sh', '-e']\nsuffix = '.ash'";
    let engine = Engine::new(settings(home.path(), "", own)).unwrap();
    runtime().block_on(async {
        let inside =
            engine.execute_code(&Policy::default(), "echo inside", "shell", None).await.unwrap();
        assert_eq!(inside.stdout, "inside\n", "{inside:?}");
        let local = Policy::default().backend(Backend::Local);
        let refused = engine.execute_code(&local, "echo outside", "shell", None).await.unwrap_err();
        assert!(
            matches!(refused, CodeError::FromProject { backend: Backend::Local, .. }),
            "{refused:?}"
        );
        let sandbox = engine.start(StartRequest::new(local)).await.unwrap();
        let refused = sandbox.execute_code("echo outside", "shell", None).await.unwrap_err();
        assert!(matches!(refused, CodeError::FromProject { .. }), "{refused:?}");
        sandbox.stop().await.unwrap();
    });
    // A language in the user's own settings may run on the host.
    let engine = Engine::new(settings(home.path(), own, "")).unwrap();
    let local = Policy::default().backend(Backend::Local);
    let result =
        runtime().block_on(engine.execute_code(&local, "echo outside", "shell", None)).unwrap();
    assert_eq!(result.stdout, "outside\n");
}

#[test]
fn the_lint_is_off_or_warns_or_blocks() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let code = "import os\nprint('ran')";
    for degree in [BlockImports::Off, BlockImports::Warn, BlockImports::Block] {
        let engine = Engine::new(settings(home.path(), "", "").with_block_imports(degree)).unwrap();
        runtime().block_on(async {
            let sandbox = engine.start(StartRequest::new(Policy::default())).await.unwrap();
            for place in [Where::Alone(&engine, &Policy::default()), Where::Staying(&sandbox)] {
                let result = place.python(code).await;
                let found = &result.meta.blocked_imports;
                match degree {
                    BlockImports::Off => {
                        assert!(result.ok && found.is_empty() && result.meta.note.is_none())
                    }
                    BlockImports::Warn => {
                        assert_eq!((result.stdout.as_str(), found.len()), ("ran\n", 1))
                    }
                    BlockImports::Block => {
                        assert_eq!((result.ok, result.stdout.as_str()), (false, ""), "{result:?}");
                        assert_eq!((result.exit_code, result.signal), (None, None));
                        assert_eq!(result.meta.not_run, Some(NotRunReason::BlockedImports));
                        assert!(
                            result.stderr.contains("line 1, column 8: import os\n"),
                            "{result:?}"
                        );
                        let first = &found[0];
                        assert_eq!((first.module.as_str(), first.line, first.column), ("os", 1, 8));
                        assert_eq!(first.how, ImportedBy::Import);
                    }
                }
                if degree != BlockImports::Off {
                    assert!(
                        result
                            .meta
                            .note
                            .as_ref()
                            .is_some_and(|note| note.contains("isolates nothing"))
                    );
                }
                let free = place.python("print(1)").await;
                assert!(free.ok && free.meta.blocked_imports.is_empty(), "{free:?}");
                // A lint that found nothing is no promise, either, and the note says so.
                assert_eq!(free.meta.note.is_some(), degree != BlockImports::Off, "{free:?}");
                // The lint reads only Python.
                assert!(place.run("import os 2> /dev/null; true", "bash").await.ok);
            }
            sandbox.stop().await.unwrap();
        });
    }
}

#[test]
fn code_with_a_syntax_error_is_the_interpreters_to_refuse_and_the_lint_says_so() {
    require!(user_namespaces, binary, python3);
    let home = place();
    let engine = Engine::new(settings(home.path(), "code.block_imports = 'block'", "")).unwrap();
    runtime().block_on(async {
        let sandbox = engine.start(StartRequest::new(Policy::default())).await.unwrap();
        for place in [Where::Alone(&engine, &Policy::default()), Where::Staying(&sandbox)] {
            let wrong = place.python("print('never')\nx = = 1\n").await;
            assert_eq!((wrong.exit_code, wrong.stdout.as_str()), (Some(1), ""), "{wrong:?}");
            assert!(wrong.stderr.contains("SyntaxError"), "{wrong:?}");
            assert!(
                wrong.meta.blocked_imports.is_empty() && wrong.meta.not_run.is_none(),
                "{wrong:?}"
            );
            let note = wrong.meta.note.unwrap_or_default();
            assert!(
                note.ends_with("near the syntax error at line 2, column 5 it may have missed some"),
                "{note}"
            );
            // Imports outside the syntax error count.
            let blocked = place.python("import os\nx = = 1\n").await;
            assert_eq!(blocked.meta.not_run, Some(NotRunReason::BlockedImports), "{blocked:?}");
        }
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn dropping_the_future_ends_code_and_takes_its_directory_along() {
    require!(user_namespaces, bwrap, binary);
    everywhere(async |code| {
        let marker = format!("74{}", std::process::id());
        let text = format!("sleep {marker}");
        let has_begun = async {
            while !is_running(&marker) {
                tokio::time::sleep(Duration::from_millis(10)).await
            }
        };
        tokio::select! {
            _ = code.run(&text, "bash") => panic!("it ended by itself"),
            () = has_begun => {}
        }
        // Wait asynchronously, because a task of this runtime ends the code.
        let gone = async {
            while is_running(&marker) {
                tokio::time::sleep(Duration::from_millis(10)).await
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("it is ended");
        if let Some(sandbox) = code.sandbox() {
            let list = "ls -a /tmp . ~ 2> /dev/null | grep -c '^.code-'";
            let log = sandbox.log();
            let gone = async {
                loop {
                    let entries = fs_err::read_dir(log.parent().unwrap()).unwrap().flatten();
                    let here = entries
                        .filter(|entry| entry.file_name().to_string_lossy().starts_with("code-"))
                        .count();
                    if here == 0 && sandbox.execute(list, None).await.unwrap().stdout == "0\n" {
                        break;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(10), gone)
                .await
                .expect("its directory is removed");
        }
    });
}

#[test]
fn a_record_has_the_code_where_that_is_wanted_and_no_secret() {
    let home = place();
    let result = |ok: bool| ExecutionResult { ok, ..serde_json_result() };
    let code = "print('hunter22')";
    let kept = |store: &str, audit: &str, ok: bool| {
        let user = format!(
            "[env]\nset = {{ TOKEN = 'hunter22' }}\n[code]\nstore_code = '{store}'\n[audit]\n\
             store = '{audit}'"
        );
        let settings = settings(home.path(), &user, "");
        let path = Records::keep_code(&settings, "python", code, &result(ok)).unwrap();
        path.map(|path| fs_err::read_to_string(path).unwrap())
    };
    let text = kept("on_error", "on_error", false).unwrap();
    assert!(text.contains("\"code\": \"print('***')\"") && text.contains("python3"), "{text}");
    assert!(kept("on_error", "on_error", true).is_none());
    assert!(kept("always", "on_error", true).unwrap().contains("\"code\""));
    assert!(!kept("never", "on_error", false).unwrap().contains("\"code\""));
    assert!(kept("never", "always", true).is_some_and(|text| !text.contains("\"code\"")));
    assert!(kept("always", "never", false).is_none());
}

fn serde_json_result() -> ExecutionResult {
    let text = r#"{"id":"a","exit_code":1,"signal":null,"ok":false,"timed_out":false,
        "oom_killed":false,"stdout":"","stderr":"","dropped":{"stdout":0,"stderr":0},"duration":0.1,
        "meta":{"backend":"native","chosen_because":"","held":{},"policy_sha256":"","limits":{},
        "usage":{"cpu_seconds":0.0,"max_rss":0}}}"#;
    serde_json::from_str(text).unwrap()
}

/// Runs code in containers of an engine. `variable` is the variable of the tests that names the
/// engine's address, and `own` the variable of the host that receives it.
fn in_a_container(backend: Backend, variable: &str, own: &str) {
    let home = place();
    let engine = engine_with(home.path(), &[(own, &std::env::var(variable).unwrap())]);
    let container = ContainerSpec {
        image: Some(TINY_IMAGE.to_owned()),
        pull: Some(Pull::Never),
        ..Default::default()
    };
    let mut settings = engine.settings().clone();
    settings.container = container.clone();
    let shell = Language::new(["sh"], ".ash").unwrap();
    let mut code_settings = settings.code.clone();
    code_settings.languages.insert("shell".to_owned(), shell);
    let engine = Engine::new(settings.with_code(code_settings)).unwrap();
    let policy = Policy::default().backend(backend);
    runtime().block_on(async {
        let spec = StartRequest { container, ..StartRequest::new(policy.clone()) };
        let sandbox = engine.start(spec).await.unwrap_or_else(|error| panic!("{error:?}"));
        for place in [Where::Alone(&engine, &policy), Where::Staying(&sandbox)] {
            for _ in 0..2 {
                let result = place
                    .run("ls | wc -l; touch here; (sleep 600 &); echo $0; exit 3", "shell")
                    .await;
                let lines: Vec<&str> = result.stdout.lines().map(str::trim).collect();
                let [count, file] = lines[..] else { panic!("{result:?}") };
                assert_eq!((count, result.exit_code), ("0", Some(3)), "{result:?}");
                assert!(!Path::new(file).exists(), "{file}");
            }
            let error = place.try_run("", "python", None).await.unwrap_err();
            assert!(matches!(error, CodeError::NoProgram { .. }), "{error:?}");
        }
        let left = sandbox
            .execute("ps | grep -c '[s]leep 600'; ls -a /tmp | grep -c code-", None)
            .await
            .unwrap();
        assert_eq!(left.stdout, "0\n0\n", "{left:?}");
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn code_runs_in_a_container_of_docker() {
    require!(docker, binary);
    in_a_container(Backend::Docker, DOCKER_VARIABLE, "DOCKER_HOST");
}

#[test]
fn code_runs_in_a_container_of_podman() {
    require!(podman, binary);
    in_a_container(Backend::Podman, PODMAN_VARIABLE, "CONTAINER_HOST");
}
