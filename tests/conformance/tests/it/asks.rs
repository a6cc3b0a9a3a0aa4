//! Clients that write their requests by hand, without a package: for `ringfence serve` and for
//! `ringfence mcp`.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::keeper::{SandboxKeeper, WAIT_TIMEOUT};

/// A client of a server that writes its HTTP requests by hand.
pub(crate) struct RawClient {
    address: String,
}

impl RawClient {
    pub(crate) fn for_url(url: &str) -> RawClient {
        RawClient { address: url.strip_prefix("http://").expect("it speaks no TLS").to_owned() }
    }

    /// Sends a request and returns the status and the body of the answer. HTTP/1.0 makes the end of
    /// the connection the end of the answer.
    #[track_caller]
    pub(crate) fn ask(&self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Vec<u8>) {
        let address = &self.address;
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("it is not zero");
        let mut head =
            format!("{line} HTTP/1.0\r\nhost: {address}\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(&[head.as_bytes(), b"\r\n", body].concat()).expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("it is HTTP");
        let status = String::from_utf8_lossy(&answer[9..12]).parse().expect("it is HTTP");
        (status, answer.split_off(end + 4))
    }

    /// Creates a sandbox and returns its id and its token.
    #[track_caller]
    pub(crate) fn create(&self, headers: &[(&str, &str)]) -> (String, String) {
        self.create_from(&json!({ "templateID": "base" }), headers)
    }

    /// Creates a sandbox from the request body `asked` and returns its id and its token.
    #[track_caller]
    pub(crate) fn create_from(&self, asked: &Value, headers: &[(&str, &str)]) -> (String, String) {
        let headers =
            [&[("x-api-key", "e2b_0"), ("content-type", "application/json")], headers].concat();
        let (status, answer) = self.ask("POST /sandboxes", &headers, asked.to_string().as_bytes());
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&answer));
        let answer: Value = serde_json::from_slice(&answer).expect("it is JSON");
        let text = |name: &str| answer[name].as_str().expect("it is text").to_owned();
        (text("sandboxID"), text("envdAccessToken"))
    }

    /// Runs a line of shell and returns the whole output stream of the process.
    #[track_caller]
    pub(crate) fn shell(
        &self,
        (id, token): &(String, String),
        line: &str,
        headers: &[(&str, &str)],
    ) -> String {
        let start = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", line] } }).to_string();
        let length = u32::try_from(start.len()).expect("it is short").to_be_bytes();
        let body = [&[0][..], &length, start.as_bytes()].concat();
        let own = [
            ("e2b-sandbox-id", id.as_str()),
            ("x-access-token", token),
            ("content-type", "application/connect+json"),
            ("connect-protocol-version", "1"),
        ];
        let (status, answer) =
            self.ask("POST /process.Process/Start", &[&own, headers].concat(), &body);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(status, 200, "{answer}");
        answer
    }

    #[track_caller]
    pub(crate) fn kill(&self, (id, _): &(String, String)) {
        let (status, _) =
            self.ask(&format!("DELETE /sandboxes/{id}"), &[("x-api-key", "e2b_0")], b"");
        assert_eq!(status, 204);
    }
}

/// A client of `ringfence mcp` that speaks over standard streams.
pub(crate) struct McpClient {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    asked: u32,
}

impl McpClient {
    /// Starts `ringfence mcp` on the native backend with additional variables.
    #[track_caller]
    pub(crate) fn start(keeper: &SandboxKeeper, variables: &[(&str, &str)]) -> McpClient {
        let mut command = keeper.ringfence(&["mcp", "--backend", "native"]);
        command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("ringfence can be started");
        let input = process.stdin.take().expect("it was asked for");
        let output = BufReader::new(process.stdout.take().expect("it was asked for")).lines();
        let mut tools = McpClient { process, input, output, asked: 0 };
        let info = json!({ "name": "test", "version": "1" });
        let params =
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info });
        tools.ask("initialize", params);
        writeln!(
            tools.input,
            "{}",
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
        )
        .expect("it listens");
        tools
    }

    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> String {
        self.asked += 1;
        let message =
            json!({ "jsonrpc": "2.0", "id": self.asked, "method": method, "params": params });
        writeln!(self.input, "{message}").expect("it listens");
        self.output.next().expect("it answers").expect("it is text")
    }

    /// Calls a tool and returns the whole answer.
    #[track_caller]
    pub(crate) fn call(&mut self, name: &str, arguments: Value, meta: Value) -> String {
        self.ask("tools/call", json!({ "name": name, "arguments": arguments, "_meta": meta }))
    }

    /// Closes the input, and waits until ringfence has ended, and with it the sandbox.
    #[track_caller]
    pub(crate) fn leave(mut self) {
        drop(self.input);
        assert!(self.process.wait().expect("it is ours").success());
    }
}
