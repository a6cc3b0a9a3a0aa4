//! Who vouches for the proxy inside: an authority that is made for one sandbox, and whose key is in memory alone.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use ringfence_core::policy::HostName;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::credential::PROTOCOL;
use crate::pem::pem;

/// How many names have a certificate at once; code inside may ask for as many as a wildcard has.
const MOST_NAMES: usize = 256;

/// An authority of one sandbox. It has no end but the sandbox's: then its key is gone.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    servers: Mutex<HashMap<HostName, Arc<ServerConfig>>>,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A certificate could not be signed.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// A certificate cannot be used.
    #[error("cannot serve with a certificate")]
    Serve(#[from] rustls::Error),
}

impl Authority {
    /// A new authority, with a key of its own.
    pub fn new() -> Result<Authority, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named("ringfence: authority of one sandbox");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Authority { issuer, servers: Mutex::default() })
    }

    /// Its certificate, in PEM: what is to be trusted inside.
    pub fn certificate(&self) -> String {
        pem("CERTIFICATE", self.issuer.der())
    }

    /// How the server of this name is played.
    pub(crate) fn server(&self, name: &HostName) -> Result<Arc<ServerConfig>, AuthorityError> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(name) {
            return Ok(Arc::clone(server));
        }
        if servers.len() >= MOST_NAMES {
            servers.clear();
        }
        let server = Arc::new(self.make(name)?);
        servers.insert(name.clone(), Arc::clone(&server));
        Ok(server)
    }

    fn make(&self, name: &HostName) -> Result<ServerConfig, AuthorityError> {
        let mut params = CertificateParams::new([name.to_string()])?;
        // A name of 64 characters and more does not fit there, RFC 5280; clients look at the alternative names.
        params.distinguished_name = named("ringfence");
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
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(server)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
