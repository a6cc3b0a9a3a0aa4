//! Minimal client for the API of a container engine, over the engine's socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Environment variable that holds the address of the tests' Docker, `unix:///…`.
pub const DOCKER_VARIABLE: &str = "RINGFENCE_TEST_DOCKER";
/// Environment variable that holds the address of the tests' Podman, run by root.
pub const PODMAN_VARIABLE: &str = "RINGFENCE_TEST_PODMAN";
/// Environment variable that holds the address of the tests' Podman, run by the ordinary user.
pub const ROOTLESS_PODMAN_VARIABLE: &str = "RINGFENCE_TEST_PODMAN_ROOTLESS";
/// Environment variables of all engines.
pub const ENGINE_VARIABLES: [&str; 3] =
    [DOCKER_VARIABLE, PODMAN_VARIABLE, ROOTLESS_PODMAN_VARIABLE];

/// Name of the image with only busybox and a user `dev`, on every engine of the tests.
pub const TINY_IMAGE: &str = "ringfence-test-tiny";
/// Name of the image with the content of the default dev image, on every engine of the tests.
pub const DEV_IMAGE: &str = "ringfence-test-dev";

/// Time limit for each read and write. An engine unpacks an image before it answers.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for retries of a list request.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between two list requests.
const LIST_INTERVAL: Duration = Duration::from_millis(100);

/// A container engine that listens on a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    socket: PathBuf,
}

impl Engine {
    /// Returns the engine that listens on this socket.
    pub fn on(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Returns the engine that an environment variable names.
    pub fn named_by(variable: &str) -> Result<Self, String> {
        let address = std::env::var(variable)
            .map_err(|_| format!("{variable} names no engine; use `cargo xtask test`, as root"))?;
        let socket = address.strip_prefix("unix://");
        socket
            .map(Self::on)
            .ok_or_else(|| format!("{variable} must start with `unix://`: `{address}`"))
    }

    /// Returns every engine that the tests were given.
    pub fn given() -> Vec<Self> {
        ENGINE_VARIABLES.into_iter().filter_map(|variable| Self::named_by(variable).ok()).collect()
    }

    /// Returns the address of the engine, in the form that its variable holds.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Checks that the engine answers.
    pub fn ping(&self) -> Result<(), String> {
        self.ask("GET", "/_ping", Body::Empty).map(drop)
    }

    /// Creates an image from a tarball of its files and from Dockerfile instructions for its
    /// configuration.
    pub fn import(&self, image: &str, tarball: &Path, instructions: &[&str]) -> Result<(), String> {
        let changes = instructions
            .iter()
            .map(|instruction| format!("&changes={}", percent_encoded(instruction)));
        let path = format!(
            "/images/create?fromSrc=-&repo={image}&tag=latest{}",
            changes.collect::<String>()
        );
        let answer = self.ask("POST", &path, Body::Tarball(tarball))?;
        // The status was sent before the work was done, so a failure is only in the stream of
        // progress.
        match String::from_utf8_lossy(&answer) {
            progress if progress.contains("\"error\"") => Err(progress.trim().to_owned()),
            _ => Ok(()),
        }
    }

    /// Runs a command in a container without network, and removes the container. Fails unless the
    /// command succeeds.
    pub fn run(&self, image: &str, command: &[&str]) -> Result<(), String> {
        let description =
            json!({ "Image": image, "Cmd": command, "HostConfig": { "NetworkMode": "none" } });
        match self.run_described(&description)? {
            Some(0) => Ok(()),
            Some(status) => Err(format!(
                "`{}` in a container of {image} ended with {status}",
                command.join(" ")
            )),
            None => Err(format!(
                "the engine does not say how `{}` in a container of {image} ended",
                command.join(" ")
            )),
        }
    }

    /// Runs a container of this description, the body of `POST /containers/create`, and removes the
    /// container. Returns the exit code of its command.
    pub fn run_described(&self, description: &Value) -> Result<Option<i64>, String> {
        let container = Container::create(self, description)?;
        self.ask("POST", &format!("/containers/{}/start", container.id), Body::Empty)?;
        let answer =
            self.ask_json("POST", &format!("/containers/{}/wait", container.id), Body::Empty)?;
        Ok(answer["StatusCode"].as_i64())
    }

    /// Returns everything that the engine reports of a container.
    pub fn inspect(&self, container: &str) -> Result<Value, String> {
        self.ask_json("GET", &format!("/containers/{container}/json"), Body::Empty)
    }

    /// Removes every container, running or not.
    pub fn remove_containers(&self) -> Result<(), String> {
        self.containers("{}")?.iter().try_for_each(|id| self.remove(id))
    }

    /// Returns every container, running or not, and every network that has a label, `name=value`.
    pub fn labelled(&self, label: &str) -> Result<Vec<String>, String> {
        let filters = json!({ "label": [label] }).to_string();
        let containers = self.containers(&filters)?.into_iter().map(|id| format!("container {id}"));
        let networks = self.ids(&format!("/networks?filters={}", percent_encoded(&filters)))?;
        Ok(containers.chain(networks.into_iter().map(|id| format!("network {id}"))).collect())
    }

    /// Removes every container, running or not, that has a label, `name=value`.
    pub fn remove_labelled(&self, label: &str) -> Result<(), String> {
        let containers = self.containers(&json!({ "label": [label] }).to_string())?;
        containers.iter().try_for_each(|id| self.remove(id))
    }

    fn containers(&self, filters: &str) -> Result<Vec<String>, String> {
        self.ids(&format!("/containers/json?all=1&filters={}", percent_encoded(filters)))
    }

    fn ids(&self, path: &str) -> Result<Vec<String>, String> {
        // Podman fails to list anything while one of its containers is being removed.
        let begun = Instant::now();
        let answer = loop {
            match self.ask_json("GET", path, Body::Empty) {
                Err(_) if begun.elapsed() < LIST_TIMEOUT => std::thread::sleep(LIST_INTERVAL),
                answer => break answer?,
            }
        };
        let found = answer.as_array().into_iter().flatten();
        Ok(found.filter_map(|found| found["Id"].as_str().map(str::to_owned)).collect())
    }

    fn remove(&self, container: &str) -> Result<(), String> {
        self.ask("DELETE", &format!("/containers/{container}?force=1&v=1"), Body::Empty).map(drop)
    }

    fn ask_json(&self, method: &str, path: &str, body: Body<'_>) -> Result<Value, String> {
        let answer = self.ask(method, path, body)?;
        serde_json::from_slice(&answer)
            .map_err(|error| format!("{} answered {method} {path}: {error}", self.address()))
    }

    fn ask(&self, method: &str, path: &str, body: Body<'_>) -> Result<Vec<u8>, String> {
        let answer = self.exchange(method, path, body);
        let answer = answer.map_err(|error| {
            format!("cannot ask {} for {method} {path}: {error}", self.address())
        })?;
        read_answer(&answer)
            .map_err(|words| format!("{} refused {method} {path}: {words}", self.address()))
    }

    /// Sends a request and reads the whole answer, which HTTP/1.0 ends by closing the connection.
    fn exchange(&self, method: &str, path: &str, body: Body<'_>) -> std::io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let (kind, length) = body.kind_and_length()?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: engine\r\n\
             Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        )?;
        match body {
            Body::Empty => {}
            Body::Json(value) => stream.write_all(value.to_string().as_bytes())?,
            Body::Tarball(path) => {
                std::io::copy(&mut fs_err::File::open(path)?, &mut stream)?;
            }
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

enum Body<'a> {
    Empty,
    Json(&'a Value),
    Tarball(&'a Path),
}

impl Body<'_> {
    fn kind_and_length(&self) -> std::io::Result<(&'static str, u64)> {
        Ok(match self {
            Self::Empty => ("application/json", 0),
            Self::Json(value) => ("application/json", value.to_string().len() as u64),
            Self::Tarball(path) => ("application/x-tar", fs_err::metadata(path)?.len()),
        })
    }
}

/// A container for a probe, removed when the value is dropped.
struct Container<'a> {
    engine: &'a Engine,
    id: String,
}

impl<'a> Container<'a> {
    fn create(engine: &'a Engine, description: &Value) -> Result<Self, String> {
        let answer = engine.ask_json("POST", "/containers/create", Body::Json(description))?;
        let id =
            answer["Id"].as_str().ok_or_else(|| format!("a container without a name: {answer}"))?;
        Ok(Self { engine, id: id.to_owned() })
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.engine.remove(&self.id); // an engine that is gone took its containers along
    }
}

/// Returns the body of a successful answer, or the engine's message of any other answer.
fn read_answer(answer: &[u8]) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("the answer has no end of its head")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    // 304 means that the container has already started or stopped.
    if status.starts_with('2') || status == "304" {
        Ok(body.as_bytes().to_vec())
    } else {
        Err(body.trim().to_owned())
    }
}

/// Percent-encodes text for the query of a request.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_body_or_the_words_of_its_refusal() {
        assert_eq!(read_answer(b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\nOK"), Ok(b"OK".to_vec()));
        assert_eq!(read_answer(b"HTTP/1.0 204 No Content\r\n\r\n"), Ok(Vec::new()));
        assert_eq!(
            read_answer(b"HTTP/1.0 404 Not Found\r\n\r\nno such image\n"),
            Err("no such image".to_owned())
        );
        assert!(read_answer(b"").is_err());
    }

    #[test]
    fn an_instruction_is_spelt_for_a_query() {
        assert_eq!(percent_encoded("CMD [\"/bin/sh\"]"), "CMD%20%5B%22%2Fbin%2Fsh%22%5D");
    }

    #[test]
    fn an_engine_that_does_not_listen_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let reason = Engine::on(directory.path().join("none.sock")).ping().unwrap_err();
        assert!(reason.contains("none.sock for GET /_ping: "), "{reason}");
    }

    #[test]
    fn a_container_runs_on_every_engine_and_its_failure_is_seen() {
        crate::require!(docker, podman, rootless_podman);
        for engine in Engine::given() {
            assert_eq!(engine.run(TINY_IMAGE, &["true"]), Ok(()));
            let reason = engine.run(TINY_IMAGE, &["false"]).unwrap_err();
            assert_eq!(reason, "`false` in a container of ringfence-test-tiny ended with 1");
            let reason = engine.run("ringfence-test-no-such-image", &["true"]).unwrap_err();
            assert!(reason.contains("refused POST /containers/create"), "{reason}");
        }
    }

    #[test]
    fn the_dev_image_has_no_host_keys_that_its_copies_would_share() {
        crate::require!(test_image_dev, test_image_sshd);
        let script = "test -d /etc/ssh && ! ls /etc/ssh/ssh_host_*";
        for engine in Engine::given() {
            assert_eq!(engine.run(DEV_IMAGE, &["sh", "-c", script]), Ok(()));
        }
    }
}
