use super::*;
use crate::policy::{Egress, Network, Size, Span};
use crate::{Backend, BackendChoice, Clause};

#[test]
fn settings_without_layers_state_nothing() {
    let settings =
        given().variable("HOME", "/home/ada").variable("RINGFENCE_LOG", "debug").load().unwrap();
    assert_eq!(settings.policy, Policy::default());
    assert_eq!(settings.selection, BackendSelection::Auto);
    assert_eq!(
        settings.audit,
        AuditSettings { store: RecordedRuns::OnError, dir: "artifacts/executions".into() }
    );
    assert_eq!(settings.sources, ValueSources::default());
}

#[test]
fn the_highest_layer_decides_a_scalar() {
    let memory = |given: TestLayers, expected: u32, source: &str| {
        let settings = given.load().unwrap();
        assert_eq!(settings.policy.limits.memory, Some(Size::mebibytes(expected)));
        check_source(&settings, "limits.memory", source);
    };
    let system = || given().system("\n[limits]\nmemory = '900M'");
    memory(system(), 900, "/etc/ringfence/config.toml:3");
    let user = || system().user("limits.memory = '800M'");
    memory(user(), 800, "/home/ada/.config/ringfence/config.toml:1");
    let project = || user().project("[limits]\nmemory = '700M'");
    memory(project(), 700, "ringfence.toml:2");
    let variable = || project().variable("RINGFENCE_MEMORY", "2000M");
    memory(variable(), 2000, "RINGFENCE_MEMORY");
    let policy = || variable().file(FileOrigin::Given, "limits = { memory = '3000M' }");
    memory(policy(), 3000, "policy.toml:1");
    memory(policy().flags(Policy::default().memory(Size::mebibytes(4000))), 4000, "--memory");
}

#[test]
fn files_are_layered_by_origin_and_not_by_order() {
    let settings = given().user("backend = 'bwrap'").system("backend = 'native'").load().unwrap();
    assert_eq!(settings.policy.backend, Some(BackendChoice::Only(Backend::Bwrap)));
}

#[test]
fn lists_are_united_and_remember_each_source() {
    let settings = given()
        .system(
            "require = ['network']\n[filesystem]\nread = ['/opt/a']\nhide = ['**/.env']\n\
            [env]\npass = ['LANG']",
        )
        .user(
            "[filesystem]\nread = ['/opt/b', '/opt/a']\nwrite = ['~/.cache/pip']\n[env]\n\
            set = { A = '1', B = '1' }",
        )
        .variable("RINGFENCE_READ", "/opt/c:/opt/d")
        .variable("RINGFENCE_HIDE", "*.pem, *.key")
        .variable("RINGFENCE_REQUIRE", "memory")
        .flags(Policy::default().pass_env("TERM").set_env("B", "2").allow_weaker(Clause::Disk))
        .load()
        .unwrap();
    let files = &settings.policy.filesystem;
    let read = ["/opt/a", "/opt/b", "/opt/c", "/opt/d"].map(PathBuf::from).to_vec();
    assert_eq!(files.read, Some(read));
    assert_eq!(files.write, Some(vec!["/home/ada/.cache/pip".into()]));
    assert_eq!(
        files.hide,
        Some(["**/.env", "*.pem", "*.key"].map(|glob| glob.parse().unwrap()).to_vec())
    );
    assert_eq!(settings.policy.env.pass, Some(vec!["LANG".into(), "TERM".into()]));
    assert_eq!(
        settings.policy.env.set,
        [("A", "1"), ("B", "2")].map(|(k, v)| (k.into(), v.into())).into()
    );
    assert_eq!(settings.policy.require, [Clause::Network, Clause::Memory].into());
    assert_eq!(settings.policy.allow_weaker, [Clause::Disk].into());
    let user = "/home/ada/.config/ringfence/config.toml";
    check_source(
        &settings,
        "filesystem.read",
        &format!("/etc/ringfence/config.toml:3 + {user}:2 + RINGFENCE_READ"),
    );
    check_source(&settings, "env.set.A", &format!("{user}:5"));
    check_source(&settings, "env.set.B", "--env");
    check_source(&settings, "env.pass", "/etc/ringfence/config.toml:6 + --env");
}

#[test]
fn a_layer_that_sets_the_mode_or_the_hosts_sets_both() {
    let settings = given()
        .user("[network]\nallow = ['a.org', 'b.org']")
        .variable("RINGFENCE_ALLOW", "c.org")
        .load()
        .unwrap();
    assert_eq!(settings.policy.network, Some(Network::only(["c.org".parse().unwrap()])));
    check_source(&settings, "network.mode", "RINGFENCE_ALLOW");
    check_source(&settings, "network.allow", "RINGFENCE_ALLOW");
    let settings = given().flags(Policy::default().network(Network::Open)).load().unwrap();
    check_source(&settings, "network.allow", "--net");
    let error = given()
        .variable("RINGFENCE_NET", "open")
        .variable("RINGFENCE_ALLOW", "c.org")
        .load()
        .unwrap_err();
    assert!(error.to_string().ends_with("is not valid"), "{error}");
}

#[test]
fn rules_about_hosts_wait_for_a_layer_that_allows_hosts() {
    let standing = || given().user("[network]\ndeny = ['x.a.org']\ntransparent = true");
    assert_eq!(standing().load().unwrap().policy.network, None);
    let settings = standing()
        .variable("RINGFENCE_ALLOW", "*.a.org")
        .variable("RINGFENCE_DENY", "y.a.org")
        .load()
        .unwrap();
    let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let egress = Egress {
        allow: rules(&["*.a.org"]),
        deny: rules(&["x.a.org", "y.a.org"]),
        transparent: true,
        observe: false,
    };
    assert_eq!(settings.policy.network, Some(Network::Allow(egress)));
    let user = "/home/ada/.config/ringfence/config.toml";
    check_source(&settings, "network.deny", &format!("{user}:2 + RINGFENCE_DENY"));
    check_source(&settings, "network.transparent", &format!("{user}:3"));
    check_source(&settings, "network.observe", "built-in default");
    let closed = standing().variable("RINGFENCE_NET", "closed").load().unwrap();
    assert_eq!(closed.policy.network, Some(Network::Closed));
}

#[test]
fn a_file_whose_network_contradicts_itself_is_refused_with_its_line() {
    let error = refuse(
        given().user("\n[network]\nmode = 'closed'\nobserve = true"),
        "cannot use the settings in `/home/ada/.config/ringfence/config.toml`",
    );
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        source,
        "line 2, column 1: `network`: network mode `closed` and `observe` contradict each other: \
         write mode `allow`, or drop `observe`"
    );
}

#[test]
fn every_variable_sets_its_key() {
    for key in KEYS {
        let Some(variable) = key.variable else { continue };
        let value = match key.name {
            "backend" => "bwrap",
            "limits.time" => "30s",
            "limits.cpus" => "1.5",
            "limits.processes" => "7",
            "network.mode" => "open",
            "network.allow" | "network.deny" => "a.org",
            "network.transparent" | "network.observe" => "true",
            "require" | "allow_weaker" => "memory,cpus",
            "audit.store" | "code.store_code" => "always",
            "code.block_imports" => "warn",
            "code.imports" | "code.preload" => "pickle",
            "code.warm" => "3",
            name if name.starts_with("limits.") => "7G",
            "filesystem.hide" | "filesystem.protect" => "a,b",
            _ => "/srv/a",
        };
        // Rules for hosts have no effect in mode `closed`, so the layer below sets mode `allow`.
        let below = || {
            given().user(if variable.name == "RINGFENCE_NET" {
                ""
            } else {
                "network.mode = 'allow'"
            })
        };
        let settings = below().variable(variable.name, value).load().unwrap();
        check_source(&settings, key.name, variable.name);
        let value = |settings: &Settings| {
            settings.explain().into_iter().find(|row| row.key == key.name).unwrap().value
        };
        assert_ne!(value(&settings), value(&below().load().unwrap()), "{}", key.name);
    }
}

#[test]
fn a_wrong_value_names_the_variable_and_a_correction() {
    let error =
        refuse(given().variable("RINGFENCE_MEMORY", "12Q"), "RINGFENCE_MEMORY=`12Q` is not valid");
    assert_eq!(error.hint().unwrap(), "set RINGFENCE_MEMORY to a size such as 512M, or unset it");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        source,
        "`12Q` has an unknown unit `Q`: it is one of K, M, G, T (each 1024 of the one before)"
    );
    refuse(given().variable("RINGFENCE_CPUS", "0"), "RINGFENCE_CPUS=`0` is not valid");
    refuse(given().variable("RINGFENCE_PROCESSES", "0"), "RINGFENCE_PROCESSES=`0` is not valid");
    refuse(
        given().variable("RINGFENCE_ENV_PASS", "A,B=C"),
        "RINGFENCE_ENV_PASS=`A,B=C` is not valid",
    );
    refuse(given().variable("RINGFENCE_TIME", ""), "RINGFENCE_TIME=`` is not valid");
}

#[test]
fn an_unknown_variable_names_the_nearest_known_one() {
    let error =
        refuse(given().variable("RINGFENCE_MEMROY", "1G"), "unknown variable RINGFENCE_MEMROY");
    assert_eq!(error.hint().unwrap(), "did you mean RINGFENCE_MEMORY?");
    let error =
        refuse(given().variable("RINGFENCE_XYZZY", "1"), "unknown variable RINGFENCE_XYZZY");
    assert_eq!(error.hint().unwrap(), "unset RINGFENCE_XYZZY");
    assert!(
        given()
            .variable("RINGFENCE_TEST_REQUIRE", "x")
            .variable("RINGFENCE_LOG", "x")
            .load()
            .is_ok()
    );
}

#[test]
fn a_variable_that_is_no_text_is_refused_only_if_it_is_ours() {
    use std::os::unix::ffi::OsStringExt;
    let load = |name: &str| {
        let variables = [(OsString::from(name), OsString::from_vec(vec![0xff]))];
        let (files, flags) = (&[], Config::default());
        Settings::load(SettingsInputs {
            files,
            variables,
            flags,
            home: None,
            directory: Path::new("/"),
        })
    };
    assert!(load("OTHER").is_ok());
    assert_eq!(
        load("RINGFENCE_READ").unwrap_err().to_string(),
        "RINGFENCE_READ is not valid UTF-8"
    );
}

#[test]
fn an_unknown_key_of_a_file_names_file_line_and_nearest_key() {
    let error = refuse(
        given().user("[audit]\nstor = 'never'"),
        "cannot use the settings in `/home/ada/.config/ringfence/config.toml`",
    );
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "line 2, column 1: unknown key `audit.stor`, did you mean `audit.store`?");
    assert_eq!(error.hint().unwrap(), "`ringfence config schema` lists every key");
}

#[test]
fn paths_that_bound_workspaces_are_absolute_and_know_home() {
    let settings =
        given().user("workspace_root = '~/src'\nallow_workspace = ['~']").load().unwrap();
    assert_eq!(settings.workspace_root, Some("/home/ada/src".into()));
    assert_eq!(settings.allow_workspace, [PathBuf::from("/home/ada")]);
    refuse(
        given().variable("RINGFENCE_WORKSPACE_ROOT", ""),
        "RINGFENCE_WORKSPACE_ROOT: workspace_root = \"\" is not absolute",
    );
    refuse(
        given().system("allow_workspace = ['/srv', 'src']"),
        "/etc/ringfence/config.toml:1: allow_workspace = \"src\" is not absolute",
    );
    let files = [LayerText {
        origin: FileOrigin::User,
        path: "c.toml".into(),
        text: "filesystem.read = ['~/x']".into(),
    }];
    let (variables, flags, home) = ([], Config::default(), None);
    let error = Settings::load(SettingsInputs {
        files: &files,
        variables,
        flags,
        home,
        directory: Path::new("/"),
    });
    assert_eq!(
        error.unwrap_err().to_string(),
        "c.toml:1: filesystem.read starts with `~`, and there is no home directory to put in its \
         place"
    );
}

#[test]
fn a_dialect_is_above_files_and_below_our_own_variables() {
    let dialect = || {
        given().user("backend = 'native'\nlimits.time = '5s'").variable("SANDBOX_METHOD", "bwrap")
    };
    let settings = dialect().variable("SANDBOX_TIMEOUT_SEC", "30").load().unwrap();
    assert_eq!(settings.selection, BackendSelection::Only(Backend::Bwrap));
    assert_eq!(settings.policy.backend, Some(BackendChoice::Only(Backend::Bwrap)));
    assert_eq!(settings.policy.limits.time, Some(Span::seconds(30)));
    assert_eq!(settings.selected_by().to_string(), "SANDBOX_METHOD");
    check_source(&settings, "limits.time", "SANDBOX_TIMEOUT_SEC");

    let settings = dialect().variable("RINGFENCE_BACKEND", "docker").load().unwrap();
    assert_eq!(settings.selection, BackendSelection::Only(Backend::Docker));
    assert_eq!(settings.selected_by().to_string(), "RINGFENCE_BACKEND");
    let settings = dialect().flags(Policy::default().backend(Backend::Local)).load().unwrap();
    assert_eq!(settings.selection, BackendSelection::Only(Backend::Local));
    assert_eq!(settings.selected_by().to_string(), "--backend");
}

#[test]
fn a_dialect_without_a_selector_leaves_the_choice_alone() {
    let settings = given()
        .user("backend = 'native'")
        .variable("SANDBOX_BLOCK_DANGEROUS_IMPORTS", "true")
        .variable("SANDBOX_STORE_CODE", "never")
        .load()
        .unwrap();
    assert_eq!(settings.selection, BackendSelection::Only(Backend::Native));
    assert_eq!(
        (settings.code.block_imports, settings.code.store_code),
        (BlockImports::Block, RecordedRuns::Never)
    );
    check_source(&settings, "code.block_imports", "SANDBOX_BLOCK_DANGEROUS_IMPORTS");
    check_source(&settings, "code.store_code", "SANDBOX_STORE_CODE");
    check_source(&settings, "limits.time", "built-in default");
    refuse(
        given().variable("SANDBOX_MODE", "bwrap").variable("SANDBOX_METHOD", "docker"),
        "SANDBOX_MODE=bwrap and SANDBOX_METHOD=docker disagree: `bwrap` against `docker`",
    );
}

#[test]
fn settings_arrive_at_another_process_as_they_were_sent() {
    let settings = TestLayers::default()
        .system("backend = 'bwrap'\n[audit]\nstore = 'always'")
        .user(
            "[[credentials]]\nhost = 'api.example.org'\nfile = '~/.token'\n\
             header = 'Authorization: Bearer {secret}'\n[code]\npreload = ['json']",
        )
        .project("[limits]\nmemory = '300M'\ntime = '90s'\n[filesystem]\nhide = ['.env{,.local}']")
        .variable("SANDBOX_MODE", "auto")
        .flags(
            Policy::default()
                .workspace("/srv/a:b\\c")
                .read("/opt/tools")
                .network(Network::only(["example.org:8443".parse().unwrap()]))
                .allow_weaker(crate::Clause::Disk),
        )
        .load()
        .unwrap();
    let sent = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&sent).unwrap(), settings);
}
