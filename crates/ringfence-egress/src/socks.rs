//! SOCKS5, RFC 1928: `CONNECT`, without authentication. The proxy resolves the names.

use fast_socks5::server::{NoAuthentication, Socks5ServerProtocol, SocksServerError};
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use tokio::time::timeout;

use crate::connect::TargetConnection;
use crate::proxy::Proxy;
use crate::stream::{ByteStream, RewoundStream};
use crate::{ConnectionRefusal, Denial, DenialReason, RequestKind, Target, tunnel};

/// Protocol version, the first byte of every client.
pub(crate) const SOCKS_VERSION: u8 = 5;

/// Address that a reply states. The proxy does not reveal its own address, and clients do not read
/// the field.
const UNSPECIFIED_ADDRESS: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Serves one client of SOCKS5.
pub(crate) async fn serve_client<S: ByteStream>(proxy: &Proxy, client: RewoundStream<S>) {
    let greeting = async {
        let protocol =
            Socks5ServerProtocol::start(client).negotiate_auth(&[NoAuthentication]).await?;
        fast_socks5::server::AuthMethodSuccessState::finish_auth(protocol).read_command().await
    };
    let (protocol, command, address) =
        match timeout(proxy.settings().limits.greeting, greeting).await {
            Ok(Ok(read)) => read,
            // `fast_socks5` has already replied, if the protocol has a reply for the error.
            Ok(Err(error)) => {
                if !matches!(error, SocksServerError::Io { .. }) {
                    proxy.report_denial(Denial::for_malformed(
                        "",
                        RequestKind::Socks5,
                        "the SOCKS5 request is not valid",
                    ));
                }
                return;
            }
            Err(_) => return,
        };
    let reason = match command {
        Socks5Command::TCPConnect => None,
        Socks5Command::UDPAssociate => Some(DenialReason::Protocol { protocol: "UDP".to_owned() }),
        Socks5Command::TCPBind => Some(DenialReason::Malformed {
            fault: "the proxy supports only the SOCKS5 command CONNECT".to_owned(),
        }),
    };
    if let Some(reason) = reason {
        let target = address.to_string().escape_debug().to_string();
        proxy.report_denial(Denial { target, reason, via: RequestKind::Socks5, policy: None });
        // The reply fails only if the client is gone.
        let _ = protocol.reply_error(&ReplyError::CommandNotSupported).await;
        return;
    }
    match connect(proxy, address).await {
        Ok((target, connection)) => {
            if let Ok(client) = protocol.reply_success(UNSPECIFIED_ADDRESS).await {
                tunnel::carry_tunnel(proxy, client, connection, &target).await;
            }
        }
        Err(refusal) => {
            // The reply fails only if the client is gone.
            let _ = protocol.reply_error(&refusal.socks_reply()).await;
        }
    }
}

async fn connect(
    proxy: &Proxy,
    address: TargetAddr,
) -> Result<(Target, TargetConnection), ConnectionRefusal> {
    let said = address.to_string();
    let target = match address {
        TargetAddr::Ip(address) => Target::from_address(address.ip(), address.port()),
        TargetAddr::Domain(name, port) => Target::from_parts(&name, port),
    };
    let target = target.map_err(|fault| {
        proxy.report_denial(Denial::for_malformed(&said, RequestKind::Socks5, fault))
    })?;
    let connection = proxy.connect(&target, RequestKind::Socks5).await?;
    Ok((target, connection))
}
