//! The services that visitors of a sandbox's ports reach, if the sandbox shares the network of its
//! host.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use ringfence::Backend;
use ringfence_test_ledger::require;

use super::{CreatedSandbox, KeyClient};
use crate::asks;
use crate::keeper::SandboxKeeper;
use crate::served::{RunningServer, expect_nothing_left, log_of};

/// Program that answers HTTP with one word at some addresses of one port, until its input ends.
const PAGE: &str = "
import http.server, socket, sys, threading
word, *places = sys.argv[1:]
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header('Content-Length', str(len(word))); \
        self.end_headers()
        self.wfile.write(word.encode())
    def log_message(self, *_): pass
port = 0
for place in places:
    address, _, flags = place.partition('/')
    address, _, given = address.rpartition('@')
    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ':' in address else socket.AF_INET
        allow_reuse_address = False
        def server_bind(self):
            if 'reuse' in flags: self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if 'only' in flags: self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self.socket.bind(self.server_address)
            self.server_name, self.server_port = 'x', self.socket.getsockname()[1]
    server = Server((address, int(given or port)), Page)
    port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(port, flush=True)
sys.stdin.read()
";

/// A service of the host's own.
struct HostsPage {
    process: Child,
    port: u16,
}

impl HostsPage {
    /// Starts a service as the user of the server, because two users cannot share a port.
    fn serve(keeper: &SandboxKeeper, places: &[&str]) -> HostsPage {
        let mut command = keeper.command("python3");
        command
            .args(["-c", PAGE, "the host's"])
            .args(places)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("the test requires it");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("it was asked for"))
            .read_line(&mut line)
            .expect("it is text");
        let page = HostsPage { process, port: line.trim_end().parse().expect("it says its port") };
        // These ports of a sandbox belong to its guest and its code interpreter.
        if [49983, 49999].contains(&page.port) { HostsPage::serve(keeper, places) } else { page }
    }
}

impl Drop for HostsPage {
    fn drop(&mut self) {
        let _ = self.process.kill(); // the process may have ended
        let _ = self.process.wait(); // the process may have ended
    }
}

/// Returns the answer that a visitor gets at a port of a sandbox.
fn visit(client: &KeyClient<'_>, made: &CreatedSandbox, port: u16) -> (u16, String) {
    let headers = format!("E2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: {port}\r\n", made.id);
    client.request_with("GET /", &headers, "")
}

#[test]
fn a_visitor_reaches_ports_of_the_sandbox_and_no_service_of_the_host() {
    require!(
        root,
        ordinary_user,
        binary,
        user_namespaces,
        ordinary_user_namespaces,
        bwrap,
        python3,
        ipv6
    );
    for keeper in
        [Backend::Native, Backend::Bwrap].into_iter().flat_map(SandboxKeeper::for_each_user)
    {
        let backend = keeper.backend;
        let policy = format!("backend = '{backend}'\n[network]\nmode = 'open'\n");
        fs_err::write(keeper.workspace().join("open.toml"), policy).expect("the workspace is ours");
        let server = RunningServer::configured(&keeper, "[templates.base]\npolicy = 'open.toml'\n");
        let client = KeyClient { server: &server, key: super::ANY_KEY.to_owned() };
        // Each row has the host's addresses, the sandbox's address at the same port, and whether a
        // visitor reaches the sandbox.
        let inside = (200, "the sandbox's".to_owned());
        for (hosts, own, meets) in [
            (&["127.0.0.1@0"][..], "127.0.0.2", true),
            (&["127.0.0.1@0"], "::1", true),
            (&["127.0.0.1@0"], "::/only", true),
            (&["0.0.0.0@0"], "::/only", true),
            (&["127.0.0.1@0"], "::ffff:127.0.0.3", true),
            (&["::1@0"], "127.0.0.1", true),
            (&["127.0.0.1@0", "::1@"], "127.0.0.4", true),
            // With a shared port it is undecided which of the two a connection would reach.
            (&["127.0.0.1@0/reuse"], "127.0.0.1/reuse", false),
            (&["0.0.0.0@0/reuse"], "127.0.0.1/reuse", false),
            (&["127.0.0.1@0/reuse"], "0.0.0.0/reuse", false),
            (&["127.0.0.1@0/reuse"], "::/reuse", true),
        ] {
            let host = HostsPage::serve(&keeper, hosts);
            let made = client.make();
            let asks = asks::RawClient::for_url(&server.url);
            assert_eq!(client.guest(&made, "POST /files?path=page.py", PAGE).0, 200);
            let (status, told) = visit(&client, &made, host.port);
            assert_eq!(
                status,
                502,
                "the host's alone at {}: {told}\n{}",
                host.port,
                log_of(&keeper)
            );
            let (address, flags) = own.split_once('/').unwrap_or((own, ""));
            let place = format!("{address}@{}/{flags}", host.port);
            let line = format!(
                "exec > said 2>&1; sleep 600 | python3 page.py \"the sandbox's\" '{place}' & \
                 while ! grep -q . said; do sleep 0.01; done"
            );
            asks.shell(&(made.id.clone(), made.token.clone()), &line, &[]);
            let said = client.guest(&made, "GET /files?path=said", "").1;
            assert_eq!(said.trim_end(), host.port.to_string(), "{hosts:?} {own}");
            // Visit several times, because a kernel that shares a port gives some connections to
            // each listener.
            for _ in 0..8 {
                let (status, told) = visit(&client, &made, host.port);
                match meets {
                    true => {
                        assert_eq!((status, told), inside, "{hosts:?} {own}: {}", log_of(&keeper))
                    }
                    false => assert_eq!(status, 502, "{hosts:?} {own}: {told}"),
                }
            }
            client.check(&format!("DELETE /sandboxes/{}", made.id), "", 204);
        }
        server.end();
        expect_nothing_left(&keeper);
    }
}
