use super::*;

fn rows(given: TestLayers) -> Vec<String> {
    let row = |row: ExplainedValue| {
        let sources: Vec<_> = row.sources.iter().map(ToString::to_string).collect();
        format!("{} = {} ({})", row.key, row.value, sources.join(" + "))
    };
    given.load().unwrap().explain().into_iter().map(row).collect()
}

#[test]
fn every_value_is_explained_even_if_all_are_defaults() {
    let expected = [
        "backend = auto",
        "filesystem.workspace = .",
        "filesystem.read = []",
        "filesystem.write = []",
        "filesystem.hide = []",
        "filesystem.protect = [.git/hooks, .git/config]",
        "network.mode = closed",
        "network.allow = []",
        "network.deny = []",
        "network.transparent = false",
        "network.observe = false",
        "limits.time = unset",
        "limits.memory = unset",
        "limits.cpus = unset",
        "limits.processes = unset",
        "limits.output = 10M",
        "limits.tmp = 1G",
        "limits.disk = unset",
        "env.pass = []",
        "require = []",
        "allow_weaker = []",
        "workspace_root = unset",
        "allow_workspace = []",
        "container.image = unset",
        "kubernetes.context = unset",
        "kubernetes.namespace = unset",
        "kubernetes.image = unset",
        "kubernetes.guest_image = unset",
        "kubernetes.image_pull_secrets = []",
        "kubernetes.runtime_class = unset",
        "kubernetes.service_account = unset",
        "kubernetes.tolerations = []",
        "credentials = []",
        "audit.store = on_error",
        "audit.dir = artifacts/executions",
        "code.block_imports = off",
        "code.imports = [os, subprocess, shutil, socket, ctypes, multiprocessing, pty, signal]",
        "code.store_code = on_error",
        "code.warm = 2",
        "code.preload = [json, re, numpy?, pandas?]",
        "code.languages.bash = bash FILE.sh",
        "code.languages.javascript = node FILE.js",
        "code.languages.python = python3 FILE.py",
    ];
    assert_eq!(rows(given()), expected.map(|row| format!("{row} (built-in default)")));
}

#[test]
fn every_key_of_the_table_is_explained() {
    let user = "env.set.A = '1'\nkubernetes.labels.a = 'b'\nkubernetes.node_selector.a = 'b'";
    let explained = given().user(user).load().unwrap().explain();
    for key in KEYS {
        assert!(explained.iter().any(|row| row.key.starts_with(key.name)), "{}", key.name);
    }
}

#[test]
fn an_explained_value_names_its_source_and_hides_secrets() {
    let rows = rows(
        given()
            .user("[env]\nset = { TOKEN = 'hunter22' }\n[filesystem]\nhide = ['a']")
            .variable("RINGFENCE_HIDE", "b")
            .variable("SANDBOX_MODE", "auto")
            .flags(Policy::default().cpus(1.5)),
    );
    for row in [
        "backend = bwrap, else outer in a container, else local (SANDBOX_MODE)",
        "filesystem.hide = [a, b] (/home/ada/.config/ringfence/config.toml:4 + RINGFENCE_HIDE)",
        "limits.cpus = 1.5 (--cpus)",
        "env.set.TOKEN = *** (/home/ada/.config/ringfence/config.toml:2)",
    ] {
        assert!(rows.iter().any(|own| own == row), "{row} is not in {rows:#?}");
    }
}

#[test]
fn a_backend_that_another_flag_chose_names_that_flag() {
    let settings = given().flags(Policy::default().backend(crate::Backend::Podman)).load().unwrap();
    assert_eq!(settings.selected_by().to_string(), "--backend");
    assert_eq!(settings.selected_by_flag("--container").selected_by().to_string(), "--container");
}
