//! The `ringfence port` command, which forwards a port into a sandbox.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use ringfence::Host;
use tokio::net::TcpListener;

use super::attach::{Named, block_on};
use crate::answer::print;
use crate::report::{Failure, warn};

const EXAMPLES: &str = "\
Examples:
  ringfence port demo 8080
  ringfence port demo 0:8080
  ringfence port demo 8080 --to 127.0.0.1:3000";

/// Forwards a loopback port of this machine to a port in a sandbox, until Ctrl-C.
///
/// The local address is printed. The bytes go through the guest, so a sandbox with a closed network
/// can be reached, too.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Port {
    #[command(flatten)]
    sandbox: Named,
    /// Port in the sandbox, after the local port if the ports differ; LOCAL 0 is any free port.
    #[arg(value_name = "[LOCAL:]PORT")]
    ports: PortPair,
    /// Local address and port; the address must be on loopback.
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: Option<SocketAddr>,
}

/// Port on the host and port in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PortPair {
    local: Option<u16>,
    inside: u16,
}

impl FromStr for PortPair {
    type Err = String;

    fn from_str(text: &str) -> Result<PortPair, String> {
        let (local, inside) = match text.rsplit_once(':') {
            Some((local, inside)) => (Some(local), inside),
            None => (None, text),
        };
        let port = |text: &str| {
            text.parse::<u16>().map_err(|_| format!("`{text}` is not a port, from 1 to 65535"))
        };
        match (local.map(port).transpose()?, port(inside)?) {
            (_, 0) => Err("the port in the sandbox cannot be 0".to_owned()),
            (local, inside) => Ok(PortPair { local, inside }),
        }
    }
}

impl Port {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let address = self.address()?;
        block_on(async {
            let sandbox = self.sandbox.attach(&host).await?;
            let inside = self.ports.inside;
            let listener = TcpListener::bind(address).await.map_err(|error| {
                let hint =
                    format!("use any free port: ringfence port {} 0:{inside}", self.sandbox.name);
                Failure::failed(format!("cannot listen on {address}: {error}"), hint)
            })?;
            let bound = listener.local_addr().unwrap_or(address);
            sandbox.health().await.map_err(|error| self.sandbox.failed(error))?;
            print(&format!("{bound}\n"))?;
            let ports = sandbox.ports();
            tokio::select! {
                forwarded = ports.forward(listener, inside) => forwarded.map_err(|error| {
                    let message = format!("cannot accept connections on {bound}: {error}");
                    Failure::failed(message, "ringfence ps")
                })?,
                () = sandbox.ended() => {
                    warn(&format!("the sandbox `{}` has ended", self.sandbox.name))
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    fn address(&self) -> Result<SocketAddr, Failure> {
        match (self.to, self.ports.local) {
            (Some(_), Some(_)) => Err(Failure::usage(
                "the local port is given twice, with --to and before the colon",
                "leave one of the two out",
            )),
            (Some(to), None) if !to.ip().is_loopback() => Err(Failure::usage(
                format!("`{to}` is not a loopback address: other machines could reach the sandbox"),
                format!("--to 127.0.0.1:{}", to.port()),
            )),
            (Some(to), None) => Ok(to),
            (None, local) => Ok(SocketAddr::new(
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                local.unwrap_or(self.ports.inside),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_or_two_numbers() {
        assert_eq!("8080".parse(), Ok(PortPair { local: None, inside: 8080 }));
        assert_eq!("0:8080".parse(), Ok(PortPair { local: Some(0), inside: 8080 }));
        for wrong in ["", "0", "x", "1:0", "65536", "1:2:3", "-1"] {
            assert!(wrong.parse::<PortPair>().is_err(), "{wrong}");
        }
    }
}
