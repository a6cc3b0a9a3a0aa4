//! DNS server for tests.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, MessageType, ResponseCode};
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::LOOPBACK;

/// DNS server that takes its answers from a function. Its answers must not be cached.
pub(crate) struct Dns {
    pub(crate) address: SocketAddr,
    /// Names that were asked for, once for each question for an IPv4 address.
    asked: Arc<Mutex<Vec<String>>>,
    server: JoinHandle<()>,
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Dns {
    /// Starts a server that answers with loopback for every name under `.test`. No other name
    /// exists.
    pub(crate) async fn loopback() -> Dns {
        Dns::new(|name, _| if name.ends_with(".test") { vec![LOOPBACK] } else { Vec::new() }).await
    }

    /// Starts a server that reads questions and answers none.
    pub(crate) async fn silent() -> Dns {
        let socket = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let ears = Arc::clone(&asked);
        let server = tokio::spawn(async move {
            loop {
                let length = socket.recv(&mut [0; 1500]).await.unwrap();
                ears.lock().unwrap().push(format!("{length} bytes"));
            }
        });
        Dns { address, asked, server }
    }

    /// Starts a server that takes its answers from `answer`, which gets the name and the number of
    /// earlier questions for it.
    pub(crate) async fn new(answer: impl Fn(&str, usize) -> Vec<IpAddr> + Send + 'static) -> Dns {
        let socket = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let ears = Arc::clone(&asked);
        let server = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
                let question = Message::from_vec(&buffer[..length]).unwrap();
                let query = question.queries[0].clone();
                let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
                let before = ears.lock().unwrap().iter().filter(|own| **own == name).count();
                if query.query_type() == RecordType::A {
                    ears.lock().unwrap().push(name.clone());
                }
                let addresses = answer(&name, before);
                let mut message =
                    Message::response(question.metadata.id, question.metadata.op_code);
                message.metadata.message_type = MessageType::Response;
                message.metadata.recursion_available = true;
                message.add_query(query.clone());
                if addresses.is_empty() {
                    message.metadata.response_code = ResponseCode::NXDomain;
                }
                for address in addresses {
                    let data = RData::from(address);
                    if data.record_type() == query.query_type() {
                        message.add_answer(Record::from_rdata(query.name().clone(), 0, data));
                    }
                }
                socket.send_to(&message.to_vec().unwrap(), client).await.unwrap();
            }
        });
        Dns { address, asked, server }
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}
