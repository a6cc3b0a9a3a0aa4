//! Programs without proxy support: `transparent.py` in a sandbox with a tunnel. Its servers are in
//! a network that the test makes, where `9.9.9.9` is local and the host's resolver knows two names
//! for it.

use std::process::Output;

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::require;

const PROGRAM: &str = include_str!("transparent.py");
const HOSTS: &str = "127.0.0.1 localhost\n9.9.9.9 open.example.org shut.example.org\n";

/// Script that makes the network, starts the servers, and runs the given command as the calling
/// user. `PORT` in a word stands for the port of the servers.
const WORLD: &str = r#"export user=$(id -u) group=$(id -g)
    exec unshare --user --map-root-user --net --mount sh -c '
    set -e
    ip link set lo up
    ip address add 9.9.9.9/32 dev lo
    mount --bind hosts /etc/hosts
    mkfifo port
    python3 transparent.py serve > port &
    server=$!
    trap "kill $server" EXIT
    read PORT < port
    for word; do
        shift
        set -- "$@" "$(printf %s "$word" | sed "s/PORT/$PORT/g")"
    done
    unshare --user --map-user="$user" --map-group="$group" -- "$@"' sh "$@""#;

/// Returns the output of the program that makes `attempts` on a setup whose sandboxes may reach
/// `allow`.
#[track_caller]
fn said(setup: BackendSetup, allow: &[&str], attempts: &[&str]) -> String {
    let place = CallerDirectory::for_caller(setup.caller);
    fs_err::write(place.path().join("transparent.py"), PROGRAM)
        .expect("the place is the test's own");
    fs_err::write(place.path().join("hosts"), HOSTS).expect("the place is the test's own");
    let inner = setup.ringfence("run", &place);
    let mut command = setup.command("sh", &place);
    command.args(["-c", WORLD, "sh"]).arg(inner.get_program()).args(inner.get_args());
    if setup.variant != BackendVariant::Local {
        command.arg("--transparent");
        for rule in allow {
            command.args(["--allow", rule]);
        }
    }
    let output = command
        .args(["--", "python3", "transparent.py"])
        .args(attempts)
        .output()
        .expect("ringfence runs");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{setup:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Returns the setups that support tunnels.
fn setups() -> impl Iterator<Item = BackendSetup> {
    [BackendVariant::Native, BackendVariant::Bwrap].into_iter().flat_map(BackendSetup::all_on)
}

/// Makes the same attempts without a sandbox, where all succeed, and on both backends as both
/// callers.
#[track_caller]
fn check(allow: &[&str], attempts: &[&str], outside: &str, inside: &str) {
    assert_eq!(
        said(
            BackendSetup { variant: BackendVariant::Local, caller: Caller::Ordinary },
            &[],
            attempts
        ),
        outside,
        "the control"
    );
    for setup in setups() {
        assert_eq!(said(setup, allow, attempts), inside, "{setup:?}");
    }
}

#[test]
fn a_tunnel_reaches_allowed_hosts_only() {
    require!(binary, root, ordinary_user, ordinary_user_namespaces, bwrap, python3, tunnels);
    check(
        &["open.example.org:PORT", "9.9.9.9:PORT"],
        &["tcp,open.example.org,PORT", "tcp,9.9.9.9,PORT", "tcp,shut.example.org,PORT"],
        "tcp: hello\ntcp: hello\ntcp: hello\n",
        "tcp: hello\ntcp: hello\ntcp: gaierror\n",
    );
    // Only the name is allowed, and on another port.
    check(
        &["open.example.org:1"],
        &["tcp,open.example.org,PORT", "tcp,9.9.9.9,PORT"],
        "tcp: hello\ntcp: hello\n",
        "tcp: ConnectionRefusedError\ntcp: ConnectionRefusedError\n",
    );
}

#[test]
fn names_that_no_rule_allows_do_not_exist_inside() {
    require!(binary, root, ordinary_user, ordinary_user_namespaces, bwrap, python3, tunnels);
    check(
        &["open.example.org"],
        &["name,open.example.org", "name,shut.example.org"],
        "name: 9.9.9.9\nname: 9.9.9.9\n",
        "name: 198.18.1.0\nname: gaierror\n",
    );
}

#[test]
fn datagrams_and_ipv6_do_not_leave_a_tunnel() {
    require!(binary, root, ordinary_user, ordinary_user_namespaces, bwrap, python3, tunnels);
    check(&["9.9.9.9:PORT"], &["udp,9.9.9.9,PORT"], "udp: hello\n", "udp: OSError\n");
    for setup in setups() {
        let said = said(setup, &["open.example.org"], &["six,2606:4700:4700::1111"]);
        assert_eq!(said, "six: Network is unreachable, at once\n", "{setup:?}");
    }
}

#[test]
fn bytes_through_a_tunnel_arrive_complete_both_ways() {
    require!(binary, root, ordinary_user, ordinary_user_namespaces, bwrap, python3, tunnels);
    let came = "carry: down True, up True\nmany: 100\n";
    let attempts = ["carry,open.example.org,PORT", "many,open.example.org,PORT"];
    check(&["open.example.org:PORT"], &attempts, came, came);
}

#[test]
fn servers_inside_the_sandbox_are_reachable_inside() {
    require!(binary, root, ordinary_user, ordinary_user_namespaces, bwrap, python3, tunnels);
    check(&["open.example.org"], &["local"], "local: hello\n", "local: hello\n");
}

#[test]
fn no_process_inside_can_create_its_own_tunnel() {
    require!(binary, root, ordinary_user, ordinary_user_namespaces, bwrap, python3, tunnels);
    let place = CallerDirectory::for_caller(Caller::Ordinary);
    fs_err::write(place.path().join("transparent.py"), PROGRAM).unwrap();
    let mut control = BackendSetup { variant: BackendVariant::Local, caller: Caller::Ordinary }
        .command("unshare", &place);
    control.args(["--user", "--map-root-user", "--net", "python3", "transparent.py", "tunnel"]);
    let Output { stdout, .. } = control.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&stdout), "tunnel: made\n", "the control");
    for setup in setups() {
        assert_eq!(
            said(setup, &["open.example.org"], &["tunnel"]),
            "tunnel: FileNotFoundError\n",
            "{setup:?}"
        );
    }
}

#[test]
fn a_tunnel_without_a_device_is_refused_before_the_run() {
    require!(binary, root, ordinary_user, ordinary_user_namespaces, bwrap, tunnels);
    for setup in setups() {
        let run = |hidden: &str| {
            let place = CallerDirectory::for_caller(setup.caller);
            let inner = setup.ringfence("run", &place);
            let mut command = setup.command("unshare", &place);
            command.args([
                "--user",
                "--map-root-user",
                "--mount",
                "sh",
                "-c",
                &format!("{hidden}\"$@\""),
                "sh",
            ]);
            command.arg(inner.get_program()).args(inner.get_args());
            command.args(["--transparent", "--allow", "example.org", "--", "touch", "ran"]);
            let Output { status, stderr, .. } = command.output().unwrap();
            (
                status.code(),
                place.path().join("ran").exists(),
                String::from_utf8_lossy(&stderr).into_owned(),
            )
        };
        let (code, ran, said) = run("");
        assert!(code == Some(0) && ran, "{setup:?}, the control: {code:?}\n{said}");
        let (code, ran, said) = run("mount -t tmpfs none /dev/net && ");
        assert!(
            code == Some(125) && !ran && said.contains("modprobe tun"),
            "{setup:?}: {code:?}\n{said}"
        );
    }
}
