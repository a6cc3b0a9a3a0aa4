//! DNS answers, made from the rules alone: no question leaves the host.
//!
//! The proxy looks a name up only when a program connects to it. If questions were forwarded, every
//! label that the sandbox writes before an allowed `*.example.org` would reach the servers of
//! `example.org` without any connection.

use std::net::{IpAddr, Ipv4Addr};

use hickory_resolver::proto::op::{
    Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode,
};
use hickory_resolver::proto::rr::rdata::{A, PTR};
use hickory_resolver::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use ringfence_core::policy::HostName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Carrier;
use super::conversation::Conversation;
use crate::proxy::Mode;
use crate::{Denial, Reason, Verdict, Via};

/// Time for which a client may cache an answer, in seconds. An answer never changes.
const LIFETIME: u32 = 3600;
/// Longest question, in bytes: one name, and the options that clients add.
const LONGEST_QUESTION: usize = 4096;
/// Size of a UDP answer that is announced to clients that use EDNS, in bytes. The answers
/// themselves are always shorter.
const LONGEST_ANSWER: u16 = 1232;

/// Information about a name.
enum Known {
    Address(Option<Ipv4Addr>),
    Pointer(HostName),
}

impl Carrier {
    /// Returns the answer to a question, or `None` if the message is not a question. A message that
    /// cannot be read is answered with an error, if it has an identifier.
    pub(super) fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        let Ok(question) = Message::from_vec(message) else {
            let id = u16::from_be_bytes([*message.first()?, *message.get(1)?]);
            return Message::error_msg(id, OpCode::Query, ResponseCode::FormErr).to_vec().ok();
        };
        if question.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
        answer.metadata = Metadata::response_from_request(&question.metadata);
        answer.metadata.recursion_available = true;
        if question.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(LONGEST_ANSWER);
            answer.set_edns(edns);
        }
        let query = match (question.metadata.op_code, question.queries.as_slice()) {
            (OpCode::Query, [query]) => query,
            (OpCode::Query, _) => {
                answer.metadata.response_code = ResponseCode::FormErr;
                return answer.to_vec().ok();
            }
            _ => {
                answer.metadata.response_code = ResponseCode::NotImp;
                return answer.to_vec().ok();
            }
        };
        answer.add_query(query.clone());
        match self.look_up(query) {
            Ok(None) => {}
            Ok(Some(found)) => {
                answer.add_answer(Record::from_rdata(query.name().clone(), LIFETIME, found));
            }
            Err(code) => answer.metadata.response_code = code,
        }
        answer.to_vec().ok()
    }

    fn look_up(&self, query: &Query) -> Result<Option<RData>, ResponseCode> {
        if query.query_class() != DNSClass::IN {
            return Err(ResponseCode::Refused);
        }
        match self.know(query)? {
            Known::Pointer(name) => {
                let name =
                    Name::from_ascii(format!("{name}.")).map_err(|_| ResponseCode::ServFail)?;
                Ok(Some(RData::PTR(PTR(name))))
            }
            Known::Address(address) => Ok(address.map(|address| RData::A(A(address)))),
        }
    }

    fn know(&self, query: &Query) -> Result<Known, ResponseCode> {
        // A client that asks for the name of an address already has the address, so the question is
        // not an attempt to reach a host.
        if query.query_type() == RecordType::PTR {
            let address =
                query.name().parse_arpa_name().map_err(|_| ResponseCode::NXDomain)?.addr();
            let IpAddr::V4(address) = address else { return Err(ResponseCode::NXDomain) };
            return self
                .names()
                .name(address)
                .cloned()
                .map(Known::Pointer)
                .ok_or(ResponseCode::NXDomain);
        }
        let said = query.name().to_ascii();
        let name: HostName = said.parse().map_err(|fault| {
            self.deny_seldom(Denial::malformed(&said, Via::Dns, fault));
            ResponseCode::NXDomain
        })?;
        match self.proxy.rules().judge_lookup(&name) {
            Verdict::Allowed => {}
            Verdict::Denied(Reason::Unlisted) if self.proxy.settings().mode == Mode::Observe => {}
            Verdict::Denied(reason) => {
                self.deny_seldom(Denial::of_name(&name, Via::Dns, reason));
                return Err(ResponseCode::NXDomain);
            }
        }
        match query.query_type() {
            RecordType::A => self
                .names()
                .address(&name)
                .map(Some)
                .map(Known::Address)
                .ok_or(ResponseCode::ServFail),
            _ => Ok(Known::Address(None)),
        }
    }

    /// Answers questions over TCP, each preceded by its length (RFC 1035, 4.2.2), until the client
    /// sends no more.
    pub(super) async fn answer_all(&self, mut client: Conversation) {
        let mut message = Vec::new();
        loop {
            let read = timeout(self.proxy.settings().limits.greeting, async {
                message.resize(client.read_u16().await?.into(), 0);
                if message.len() > LONGEST_QUESTION {
                    return Err(std::io::ErrorKind::InvalidData.into());
                }
                client.read_exact(&mut message).await
            });
            let Ok(Ok(_)) = read.await else { break };
            let Some(answer) = self.answer(&message) else { break };
            let Ok(length) = u16::try_from(answer.len()) else { break };
            if client.write_all(&[&length.to_be_bytes(), &answer[..]].concat()).await.is_err() {
                break;
            }
        }
        let _ = client.shutdown().await; // the client may be gone
    }
}
