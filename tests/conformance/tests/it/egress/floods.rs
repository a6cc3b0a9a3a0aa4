//! Denials among so many others that the log of their sandbox is rotated several times.

use std::collections::BTreeSet;

use conformance::{BackendVariant, CallerDirectory, SimulatedNetwork};
use ringfence_test_ledger::require;
use serde_json::Value;

use super::secrets::setups;
use crate::engines::{EngineSandbox, said, with_workspace};

/// Program that asks the proxy for a page of each host, as often as the number before the host
/// says.
const ASK: &str = "
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
stream = socket.create_connection((proxy.hostname, proxy.port), 30).makefile('rwb')
for count, host in zip(sys.argv[1::2], sys.argv[2::2]):
    for _ in range(int(count)):
        stream.write(f'GET http://{host}/ HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
        stream.flush()
        status, length = stream.readline().split()[1], 0
        assert status == b'403', status
        while (line := stream.readline()) != b'\\r\\n':
            name, _, value = line.partition(b':')
            length = int(value) if name.lower() == b'content-length' else length
        stream.read(length)
";
/// Number of denials of a long name that fills the log of a sandbox several times.
const FLOOD_DENIALS: &str = "8000";

/// Runs a command that has the proxy deny some hosts, and returns the denials of its result.
#[track_caller]
fn denials(kept: &EngineSandbox<'_>, words: &[&str]) -> Vec<String> {
    let output = kept
        .ringfence(&[&["exec", &kept.name, "--json", "--", "python3", "-c", ASK], words].concat());
    let result: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    assert_eq!(result["exit_code"], 0, "{:?}: {result}", kept.setup);
    let denials = result["meta"]["denials"].as_array().expect("it is a list").iter();
    denials.map(|denial| denial["what"].as_str().expect("it is text").to_owned()).collect()
}

#[track_caller]
fn check(variant: BackendVariant) {
    for setup in setups(variant) {
        let place =
            with_workspace(CallerDirectory::for_host_of(SimulatedNetwork::shared(), setup.caller));
        let kept = EngineSandbox::new(setup, &place);
        let mut command = kept.prepare_up(&["--allow", "good.test", "--workspace"]);
        let output =
            command.arg(place.path().join("workspace")).output().expect("ringfence can be started");
        assert!(output.status.success(), "{setup:?}: {}", said(&output));
        let flood =
            format!("{}.evil.test", ["x".repeat(60), "y".repeat(60), "z".repeat(60)].join("."));

        let told =
            denials(&kept, &["1", "first.evil.test", FLOOD_DENIALS, &flood, "1", "last.evil.test"]);
        assert!(told[0].starts_with("first.evil.test:80: "), "{setup:?}: {told:?}");
        let rest = told.last().expect("there are some");
        assert!(
            rest.starts_with("7902 more"),
            "{setup:?}: 100 of 8002 are told one by one: {rest}"
        );
        // The log has been rotated by now, and the denials of the next command must be reported
        // like those of the first.
        let told = denials(&kept, &["2", "next.evil.test"]);
        assert_eq!(told.len(), 2, "{setup:?}: {told:?}");
        assert!(
            told.iter().all(|what| what.starts_with("next.evil.test:80: ")),
            "{setup:?}: {told:?}"
        );

        let output = kept.ringfence(&["egress", "log", "--sandbox", &kept.name, "--json"]);
        let listed = String::from_utf8_lossy(&output.stdout);
        let found: BTreeSet<&str> = ["first", "last", "next"]
            .into_iter()
            .filter(|name| listed.contains(&format!("{name}.evil.test")))
            .collect();
        assert_eq!(found.len(), 3, "{setup:?}: only {found:?} are in the log");
        let kept_length: u64 = log_lengths(&kept.home).iter().sum();
        assert!(kept_length < 4 << 20, "{setup:?}: the log has {kept_length} bytes");
    }
}

/// Returns the length of every log below a directory.
fn log_lengths(directory: &std::path::Path) -> Vec<u64> {
    let entries = fs_err::read_dir(directory).into_iter().flatten().flatten();
    let lengths = entries.flat_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => log_lengths(&entry.path()),
        Ok(kind)
            if kind.is_file()
                && entry.file_name().to_string_lossy().starts_with("egress.jsonl") =>
        {
            entry.metadata().map(|file| file.len()).into_iter().collect()
        }
        _ => Vec::new(),
    });
    lengths.collect()
}

#[test]
fn denials_survive_a_flood_of_others_native() {
    require!(root, ordinary_user, binary, python3, own_network, user_namespaces);
    check(BackendVariant::Native);
}

#[test]
fn denials_survive_a_flood_of_others_bwrap() {
    require!(root, ordinary_user, binary, python3, own_network, user_namespaces, bwrap);
    check(BackendVariant::Bwrap);
}

#[test]
fn denials_survive_a_flood_of_others_docker() {
    require!(root, ordinary_user, binary, python3, own_network, docker, test_image_dev);
    check(BackendVariant::Docker);
}
