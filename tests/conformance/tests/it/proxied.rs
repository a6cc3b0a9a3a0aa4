//! A sandbox in a network with a proxy: the proxy is the only way out, and nothing of it is left
//! behind.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use ringfence_test_ledger::require;
use serde_json::{Value, json};

use crate::engines::{ENGINES, EngineSandbox, place, said};

/// A server with one page, on every address of the host.
struct PageServer {
    address: IpAddr,
    port: u16,
}

impl PageServer {
    fn start() -> PageServer {
        let listener = TcpListener::bind("0.0.0.0:0").expect("a port can be had");
        let port = listener.local_addr().expect("it is bound").port();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let _ = client.read(&mut [0; 4096]); // the request does not matter
                let _ = client.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
                );
            }
        });
        // Find the address from which the host would connect. A connected UDP socket sends nothing.
        let probe = UdpSocket::bind("0.0.0.0:0").expect("a port can be had");
        probe.connect("203.0.113.1:9").expect("the tests' place has a way out that leads nowhere");
        PageServer { address: probe.local_addr().expect("it is bound").ip(), port }
    }
}

/// Returns the resources that the engine has for a sandbox.
fn made(kept: &EngineSandbox<'_>) -> Vec<String> {
    let engine = kept.setup.variant.engine().expect("the test requires it");
    engine.labelled(&format!("dev.ringfence.name={}", kept.name)).expect("the engine answers")
}

/// Starts a sandbox in its own network that allows `rule`.
#[track_caller]
fn up(kept: &EngineSandbox<'_>, rule: &str) {
    let output = kept.up(&["--proxy", "--allow", rule]);
    assert!(output.status.success(), "{:?}: {}", kept.setup, said(&output));
    assert_eq!(made(kept).len(), 3, "{:?}: a sandbox, a proxy and a network", kept.setup);
}

#[test]
fn the_proxy_is_the_only_exit_and_ends_with_the_sandbox() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    let (server, other) = (PageServer::start(), PageServer::start());
    let (host, allowed, denied) =
        (server.address.to_string(), server.port.to_string(), other.port.to_string());
    for setup in ENGINES {
        let place = place(setup);
        let kept = EngineSandbox::new(setup, &place);
        up(&kept, &format!("{host}:{allowed}"));
        let script = include_str!("proxied.py");
        let words =
            ["exec", "--json", &kept.name, "--", "python3", "-c", script, &host, &allowed, &denied];
        let output = kept.ringfence(&words);
        let result: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
        let seen: Value = serde_json::from_str(result["stdout"].as_str().expect("it is text"))
            .unwrap_or_else(|error| panic!("{setup:?}: {error}: {result}"));
        let expected = json!({
            "allowed": 200, "denied": 403, "own": 200,
            "connected": [], "resolved": [], "addresses of IPv6": [],
        });
        assert_eq!(seen, expected, "{setup:?}");
        let denials = result["meta"]["denials"].as_array().expect("it is a list");
        let [denial] = &denials[..] else { panic!("{setup:?}: {denials:?}") };
        assert!(
            denial["what"].as_str().is_some_and(|what| what.contains(&format!("{host}:{denied}"))),
            "{denial}"
        );
        assert!(
            said(&kept.ringfence(&["ps"])).contains(&format!("allow (sandbox-net-{})", kept.name))
        );

        let stopped = kept.ringfence(&["stop", &kept.name]);
        assert!(stopped.status.success(), "{setup:?}: {}", said(&stopped));
        assert_eq!(made(&kept), [] as [String; 0], "{setup:?}");
    }
}

#[test]
fn a_proxy_and_its_network_are_swept_after_their_owner_is_killed() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let place = place(setup);
        let kept = EngineSandbox::new(setup, &place);
        up(&kept, "example.com");
        kept.kill_owner();
        assert!(!made(&kept).is_empty(), "{setup:?}: nobody was left to remove it");
        let next = EngineSandbox {
            name: format!("{}-next", kept.name),
            home: kept.home.clone(),
            setup,
            place: &place,
        };
        let output = next.up(&[]);
        assert!(output.status.success(), "{setup:?}: {}", said(&output));
        // Podman still lists a container for a moment after it reported the removal.
        let deadline = Instant::now() + Duration::from_secs(20);
        while !made(&kept).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(made(&kept), [] as [String; 0], "{setup:?}");
    }
}

#[test]
fn a_proxy_for_a_container_is_refused_where_it_is_useless() {
    require!(root, binary, docker, test_image_dev);
    let setup = ENGINES[0];
    let place = place(setup);
    let kept = EngineSandbox::new(setup, &place);
    for (flags, words) in [
        (
            &["--proxy", "--net", "open"][..],
            &["a proxy beside the container is for", "`open`", "--allow HOST"][..],
        ),
        (&["--proxy", "--allow", "example.com", "--transparent"], &["transparent"]),
    ] {
        let output = kept.up(flags);
        assert!(!output.status.success());
        words
            .iter()
            .for_each(|word| assert!(said(&output).contains(word), "`{word}`: {}", said(&output)));
        assert_eq!(made(&kept), [] as [String; 0]);
    }
    let output = kept.ringfence(&[
        "up",
        &kept.name,
        "--backend",
        "native",
        "--proxy",
        "--allow",
        "example.com",
    ]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("--proxy is for containers, and the backend is native"),
        "{}",
        said(&output)
    );
}
