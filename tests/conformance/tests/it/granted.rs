//! Grants that no sandbox gets: a project's settings in place of the caller's, ringfence's own
//! files, sockets of engines, and the targets of planted links.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::require;

/// The variants that make their mounts themselves.
const VARIANTS: [BackendVariant; 2] = [BackendVariant::Native, BackendVariant::Bwrap];

/// A user with a home, a project in the home, and the files that ringfence and other programs keep
/// there.
struct UserHousehold {
    setup: BackendSetup,
    place: CallerDirectory,
}

impl UserHousehold {
    fn new(setup: BackendSetup) -> UserHousehold {
        let household = UserHousehold { setup, place: CallerDirectory::for_caller(setup.caller) };
        household.shell(
            "mkdir -p project/sub .config/ringfence .config/other \
             .local/state/ringfence/sandboxes .local/share \
             .cache/ringfence .ssh bin dotfiles &&
             echo 'limits.time = \"1m\"' > .config/ringfence/config.toml && echo SECRET > \
             .ssh/key &&
             echo SECRET > project/sub/key",
        );
        household
    }

    fn path(&self, name: &str) -> PathBuf {
        fs_err::canonicalize(self.place.path()).expect("it was made").join(name)
    }

    /// Runs a script on the host, as the caller, in the home.
    #[track_caller]
    fn shell(&self, script: &str) {
        let output = self
            .setup
            .command("sh", &self.place)
            .args(["-c", script])
            .output()
            .expect("a shell is there");
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Returns the command `ringfence run` in the project, with these flags, in which `~` is the
    /// home.
    fn prepare(&self, flags: &[&str]) -> std::process::Command {
        let mut command = self.setup.ringfence("run", &self.place);
        let home = self.path("");
        command
            .env("HOME", &home)
            .env("XDG_CACHE_HOME", home.join(".cache"))
            .current_dir(home.join("project"));
        command.args(flags.iter().map(|flag| {
            flag.replace('~', home.to_str().expect("it is text").trim_end_matches('/'))
        }));
        command
    }

    /// Runs a script in a sandbox with these flags, in which `~` is the home.
    fn run(&self, flags: &[&str], script: &str) -> Output {
        self.prepare(flags)
            .args(["--", "sh", "-c", script])
            .output()
            .expect("ringfence can be started")
    }

    #[track_caller]
    fn expect(&self, flags: &[&str], script: &str, expected: &str) {
        let output = self.run(flags, script);
        let said = format!("{:?} {flags:?}\n{output:?}", self.setup);
        assert!(output.status.success(), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{said}");
    }

    #[track_caller]
    fn refuse(&self, flags: &[&str], message: &str) {
        self.check_refusal(&self.run(flags, "echo ran"), flags, message);
    }

    #[track_caller]
    fn check_refusal(&self, output: &Output, flags: &[&str], message: &str) {
        let said = String::from_utf8_lossy(&output.stderr);
        let about = format!("{:?} {flags:?}\n{output:?}", self.setup);
        assert_eq!(output.status.code(), Some(2), "{about}");
        assert!(said.contains(message) && said.contains("hint: "), "{message}: {about}");
        assert_eq!(output.stdout, b"", "{about}");
    }
}

/// Returns a household for every caller of native and bwrap.
fn households() -> impl Iterator<Item = UserHousehold> {
    VARIANTS.into_iter().flat_map(BackendSetup::all_on).map(UserHousehold::new)
}

#[test]
fn a_settings_file_planted_by_an_earlier_run_weakens_no_policy() {
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    for home in households() {
        let look = "cat sub/key 2>/dev/null || cat key 2>/dev/null || cat /usr/key 2>/dev/null || \
                    echo hidden";
        home.expect(&[], look, "SECRET\n");
        home.expect(&["--hide", "sub/key"], look, "hidden\n");
        home.shell("ln -s sub project/link");
        for text in ["sub", "link", "./sub", "sub:/usr", ".:/usr", "~", "..", ".git"] {
            home.expect(
                &[],
                &format!("printf '[filesystem]\\nworkspace = \"{text}\"\\n' > ringfence.toml"),
                "",
            );
            home.check_refusal(
                &home.run(&["--hide", "sub/key"], look),
                &[text],
                "filesystem.workspace",
            );
            home.shell("rm project/ringfence.toml");
        }
        for text in [
            "backend = \"local\"",
            "backend = \"docker\"",
            "[audit]\\nstore = \"never\"",
            "[env]\\npass = [\"X\"]",
        ] {
            home.expect(&[], &format!("printf '{text}\\n' > ringfence.toml"), "");
            home.refuse(&[], "ringfence.toml:");
            home.shell("rm project/ringfence.toml");
        }
    }
}

#[test]
fn no_grant_includes_ringfences_own_files() {
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    for home in households() {
        home.shell("ln -s .config link && ln -s ringfence .config/inner");
        // As a control, everything beside these files can be granted.
        home.expect(&["--workspace", "~/.config/other"], "echo 1 > x && cat x", "1\n");
        home.expect(
            &["--write", "~/.config/other", "--read", "~/.ssh"],
            "echo 2 > ~/.config/other/x; cat ~/.ssh/key",
            "SECRET\n",
        );
        home.expect(&["--read", "~/.cache"], "ls ~/.cache", "ringfence\n");
        let settings = "where ringfence's own settings are";
        let state = "where ringfence keeps its sandboxes";
        let cache = "where ringfence notes what this host can enforce";
        for (path, message) in [
            ("~/.config", settings),
            ("~/.config/.", settings),
            ("~/.config/ringfence", settings),
            ("~/.config/other/../ringfence", settings),
            ("~/link", settings),
            ("~/link/inner", settings),
            ("~/.local", state),
            ("~/.local/state", state),
            ("~/.local/state/ringfence/sandboxes", state),
            ("~/.cache", cache),
        ] {
            home.refuse(&["--workspace", path], message);
            home.refuse(&["--write", path], message);
            if message != cache {
                home.refuse(&["--read", path], message);
            }
        }
        home.refuse(&["--write", "~/.config/ringfence/config.toml"], settings);
        home.refuse(&["--read", "~/.config/ringfence/config.toml"], settings);
        home.refuse(&["--write", "~"], "ringfence");
        home.refuse(&["--read", "~"], "ringfence");
        home.refuse(&["--write", "/etc"], settings);
        // A path that does not exist yet could be created from inside.
        home.shell("rm -r .config/ringfence .cache/ringfence");
        home.refuse(&["--workspace", "~/.config"], settings);
        home.refuse(&["--write", "~/.cache"], cache);
    }
}

#[test]
fn ringfences_own_files_are_recognised_under_every_path() {
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    let settings = "where ringfence's own settings are";
    for home in households() {
        // The settings are a link into a repository of dotfiles.
        home.expect(&["--workspace", "~/dotfiles"], "echo 1 > x && cat x", "1\n");
        home.shell(
            "mv .config/ringfence/config.toml dotfiles/r.toml && ln -s ~/x ~/y \
                    2>/dev/null; ln -s \"$PWD/dotfiles/r.toml\" .config/ringfence/config.toml",
        );
        home.refuse(&["--workspace", "~/dotfiles"], settings);
        home.refuse(&["--write", "~/dotfiles"], settings);
        home.refuse(&["--write", "~/dotfiles/r.toml"], settings);
        home.shell(
            "rm .config/ringfence/config.toml && mv dotfiles/r.toml .config/ringfence/config.toml",
        );
        home.expect(&["--workspace", "~/dotfiles"], "cat x", "1\n");

        // A link in the workspace is on the way to the settings. Its target does not matter and may
        // even be missing.
        home.shell(
            "mv .config real && ln -s ../real dotfiles/config && ln -s dotfiles/config .config",
        );
        home.refuse(&["--workspace", "~/dotfiles"], settings);
        home.refuse(&["--workspace", "~/real"], settings);
        home.expect(&["--workspace", "~/real/other"], "echo ran", "ran\n");
        home.shell("rm dotfiles/config && ln -s new dotfiles/config");
        home.refuse(&["--workspace", "~/dotfiles"], settings);
        home.shell("rm .config dotfiles/config && mv real .config");

        // The settings file has another name through a hard link.
        home.shell("ln .config/ringfence/config.toml project/twin && ln .ssh/key project/other");
        home.refuse(&["--workspace", "~/dotfiles", "--write", "~/project/twin"], settings);
        home.expect(
            &["--workspace", "~/dotfiles", "--write", "~/project/other"],
            "cat ~/project/other",
            "SECRET\n",
        );
        home.shell("rm project/twin");

        // Ringfence's own files are both where variables name them and where they are in the home
        // without variables.
        for (variable, message) in
            [("XDG_CONFIG_HOME", settings), ("XDG_STATE_HOME", "keeps its sandboxes")]
        {
            let named = |path: &str| {
                let mut command = home.prepare(&["--workspace", path]);
                command
                    .env(variable, home.path("dotfiles"))
                    .args(["--", "true"])
                    .output()
                    .expect("it can be started")
            };
            home.check_refusal(&named("~/dotfiles"), &[variable], message);
            home.check_refusal(&named("~/.config"), &[variable], settings);
            assert!(named("~/.config/other").status.success());
        }

        // An exception of the user only affects other rules.
        let rule =
            format!("allow_workspace = [\"{0}.config\", \"{0}.local\"]", home.path("").display());
        home.shell(&format!("echo '{rule}' > .config/ringfence/config.toml"));
        home.refuse(&["--workspace", "~/.config"], settings);
        home.refuse(&["--workspace", "~/.local"], "keeps its sandboxes");
    }
}

#[test]
fn a_bind_mount_gives_no_access_to_ringfences_own_files() {
    require!(root, binary, user_namespaces, bwrap);
    for variant in VARIANTS {
        let home = UserHousehold::new(BackendSetup { variant, caller: Caller::Root });
        home.shell("mkdir project/bound mounted");
        let run = |mounts: &str, flags: &[&str]| {
            let ringfence = home.prepare(flags);
            let mut command = std::process::Command::new("unshare");
            command.args([
                "--mount",
                "sh",
                "-c",
                &format!("cd ~ && {mounts} && cd project && exec \"$@\""),
                "sh",
            ]);
            command
                .arg(ringfence.get_program())
                .args(ringfence.get_args())
                .args(["--", "echo", "ran"]);
            command
                .env("HOME", home.path(""))
                .current_dir(home.path(""))
                .output()
                .expect("unshare is there")
        };
        let settings = "where ringfence's own settings are";
        let other = run("mount --bind .config/other project/bound", &[]);
        assert_eq!(other.stdout, b"ran\n", "the control: {other:?}");
        for (mounts, flags) in [
            ("mount --bind .config project/bound", &[] as &[&str]),
            ("mount --bind .config/ringfence project/bound", &[]),
            ("mount --bind .config/ringfence/config.toml project/sub/key", &[]),
            ("mount --bind .config mounted", &["--workspace", "~/mounted"]),
            ("mount --bind .config mounted", &["--write", "~/mounted/ringfence"]),
            ("mount --bind .config/ringfence mounted", &["--read", "~/mounted"]),
            ("mount --rbind / mounted", &["--write", "~/mounted"]),
        ] {
            home.check_refusal(&run(mounts, flags), &[mounts], settings);
        }
    }
}

#[test]
fn sandboxes_in_a_system_directory_are_hidden_from_each_other() {
    require!(root, binary, user_namespaces, bwrap);
    for variant in VARIANTS {
        let home = UserHousehold::new(BackendSetup { variant, caller: Caller::Root });
        let state = tempfile::TempDir::new_in("/opt").expect("root may make it");
        fs_err::create_dir_all(state.path().join("ringfence/sandboxes/other")).expect("it is ours");
        let secret = state.path().join("ringfence/sandboxes/other/socket");
        fs_err::write(&secret, "SECRET").expect("it is ours");
        let look = |variable: &str| {
            let mut command = home.prepare(&[]);
            command
                .env(variable, state.path())
                .arg("--")
                .arg("cat")
                .arg(&secret)
                .output()
                .expect("it can be started")
        };
        assert_eq!(
            look("RINGFENCE_TEST_NOTHING").stdout,
            b"SECRET",
            "the control: /opt can be read"
        );
        for variable in ["XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
            let output = look(variable);
            assert!(
                !output.status.success() && output.stdout.is_empty(),
                "{variant:?} {variable}: {output:?}"
            );
            assert!(
                String::from_utf8_lossy(&output.stderr).contains("Permission denied"),
                "{output:?}"
            );
        }
    }
}

#[test]
fn world_writable_directories_are_refused_as_workspaces() {
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    for home in households() {
        home.shell("ln -s /tmp shared");
        for path in ["/tmp", "/tmp/", "/tmp/.", "/var/tmp", "~/shared"] {
            home.refuse(
                &["--workspace", path],
                "cannot be a workspace: files and sockets of other programs lie in it",
            );
        }
        home.refuse(
            &["--workspace", "/dev/shm"],
            "cannot be a workspace: it is in the system directory `/dev`",
        );
        home.refuse(&["--write", "/tmp"], "cannot give `/tmp` to a sandbox");
        home.refuse(&["--read", "/tmp"], "cannot give `/tmp` to a sandbox");
    }
}

#[test]
fn no_grant_includes_an_engines_socket() {
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    for home in households() {
        home.shell("mkdir -p run/inner");
        let _engine =
            UnixListener::bind(home.path("run/engine.sock")).expect("a socket can be made");
        let _other = UnixListener::bind(home.path("run/other.sock")).expect("a socket can be made");
        home.shell("ln -s run linked && ln -s run/engine.sock socket");
        fs_err::hard_link(home.path("run/engine.sock"), home.path("run/inner/twin"))
            .expect("it is one file system");
        let run = |variable: &str, flags: &[&str]| {
            let address = format!("unix://{}", home.path("run/engine.sock").display());
            let mut command = home.prepare(flags);
            command.env_remove("DOCKER_HOST").env_remove("CONTAINER_HOST").env(variable, address);
            command.args(["--", "echo", "ran"]).output().expect("ringfence can be started")
        };
        for variable in ["DOCKER_HOST", "CONTAINER_HOST"] {
            for flag in ["--write", "--read"] {
                assert_eq!(
                    run(variable, &[flag, "~/run/other.sock"]).stdout,
                    b"ran\n",
                    "the control"
                );
                for path in [
                    "~/run/engine.sock",
                    "~/run",
                    "~/linked",
                    "~/socket",
                    "~/linked/engine.sock",
                    "~/run/inner/twin",
                ] {
                    home.check_refusal(
                        &run(variable, &[flag, path]),
                        &[flag, path],
                        "of a container engine",
                    );
                }
            }
            home.check_refusal(
                &run(variable, &["--workspace", "~/run"]),
                &["--workspace"],
                "of a container engine",
            );
            let told = run("RINGFENCE_TEST_NOTHING", &["--write", "~/run/engine.sock"]);
            assert_eq!(told.stdout, b"ran\n", "a socket of no engine's can be given: {told:?}");
        }
    }
}

#[test]
fn the_search_path_shows_only_its_own_directories_of_the_home() {
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    for home in households() {
        home.shell(
            "ln -s . bin/home && printf '#!/bin/sh\\necho a tool\\n' > bin/tool && chmod \
                    +x bin/tool",
        );
        let run = |home: &UserHousehold, path: &str| {
            let directory = home.path("");
            let path =
                path.replace('~', directory.to_str().expect("it is text").trim_end_matches('/'));
            let mut command = home.prepare(&[]);
            command.env("PATH", format!("{path}:/usr/bin:/bin")).args(["--", "sh", "-c"]);
            let output = command
                .arg("cat ~/.ssh/key 2>/dev/null; ls -A ~; tool")
                .output()
                .expect("it can be started");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert_eq!(run(&home, "~/bin"), "bin\nproject\na tool\n", "the control");
        for path in [
            "~/bin/..",
            "~",
            "~/",
            "~/.",
            "~/project/..",
            "",
            "..",
            "../bin/..",
            "~/bin/home",
            "~/bin/home/..",
            "~/..",
        ] {
            assert_eq!(run(&home, path), "project\n", "{path}");
        }
        let local = UserHousehold {
            setup: BackendSetup { variant: BackendVariant::Local, ..home.setup },
            place: home.place,
        };
        assert!(
            run(&local, "~/bin/..").starts_with("SECRET\n"),
            "without isolation the key can be read"
        );
    }
}

/// Returns the paths of everything below a directory.
fn names(directory: &Path) -> Vec<String> {
    let output = std::process::Command::new("find").arg(directory).output().expect("find is there");
    let mut names: Vec<String> =
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn a_link_planted_as_a_parent_redirects_no_grant() {
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    for home in households() {
        home.shell("mkdir -p project/a/b && echo mine > project/a/b/file && ln -s a project/inner");
        home.expect(
            &["--read", "a/b/file"],
            "echo x 2>/dev/null > a/b/file; cat a/b/file",
            "mine\n",
        );
        home.expect(&["--write", "a/b"], "echo more > a/b/new && cat a/b/new", "more\n");
        home.shell("rm -r project/a && mkdir -p victim/b && echo VICTIM > victim/b/file");
        let victim = names(&home.path("victim"));
        for (link, target) in [
            ("project/a", "../victim"),
            ("project/a", "~/victim"),
            ("project/a", "/oldroot~/victim"),
        ] {
            let target = target
                .replace('~', home.path("").to_str().expect("it is text").trim_end_matches('/'));
            home.shell(&format!("ln -sfn {target} {link}"));
            for flag in ["--read", "--write"] {
                for path in ["a", "a/b", "a/b/file", "./a/b"] {
                    let output = home.run(&[flag, path], "echo gone > a/b/file; cat a/b/file");
                    assert_eq!(output.status.code(), Some(2), "{flag} {path}: {output:?}");
                    assert!(
                        !String::from_utf8_lossy(&output.stdout).contains("VICTIM"),
                        "{flag} {path}: {output:?}"
                    );
                }
            }
            for flag in ["--hide", "--protect"] {
                for path in ["a", "a/b", "a/b/file", "a/b/missing", "a/missing/x"] {
                    let output = home.run(&[flag, path], "cat a/b/file; echo gone > a/b/file; :");
                    assert!(
                        !String::from_utf8_lossy(&output.stdout).contains("VICTIM"),
                        "{flag} {path}: {output:?}"
                    );
                }
            }
            assert_eq!(names(&home.path("victim")), victim, "nothing was made where {target} led");
            assert_eq!(fs_err::read_to_string(home.path("victim/b/file")).unwrap(), "VICTIM\n");
        }
    }
}

#[test]
fn a_link_that_replaces_a_parent_during_the_start_redirects_no_grant() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::{AtomicBool, Ordering};
    require!(root, binary, user_namespaces, ordinary_user, bwrap);
    const STARTS: usize = 10;
    for home in households() {
        home.shell(
            "mkdir -p project/a/b/tree victim/tree && echo mine > project/a/b/file && echo VICTIM \
             > victim/file",
        );
        let use_both = "cat a/b/file swap/file; for place in a/b swap; do
            echo gone > $place/file; echo x > $place/planted; echo x > $place/tree/planted; done; \
            :";
        // As a control, the same path is granted without a link in its place.
        home.expect(
            &["--read", "a/b/file", "--write", "a/b/tree"],
            "echo x > a/b/tree/new; cat a/b/file",
            "mine\n",
        );
        // Bubblewrap sees the host at `/oldroot` during its setup.
        for root in ["", "/oldroot"] {
            home.shell(&format!("ln -sfn {root}{} project/swap", home.path("victim").display()));
            let victims = ["victim", "victim/tree"];
            let before = victims.map(|name| names(&home.path(name)));
            let (one, two) = (home.path("project/a/b"), home.path("project/swap"));
            let is_over = AtomicBool::new(false);
            let mut shown = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        // A failed exchange is repeated by the next turn of the loop.
                        let _ = renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE);
                    }
                });
                for flags in [
                    ["--hide", "a/b/file"],
                    ["--hide", "a/b/tree"],
                    ["--protect", "a/b/file"],
                    ["--protect", "a/b/tree"],
                    ["--read", "a/b/file"],
                    ["--write", "a/b/tree"],
                ] {
                    for _ in 0..STARTS {
                        let output = home.run(&flags, use_both);
                        if String::from_utf8_lossy(&output.stdout).contains("VICTIM") {
                            shown.push(flags);
                        }
                    }
                }
                is_over.store(true, Ordering::Relaxed);
            });
            assert!(shown.is_empty(), "{:?}: the victim is shown with {shown:?}", home.setup);
            let after = victims.map(|name| names(&home.path(name)));
            assert_eq!(after, before, "{:?}: something was made where the link led", home.setup);
            assert_eq!(
                fs_err::read_to_string(home.path("victim/file")).unwrap(),
                "VICTIM\n",
                "{:?}",
                home.setup
            );
            let is_link =
                fs_err::symlink_metadata(&one).is_ok_and(|metadata| metadata.is_symlink());
            if is_link {
                renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).expect("both are there");
            }
        }
    }
}
