//! The credentials of one sandbox, from the time before it starts until its gate is held.

use std::fmt;
use std::io;
use std::sync::Arc;

use ringfence_core::Plan;
use ringfence_core::policy::Network;
use ringfence_core::settings::Credential;
use ringfence_egress::{CertificateAuthority, Credentials};

use super::secret::Secret;
use crate::RunError;
use crate::engine::Core;

/// Path inside of the certificates that programs trust: those of the host, and the sandbox's own.
pub(crate) const BUNDLE_PATH: &str = "/run/ringfence/ca-bundle.pem";
/// Path inside of the sandbox's own certificate alone.
const OWN_CERTIFICATE_PATH: &str = "/run/ringfence/ca.pem";
/// Value inside of a variable in which clients expect a secret.
const PLACEHOLDER: &str = "placeholder-for-a-secret-that-stays-outside";
/// Variables that name the certificates that programs trust instead of their own.
const BUNDLE_VARIABLES: [&str; 9] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "NIX_SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];
/// Variable that names the certificates that a program trusts besides its own.
const EXTRA_CERTIFICATES_VARIABLE: &str = "NODE_EXTRA_CA_CERTS";

/// Credentials whose secrets were read. The secrets stay sealed until nothing is left to fork.
pub(crate) struct LoadedCredentials {
    credentials: Vec<(Credential, Secret)>,
    authority: Arc<CertificateAuthority>,
    /// Certificates that the host trusts, in PEM.
    trusted: Vec<u8>,
}

impl fmt::Debug for LoadedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

impl Core {
    /// Reads the secrets of the credentials that are for a host that the plan allows. Other secrets
    /// are not read, and a credential does not allow its host.
    pub(crate) fn load_credentials(
        &self,
        plan: &Plan,
    ) -> Result<Option<LoadedCredentials>, RunError> {
        let allow = plan
            .policy
            .network
            .as_ref()
            .and_then(Network::egress)
            .map_or(&[][..], |egress| &egress.allow);
        let (used, unused): (Vec<&Credential>, Vec<&Credential>) = self
            .settings
            .credentials
            .iter()
            .partition(|own| allow.iter().any(|rule| rule.overlaps(&own.host)));
        for credential in unused {
            tracing::debug!(host = %credential.host, "a credential is not used: the policy does \
                not name its host");
        }
        if used.is_empty() {
            return Ok(None);
        }
        let host = &self.settings.host;
        let failed = |step: &str| {
            let step = step.to_owned();
            move |source| RunError::Setup { step, source }
        };
        let read =
            |credential: &Credential| Ok((credential.clone(), Secret::read(credential, host)?));
        let credentials = used.into_iter().map(read).collect::<Result<_, RunError>>()?;
        let trusted = host
            .trusted_certificates()
            .map_err(failed("find the certificates that this host trusts"))?;
        let authority = CertificateAuthority::new().map_err(io::Error::other);
        let authority =
            authority.map_err(failed("make the sandbox's own certificate authority"))?;
        let credentials =
            LoadedCredentials { credentials, authority: Arc::new(authority), trusted };
        // Open the credentials once, so that errors are reported before the sandbox starts. The
        // opened secrets are overwritten again.
        credentials.open().map_err(failed("prepare the credentials for hosts outside"))?;
        Ok(Some(credentials))
    }
}

impl LoadedCredentials {
    /// Returns the credentials for the proxy.
    pub(crate) fn open(&self) -> io::Result<Credentials> {
        let open = |(credential, secret): &(Credential, Secret)| {
            let secret = secret.reveal()?;
            ringfence_egress::Credential::new(credential.host.clone(), &credential.header, &secret)
                .map_err(io::Error::other)
        };
        let list = self.credentials.iter().map(open).collect::<io::Result<_>>()?;
        Credentials::new(list, Arc::clone(&self.authority), &self.trusted).map_err(io::Error::other)
    }

    /// Returns the certificates that programs in the sandbox trust.
    pub(crate) fn bundle(&self) -> Vec<u8> {
        let mut bundle = self.trusted.clone();
        if !bundle.ends_with(b"\n") {
            bundle.push(b'\n');
        }
        bundle.extend_from_slice(self.authority.certificate_pem().as_bytes());
        bundle
    }

    /// Returns the files that are shown inside, each with its path.
    pub(crate) fn files(&self) -> [(&'static str, Vec<u8>); 2] {
        [
            (BUNDLE_PATH, self.bundle()),
            (OWN_CERTIFICATE_PATH, self.authority.certificate_pem().into_bytes()),
        ]
    }

    /// Returns the variables that make programs trust the authority, and those that stand for
    /// secrets.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let placeholders =
            self.credentials.iter().filter_map(|(credential, _)| credential.placeholder.as_deref());
        let in_place = BUNDLE_VARIABLES.map(|name| (name, BUNDLE_PATH));
        let all = in_place
            .into_iter()
            .chain([(EXTRA_CERTIFICATES_VARIABLE, OWN_CERTIFICATE_PATH)])
            .chain(placeholders.map(|name| (name, PLACEHOLDER)));
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}
