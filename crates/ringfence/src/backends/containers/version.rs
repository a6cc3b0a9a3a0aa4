//! Version of an engine, with a cache. Podman takes a second to answer, because it asks every
//! program that it uses and the host's packages. The answer is therefore remembered as long as the
//! engine's greeting stays the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bollard::models::SystemVersion;
use hyper::Request;
use tokio::time::timeout;

use super::raw;
use crate::Host;
use crate::backends::Freshness;
use crate::backends::probe_cache::{ProbeCache, ProbeSubject};

/// Timeout for a greeting. Without a greeting, the engine is asked for its version.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Response headers that identify an engine.
const IDENTIFYING_HEADERS: [&str; 3] = ["server", "api-version", "libpod-api-version"];

/// Versions that engines reported to this process, by socket and process ID.
static KNOWN_VERSIONS: Mutex<BTreeMap<(PathBuf, i32), SystemVersion>> = Mutex::new(BTreeMap::new());

/// Query for the version of an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineVersionQuery<'a> {
    pub(super) socket: &'a Path,
    /// Process ID of the engine.
    pub(super) pid: i32,
    /// Host whose cache is used, if any.
    pub(super) host: Option<&'a Host>,
    pub(super) freshness: Freshness,
}

impl EngineVersionQuery<'_> {
    /// Returns the version of the engine. Calls `ask` unless the version is known.
    pub(super) async fn version<E>(
        self,
        ask: impl Future<Output = Result<SystemVersion, E>>,
    ) -> Result<SystemVersion, E> {
        let key = (self.socket.to_path_buf(), self.pid);
        let known =
            KNOWN_VERSIONS.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let cache = self.cache().await;
        let note = cache
            .as_ref()
            .and_then(ProbeCache::note)
            .filter(|_| self.freshness == Freshness::Remembered);
        if let Some(remembered) = note.and_then(|note| serde_json::from_str(&note).ok()) {
            return Ok(remembered);
        }
        let version = ask.await?;
        if let Some(cache) = cache {
            cache.store_note(&serde_json::to_string(&version).expect("it has only string keys"));
        }
        KNOWN_VERSIONS.lock().unwrap_or_else(PoisonError::into_inner).insert(key, version.clone());
        Ok(version)
    }

    async fn cache(&self) -> Option<ProbeCache> {
        let greeting = timeout(GREETING_TIMEOUT, greeting(self.socket)).await.ok()??;
        Some(ProbeCache::for_subject(
            self.host?,
            ProbeSubject::Version { socket: self.socket, greeting: &greeting },
        ))
    }
}

/// Returns the identifying headers that an engine sends with every answer.
async fn greeting(socket: &Path) -> Option<String> {
    let answer = raw::send_request(socket, Request::get("/_ping"), "").await.ok()?;
    let headers =
        IDENTIFYING_HEADERS.iter().filter_map(|name| answer.headers().get(*name)?.to_str().ok());
    Some(headers.collect::<Vec<_>>().join(" ")).filter(|headers| !headers.is_empty())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// Answers requests as an engine of that version.
    async fn greet(listener: UnixListener, version: &str) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nServer: Libpod/{version} (linux)\r\nContent-Length: 0\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_engine_is_asked_once_until_it_greets_as_another() {
        let directory = tempfile::tempdir().unwrap();
        let host =
            Host::new([("HOME".into(), directory.path().into())].into(), directory.path().into());
        let socket = directory.path().join("engine.sock");
        let (asked, process) = (Cell::new(0), Cell::new(0));
        let version = async |freshness| {
            // Use a new process ID each time, so that the cache of this process is not used.
            process.set(process.get() - 1);
            let engine = EngineVersionQuery {
                socket: &socket,
                pid: process.get(),
                host: Some(&host),
                freshness,
            };
            let answer = async {
                asked.set(asked.get() + 1);
                Ok::<_, Infallible>(SystemVersion {
                    version: Some("4.3.1".to_owned()),
                    ..SystemVersion::default()
                })
            };
            engine.version(answer).await.unwrap().version
        };
        let local = tokio::task::LocalSet::new();
        let test = async {
            let old =
                tokio::task::spawn_local(greet(UnixListener::bind(&socket).unwrap(), "4.3.1"));
            for expected in [1, 1] {
                assert_eq!(version(Freshness::Remembered).await.as_deref(), Some("4.3.1"));
                assert_eq!(asked.get(), expected);
            }
            version(Freshness::Now).await;
            assert_eq!(asked.get(), 2);
            old.abort();
            fs_err::remove_file(&socket).unwrap();
            let _new =
                tokio::task::spawn_local(greet(UnixListener::bind(&socket).unwrap(), "4.4.0"));
            version(Freshness::Remembered).await;
            assert_eq!(asked.get(), 3);
        };
        local.run_until(test).await;
    }
}
