//! The allowed and denied traffic that a run reports, and the traffic that needs no rule.

use std::collections::BTreeSet;
use std::process::Output;

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory, SimulatedNetwork};
use ringfence_test_ledger::{binary, require};
use serde_json::Value;

const NATIVE: BackendSetup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };

/// Program that fetches a page and prints the result.
const FETCH: &str = "
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status)
except OSError as error:
    print(error)
";

fn run(setup: BackendSetup, flags: &[&str], variables: &[(&str, &str)], words: &[&str]) -> Output {
    let place = CallerDirectory::for_host_of(SimulatedNetwork::shared(), setup.caller);
    let mut command = setup.ringfence("run", &place);
    command.args(flags).arg("--").args(words).envs(variables.iter().copied());
    command.output().expect("ringfence can be started")
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn host(name: &str) -> String {
    format!("p{:05x}{name}.evil.test", std::process::id())
}

#[test]
fn a_denial_in_the_result_names_the_rule_that_allows_it() {
    require!(root, binary, python3, own_network, user_namespaces);
    let host = host("denied");
    let fetch = ["python3", "-c", FETCH, &format!("http://{host}/")];
    let output = run(NATIVE, &["--json", "--allow", "good.test"], &[], &fetch);
    let result: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    assert_eq!(result["stdout"], "HTTP Error 403: Forbidden\n", "{result}");
    let denials = result["meta"]["denials"].as_array().expect("it is a list");
    let denial = &denials[0];
    assert_eq!((&denial["clause"], denials.len()), (&Value::from("egress"), 1), "{result}");
    assert!(
        denial["what"].as_str().is_some_and(|what| what.starts_with(&format!("{host}:80: "))),
        "{result}"
    );
    let line =
        denial["allow"].as_str().unwrap_or_else(|| panic!("nothing would allow it: {result}"));
    let rule = line.split('"').nth(1).expect("a rule is quoted");
    assert_eq!(line, format!("allow = [\"{rule}\"]"));
    assert_eq!(SimulatedNetwork::shared().places_of(&host), BTreeSet::new());

    let output = run(NATIVE, &["--allow", rule], &[], &fetch);
    assert_eq!(said(&output), "200\n");
    assert!(SimulatedNetwork::shared().places_of(&host).contains("evil"));
}

#[test]
fn an_empty_list_allows_no_target() {
    require!(root, binary, python3, own_network, user_namespaces);
    let output =
        run(NATIVE, &["--net", "allow"], &[], &["python3", "-c", FETCH, "http://good.test/"]);
    assert_eq!(said(&output), "HTTP Error 403: Forbidden\n");
    let output =
        run(NATIVE, &["--allow", "good.test"], &[], &["python3", "-c", FETCH, "http://good.test/"]);
    assert_eq!(said(&output), "200\n");
}

/// Program that starts a server inside, on a port that the kernel chooses, and fetches from it as
/// the proxy variables say.
const SERVER_INSIDE: &str = "
import http.server, threading, urllib.request
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
server.RequestHandlerClass.log_message = lambda *_: None
threading.Thread(target=server.serve_forever, daemon=True).start()
for name in ('127.0.0.1', 'localhost'):
    print(urllib.request.urlopen(f'http://{name}:{server.server_port}/', timeout=10).status)
";

#[test]
fn a_server_inside_the_sandbox_is_reached_without_the_proxy() {
    require!(root, binary, python3, own_network, user_namespaces);
    let output = run(NATIVE, &["--allow", "good.test"], &[], &["python3", "-c", SERVER_INSIDE]);
    assert_eq!(said(&output), "200\n200\n");
}

/// Program that connects to servers without any knowledge of a proxy, and prints the first line of
/// each answer.
const UNAWARE: &str = "
import socket, sys
for host in sys.argv[1:]:
    try:
        with socket.create_connection((host, 80), timeout=5) as stream:
            stream.sendall(f'GET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
            print(stream.recv(100).split(b'\\r')[0].decode() or 'closed')
    except OSError:
        print('no way')
";

#[test]
fn a_program_without_proxy_support_reaches_allowed_hosts_by_a_tunnel() {
    require!(root, binary, python3, own_network, user_namespaces);
    let denied = host("unaware");
    let words = ["python3", "-c", UNAWARE, "good.test", &denied, "11.22.33.66"];
    let output = run(NATIVE, &["--allow", "good.test"], &[], &words);
    assert_eq!(said(&output), "no way\nno way\nno way\n", "without a tunnel there is none");
    let output = run(NATIVE, &["--allow", "good.test", "--transparent"], &[], &words);
    let said = said(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "HTTP/1.1 200 OK", "{said}");
    assert!(lines[1..].iter().all(|line| !line.contains("200")), "{said}");
    assert_eq!(SimulatedNetwork::shared().places_of(&denied), BTreeSet::new());
}

/// Script that prints all variables that a command can see: its own, and those of every visible
/// process.
const VARIABLES: &str = "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'";

#[test]
fn the_hosts_own_proxy_is_used_and_its_credentials_stay_outside() {
    require!(root, binary, python3, own_network, user_namespaces);
    let upstream = "http://somebody:as-good-as-a-key@127.0.0.1:3128";
    let variables = [("HTTP_PROXY", upstream), ("HTTPS_PROXY", upstream), ("http_proxy", upstream)];
    let (allowed, denied) = (host("upstream"), host("beyond"));
    let script = format!(
        "{VARIABLES}; python3 -c \"$0\" http://{allowed}/; python3 -c \"$0\" http://{denied}/"
    );
    let output = run(NATIVE, &["--allow", &allowed], &variables, &["sh", "-c", &script, FETCH]);
    let said = said(&output);
    assert!(said.ends_with("200\nHTTP Error 403: Forbidden\n"), "{said}");
    assert!(said.contains("HTTP_PROXY=http://127.0.0.1:"), "{said}");
    assert!(!said.contains("as-good-as-a-key") && !said.contains("3128"), "{said}");
    assert!(SimulatedNetwork::shared().places_of(&allowed).contains("evil"));
    assert_eq!(SimulatedNetwork::shared().places_of(&denied), BTreeSet::new());
}

#[test]
fn a_policy_is_suggested_for_the_observed_targets() {
    require!(root, binary, python3, own_network, user_namespaces);
    let place = CallerDirectory::for_host_of(SimulatedNetwork::shared(), NATIVE.caller);
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let (host, private) = (host("observed"), "http://10.9.8.7/");
    let fetch = |flags: &[&str], address: &str| {
        let mut command = NATIVE.ringfence("run", &place);
        let output = command
            .args(flags)
            .args(["--", "python3", "-c", FETCH, address])
            .env("HOME", home.path())
            .output();
        said(&output.expect("ringfence can be started"))
    };
    let address = format!("http://{host}/");
    assert_eq!(fetch(&["--allow", "good.test"], &address), "HTTP Error 403: Forbidden\n");
    assert_eq!(fetch(&["--observe"], &address), "200\n");
    assert_eq!(
        fetch(&["--observe"], private),
        "HTTP Error 403: Forbidden\n",
        "an address needs a rule of its own"
    );
    let mut suggest = NATIVE.command(binary(), &place);
    let output = suggest.args(["egress", "suggest"]).env("HOME", home.path()).output();
    let suggested = said(&output.expect("ringfence can be started"));
    let rule = format!("{host}:80");
    assert!(
        suggested.contains(&format!("\"{rule}\"")) && !suggested.contains("10.9.8.7"),
        "{suggested}"
    );
    assert_eq!(fetch(&["--allow", &rule], &address), "200\n");
}

#[test]
fn a_list_without_a_network_namespace_is_refused_by_name() {
    require!(root, binary, own_network, user_namespaces, landlock);
    let setup = BackendSetup { variant: BackendVariant::NativeInPlace, caller: Caller::Root };
    let output = run(setup, &["--allow", "good.test"], &[], &["true"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("egress") && said.contains("hint: "), "{said}");
}
