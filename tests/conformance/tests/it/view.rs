//! The default view, without any configuration.

use std::path::Path;
use std::process::{Command, Output};

use ringfence_test_ledger::{binary, require};

/// Creates a temporary directory that may contain a workspace.
fn directory() -> tempfile::TempDir {
    tempfile::TempDir::new_in("/var/tmp").expect("a temporary directory can be made")
}

/// Returns a command that runs in `workspace` with no flag except for the backend.
fn run(backend: &str, workspace: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["run", "--backend", backend, "--"]).args(words).current_dir(workspace);
    command
}

#[track_caller]
fn text(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("ringfence can be started");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

#[test]
fn a_crate_builds_and_a_script_runs_with_no_flag() {
    require!(binary, user_namespaces, bwrap, cargo, python3);
    for backend in ["native", "bwrap"] {
        let workspace = directory();
        fs_err::create_dir(workspace.path().join("src")).unwrap();
        let manifest =
            "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n";
        fs_err::write(workspace.path().join("Cargo.toml"), manifest).unwrap();
        fs_err::write(workspace.path().join("src/main.rs"), "fn main() { println!(\"built\") }")
            .unwrap();
        fs_err::write(
            workspace.path().join("script.py"),
            "import json, ssl; print(json.dumps([1]))",
        )
        .unwrap();
        text(run(backend, workspace.path(), &["cargo", "build", "--quiet"]));
        assert_eq!(
            text(run(backend, workspace.path(), &["./target/debug/hello"])),
            "built\n",
            "{backend}"
        );
        assert_eq!(
            text(run(backend, workspace.path(), &["python3", "script.py"])),
            "[1]\n",
            "{backend}"
        );
    }
}

#[test]
fn a_toolchain_in_the_home_is_usable_and_its_siblings_are_hidden() {
    require!(binary, user_namespaces, bwrap);
    let home = directory();
    let secrets = [
        ".cargo/credentials.toml",
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".config/gh/hosts.yml",
        ".bash_history",
    ];
    for file in secrets.into_iter().chain([".cargo/bin/tool", "project/file"]) {
        let path = home.path().join(file);
        fs_err::create_dir_all(path.parent().expect("it has one")).unwrap();
        fs_err::write(&path, "#!/bin/sh\necho a tool").unwrap();
    }
    let tool = home.path().join(".cargo/bin/tool");
    fs_err::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", home.path().join(".cargo/bin").display());
    let with_home = |mut command: Command| {
        command.env("HOME", home.path()).env("PATH", &path).env_remove("CARGO_HOME");
        command
    };
    let look = format!(
        "tool; cat {} 2>/dev/null; ls -A ~ ~/.cargo",
        secrets.map(|file| format!("~/{file}")).join(" ")
    );
    let workspace = home.path().join("project");
    let without = text(with_home(run("local", &workspace, &["sh", "-c", &look])));
    assert!(
        without.matches("echo a tool").count() == secrets.len(),
        "the control sees them all: {without}"
    );
    for backend in ["native", "bwrap"] {
        let inside = text(with_home(run(backend, &workspace, &["sh", "-c", &look])));
        let home = home.path().display();
        assert_eq!(
            inside,
            format!("a tool\n{home}:\n.cargo\nproject\n\n{home}/.cargo:\nbin\n"),
            "{backend}"
        );
    }
}

#[test]
fn a_relocated_workspace_has_the_path_that_it_has_in_containers() {
    require!(binary, user_namespaces, bwrap);
    let workspace = directory();
    for (backend, place, expected) in [
        ("native", ".:/home/user", "written\n"),
        ("bwrap", ".:/home/user", "written\n"),
        ("native", ".:/workspace", "written\n"),
        ("native", ".", "absent\n"),
    ] {
        let mut command = Command::new(binary());
        command
            .args(["run", "--backend", backend, "--workspace", place])
            .current_dir(workspace.path());
        let script = "{ echo written > /workspace/x; } 2>/dev/null && cat x || echo absent";
        command.args(["--", "sh", "-c", script]);
        assert_eq!(text(command), expected, "{backend} {place}");
    }
}

#[test]
fn the_resolver_and_the_certificates_work_where_they_are_links_into_run() {
    require!(binary, root, user_namespaces, bwrap);
    let workspace = directory();
    // In its own mount namespace, this host is changed to one on which systemd keeps both in /run.
    let script = format!(
        "set -e
         mount --make-rprivate /
         mount -t tmpfs tmpfs /mnt
         cp -a /etc /mnt/etc
         mount -t tmpfs tmpfs /run
         mkdir -p /mnt/etc/ssl/certs
         echo 'nameserver 192.0.2.1' > /run/resolv.conf
         echo 'a bundle' > /run/bundle
         ln -sf /run/resolv.conf /mnt/etc/resolv.conf
         ln -sf /run/bundle /mnt/etc/ssl/certs/ca-certificates.crt
         mount --bind /mnt/etc /etc
         for backend in native bwrap; do
           {} run --backend $backend --net open --allow-weaker ipc -- \
             cat /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt
         done",
        binary().display(),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).current_dir(workspace.path());
    assert_eq!(text(command), "nameserver 192.0.2.1\na bundle\n".repeat(2));
}
