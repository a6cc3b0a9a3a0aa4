//! The `ringfence serve` command, which serves E2B's API.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ringfence::{Engine, Host, Sandbox, Settings, monitor};
use ringfence_server::{
    Audience, DOMAIN, KeyFile, PreparedServer, ServerConfig, Template, TemplateConfig, TlsIdentity,
};
use ringfence_service::telemetry::Telemetry;
use tokio::net::TcpListener;

use super::attach::block_on;
use super::flags::require_engine;
use super::keys;
use super::monitor::EndSignals;
use crate::answer::print;
use crate::report::Failure;

const EXAMPLES: &str = "\
Examples:
  ringfence serve
  ringfence serve --listen 127.0.0.1:0 --config server.toml
  ringfence keys create ada && ringfence serve --listen 0.0.0.0:3000

With the E2B SDK:
  export E2B_API_URL=http://127.0.0.1:3000 E2B_SANDBOX_URL=http://127.0.0.1:3000 E2B_API_KEY=e2b_0";

/// Default address at which the server listens.
const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);

/// Serves E2B's API, so that E2B's SDKs use sandboxes of this host.
///
/// Sandboxes outlive the server, and the next server finds the sandboxes again. A web page at the
/// address of the server shows the running sandboxes, their promises and their denials. The
/// settings are those of FILE, or of ~/.config/ringfence/server.toml. As long as no key was
/// created, the server listens only on loopback, and accepts any key.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Address and port to listen on, 127.0.0.1:3000 by default; port 0 is any free port.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// File with the settings of the server, in TOML.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Uses TLS, with a certificate for *.sbx.localhost that is created on the first start.
    #[arg(long)]
    tls: bool,
    /// Uses TLS with the certificate in FILE, in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "tls")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate, in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let config = self.settings(&host)?;
        let address = self.listen.or(config.listen).unwrap_or(DEFAULT);
        let audience =
            if address.ip().is_loopback() { Audience::Machine } else { Audience::Network };
        let directory = keys::server_directory(&host)?;
        let keys = KeyFile::in_directory(&directory).read().map_err(keys::failed)?;
        if audience == Audience::Network && keys.is_empty() {
            return Err(Failure::usage(
                format!(
                    "cannot listen on {address} without an API key: other machines could use the \
                     server"
                ),
                "ringfence keys create NAME",
            ));
        }
        let tls = self.identity(&directory)?.map(|identity| identity.acceptor()).transpose()?;
        // Check the templates before a second thread exists, because the checks fork.
        let templates = templates(&config, &host)?;
        Sandbox::sweep(&host)?;
        monitor::raise_descriptor_limit();
        let (telemetry, largest) = (Telemetry::from_variables(&host), config.largest_snapshot());
        block_on(async {
            let mut ends = EndSignals::listen()?;
            let ready =
                PreparedServer::open(host, &directory, templates, largest, audience, telemetry)
                    .await?;
            let listener = TcpListener::bind(address)
                .await
                .and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (address, listener) = listener.map_err(|error| {
                Failure::failed(
                    format!("cannot listen on {address}: {error}"),
                    "ringfence serve --listen 127.0.0.1:0",
                )
            })?;
            let scheme = if tls.is_some() { "https" } else { "http" };
            print(&format!("{scheme}://{address}\n"))?;
            let ended = async {
                ends.signalled().await;
            };
            ready.serve(listener, tls, ended).await;
            Ok(ExitCode::SUCCESS)
        })
    }

    /// Returns the TLS certificate and key of the server, if it uses TLS.
    fn identity(&self, directory: &Path) -> Result<Option<TlsIdentity>, Failure> {
        if let (Some(certificate), Some(key)) = (self.tls_cert.clone(), self.tls_key.clone()) {
            return Ok(Some(TlsIdentity { certificate, key }));
        }
        if !self.tls {
            return Ok(None);
        }
        let (identity, authority) = TlsIdentity::load_or_create(&directory.join("tls"))?;
        tracing::info!(
            domain = DOMAIN,
            trust = %authority.display(),
            "clients must trust this certificate to use the server"
        );
        Ok(Some(identity))
    }

    fn settings(&self, host: &Host) -> Result<ServerConfig, Failure> {
        let own = host
            .own_directory("XDG_CONFIG_HOME", ".config")
            .map(|directory| directory.join("server.toml"));
        match self.config.clone().or(own.filter(|path| path.exists())) {
            Some(path) => Ok(ServerConfig::read(&path)?),
            None => Ok(ServerConfig::default()),
        }
    }
}

/// Creates the templates for sandboxes. A template whose policy cannot be held on this host is an
/// error at the start and not at the first use.
fn templates(config: &ServerConfig, host: &Host) -> Result<BTreeMap<String, Template>, Failure> {
    let mut templates = BTreeMap::new();
    for (name, template) in config.templates() {
        let settings =
            template_settings(&template, host).map_err(|failure| failure.about_template(&name))?;
        let engine = Engine::in_this_process(settings);
        let plan =
            engine.preflight().map_err(|error| Failure::from(error).about_template(&name))?;
        tracing::info!(
            template = name,
            backend = %plan.backend,
            summary = plan.summary,
            "a template is ready"
        );
        templates.insert(name, Template::new(&template, engine.settings()));
    }
    Ok(templates)
}

/// Loads the settings of a template.
fn template_settings(template: &TemplateConfig, host: &Host) -> Result<Settings, Failure> {
    let settings = template.settings(host.clone())?;
    if template.image.is_some() {
        require_engine("--image", settings.selection)?;
    }
    Ok(settings)
}
