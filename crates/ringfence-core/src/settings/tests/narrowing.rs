use super::*;
use crate::policy::{Network, PathGlob, Size};
use crate::{Backend, Clause};

#[track_caller]
fn allowed(given: Given) -> Settings {
    given.load().unwrap_or_else(|error| panic!("{error}"))
}

fn globs(texts: &[&str]) -> Option<Vec<PathGlob>> {
    Some(texts.iter().map(|text| text.parse().unwrap()).collect())
}

#[test]
fn an_attempt_to_widen_names_both_lines() {
    let error = refuse(
        given().system("[network]\nmode = 'closed'").project("\n\n[network]\nmode = 'open'"),
        "ringfence.toml:4: network.mode = \"open\" would widen `closed`, set at /etc/ringfence/config.toml:2",
    );
    assert_eq!(
        error.hint().unwrap(),
        "a project may only narrow the policy: remove the line, move it to your own config.toml, \
         or say it yourself with --net"
    );
    refuse(
        given().project("network.mode = 'open'"),
        "ringfence.toml:1: network.mode = \"open\" would widen `closed`, the built-in default",
    );
}

#[test]
fn a_project_may_close_the_network_or_drop_hosts() {
    let user = |text| given().user(text);
    let open = "network.mode = 'open'";
    let hosts = "[network]\nallow = ['*.a.org', 'b.org:443']";
    assert_eq!(allowed(user(open).project("network.mode = 'closed'")).policy.network, Some(Network::Closed));
    assert_eq!(allowed(user(hosts).project("network.mode = 'closed'")).policy.network, Some(Network::Closed));
    assert_eq!(allowed(user(open).project("network.allow = ['x.org']")).policy.network.unwrap().rules().len(), 1);
    let fewer = allowed(user(hosts).project("network.allow = ['x.a.org']"));
    assert_eq!(fewer.policy.network, Some(Network::only(["x.a.org".parse().unwrap()])));
    assert_eq!(allowed(given().project("network.allow = []")).policy.network, Some(Network::only([])));
    refuse(
        user(hosts).project("network.allow = ['x.a.org', 'b.org']"),
        "ringfence.toml:1: network.allow = \"b.org\" would widen `*.a.org, b.org:443`, \
         set at /home/ada/.config/ringfence/config.toml:2",
    );
    refuse(
        given().project("[network]\nallow = ['b.org']"),
        "ringfence.toml:2: network.allow = \"b.org\" would widen `closed`, the built-in default",
    );
}

#[test]
fn a_rule_without_a_port_is_two_ports_wide_to_a_project() {
    let user = |allow: &str| given().user(&format!("network.allow = {allow}"));
    allowed(user("['b.org']").project("network.allow = ['b.org:443', 'b.org:80']"));
    allowed(user("['b.org:443', '*.org.example', 'b.org:80']").project("network.allow = ['b.org']"));
    refuse(
        user("['b.org']").project("network.allow = ['b.org:22']"),
        "ringfence.toml:1: network.allow = \"b.org:22\" would widen `b.org`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
}

#[test]
fn what_is_denied_stays_denied() {
    let user = || given().user("[network]\nallow = ['*.a.org']\ndeny = ['x.a.org']\ntransparent = true");
    let egress = |given: Given| allowed(given).policy.network.unwrap().egress().unwrap().clone();
    let narrowed = egress(user().project("[network]\nallow = ['*.a.org']\ndeny = ['y.a.org']"));
    assert_eq!(narrowed.deny, ["x.a.org", "y.a.org"].map(|rule| rule.parse().unwrap()));
    assert!(narrowed.transparent);
    let narrowed = egress(user().project("network.deny = ['y.a.org']"));
    assert_eq!((narrowed.allow.len(), narrowed.deny.len()), (1, 2));
    assert!(!egress(user().project("network.transparent = false")).transparent);
    // Nor does somebody who allows another host mean to allow this one.
    let widened = egress(user().flags(Policy::default().network(Network::only(["b.org".parse().unwrap()]))));
    assert_eq!((widened.allow.len(), widened.deny.len()), (1, 1));
}

#[test]
fn a_project_turns_nothing_on_that_lets_more_out() {
    for (key, flag) in [("observe", "--observe"), ("transparent", "--transparent")] {
        let project = |given: Given| given.project(&format!("network.{key} = true"));
        for below in ["network.mode = 'open'", "network.allow = ['a.org']", ""] {
            let error = refuse(
                project(given().user(below)),
                &format!("ringfence.toml:1: network.{key} = true would widen `false`, the built-in default"),
            );
            assert!(error.hint().unwrap().ends_with(&format!("say it yourself with {flag}")));
        }
        let on = format!("[network]\nallow = ['a.org']\n{key} = true");
        assert_eq!(allowed(project(given().user(&on))).policy, allowed(given().user(&on)).policy);
    }
}

#[test]
fn a_project_may_lower_limits_and_set_new_ones() {
    let user = "[limits]\ntime = '1m'\nmemory = '1G'\ncpus = 2\nprocesses = 10\noutput = '5M'\ntmp = '1M'\ndisk = '1G'";
    let lower = "[limits]\ntime = '1s'\nmemory = '1M'\ncpus = 1\nprocesses = 1\noutput = '1M'\ntmp = '1K'\ndisk = '1M'";
    let settings = allowed(given().user(user).project(lower));
    assert_eq!(settings.policy.limits.memory, Some(Size::mebibytes(1)));
    assert_eq!(settings.policy.limits.processes, Some(1));
    allowed(given().user(user).project(user));
    allowed(given().project(lower));
    let larger = [
        ("time", "'61s'", "\"1m1s\"", "1m", 2),
        ("memory", "'2G'", "\"2G\"", "1G", 3),
        ("cpus", "2.5", "2.5", "2", 4),
        ("processes", "11", "11", "10", 5),
        ("output", "'6M'", "\"6M\"", "5M", 6),
        ("tmp", "'2M'", "\"2M\"", "1M", 7),
        ("disk", "'2G'", "\"2G\"", "1G", 8),
    ];
    for (key, value, shown, below, line) in larger {
        let message = format!(
            "ringfence.toml:1: limits.{key} = {shown} would widen `{below}`, \
             set at /home/ada/.config/ringfence/config.toml:{line}"
        );
        refuse(given().user(user).project(&format!("limits.{key} = {value}")), &message);
    }
    refuse(
        given().project("limits.output = '11M'"),
        "ringfence.toml:1: limits.output = \"11M\" would widen `10M`, the built-in default",
    );
    refuse(
        given().project("limits.tmp = '2G'"),
        "ringfence.toml:1: limits.tmp = \"2G\" would widen `1G`, the built-in default",
    );
}

#[test]
fn a_project_may_choose_a_backend_that_isolates_where_nobody_chose() {
    for backend in Backend::ALL {
        let given = || given().project(&format!("backend = '{backend}'"));
        match backend {
            Backend::E2b | Backend::Outer | Backend::Local => {
                let message =
                    format!("ringfence.toml:1: backend = \"{backend}\" would widen `auto`, the built-in default");
                refuse(given(), &message);
            }
            _ => assert_eq!(allowed(given()).selection, Selection::Only(backend)),
        }
        allowed(given().user(&format!("backend = '{backend}'")));
    }
    allowed(given().user("backend = 'auto'").project("backend = 'native'"));
    for text in ["backend = 'bwrap'", "backend = 'auto'"] {
        let asked = text.split('\'').nth(1).unwrap();
        let message = format!(
            "ringfence.toml:1: backend = \"{asked}\" would widen `native`, \
             set at /home/ada/.config/ringfence/config.toml:1"
        );
        refuse(given().user("backend = 'native'").project(text), &message);
    }
}

#[test]
fn a_project_may_hide_protect_and_require() {
    let settings = allowed(
        given()
            .user("filesystem.hide = ['*.pem']")
            .project("require = ['memory']\n[filesystem]\nhide = ['**/.env']\nprotect = ['Makefile']"),
    );
    let files = &settings.policy.filesystem;
    assert_eq!(files.hide, globs(&["*.pem", "**/.env"]));
    assert_eq!(files.protect, globs(&[".git/hooks", ".git/config", "Makefile"]), "the default stays protected");
    assert_eq!(settings.policy.require, [Clause::Memory].into());
    let settings = allowed(given().project("filesystem.protect = []"));
    assert_eq!(settings.policy.filesystem.protect, globs(&[".git/hooks", ".git/config"]));
    let settings = allowed(given().user("filesystem.protect = []").project("filesystem.protect = ['a']"));
    assert_eq!(settings.policy.filesystem.protect, globs(&["a"]));
}

#[test]
fn a_project_may_not_add_paths_but_may_name_what_is_beneath_allowed_ones() {
    let user = || given().user("[filesystem]\nread = ['/opt/models', 'data']\nwrite = ['~/.cache/pip']");
    let settings = allowed(user().project(
        "[filesystem]\nread = ['/opt/models/a', '/home/ada/app/data/x', '~/.cache/pip']\nwrite = ['~/.cache/pip/x']",
    ));
    let files = &settings.policy.filesystem;
    assert_eq!(files.read, Some(vec!["/opt/models".into(), "data".into()]), "a planted symlink is never followed");
    assert_eq!(files.write, Some(vec!["/home/ada/.cache/pip".into()]));
    let at = "set at /home/ada/.config/ringfence/config.toml";
    for (key, path, below, line) in [
        ("read", "/opt/modelsx", r#"["/opt/models", "data"]"#, 2),
        ("read", "/opt/models/../x", r#"["/opt/models", "data"]"#, 2),
        ("read", ".", r#"["/opt/models", "data"]"#, 2),
        ("write", "/opt/models/a", r#"["/home/ada/.cache/pip"]"#, 3),
    ] {
        let message = format!("ringfence.toml:1: filesystem.{key} = \"{path}\" would widen `{below}`, {at}:{line}");
        refuse(user().project(&format!("filesystem.{key} = ['{path}']")), &message);
    }
    refuse(
        given().project("filesystem.read = ['/etc']"),
        "ringfence.toml:1: filesystem.read = \"/etc\" would widen `[]`, the built-in default",
    );
}

#[test]
fn a_project_may_not_pass_set_or_replace_variables() {
    let user = || given().user("[env]\npass = ['TOKEN']\nset = { PROXY = 'a' }");
    allowed(user().project("env.pass = ['TOKEN']"));
    allowed(user().project("env.set.PROXY = 'a'"));
    let at = "set at /home/ada/.config/ringfence/config.toml:3";
    refuse(
        given().project("env.pass = ['TOKEN']"),
        "ringfence.toml:1: env.pass = \"TOKEN\" would widen `[]`, the built-in default",
    );
    refuse(
        user().project("env.set.PROXY = 'b'"),
        &format!("ringfence.toml:1: env.set.PROXY = \"b\" would widen `a`, {at}"),
    );
    refuse(
        given().project("env.set.LD_PRELOAD = '/work/evil.so'"),
        "ringfence.toml:1: env.set.LD_PRELOAD = \"/work/evil.so\" would widen `unset`, the built-in default",
    );
}

#[test]
fn a_project_may_not_say_what_is_the_users_alone() {
    for (text, shown) in [
        ("allow_weaker = ['memory']", "allow_weaker = \"memory\" would widen `[]`"),
        ("workspace_root = '/'", "workspace_root = \"/\" would widen `unset`"),
        ("allow_workspace = ['/etc']", "allow_workspace = \"/etc\" would widen `[]`"),
        ("container.image = 'evil'", "container.image = \"evil\" would widen `unset`"),
        ("audit.store = 'never'", "audit.store = \"never\" would widen `on_error`"),
        ("audit.dir = '/tmp'", "audit.dir = \"/tmp\" would widen `unset`"),
    ] {
        refuse(given().project(text), &format!("ringfence.toml:1: {shown}, the built-in default"));
        assert!(given().user(text).load().is_ok(), "{text}");
    }
    allowed(given().user("allow_weaker = ['memory']").project("allow_weaker = ['memory']"));
}

#[test]
fn a_projects_workspace_stays_within_the_project() {
    let settings = allowed(given().project("filesystem.workspace = 'sub'"));
    assert_eq!(settings.workspace_bound.as_deref(), Some(Path::new("/home/ada/app")));
    assert_eq!(settings.workspace_rules(None).project.as_deref(), Some(Path::new("/home/ada/app")));
    allowed(given().project("filesystem.workspace = '.'"));
    allowed(given().project("filesystem.workspace = '/home/ada/app/sub'"));
    for outside in ["..", "sub/../..", "/home/ada", "/home/ada/application", "~"] {
        let shown = if outside == "~" { "/home/ada" } else { outside };
        let message =
            format!("ringfence.toml:1: filesystem.workspace = \"{shown}\" would widen `.`, the built-in default");
        refuse(given().project(&format!("filesystem.workspace = '{outside}'")), &message);
    }
    refuse(
        given().user("filesystem.workspace = '/srv/x'").project("filesystem.workspace = '.'"),
        "ringfence.toml:1: filesystem.workspace = \".\" would widen `/srv/x`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
    let settings = given().project("filesystem.workspace = 'sub'").flags(Policy::default().workspace("/srv"));
    assert_eq!(allowed(settings).workspace_bound, None, "the caller's own choice is not bound to the project");
}

#[test]
fn moving_the_workspace_uncovers_nothing() {
    let settings =
        allowed(given().user("filesystem.hide = ['**/.env', 'sub/key']").project("filesystem.workspace = 'sub'"));
    assert_eq!(settings.policy.filesystem.hide, globs(&["**/.env", "sub/key", "key"]));
    let settings = allowed(given().project("filesystem.workspace = '.git'"));
    assert_eq!(settings.policy.filesystem.protect, globs(&[".git/hooks", ".git/config", "hooks", "config"]));
    for (hide, workspace) in [("sub", "sub"), ("sub", "sub/deeper"), ("*/key", "sub"), ("**/sub/key", "sub")] {
        let message = format!(
            "ringfence.toml:1: filesystem.workspace = \"{workspace}\" would widen `{hide}`, \
             set at /home/ada/.config/ringfence/config.toml:1"
        );
        let given = given().user(&format!("filesystem.hide = ['{hide}']"));
        refuse(given.project(&format!("filesystem.workspace = '{workspace}'")), &message);
    }
}

#[test]
fn a_project_may_have_the_lint_look_harder_and_never_less() {
    let settings = allowed(given().project("[code]\nblock_imports = 'block'\nimports = ['pickle']"));
    assert_eq!(settings.code.block_imports, BlockImports::Block);
    let imports: Vec<String> = settings.code.imports.iter().map(ToString::to_string).collect();
    assert!(imports.contains(&"os".to_owned()) && imports.contains(&"pickle".to_owned()), "{imports:?}");
    allowed(given().user("code.block_imports = 'warn'").project("code.block_imports = 'warn'"));
    refuse(
        given().user("code.block_imports = 'block'").project("code.block_imports = 'warn'"),
        "ringfence.toml:1: code.block_imports = \"warn\" would widen `block`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
    refuse(
        given().project("code.store_code = 'always'"),
        "ringfence.toml:1: code.store_code = \"always\" would widen `on_error`, the built-in default",
    );
    refuse(given().project("code.warm = 9"), "ringfence.toml:1: code.warm = 9 would widen `2`, the built-in default");
    refuse(
        given().user("code.preload = ['json']").project("code.preload = ['antigravity']"),
        "ringfence.toml:1: code.preload = [\"antigravity\"] would widen `[\"json\"]`, set at \
         /home/ada/.config/ringfence/config.toml:1",
    );
}

#[test]
fn a_project_may_add_a_language_and_change_none() {
    let ruby = "[code.languages.ruby]\ncommand = ['ruby']\nsuffix = '.rb'";
    let settings = allowed(given().project(ruby));
    assert_eq!(settings.code.languages["ruby"].suffix(), ".rb");
    assert!(settings.code.project_languages.contains("ruby"));
    check_source(&settings, "code.languages.ruby", "ringfence.toml:1");
    // The user's own is the user's, and the same again is no change.
    let settings = allowed(given().user(ruby).project(ruby));
    assert!(settings.code.project_languages.is_empty());
    refuse(
        given().project("[code.languages.python]\ncommand = ['./python']\nsuffix = '.py'"),
        "ringfence.toml:1: code.languages.python = \"./python FILE.py\" would widen `python3 FILE.py`, \
         the built-in default",
    );
    refuse(
        given().user(ruby).project("[code.languages.fast]\ncommand = ['./ruby']\nsuffix = '.rb'"),
        "ringfence.toml:1: code.languages.fast = \"./ruby FILE.rb\" would widen `ruby FILE.rb`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
    let own = allowed(given().user("[code.languages.python]\ncommand = ['pypy3']\nsuffix = '.py'"));
    assert_eq!(own.code.languages["python"].command().0, "pypy3");
}
