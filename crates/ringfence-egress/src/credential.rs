//! Credentials: secrets that the proxy shows to hosts outside and to no client in the sandbox.
//!
//! If a host has a credential, the client's TLS connection ends at the proxy. The proxy reads the
//! client's requests as HTTP and adds the header to each request. Each request then goes on to the
//! host over TLS, with full verification of the host's certificate. The proxy adds the header
//! nowhere else, so a host that a redirect leads to gets only what the client sends.

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

use crate::certificate_authority::CertificateAuthority;
use crate::connect::OriginConnection;
use crate::maybe_tls::MaybeTlsStream;
use crate::pass::ConnectionPass;
use crate::proxy::Proxy;
use crate::stream::ByteStream;
use crate::{ConnectionRefusal, Target, TargetHost, Verdict};

/// ALPN name of the protocol inside TLS, towards the client and towards the host.
pub(crate) const ALPN_PROTOCOL: &[u8] = b"http/1.1";

/// Header that the proxy adds to requests for some hosts.
///
/// The value is overwritten in memory when its last copy is dropped, and is never printed.
pub struct Credential {
    host: HostRule,
    name: HeaderName,
    value: HeaderValue,
}

/// Reason why a secret cannot be presented. The message never contains the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The secret does not fit into a header.
    #[error("the secret for `{host}` contains a control character, which no header can carry")]
    Unpresentable {
        /// Hosts that the secret is for.
        host: HostRule,
    },
    /// The trusted certificates include no usable one, so that no host could be verified.
    #[error("the host trusts no certificate authority, so no server can be verified")]
    NoAuthority,
    /// rustls cannot set up the TLS client.
    #[error("cannot configure TLS")]
    Tls(#[from] rustls::Error),
}

impl Credential {
    /// Creates the header that presents `secret` to `host`.
    pub fn new(
        host: HostRule,
        header: &HeaderTemplate,
        secret: &[u8],
    ) -> Result<Credential, CredentialError> {
        let value = Bytes::from_owner(Zeroizing::new(header.filled_with(secret)));
        let (name, value) =
            (HeaderName::try_from(header.name()), HeaderValue::from_maybe_shared(value));
        let (Ok(name), Ok(mut value)) = (name, value) else {
            return Err(CredentialError::Unpresentable { host });
        };
        value.set_sensitive(true);
        Ok(Credential { host, name, value })
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ***", self.host, self.name)
    }
}

/// Credentials of one sandbox, with the means to speak TLS to the sandbox's clients and to the
/// hosts.
#[derive(Debug)]
pub struct Credentials {
    list: Vec<Credential>,
    authority: Arc<CertificateAuthority>,
    outside: Arc<ClientConfig>,
}

impl Credentials {
    /// Creates the credentials in `list` for clients that trust `authority`.
    ///
    /// If two credentials set the same header for a host, the later credential wins. Hosts must
    /// prove their name by a certificate that `trusted` vouches for. `trusted` holds certificates
    /// of authorities in PEM.
    pub fn new(
        list: Vec<Credential>,
        authority: Arc<CertificateAuthority>,
        trusted: &[u8],
    ) -> Result<Credentials, CredentialError> {
        let mut roots = RootCertStore::empty();
        // A host's bundle may have old certificates that rustls does not parse any more. To skip
        // such certificates is safe, because they then vouch for nobody.
        let (usable, _) =
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(trusted).flatten());
        if usable == 0 {
            return Err(CredentialError::NoAuthority);
        }
        let outside = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let outside = outside.with_safe_default_protocol_versions()?.with_root_certificates(roots);
        let mut outside = outside.with_no_client_auth();
        outside.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
        Ok(Credentials { list, authority, outside: Arc::new(outside) })
    }
}

/// Credentials that apply to one target.
#[derive(Clone, Copy)]
pub(crate) struct AppliedCredentials<'a> {
    credentials: &'a Credentials,
    name: &'a HostName,
    target: &'a Target,
}

impl AppliedCredentials<'_> {
    fn list(&self) -> impl Iterator<Item = &Credential> {
        self.credentials
            .list
            .iter()
            .filter(|credential| credential.host.names(self.name, self.target.port))
    }

    /// Sets the credentials' headers, in place of any headers of the same names that the client
    /// sent.
    pub(crate) fn set_headers(&self, headers: &mut HeaderMap) {
        for credential in self.list() {
            headers.insert(credential.name.clone(), credential.value.clone());
        }
    }

    /// Accepts a client's TLS connection in the role of the target's server.
    pub(crate) async fn accept_tls<S: ByteStream>(&self, client: S) -> io::Result<TlsStream<S>> {
        let server =
            self.credentials.authority.server_config(self.name).map_err(io::Error::other)?;
        TlsAcceptor::from(server).accept(client).await
    }

    async fn connect_tls(&self, stream: TcpStream) -> io::Result<MaybeTlsStream> {
        let name = ServerName::try_from(self.name.to_string()).map_err(io::Error::other)?;
        let stream =
            TlsConnector::from(Arc::clone(&self.credentials.outside)).connect(name, stream).await?;
        Ok(MaybeTlsStream::Tls(Box::new(stream)))
    }
}

impl Proxy {
    /// Returns the credentials that requests to `target` get, if there are any.
    ///
    /// A target that only `ProxyMode::Observe` lets through gets no credentials.
    pub(crate) fn credentials_for<'a>(
        &'a self,
        target: &'a Target,
    ) -> Option<AppliedCredentials<'a>> {
        let credentials = self.settings().credentials.as_ref()?;
        let TargetHost::Name(name) = &target.host else { return None };
        let applied = AppliedCredentials { credentials, name, target };
        let is_for = applied.list().next().is_some();
        (is_for && self.rules().judge(target) == Verdict::Allowed).then_some(applied)
    }

    /// Starts TLS on a connection to the target of `credentials`, which must prove that it has the
    /// target's name. Fails if the rules withdraw `pass` meanwhile.
    pub(crate) async fn start_tls(
        &self,
        credentials: AppliedCredentials<'_>,
        stream: TcpStream,
        pass: ConnectionPass,
    ) -> Result<OriginConnection, ConnectionRefusal> {
        let target = credentials.target;
        let stream = tokio::select! {
            biased;
            denial = self.wait_until_withdrawn(&pass) => return Err(self.report_denial(denial)),
            stream = self.with_connect_timeout(target, credentials.connect_tls(stream)) => stream?,
        };
        let stream = stream
            .map_err(|source| ConnectionRefusal::Unverified { target: target.clone(), source })?;
        Ok(OriginConnection { stream, pass, hop: None })
    }
}
