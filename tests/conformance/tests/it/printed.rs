//! Output of ringfence contains no character that controls a terminal, whoever chose the names and
//! values.

use std::net::TcpListener;
use std::process::Command;

use ringfence::Backend;
use ringfence_test_ledger::require;

use crate::keeper::SandboxKeeper;

/// Name with terminal control: it sets the title, clears the screen, overwrites the line, and
/// reverses text.
const HOSTILE: &str = "o\u{1b}]0;owned\u{7}\u{1b}[2J\r\u{8}\u{7f}\u{9b}31m\
    \u{9d}0;x\u{9c}\u{202e}\u{2066}\u{200f}\u{2028}e";
/// The same name, escaped for TOML.
const IN_TOML: &str = "o\\u001b]0;owned\\u0007\\u001b[2J\\r\\b\\u007f\\u009b31m\
    \\u009d0;x\\u009c\\u202e\\u2066\\u200f\\u2028e";

/// Returns true if a character controls a terminal or changes how text is read. The list is
/// independent of ringfence's own.
fn steers(character: char) -> bool {
    let plain = ['\n', '\t'];
    let number = u32::from(character);
    !plain.contains(&character)
        && (number < 0x20
            || (0x7f..=0x9f).contains(&number)
            || [0x61c, 0x200e, 0x200f].contains(&number)
            || (0x2028..=0x202e).contains(&number)
            || (0x2066..=0x2069).contains(&number))
}

/// The wrong outputs of commands.
struct OutputCheck<'a> {
    keeper: &'a SandboxKeeper,
    wrong: Vec<String>,
}

impl OutputCheck<'_> {
    /// Runs a command that must report the hostile text, without its control characters.
    fn check(&mut self, command: &mut Command) {
        let outcome = self.keeper.run(command);
        let words: Vec<_> = command.get_args().collect();
        if outcome.said.contains(steers) {
            self.wrong.push(format!("{words:?} prints {:?}", outcome.said));
        }
        if !outcome.said.contains("owned") {
            self.wrong.push(format!("{words:?} does not tell of it: {:?}", outcome.said));
        }
    }

    fn words(&mut self, words: &[&str]) {
        self.check(&mut self.keeper.ringfence(words));
    }
}

#[test]
fn untrusted_names_and_values_do_not_control_the_terminal() {
    require!(root, ordinary_user, binary, user_namespaces, ordinary_user_namespaces, bwrap);
    for keeper in
        [Backend::Native, Backend::Bwrap].into_iter().flat_map(SandboxKeeper::for_each_user)
    {
        check_all_printed(&keeper);
    }
}

#[track_caller]
fn check_all_printed(keeper: &SandboxKeeper) {
    let mut checked = OutputCheck { keeper, wrong: Vec::new() };
    let workspace = keeper.workspace();
    let project = workspace.join("ringfence.toml");
    let run = |more: &[&str]| {
        let mut command = keeper.ringfence(&["run", "--backend", keeper.backend.name()]);
        command.args(more);
        command
    };

    // Use values of a project's settings.
    for text in [
        format!(
            "[filesystem]\nhide = [\"{IN_TOML}\"]\nprotect = \
             [\".git/config\", \".git/hooks\", \"{IN_TOML}\"]\n"
        ),
        format!("[env]\nset = {{ \"{IN_TOML}\" = \"x\" }}\n[filesystem]\nhide = [\"{IN_TOML}\"]\n"),
    ] {
        fs_err::write(&project, text).expect("the workspace is ours");
        checked.words(&["config", "explain"]);
        checked.words(&["config", "explain", "--json"]);
        checked.check(&mut run(&["--dry-run", "--", "true"]));
        checked.check(&mut run(&["--dry-run", "--json", "--", "true"]));
    }
    for text in [
        format!("\"{IN_TOML}\" = 1\n"),
        format!("backend = \"{IN_TOML}\"\n"),
        format!("[network]\nallow = [\"{IN_TOML}\"]\n"),
        format!("[limits]\ntime = \"{IN_TOML}\"\n"),
        format!("[filesystem]\nworkspace = \"{IN_TOML}\"\n"),
        format!("[filesystem]\nread = [\"/{IN_TOML}\"]\n"),
    ] {
        fs_err::write(&project, text).expect("the workspace is ours");
        checked.check(&mut run(&["--", "true"]));
        checked.check(&mut run(&["--json", "--", "true"]));
    }
    // A value with several lines must not look like several messages.
    for forged in [
        "x\\nringfence: warning: all is well",
        "x\\n\\u200Bringfence: error: x\\n\\u2060hint: rm -r ~",
    ] {
        for key in ["backend", "\"x\"", "network.allow", "limits.time"] {
            let value = if key == "network.allow" {
                format!("[\"{forged}\"]")
            } else {
                format!("\"{forged}\"")
            };
            let text = if key == "\"x\"" {
                format!("\"{forged}\" = 1\n")
            } else {
                format!("{key} = {value}\n")
            };
            fs_err::write(&project, text).expect("the workspace is ours");
            let told = keeper.run(&mut run(&["--", "true"])).said;
            let visible = |line: &str| line.replace(['\u{200b}', '\u{2060}'], "");
            let messages = told
                .lines()
                .skip(1)
                .map(visible)
                .filter(|line| line.starts_with("ringfence:"))
                .count();
            let hints = told.lines().map(visible).filter(|line| line.starts_with("hint:")).count();
            assert!(
                told.starts_with("ringfence: error:") && (messages, hints) == (0, 1),
                "{key}: {told:?}"
            );
        }
    }
    fs_err::remove_file(&project).expect("it is ours");

    // Use words of the command line, variables, and names of files.
    checked.check(&mut run(&[&format!("--{HOSTILE}"), "true"]));
    checked.check(&mut run(&["--memory", HOSTILE, "true"]));
    checked.check(&mut run(&["--policy", HOSTILE, "true"]));
    checked.check(&mut run(&["--read", &format!("/{HOSTILE}"), "true"]));
    checked.check(&mut run(&["-C", HOSTILE, "true"]));
    checked.check(&mut run(&["--", HOSTILE]));
    checked.check(&mut run(&["--", &format!("./{HOSTILE}")]));
    let not_executable = workspace.join(HOSTILE);
    fs_err::write(&not_executable, "").expect("the workspace is ours");
    checked.check(&mut run(&["--", &format!("./{HOSTILE}")]));
    fs_err::remove_file(&not_executable).expect("it is ours");
    checked.words(&[HOSTILE]);
    checked.words(&["stop", HOSTILE]);
    checked.words(&["exec", HOSTILE, "--", "true"]);
    checked.words(&["keys", "revoke", HOSTILE]);
    checked.words(&["code", "--language", HOSTILE, "-"]);
    checked.words(&["serve", "--config", HOSTILE]);
    checked.words(&["audit", "show", HOSTILE]);
    for variable in ["RINGFENCE_LOG", "SANDBOX_MODE", "SANDBOX_METHOD", "SANDBOX_TIMEOUT_SEC"] {
        checked
            .check(keeper.ringfence(&["config", "explain"]).env(variable, format!("x={HOSTILE}")));
    }
    // The log line comes from a server that cannot listen because the port is taken.
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let taken = taken.local_addr().expect("it listens").to_string();
    let state = keeper.home().join(HOSTILE);
    checked.check(
        keeper.ringfence(&["serve", "--tls", "--listen", &taken]).env("XDG_STATE_HOME", &state),
    );
    fs_err::remove_dir_all(state).expect("it is ours");
    fs_err::create_dir(workspace.join(HOSTILE)).expect("the workspace is ours");
    keeper.give(&workspace.join(HOSTILE));
    checked
        .check(run(&["--dry-run", "--workspace", HOSTILE, "--", "true"]).current_dir(&workspace));

    // Use files that a run makes, and records of the run.
    let config = keeper.home().join(".config/ringfence");
    fs_err::create_dir_all(&config).expect("the home is ours");
    let kept = workspace.join("kept");
    fs_err::create_dir(&kept).expect("the workspace is ours");
    keeper.give(&kept);
    let audit = format!("[audit]\nstore = 'always'\ndir = '{}'\n", kept.display());
    fs_err::write(config.join("config.toml"), audit).expect("the home is ours");
    // Brackets would make a pattern.
    let planted = format!("planted-{HOSTILE}").replace(['[', ']'], "");
    checked.check(&mut run(&["--protect", &planted, "--", "touch", &planted]));
    fs_err::remove_file(workspace.join(&planted)).expect("it is ours");
    checked.words(&["audit", "list"]);
    checked.words(&["audit", "list", "--json"]);
    let listed = keeper.expect(&mut keeper.ringfence(&["audit", "list"]));
    let id = listed.split_whitespace().next().expect("there is a record");
    checked.words(&["audit", "show", id]);
    fs_err::write(kept.join(format!("{HOSTILE}.json")), "no record")
        .expect("the workspace is ours");
    checked.words(&["audit", "list"]);
    checked.words(&["audit", "verify"]);
    checked.words(&["audit", "verify", "--json"]);
    // A name with several lines is reported on one line.
    let forged = format!("{HOSTILE}\n9 records: none was altered, added or removed\nx.json");
    fs_err::write(kept.join(forged), "no record").expect("the workspace is ours");
    let told = keeper.run(&mut keeper.ringfence(&["audit", "verify"])).said;
    assert!(!told.lines().any(|line| line.starts_with("9 records")), "{told:?}");
    fs_err::remove_dir_all(keeper.home().join(".config")).expect("it is ours");

    // Use a sandbox that stays, and files that are copied from it.
    let mut up = keeper.up("one");
    checked.check(up.args(["--workspace", HOSTILE]));
    checked.words(&["ps"]);
    checked.words(&["ps", "--json"]);
    checked.words(&["inspect", "one"]);
    checked.words(&["inspect", "one", "--json"]);
    checked.words(&["exec", "one", "--", HOSTILE]);
    checked.words(&["cp", &format!("one:{HOSTILE}"), "."]);
    checked.words(&["cp", &format!("no-{HOSTILE}"), "one:x"]);
    let make =
        format!("mkdir -p tree; ln -s /etc/passwd 'tree/{HOSTILE}'; mkfifo 'tree/p-{HOSTILE}'");
    keeper.expect(&mut keeper.ringfence(&["exec", "one", "--", "sh", "-c", &make]));
    checked.words(&["cp", "one:tree", "copied"]);
    let log = keeper.room("one").join("log");
    fs_err::write(&log, format!("{HOSTILE}\n")).expect("the home is ours");
    checked.words(&["logs", "one"]);
    keeper.expect(&mut keeper.ringfence(&["stop", "one"]));
    assert!(checked.wrong.is_empty(), "{}:\n{}", checked.wrong.len(), checked.wrong.join("\n"));

    // The output of the command itself is not changed.
    let own = keeper.run(&mut run(&["--", "printf", "%s", HOSTILE]));
    assert_eq!(own.said, HOSTILE);
    fs_err::remove_dir_all(&workspace).expect("it is ours");
    fs_err::remove_dir_all(keeper.server()).expect("it is ours"); // directory of the keys
    keeper.expect_nothing_left();
}
