//! SOCKS5, RFC 1928: `CONNECT`, without authentication. Names are resolved on this side.

use fast_socks5::server::{NoAuthentication, Socks5ServerProtocol, SocksServerError};
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use tokio::time::timeout;

use crate::connect::Connection;
use crate::proxy::Proxy;
use crate::stream::{Rewound, Stream};
use crate::{Denial, Reason, Refusal, Target, Via, tunnel};

/// The byte that every client begins with.
pub(crate) const VERSION: u8 = 5;

/// The address that a reply names; the proxy's own is nobody's business, and clients do not look.
const NOWHERE: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Serves one client.
pub(crate) async fn serve<S: Stream>(proxy: &Proxy, client: Rewound<S>) {
    let greeting = async {
        let protocol = Socks5ServerProtocol::start(client).negotiate_auth(&[NoAuthentication]).await?;
        fast_socks5::server::AuthMethodSuccessState::finish_auth(protocol).read_command().await
    };
    let (protocol, command, address) = match timeout(proxy.settings().limits.greeting, greeting).await {
        Ok(Ok(read)) => read,
        // The protocol's own code has answered, where there is an answer.
        Ok(Err(error)) => {
            if !matches!(error, SocksServerError::Io { .. }) {
                proxy.deny(Denial::malformed("", Via::Socks5, "the SOCKS5 request cannot be read"));
            }
            return;
        }
        Err(_) => return,
    };
    let reason = match command {
        Socks5Command::TCPConnect => None,
        Socks5Command::UDPAssociate => Some(Reason::Protocol { protocol: "UDP".to_owned() }),
        Socks5Command::TCPBind => Some(Reason::Malformed { fault: "only CONNECT of SOCKS5 is let through".to_owned() }),
    };
    if let Some(reason) = reason {
        let target = address.to_string().escape_debug().to_string();
        proxy.deny(Denial { target, reason, via: Via::Socks5, policy: None });
        let _ = protocol.reply_error(&ReplyError::CommandNotSupported).await; // the client has gone
        return;
    }
    match connect(proxy, address).await {
        Ok((target, connection)) => {
            if let Ok(client) = protocol.reply_success(NOWHERE).await {
                tunnel::run(proxy, client, connection, &target).await;
            }
        }
        Err(refusal) => {
            let _ = protocol.reply_error(&refusal.reply()).await; // the client has gone
        }
    }
}

async fn connect(proxy: &Proxy, address: TargetAddr) -> Result<(Target, Connection), Refusal> {
    let said = address.to_string();
    let target = match address {
        TargetAddr::Ip(address) => Target::from_address(address.ip(), address.port()),
        TargetAddr::Domain(name, port) => Target::from_parts(&name, port),
    };
    let target = target.map_err(|fault| proxy.deny(Denial::malformed(&said, Via::Socks5, fault)))?;
    let connection = proxy.connect(&target, Via::Socks5).await?;
    Ok((target, connection))
}
