//! TLS with a given certificate, or with a certificate that the server creates on its first start
//! for names of this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CidrSubnet, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints,
};
use ringfence::write_private_file;
use ringfence_egress::encode_pem;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ServerError;

/// Domain of a certificate that the server creates. Every resolver maps names below `localhost` to
/// this machine.
pub const DOMAIN: &str = "sbx.localhost";
/// Names in a certificate that the server creates.
const NAMES: [&str; 5] = ["localhost", DOMAIN, "*.sbx.localhost", "127.0.0.1", "::1"];

/// Paths of a certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    /// Path of the certificate and of the chain to a certificate that clients trust.
    pub certificate: PathBuf,
    /// Path of the private key.
    pub key: PathBuf,
}

impl TlsIdentity {
    /// Returns the server's own identity in `directory`, and the path of the authority certificate
    /// that clients must trust. Creates both if they are missing.
    pub fn load_or_create(directory: &Path) -> Result<(TlsIdentity, PathBuf), ServerError> {
        let identity = TlsIdentity {
            certificate: directory.join("server.pem"),
            key: directory.join("server.key"),
        };
        let authority = directory.join("ca.pem");
        if ![&identity.certificate, &identity.key, &authority].into_iter().all(|path| path.exists())
        {
            let failed = |why: &dyn std::fmt::Display| {
                ServerError::failed(
                    format!("cannot create a certificate: {why}"),
                    "ringfence serve --tls-cert FILE --tls-key FILE",
                )
            };
            let made = make().map_err(|error| failed(&error))?;
            fs_err::create_dir_all(directory).map_err(|error| failed(&error))?;
            let files = [
                (&identity.key, made.key),
                (&identity.certificate, made.server),
                (&authority, made.authority),
            ];
            for (path, text) in files {
                write_private_file(path, &text).map_err(|error| failed(&error))?;
            }
        }
        Ok((identity, authority))
    }

    /// Creates the TLS acceptor for this identity.
    pub fn acceptor(&self) -> Result<TlsAcceptor, ServerError> {
        let failed = |path: &Path, why: &dyn std::fmt::Display| {
            let hint = "ringfence serve --tls-cert FILE --tls-key FILE, with a certificate and its \
                        private key in PEM format";
            ServerError::usage(format!("cannot use `{}` for TLS: {why}", path.display()), hint)
        };
        let chain = CertificateDer::pem_file_iter(&self.certificate).and_then(Iterator::collect);
        let chain: Vec<_> = chain.map_err(|error| failed(&self.certificate, &error))?;
        if chain.is_empty() {
            return Err(failed(&self.certificate, &"the file contains no certificate"));
        }
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| failed(&self.key, &error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
        let key = || self.key.display();
        let mut config = config.map_err(|error| {
            failed(&self.certificate, &format_args!("with the key `{}`: {error}", key()))
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// New certificate for names of this machine, in PEM.
struct MadeCertificate {
    authority: String,
    server: String,
    key: String,
}

/// Creates an authority, signs one certificate with it, and drops the authority's key, so that it
/// can never sign another. Name constraints also limit the authority to names of this machine.
fn make() -> Result<MadeCertificate, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "ringfence: authority of one server");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let machine = CidrSubnet::V4([127, 0, 0, 0], [255, 0, 0, 0]);
    let machine_6 = CidrSubnet::V6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xff; 16]);
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![
            GeneralSubtree::DnsName("localhost".to_owned()),
            GeneralSubtree::IpAddress(machine),
            GeneralSubtree::IpAddress(machine_6),
        ],
        excluded_subtrees: Vec::new(),
    });
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

    let mut params = CertificateParams::new(NAMES.map(str::to_owned))?;
    params.distinguished_name.push(DnType::CommonName, "ringfence");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let server = params.signed_by(&key, &issuer)?;
    Ok(MadeCertificate {
        authority: encode_pem("CERTIFICATE", issuer.der()),
        server: encode_pem("CERTIFICATE", server.der()),
        key: encode_pem("PRIVATE KEY", &key.serialize_der()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_can_be_served_with() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("tls");
        let (identity, authority) = TlsIdentity::load_or_create(&directory).unwrap();
        identity.acceptor().unwrap();
        let made = fs_err::read_to_string(&authority).unwrap();
        TlsIdentity::load_or_create(&directory).unwrap().0.acceptor().unwrap();
        assert_eq!(fs_err::read_to_string(&authority).unwrap(), made);
        let refusal =
            |identity: &TlsIdentity| identity.acceptor().err().unwrap().message().to_owned();
        let another = TlsIdentity {
            key: TlsIdentity::load_or_create(&place.path().join("another")).unwrap().0.key,
            ..identity.clone()
        };
        let message = refusal(&another);
        assert!(
            message.contains("another/server.key") && message.contains("tls/server.pem"),
            "{message}"
        );
        let swapped =
            TlsIdentity { certificate: identity.key.clone(), key: identity.certificate.clone() };
        assert!(
            refusal(&swapped)
                .ends_with("tls/server.key` for TLS: the file contains no certificate")
        );
        fs_err::write(&identity.key, "no key").unwrap();
        assert!(refusal(&identity).contains("tls/server.key"));
    }
}
