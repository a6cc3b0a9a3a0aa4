use std::collections::BTreeSet;

use super::*;
use crate::policy::{Network, PathGlob, Size};
use crate::{Backend, Clause};

#[track_caller]
fn allowed(given: TestLayers) -> Settings {
    given.load().unwrap_or_else(|error| panic!("{error:?}"))
}

fn globs(texts: &[&str]) -> Option<Vec<PathGlob>> {
    Some(texts.iter().map(|text| text.parse().unwrap()).collect())
}

#[test]
fn an_attempt_to_widen_names_both_lines() {
    let error = refuse(
        given().system("[network]\nmode = 'closed'").project("\n\n[network]\nmode = 'open'"),
        "ringfence.toml:4: network.mode = \"open\" would widen `closed`, set at \
         /etc/ringfence/config.toml:2",
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
    assert_eq!(
        allowed(user(open).project("network.mode = 'closed'")).policy.network,
        Some(Network::Closed)
    );
    assert_eq!(
        allowed(user(hosts).project("network.mode = 'closed'")).policy.network,
        Some(Network::Closed)
    );
    assert_eq!(
        allowed(user(open).project("network.allow = ['x.org']"))
            .policy
            .network
            .unwrap()
            .rules()
            .len(),
        1
    );
    let fewer = allowed(user(hosts).project("network.allow = ['x.a.org']"));
    assert_eq!(fewer.policy.network, Some(Network::only(["x.a.org".parse().unwrap()])));
    assert_eq!(
        allowed(given().project("network.allow = []")).policy.network,
        Some(Network::only([]))
    );
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
    allowed(
        user("['b.org:443', '*.org.example', 'b.org:80']").project("network.allow = ['b.org']"),
    );
    refuse(
        user("['b.org']").project("network.allow = ['b.org:22']"),
        "ringfence.toml:1: network.allow = \"b.org:22\" would widen `b.org`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
}

#[test]
fn hosts_that_are_denied_stay_denied_in_a_project() {
    let user =
        || given().user("[network]\nallow = ['*.a.org']\ndeny = ['x.a.org']\ntransparent = true");
    let egress =
        |given: TestLayers| allowed(given).policy.network.unwrap().egress().unwrap().clone();
    let narrowed = egress(user().project("[network]\nallow = ['*.a.org']\ndeny = ['y.a.org']"));
    assert_eq!(narrowed.deny, ["x.a.org", "y.a.org"].map(|rule| rule.parse().unwrap()));
    assert!(narrowed.transparent);
    let narrowed = egress(user().project("network.deny = ['y.a.org']"));
    assert_eq!((narrowed.allow.len(), narrowed.deny.len()), (1, 2));
    assert!(!egress(user().project("network.transparent = false")).transparent);
    // A layer above that allows another host does not remove the denied one.
    let widened =
        egress(user().flags(Policy::default().network(Network::only(["b.org".parse().unwrap()]))));
    assert_eq!((widened.allow.len(), widened.deny.len()), (1, 1));
}

#[test]
fn a_project_enables_nothing_that_widens_egress() {
    for (key, flag) in [("observe", "--observe"), ("transparent", "--transparent")] {
        let project = |given: TestLayers| given.project(&format!("network.{key} = true"));
        for below in ["network.mode = 'open'", "network.allow = ['a.org']", ""] {
            let error = refuse(
                project(given().user(below)),
                &format!(
                    "ringfence.toml:1: network.{key} = true would widen `false`, the built-in \
                     default"
                ),
            );
            assert!(error.hint().unwrap().ends_with(&format!("say it yourself with {flag}")));
        }
        let on = format!("[network]\nallow = ['a.org']\n{key} = true");
        assert_eq!(allowed(project(given().user(&on))).policy, allowed(given().user(&on)).policy);
    }
}

#[test]
fn a_project_may_lower_limits_and_set_new_ones() {
    let user = "[limits]\ntime = '1m'\nmemory = '1G'\ncpus = 2\nprocesses = 10\noutput = '5M'\n\
        tmp = '1M'\ndisk = '1G'";
    let lower = "[limits]\ntime = '1s'\nmemory = '1M'\ncpus = 1\nprocesses = 1\noutput = '1M'\n\
        tmp = '1K'\ndisk = '1M'";
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
fn a_project_may_choose_only_native_and_only_if_no_layer_chose() {
    for backend in Backend::ALL {
        let given = || given().project(&format!("backend = '{backend}'"));
        if backend == Backend::Native {
            assert_eq!(allowed(given()).selection, BackendSelection::Only(backend));
        } else {
            let message = format!(
                "ringfence.toml:1: backend = \"{backend}\" would widen `auto`, the built-in default"
            );
            refuse(given(), &message);
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
    for below in [Backend::Bwrap, Backend::Docker, Backend::Local] {
        let given = given().user(&format!("backend = '{below}'")).project("backend = 'native'");
        let message = format!(
            "ringfence.toml:1: backend = \"native\" would widen `{below}`, \
             set at /home/ada/.config/ringfence/config.toml:1"
        );
        refuse(given, &message);
    }
}

#[test]
fn a_project_puts_no_credential_to_use_that_an_open_network_leaves_alone() {
    let user = "network.mode = 'open'\n[[credentials]]\nhost = 'api.a.org'\nfile = '/x'";
    allowed(given().user(user).project("network.allow = ['b.org']"));
    for host in ["api.a.org", "*.a.org", "api.a.org:443"] {
        let message = format!(
            "ringfence.toml:1: network.allow = \"{host}\" would widen `open`, \
             set at /home/ada/.config/ringfence/config.toml:1"
        );
        refuse(given().user(user).project(&format!("network.allow = ['{host}']")), &message);
    }
    let closed = user.replace("mode = 'open'", "allow = ['*.a.org']");
    allowed(given().user(&closed).project("network.allow = ['api.a.org']"));
}

#[test]
fn a_project_may_hide_protect_and_require() {
    let settings =
        allowed(given().user("filesystem.hide = ['*.pem']").project(
            "require = ['memory']\n[filesystem]\nhide = ['**/.env']\nprotect = ['Makefile']",
        ));
    let files = &settings.policy.filesystem;
    assert_eq!(files.hide, globs(&["*.pem", "**/.env"]));
    assert_eq!(
        files.protect,
        globs(&[".git/hooks", ".git/config", "Makefile"]),
        "the default stays protected"
    );
    assert_eq!(settings.policy.require, [Clause::Memory].into());
    let settings = allowed(given().project("filesystem.protect = []"));
    assert_eq!(settings.policy.filesystem.protect, globs(&[".git/hooks", ".git/config"]));
    let settings =
        allowed(given().user("filesystem.protect = []").project("filesystem.protect = ['a']"));
    assert_eq!(settings.policy.filesystem.protect, globs(&["a"]));
}

#[test]
fn a_project_may_only_name_paths_beneath_allowed_ones() {
    let user =
        || given().user("[filesystem]\nread = ['/opt/models', 'data']\nwrite = ['~/.cache/pip']");
    let settings = allowed(user().project(
        "[filesystem]\nread = ['/opt/models/a', '/home/ada/app/data/x', '~/.cache/pip']\n\
         write = ['~/.cache/pip/x']",
    ));
    let files = &settings.policy.filesystem;
    assert_eq!(
        files.read,
        Some(vec!["/opt/models".into(), "data".into()]),
        "a planted symlink is never followed"
    );
    assert_eq!(files.write, Some(vec!["/home/ada/.cache/pip".into()]));
    let at = "set at /home/ada/.config/ringfence/config.toml";
    for (key, path, below, line) in [
        ("read", "/opt/modelsx", r#"["/opt/models", "data"]"#, 2),
        ("read", "/opt/models/../x", r#"["/opt/models", "data"]"#, 2),
        ("read", ".", r#"["/opt/models", "data"]"#, 2),
        ("write", "/opt/models/a", r#"["/home/ada/.cache/pip"]"#, 3),
    ] {
        let message = format!(
            "ringfence.toml:1: filesystem.{key} = \"{path}\" would widen `{below}`, {at}:{line}"
        );
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
        "ringfence.toml:1: env.set.LD_PRELOAD = \"/work/evil.so\" would widen `unset`, the \
         built-in default",
    );
}

#[test]
fn a_project_may_not_set_keys_of_the_user() {
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
fn a_project_moves_the_workspace_neither_outside_nor_inside() {
    let moves = [
        "sub",
        ".git",
        "./sub",
        "..",
        "sub/../..",
        "/home/ada/app",
        "/home/ada",
        "~",
        ".:/usr",
        ".:/home/ada/app",
    ];
    for asked in moves {
        let shown = if asked == "~" { "/home/ada" } else { asked };
        let message = format!(
            "ringfence.toml:1: filesystem.workspace = \"{shown}\" would widen `.`, the built-in \
             default"
        );
        let error = refuse(given().project(&format!("filesystem.workspace = '{asked}'")), &message);
        let hint =
            "remove the line, move it to your own config.toml, or say it yourself with --workspace";
        assert_eq!(error.hint().unwrap(), format!("a project may only narrow the policy: {hint}"));
        // The refusal does not depend on a layer above that would replace the value.
        let above = given().flags(Policy::default().workspace("/srv"));
        refuse(above.project(&format!("filesystem.workspace = '{asked}'")), &message);
    }
    refuse(
        given().user("filesystem.workspace = '/srv/x'").project("filesystem.workspace = '.'"),
        "ringfence.toml:1: filesystem.workspace = \".\" would widen `/srv/x`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
    // A repeated value adds nothing, and the project does not become its source.
    assert_eq!(
        allowed(given().project("filesystem.workspace = '.'")).policy.filesystem.workspace,
        None
    );
    let user = "filesystem.workspace = '/srv/x:/y'";
    check_source(
        &allowed(given().user(user).project(user)),
        "filesystem.workspace",
        "/home/ada/.config/ringfence/config.toml:1",
    );
}

/// Values of a key that a project may and may not set.
struct ProjectDecision {
    key: &'static str,
    /// Text of the user's file.
    user: &'static str,
    /// Texts of a hostile project's file that must be refused.
    refused: &'static [&'static str],
    /// Texts of a project's file that are accepted. Such a text changes nothing, or allows less
    /// than before.
    allowed: &'static [&'static str],
}

/// One decision for each key. An accepted text leaves every other key unchanged.
const DECISIONS: [ProjectDecision; 44] = [
    ProjectDecision {
        key: "backend",
        user: "backend = 'auto'",
        refused: &[
            "backend = 'local'",
            "backend = 'outer'",
            "backend = 'docker'",
            "backend = 'bwrap'",
            "backend = 'e2b'",
        ],
        allowed: &["backend = 'auto'", "backend = 'native'"],
    },
    ProjectDecision {
        key: "filesystem.workspace",
        user: "filesystem.workspace = '/home/ada/app'",
        refused: &[
            "filesystem.workspace = '.'",
            "filesystem.workspace = 'sub'",
            "filesystem.workspace = '.:/usr'",
        ],
        allowed: &["filesystem.workspace = '/home/ada/app'"],
    },
    ProjectDecision {
        key: "filesystem.read",
        user: "filesystem.read = ['/opt/a']",
        refused: &[
            "filesystem.read = ['/opt']",
            "filesystem.read = ['/opt/a/../b']",
            "filesystem.read = ['~']",
        ],
        allowed: &["filesystem.read = ['/opt/a/b']", "filesystem.read = []"],
    },
    ProjectDecision {
        key: "filesystem.write",
        user: "[filesystem]\nwrite = ['/opt/a']\nread = ['/opt/b']",
        refused: &[
            "filesystem.write = ['/opt/b']",
            "filesystem.write = ['/opt/a/..']",
            "filesystem.write = ['.']",
        ],
        allowed: &["filesystem.write = ['/opt/a/b']", "filesystem.write = []"],
    },
    ProjectDecision {
        key: "filesystem.hide",
        user: "filesystem.hide = ['.env']",
        refused: &["filesystem.hide = ['../x']", "filesystem.hide = ['/etc/x']"],
        allowed: &["filesystem.hide = []", "filesystem.hide = ['*.pem']"],
    },
    ProjectDecision {
        key: "filesystem.protect",
        user: "",
        refused: &["filesystem.protect = ['../x']", "filesystem.protect = ['/etc/x']"],
        allowed: &["filesystem.protect = []", "filesystem.protect = ['Makefile']"],
    },
    ProjectDecision {
        key: "network.mode",
        user: "network.mode = 'closed'",
        refused: &["network.mode = 'open'"],
        allowed: &["network.mode = 'closed'", "network.mode = 'allow'"],
    },
    ProjectDecision {
        key: "network.allow",
        user: "network.allow = ['*.a.org']",
        refused: &[
            "network.allow = ['b.org']",
            "network.allow = ['a.org']",
            "network.allow = ['x.a.org:22']",
        ],
        allowed: &["network.allow = []", "network.allow = ['x.a.org']"],
    },
    ProjectDecision {
        key: "network.deny",
        user: "[network]\nallow = ['*.a.org']\ndeny = ['x.a.org']",
        refused: &["network.deny = ['*']"],
        allowed: &["network.deny = []", "network.deny = ['y.a.org']"],
    },
    ProjectDecision {
        key: "network.transparent",
        user: "network.allow = ['a.org']",
        refused: &["network.transparent = true"],
        allowed: &["network.transparent = false"],
    },
    ProjectDecision {
        key: "network.observe",
        user: "network.allow = ['a.org']",
        refused: &["network.observe = true"],
        allowed: &["network.observe = false"],
    },
    limit("limits.time", "limits.time = '1m'", &["limits.time = '61s'"], &["limits.time = '1s'"]),
    limit(
        "limits.memory",
        "limits.memory = '1G'",
        &["limits.memory = '2G'"],
        &["limits.memory = '0'"],
    ),
    limit(
        "limits.cpus",
        "limits.cpus = 2",
        &["limits.cpus = 3", "limits.cpus = 0", "limits.cpus = nan"],
        &["limits.cpus = 1"],
    ),
    limit(
        "limits.processes",
        "limits.processes = 9",
        &["limits.processes = 10", "limits.processes = 0"],
        &["limits.processes = 1"],
    ),
    limit(
        "limits.output",
        "",
        &["limits.output = '11M'"],
        &["limits.output = '0'", "limits.output = '1M'"],
    ),
    limit("limits.tmp", "", &["limits.tmp = '2G'"], &["limits.tmp = '0'", "limits.tmp = '1M'"]),
    limit(
        "limits.disk",
        "limits.disk = '1G'",
        &["limits.disk = '2G'"],
        &["limits.disk = '0'", "limits.disk = '1M'"],
    ),
    ProjectDecision {
        key: "env.pass",
        user: "env.pass = ['LANG']",
        refused: &["env.pass = ['TOKEN']", "env.pass = ['LANG', 'TOKEN']"],
        allowed: &["env.pass = ['LANG']", "env.pass = []"],
    },
    ProjectDecision {
        key: "env.set",
        user: "env.set.A = '1'",
        refused: &["env.set.A = '2'", "env.set.LD_PRELOAD = 'x'"],
        allowed: &["env.set.A = '1'"],
    },
    ProjectDecision {
        key: "require",
        user: "",
        refused: &["require = ['nothing']"],
        allowed: &["require = ['memory']"],
    },
    ProjectDecision {
        key: "allow_weaker",
        user: "allow_weaker = ['memory']",
        refused: &["allow_weaker = ['filesystem']"],
        allowed: &["allow_weaker = ['memory']", "allow_weaker = []"],
    },
    users(
        "workspace_root",
        "workspace_root = '/srv'",
        &["workspace_root = '/'", "workspace_root = '/srv'"],
    ),
    users(
        "allow_workspace",
        "allow_workspace = ['/opt/x']",
        &["allow_workspace = ['/etc']", "allow_workspace = ['/opt/x']"],
    ),
    users(
        "container.image",
        "container.image = 'a'",
        &["container.image = 'b'", "container.image = 'a'"],
    ),
    users("kubernetes.context", "", &["kubernetes.context = 'other'"]),
    users("kubernetes.namespace", "", &["kubernetes.namespace = 'other'"]),
    users("kubernetes.image", "", &["kubernetes.image = 'other'"]),
    users("kubernetes.guest_image", "", &["kubernetes.guest_image = 'other'"]),
    users("kubernetes.image_pull_secrets", "", &["kubernetes.image_pull_secrets = ['other']"]),
    users("kubernetes.runtime_class", "", &["kubernetes.runtime_class = 'other'"]),
    users("kubernetes.service_account", "", &["kubernetes.service_account = 'other'"]),
    ProjectDecision {
        key: "kubernetes.node_selector",
        user: "kubernetes.node_selector.pool = 'agents'",
        refused: &["kubernetes.node_selector.pool = 'system'"],
        allowed: &["kubernetes.node_selector.pool = 'agents'"],
    },
    users("kubernetes.tolerations", "", &["kubernetes.tolerations = ['system:NoSchedule']"]),
    ProjectDecision {
        key: "kubernetes.labels",
        user: "kubernetes.labels.team = 'a'",
        refused: &["kubernetes.labels.team = 'b'"],
        allowed: &["kubernetes.labels.team = 'a'"],
    },
    users("credentials", "", &["[[credentials]]\nhost = 'a.org'\nfile = '/x'"]),
    users(
        "audit.store",
        "audit.store = 'always'",
        &["audit.store = 'never'", "audit.store = 'always'"],
    ),
    users(
        "audit.dir",
        "audit.dir = '/srv/a'",
        &["audit.dir = '/tmp'", "audit.dir = '.'", "audit.dir = '/srv/a'"],
    ),
    ProjectDecision {
        key: "code.block_imports",
        user: "code.block_imports = 'warn'",
        refused: &["code.block_imports = 'off'"],
        allowed: &["code.block_imports = 'warn'", "code.block_imports = 'block'"],
    },
    ProjectDecision {
        key: "code.imports",
        user: "",
        refused: &["code.imports = ['..']"],
        allowed: &["code.imports = []", "code.imports = ['pickle']"],
    },
    users("code.store_code", "", &["code.store_code = 'never'", "code.store_code = 'always'"]),
    users("code.warm", "code.warm = 1", &["code.warm = 0", "code.warm = 1", "code.warm = 9"]),
    users(
        "code.preload",
        "code.preload = ['json']",
        &["code.preload = []", "code.preload = ['json']"],
    ),
    ProjectDecision {
        key: "code.languages",
        user: "code.languages.ruby = { command = ['ruby'], suffix = '.rb' }",
        refused: &[
            "code.languages.ruby = { command = ['./ruby'], suffix = '.rb' }",
            "code.languages.ruby = { command = ['ruby'], suffix = '.x' }",
            "code.languages.other = { command = ['./ruby'], suffix = '.rb' }",
            "code.languages.python = { command = ['./python'], suffix = '.py' }",
            "code.languages.other = { command = ['./python'], suffix = '.py' }",
        ],
        allowed: &["code.languages.ruby = { command = ['ruby'], suffix = '.rb' }"],
    },
];

const fn limit(
    key: &'static str,
    user: &'static str,
    refused: &'static [&'static str],
    allowed: &'static [&'static str],
) -> ProjectDecision {
    ProjectDecision { key, user, refused, allowed }
}

/// Returns the decision for a key that a project may not set at all.
const fn users(
    key: &'static str,
    user: &'static str,
    refused: &'static [&'static str],
) -> ProjectDecision {
    ProjectDecision { key, user, refused, allowed: &[] }
}

/// Returns the keys of the schema. A table with fixed keys counts as its keys, and a map with keys
/// of any name counts as one key.
pub(super) fn keys_of_schema() -> BTreeSet<String> {
    fn walk(
        node: &serde_json::Value,
        root: &serde_json::Value,
        above: &str,
        keys: &mut BTreeSet<String>,
    ) {
        let reference = node["$ref"].as_str().or_else(|| node["allOf"][0]["$ref"].as_str());
        let node = reference.map_or(node, |path| {
            root.pointer(path.trim_start_matches('#')).expect("it is in the schema")
        });
        match node["properties"].as_object() {
            Some(properties) => {
                for (name, inner) in properties {
                    let dot = if above.is_empty() { "" } else { "." };
                    walk(inner, root, &format!("{above}{dot}{name}"), keys);
                }
            }
            None => drop(keys.insert(above.to_owned())),
        }
    }
    let schema = schema();
    let mut keys = BTreeSet::new();
    walk(&schema, &schema, "", &mut keys);
    keys
}

#[test]
fn every_key_of_the_schema_has_a_decision() {
    let decided: BTreeSet<String> =
        DECISIONS.iter().map(|decision| decision.key.to_owned()).collect();
    assert_eq!(decided.len(), DECISIONS.len(), "each key is decided once");
    assert_eq!(decided, keys_of_schema());
    assert_eq!(decided, KEYS.iter().map(|key| key.name.to_owned()).collect());
}

#[test]
fn a_project_widens_no_key_and_changes_none_that_it_does_not_name() {
    for ProjectDecision { key, user, refused, allowed: texts } in &DECISIONS {
        let before = allowed(given().user(user));
        for text in *refused {
            // A text is refused because the project sets it, or because it is invalid in any file.
            let error = given().user(user).project(text).load().expect_err(text);
            let is_told = match &error {
                SettingsError::Widening(widening) => widening.key.starts_with(key),
                _ => false,
            };
            let is_nonsense = given().user(text).load().is_err();
            let is_credential = matches!(error, SettingsError::Credentials { .. });
            assert!(is_told || is_nonsense || is_credential, "{text}: {error}");
        }
        for text in *texts {
            let after = allowed(given().user(user).project(text));
            for known in
                KEYS.iter().filter(|known| known.name != *key && !is_of_network(known.name, key))
            {
                let [before, after] =
                    [&before, &after].map(|settings| explained(settings, known.name));
                assert_eq!(before, after, "{text} changes {}", known.name);
            }
        }
        assert!(!refused.is_empty(), "{key}: nothing shows that it cannot be widened");
    }
}

/// Returns `true` if both keys belong to the one value of mode and hosts of the network.
fn is_of_network(key: &str, other: &str) -> bool {
    let parts = ["network.mode", "network.allow"];
    parts.contains(&key) && parts.contains(&other)
}

fn explained(settings: &Settings, key: &str) -> Vec<String> {
    settings
        .explain()
        .into_iter()
        .filter(|line| line.key.starts_with(key))
        .map(|line| line.value)
        .collect()
}

#[test]
fn a_project_may_only_make_the_lint_stricter() {
    let settings =
        allowed(given().project("[code]\nblock_imports = 'block'\nimports = ['pickle']"));
    assert_eq!(settings.code.block_imports, BlockImports::Block);
    let imports: Vec<String> = settings.code.imports.iter().map(ToString::to_string).collect();
    assert!(
        imports.contains(&"os".to_owned()) && imports.contains(&"pickle".to_owned()),
        "{imports:?}"
    );
    allowed(given().user("code.block_imports = 'warn'").project("code.block_imports = 'warn'"));
    refuse(
        given().user("code.block_imports = 'block'").project("code.block_imports = 'warn'"),
        "ringfence.toml:1: code.block_imports = \"warn\" would widen `block`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
    refuse(
        given().project("code.store_code = 'always'"),
        "ringfence.toml:1: code.store_code = \"always\" would widen `on_error`, the built-in \
         default",
    );
    refuse(
        given().project("code.warm = 9"),
        "ringfence.toml:1: code.warm = 9 would widen `2`, the built-in default",
    );
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
    // A language in the user's file belongs to the user, even if the project repeats it.
    let settings = allowed(given().user(ruby).project(ruby));
    assert!(settings.code.project_languages.is_empty());
    refuse(
        given().project("[code.languages.python]\ncommand = ['./python']\nsuffix = '.py'"),
        "ringfence.toml:1: code.languages.python = \"./python FILE.py\" would widen `python3 \
         FILE.py`, the built-in default",
    );
    refuse(
        given().user(ruby).project("[code.languages.fast]\ncommand = ['./ruby']\nsuffix = '.rb'"),
        "ringfence.toml:1: code.languages.fast = \"./ruby FILE.rb\" would widen `ruby FILE.rb`, \
         set at /home/ada/.config/ringfence/config.toml:1",
    );
    let own = allowed(given().user("[code.languages.python]\ncommand = ['pypy3']\nsuffix = '.py'"));
    assert_eq!(own.code.languages["python"].command().0, "pypy3");
}
