//! SOCKS5, RFC 1928: `CONNECT`, without authentication. The proxy resolves the names.

use fast_socks5::server::{NoAuthentication, Socks5ServerProtocol, SocksServerError};
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use tokio::time::timeout;

use crate::connect::Connection;
use crate::proxy::Proxy;
use crate::stream::{Rewound, Stream};
use crate::{Denial, Reason, Refusal, Target, Via, tunnel};

/// Protocol version, the first byte of every client.
pub(crate) const VERSION: u8 = 5;

/// Address that a reply states. The proxy does not reveal its own address, and clients do not read
/// the field.
const NOWHERE: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Serves one client of SOCKS5.
pub(crate) async fn serve<S: Stream>(proxy: &Proxy, client: Rewound<S>) {
    let greeting = async {
        let protocol =
            Socks5ServerProtocol::start(client).negotiate_auth(&[NoAuthentication]).await?;
        fast_socks5::server::AuthMethodSuccessState::finish_auth(protocol).read_command().await
    };
    let (protocol, command, address) = match timeout(proxy.settings().limits.greeting, greeting)
        .await
    {
        Ok(Ok(read)) => read,
        // `fast_socks5` has already replied, if the protocol has a reply for the error.
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
        Socks5Command::TCPBind => {
            Some(Reason::Malformed { fault: "only CONNECT of SOCKS5 is let through".to_owned() })
        }
    };
    if let Some(reason) = reason {
        let target = address.to_string().escape_debug().to_string();
        proxy.deny(Denial { target, reason, via: Via::Socks5, policy: None });
        // The reply fails only if the client is gone.
        let _ = protocol.reply_error(&ReplyError::CommandNotSupported).await;
        return;
    }
    match connect(proxy, address).await {
        Ok((target, connection)) => {
            if let Ok(client) = protocol.reply_success(NOWHERE).await {
                tunnel::run(proxy, client, connection, &target).await;
            }
        }
        Err(refusal) => {
            // The reply fails only if the client is gone.
            let _ = protocol.reply_error(&refusal.reply()).await;
        }
    }
}

async fn connect(proxy: &Proxy, address: TargetAddr) -> Result<(Target, Connection), Refusal> {
    let said = address.to_string();
    let target = match address {
        TargetAddr::Ip(address) => Target::from_address(address.ip(), address.port()),
        TargetAddr::Domain(name, port) => Target::from_parts(&name, port),
    };
    let target =
        target.map_err(|fault| proxy.deny(Denial::malformed(&said, Via::Socks5, fault)))?;
    let connection = proxy.connect(&target, Via::Socks5).await?;
    Ok((target, connection))
}
