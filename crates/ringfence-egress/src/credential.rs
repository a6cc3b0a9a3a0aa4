//! Secrets that hosts outside are shown and no client inside is.
//!
//! To the hosts that have one, a client's TLS ends here: what it says is read as HTTP, each request gets the header, and
//! goes on to the host in TLS that is fully verified. Nothing else is added anywhere, so a host that a redirect leads to
//! gets what the client sends it.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use ringfence_core::policy::{HostName, HostRule};
use ringfence_core::settings::HeaderTemplate;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use zeroize::Zeroizing;

use crate::authority::Authority;
use crate::connect::Origin;
use crate::pass::Pass;
use crate::proxy::Proxy;
use crate::stream::Stream;
use crate::way::Way;
use crate::{Refusal, Target, TargetHost, Verdict};

/// What is spoken inside TLS, on both sides.
pub(crate) const PROTOCOL: &[u8] = b"http/1.1";

/// A header that requests to some hosts get. Its value is overwritten when the last copy is dropped, and is printed by
/// nobody.
pub struct Credential {
    host: HostRule,
    name: HeaderName,
    value: HeaderValue,
}

/// Why a secret cannot be presented; it is not in the message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// It does not fit into a header.
    #[error("the secret for `{host}` has a control character in it, which no header can have")]
    Unpresentable {
        /// For whom.
        host: HostRule,
    },
    /// Nobody could be verified.
    #[error("there is no certificate of an authority that hosts outside could be verified by")]
    NoAuthority,
    /// TLS cannot be spoken.
    #[error("cannot speak TLS")]
    Tls(#[from] rustls::Error),
}

impl Credential {
    /// The header that presents `secret` to `host`.
    pub fn new(host: HostRule, header: &HeaderTemplate, secret: &[u8]) -> Result<Credential, CredentialError> {
        let value = Bytes::from_owner(Zeroizing::new(header.filled_with(secret)));
        let (name, value) = (HeaderName::try_from(header.name()), HeaderValue::from_maybe_shared(value));
        let (Ok(name), Ok(mut value)) = (name, value) else { return Err(CredentialError::Unpresentable { host }) };
        value.set_sensitive(true);
        Ok(Credential { host, name, value })
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ***", self.host, self.name)
    }
}

/// The credentials of one sandbox, and what it takes to stand between its clients and those they are for.
#[derive(Debug)]
pub struct Credentials {
    list: Vec<Credential>,
    authority: Arc<Authority>,
    outside: Arc<ClientConfig>,
}

impl Credentials {
    /// `list`, in which a later one wins, for clients that trust `authority`; hosts must prove who they are by a
    /// certificate in `trusted`, which is PEM.
    pub fn new(
        list: Vec<Credential>,
        authority: Arc<Authority>,
        trusted: &[u8],
    ) -> Result<Credentials, CredentialError> {
        let mut roots = RootCertStore::empty();
        // A host's bundle may have old certificates that are not read any more: they vouch for nobody.
        let (usable, _) = roots.add_parsable_certificates(CertificateDer::pem_slice_iter(trusted).flatten());
        if usable == 0 {
            return Err(CredentialError::NoAuthority);
        }
        let outside = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let outside = outside.with_safe_default_protocol_versions()?.with_root_certificates(roots);
        let mut outside = outside.with_no_client_auth();
        outside.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Credentials { list, authority, outside: Arc::new(outside) })
    }
}

/// Credentials that are for one target.
#[derive(Clone, Copy)]
pub(crate) struct Applied<'a> {
    credentials: &'a Credentials,
    name: &'a HostName,
    target: &'a Target,
}

impl Applied<'_> {
    fn list(&self) -> impl Iterator<Item = &Credential> {
        self.credentials.list.iter().filter(|credential| credential.host.names(self.name, self.target.port))
    }

    /// Puts the headers in place of what the client sent under their names.
    pub(crate) fn present(&self, headers: &mut HeaderMap) {
        for credential in self.list() {
            headers.insert(credential.name.clone(), credential.value.clone());
        }
    }

    /// Plays the server to a client.
    pub(crate) async fn accept<S: Stream>(&self, client: S) -> io::Result<TlsStream<S>> {
        let server = self.credentials.authority.server(self.name).map_err(io::Error::other)?;
        TlsAcceptor::from(server).accept(client).await
    }

    async fn secure(&self, stream: TcpStream) -> io::Result<Way> {
        let name = ServerName::try_from(self.name.to_string()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(&self.credentials.outside)).connect(name, stream).await?;
        Ok(Way::Tls(Box::new(stream)))
    }
}

impl Proxy {
    /// The credentials that requests to `target` get, if some are for it. They are for no host that only an observer
    /// lets through.
    pub(crate) fn credentials_for<'a>(&'a self, target: &'a Target) -> Option<Applied<'a>> {
        let credentials = self.settings().credentials.as_ref()?;
        let TargetHost::Name(name) = &target.host else { return None };
        let applied = Applied { credentials, name, target };
        let is_for = applied.list().next().is_some();
        (is_for && self.rules().judge(target) == Verdict::Allowed).then_some(applied)
    }

    /// Speaks TLS on a connection to the host of credentials, which must prove to have its name.
    pub(crate) async fn secure(
        &self,
        credentials: Applied<'_>,
        stream: TcpStream,
        pass: Pass,
    ) -> Result<Origin, Refusal> {
        let target = credentials.target;
        let stream = tokio::select! {
            biased;
            denial = self.withdrawn(&pass) => return Err(self.deny(denial)),
            stream = self.in_time(target, credentials.secure(stream)) => stream?,
        };
        let stream = stream.map_err(|source| Refusal::Unverified { target: target.clone(), source })?;
        Ok(Origin { stream, pass, hop: None })
    }
}
