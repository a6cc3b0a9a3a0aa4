//! The first message of a TLS client, and the name in it.

use rustls::server::Acceptor;

/// The first byte of a record that carries a handshake, RFC 8446, 5.1.
pub(crate) const RECORD: u8 = 22;

/// What a client said first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hello {
    /// It wants the server of this name.
    Named(String),
    /// It names none.
    Unnamed,
    /// It is no hello, for this reason.
    Unreadable(String),
}

/// Reads a hello as it comes in, in as many pieces and records as it takes.
#[derive(Default)]
pub(crate) struct Reader {
    acceptor: Acceptor,
    read: usize,
}

impl Reader {
    /// Reads on in `bytes`, all that has come so far; nothing while there is more to come.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<Hello> {
        loop {
            match self.acceptor.read_tls(&mut &bytes[self.read..]) {
                Ok(0) => return None,
                Ok(read) => self.read += read,
                Err(error) => return Some(Hello::Unreadable(error.to_string())),
            }
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().map(str::to_owned);
                    return Some(name.map_or(Hello::Unnamed, Hello::Named));
                }
                Err((error, _)) => return Some(Hello::Unreadable(error.to_string())),
            }
        }
    }
}
