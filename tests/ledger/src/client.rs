//! A lightweight client of `ringfence serve`, for tests with many clients and for measurements.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// Time limit for each read and write on a connection.
const IO_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit in bytes of a body or a chunk of an answer.
const LONGEST_BODY: u64 = 64 << 20;

/// A client that keeps one connection and sends one request at a time.
#[derive(Debug)]
pub struct Client {
    /// Address of the server, `HOST:PORT`.
    address: String,
    connection: Option<BufReader<TcpStream>>,
}

/// A sandbox of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Id of the sandbox.
    pub id: String,
    /// Access token that the guest requires.
    token: String,
}

/// Error of a call to a server.
#[derive(Debug)]
pub enum CallError {
    /// There was no complete answer. The call can be repeated.
    Broken(io::Error),
    /// The server or the guest refused the call, or gave an answer that makes no sense.
    Refused {
        /// Status code of HTTP, or 0 without a valid answer.
        status: u16,
        /// Text of the answer or a description of the problem.
        words: String,
    },
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// A request of HTTP.
struct ClientRequest<'a> {
    method: &'a str,
    path: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
}

/// An answer of HTTP.
struct ClientAnswer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Client {
    /// Creates a client of the server at a URL, `http://HOST:PORT`.
    pub fn for_url(url: &str) -> Self {
        Self { address: url.trim_start_matches("http://").to_owned(), connection: None }
    }

    /// Creates a sandbox of a template, with a lease in seconds.
    pub fn create(&mut self, template: &str, seconds: u64) -> Result<Sandbox, CallError> {
        let body =
            json!({ "templateID": template, "timeout": seconds, "secure": true }).to_string();
        let made = self.control("POST", "/sandboxes", body.as_bytes())?.json()?;
        let text = |name: &str| {
            made[name].as_str().map(str::to_owned).ok_or_else(|| odd("a name is missing"))
        };
        Ok(Sandbox { id: text("sandboxID")?, token: text("envdAccessToken")? })
    }

    /// Ends the sandbox with this id.
    pub fn kill(&mut self, id: &str) -> Result<(), CallError> {
        self.control("DELETE", &format!("/sandboxes/{id}"), b"").map(drop)
    }

    /// Returns the ids of all sandboxes, and follows the pagination.
    pub fn list(&mut self) -> Result<Vec<String>, CallError> {
        let mut found = Vec::new();
        let mut path = "/v2/sandboxes".to_owned();
        loop {
            let answer = self.control("GET", &path, b"")?;
            let page = answer.json()?;
            let ids =
                page.as_array().into_iter().flatten().filter_map(|one| one["sandboxID"].as_str());
            found.extend(ids.map(str::to_owned));
            match answer.headers.get("x-next-token") {
                Some(next) => path = format!("/v2/sandboxes?nextToken={next}"),
                None => return Ok(found),
            }
        }
    }

    /// Runs a command in a sandbox to its end, and returns its exit code.
    pub fn run(&mut self, sandbox: &Sandbox, words: &[&str]) -> Result<i64, CallError> {
        let (program, arguments) = words.split_first().ok_or_else(|| odd("there is no command"))?;
        let message =
            json!({ "process": { "cmd": program, "args": arguments }, "stdin": false }).to_string();
        let length = u32::try_from(message.len()).map_err(|_| odd("the command is too long"))?;
        let body = [&[0], length.to_be_bytes().as_slice(), message.as_bytes()].concat();
        let answer = self.guest(
            sandbox,
            "POST",
            "/process.Process/Start",
            "application/connect+json",
            &body,
        )?;
        let messages = messages(&answer.body)?;
        let ended = messages.iter().find_map(|message| message.pointer("/event/end"));
        match ended {
            // An exit code of 0 is left out.
            Some(ended) => Ok(ended["exitCode"].as_i64().unwrap_or_default()),
            None => Err(CallError::Refused {
                status: answer.status,
                words: format!("it did not end: {messages:?}"),
            }),
        }
    }

    /// Writes a file in a sandbox.
    pub fn write(
        &mut self,
        sandbox: &Sandbox,
        path: &str,
        content: &[u8],
    ) -> Result<(), CallError> {
        self.guest(
            sandbox,
            "POST",
            &format!("/files?path={path}"),
            "application/octet-stream",
            content,
        )
        .map(drop)
    }

    /// Reads a file of a sandbox.
    pub fn read(&mut self, sandbox: &Sandbox, path: &str) -> Result<Vec<u8>, CallError> {
        Ok(self
            .guest(sandbox, "GET", &format!("/files?path={path}"), "application/octet-stream", b"")?
            .body)
    }

    /// Returns a figure of the server's `/metrics`.
    pub fn figure(&mut self, name: &str) -> Result<u64, CallError> {
        let text = self.control("GET", "/metrics", b"")?.body;
        let text = String::from_utf8_lossy(&text);
        let figure = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        figure.ok_or_else(|| odd("there is no such figure"))
    }

    fn control(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<ClientAnswer, CallError> {
        let headers = [("X-API-KEY", "e2b_0"), ("Content-Type", "application/json")];
        self.ask(&ClientRequest { method, path, headers: &headers, body })
    }

    fn guest(
        &mut self,
        sandbox: &Sandbox,
        method: &str,
        path: &str,
        kind: &str,
        body: &[u8],
    ) -> Result<ClientAnswer, CallError> {
        let headers = [
            ("E2b-Sandbox-Id", sandbox.id.as_str()),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", &sandbox.token),
            ("Content-Type", kind),
            ("Connect-Protocol-Version", "1"),
        ];
        self.ask(&ClientRequest { method, path, headers: &headers, body })
    }

    fn ask(&mut self, request: &ClientRequest<'_>) -> Result<ClientAnswer, CallError> {
        let answer = match self.connection.take() {
            Some(kept) => self.converse(kept, request)?,
            None => {
                let stream = TcpStream::connect(&self.address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(IO_TIMEOUT))?;
                stream.set_write_timeout(Some(IO_TIMEOUT))?;
                self.converse(BufReader::new(stream), request)?
            }
        };
        match answer.status {
            200..300 => Ok(answer),
            status => {
                let words = format!(
                    "{} {}: {}",
                    request.method,
                    request.path,
                    String::from_utf8_lossy(&answer.body)
                );
                Err(CallError::Refused { status, words })
            }
        }
    }

    /// Sends a request on a connection and reads the answer. The connection is kept if the answer
    /// is complete and the server does not close it.
    fn converse(
        &mut self,
        mut connection: BufReader<TcpStream>,
        request: &ClientRequest<'_>,
    ) -> io::Result<ClientAnswer> {
        let ClientRequest { method, path, headers, body } = request;
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n",
            self.address,
            body.len()
        );
        for (name, value) in *headers {
            text += &format!("{name}: {value}\r\n");
        }
        // Send everything in one write, so that the server wakes up once.
        connection.get_mut().write_all(&[text.as_bytes(), b"\r\n", body].concat())?;
        let answer = read_answer(&mut connection)?;
        if answer.headers.get("connection").is_none_or(|value| value != "close") {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

impl ClientAnswer {
    fn json(&self) -> Result<Value, CallError> {
        serde_json::from_slice(&self.body).map_err(|_| odd("the answer is not JSON"))
    }
}

fn odd(words: &str) -> CallError {
    CallError::Refused { status: 0, words: words.to_owned() }
}

fn broken(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

/// Reads an answer to its end, as RFC 9112 defines it.
fn read_answer(connection: &mut impl BufRead) -> io::Result<ClientAnswer> {
    let status = line(connection)?;
    let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| broken("there is no status"))?;
    let mut headers = BTreeMap::new();
    loop {
        let line = line(connection)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    if headers.contains_key("transfer-encoding") {
        loop {
            let size = line(connection)?;
            let size = u64::from_str_radix(&size, 16).map_err(|_| broken("a chunk has no size"))?;
            take(connection, size, &mut body)?;
            line(connection)?;
            if size == 0 {
                break;
            }
        }
    } else {
        let length = headers
            .get("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or_default();
        take(connection, length, &mut body)?;
    }
    Ok(ClientAnswer { status, headers, body })
}

/// Reads a line and removes its line ending. A line without the ending means that the connection
/// has ended.
fn line(connection: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    connection.take(64 << 10).read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn take(connection: &mut impl BufRead, size: u64, body: &mut Vec<u8>) -> io::Result<()> {
    if size > LONGEST_BODY {
        return Err(broken("the answer is too long"));
    }
    match connection.take(size).read_to_end(body)? {
        read if read as u64 == size => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Splits a stream of frames into its messages. Each frame begins with a byte of flags and four
/// bytes of length.
fn messages(mut stream: &[u8]) -> io::Result<Vec<Value>> {
    let mut messages = Vec::new();
    while let Some((head, rest)) = stream.split_first_chunk::<5>() {
        let [_flags, length @ ..] = *head;
        let message = rest.split_at_checked(u32::from_be_bytes(length) as usize);
        let (message, rest) = message.ok_or(io::ErrorKind::UnexpectedEof)?;
        messages.push(serde_json::from_slice(message)?);
        stream = rest;
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let answer = read_answer(&mut text.as_bytes()).ok();
        assert_eq!(
            answer.map(|answer| String::from_utf8(answer.body).unwrap()).as_deref(),
            expected
        );
    }

    #[test]
    fn an_answer_ends_where_it_says() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP", Some("ab"));
        check("HTTP/1.1 204 No Content\r\n\r\n", Some(""));
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            Some("abc"),
        );
    }

    #[test]
    fn half_an_answer_is_none() {
        for text in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"] {
            check(text, None);
        }
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", None);
    }

    #[test]
    fn a_stream_is_cut_into_its_messages() {
        let found = messages(b"\x00\x00\x00\x00\x07{\"a\":1}\x02\x00\x00\x00\x02{}").unwrap();
        assert_eq!(found, [json!({ "a": 1 }), json!({})]);
        assert!(messages(b"\x00\x00\x00\x00\x07{\"a\"").is_err());
    }
}
