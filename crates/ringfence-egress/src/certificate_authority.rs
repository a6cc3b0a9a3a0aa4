//! Certificate authority that lets clients in a sandbox trust the proxy.
//!
//! Each [`CertificateAuthority`] is made for one sandbox, and its key exists only in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use ringfence_core::policy::HostName;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::credential::ALPN_PROTOCOL;
use crate::pem::encode_pem;

/// Most server names that have a certificate at once.
///
/// The limit is needed because code in the sandbox may ask for every name that a wildcard matches.
const MAX_SERVER_NAMES: usize = 256;

/// Certificate authority of one sandbox.
///
/// The authority sets no expiry date, because its key is lost when the sandbox ends.
pub struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    servers: Mutex<HashMap<HostName, Arc<ServerConfig>>>,
}

/// Failure to make a certificate or to serve with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateAuthorityError {
    /// The certificate or its key could not be generated or signed.
    #[error("cannot create a certificate")]
    Certificate(#[from] rcgen::Error),
    /// rustls cannot serve with the certificate.
    #[error("cannot use a certificate for TLS")]
    Serve(#[from] rustls::Error),
}

impl CertificateAuthority {
    /// Creates an authority with a new key.
    pub fn new() -> Result<CertificateAuthority, CertificateAuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name("ringfence: authority of one sandbox");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(CertificateAuthority { issuer, servers: Mutex::default() })
    }

    /// Returns the authority's certificate in PEM. Clients in the sandbox must trust this
    /// certificate.
    pub fn certificate_pem(&self) -> String {
        encode_pem("CERTIFICATE", self.issuer.der())
    }

    /// Returns the TLS configuration with which the proxy acts as the server called `name`.
    pub(crate) fn server_config(
        &self,
        name: &HostName,
    ) -> Result<Arc<ServerConfig>, CertificateAuthorityError> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(name) {
            return Ok(Arc::clone(server));
        }
        if servers.len() >= MAX_SERVER_NAMES {
            servers.clear();
        }
        let server = Arc::new(self.make_server_config(name)?);
        servers.insert(name.clone(), Arc::clone(&server));
        Ok(server)
    }

    fn make_server_config(
        &self,
        name: &HostName,
    ) -> Result<ServerConfig, CertificateAuthorityError> {
        let mut params = CertificateParams::new([name.to_string()])?;
        // The server's name is not the common name, because a common name holds at most 64
        // characters (RFC 5280). Clients look at the alternative names.
        params.distinguished_name = distinguished_name("ringfence");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.der().clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let server = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let server = server.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut server = server.with_single_cert(chain, key)?;
        server.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
        Ok(server)
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

fn distinguished_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
