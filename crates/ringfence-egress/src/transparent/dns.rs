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

use super::PacketRelay;
use super::stack_connection::StackConnection;
use crate::proxy::ProxyMode;
use crate::{Denial, DenialReason, RequestKind, Verdict};

/// Time for which a client may cache an answer, in seconds. An answer never changes.
const ANSWER_TTL_SECONDS: u32 = 3600;
/// Longest question, in bytes: one name, and the options that clients add.
const MAX_QUESTION_BYTES: usize = 4096;
/// Size of a UDP answer that is announced to clients that use EDNS, in bytes. The answers
/// themselves are always shorter.
const MAX_UDP_ANSWER_BYTES: u16 = 1232;

/// Information about a name.
enum NameRecord {
    Address(Option<Ipv4Addr>),
    Pointer(HostName),
}

impl PacketRelay {
    /// Returns the answer to a question, or `None` if the message is not a question. A message that
    /// cannot be read is answered with an error, if it has an identifier.
    pub(super) fn answer_question(&self, message: &[u8]) -> Option<Vec<u8>> {
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
            edns.set_max_payload(MAX_UDP_ANSWER_BYTES);
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
        match self.answer_query(query) {
            Ok(None) => {}
            Ok(Some(found)) => {
                answer.add_answer(Record::from_rdata(
                    query.name().clone(),
                    ANSWER_TTL_SECONDS,
                    found,
                ));
            }
            Err(code) => answer.metadata.response_code = code,
        }
        answer.to_vec().ok()
    }

    fn answer_query(&self, query: &Query) -> Result<Option<RData>, ResponseCode> {
        if query.query_class() != DNSClass::IN {
            return Err(ResponseCode::Refused);
        }
        match self.find_record(query)? {
            NameRecord::Pointer(name) => {
                let name =
                    Name::from_ascii(format!("{name}.")).map_err(|_| ResponseCode::ServFail)?;
                Ok(Some(RData::PTR(PTR(name))))
            }
            NameRecord::Address(address) => Ok(address.map(|address| RData::A(A(address)))),
        }
    }

    fn find_record(&self, query: &Query) -> Result<NameRecord, ResponseCode> {
        // A client that asks for the name of an address already has the address, so the question is
        // not an attempt to reach a host.
        if query.query_type() == RecordType::PTR {
            let address =
                query.name().parse_arpa_name().map_err(|_| ResponseCode::NXDomain)?.addr();
            let IpAddr::V4(address) = address else { return Err(ResponseCode::NXDomain) };
            return self
                .names()
                .name_at(address)
                .cloned()
                .map(NameRecord::Pointer)
                .ok_or(ResponseCode::NXDomain);
        }
        let said = query.name().to_ascii();
        let name: HostName = said.parse().map_err(|fault| {
            self.report_denial_once(Denial::for_malformed(&said, RequestKind::Dns, fault));
            ResponseCode::NXDomain
        })?;
        match self.proxy.rules().judge_lookup(&name) {
            Verdict::Allowed => {}
            Verdict::Denied(DenialReason::Unlisted)
                if self.proxy.settings().mode == ProxyMode::Observe => {}
            Verdict::Denied(reason) => {
                self.report_denial_once(Denial::for_name(&name, RequestKind::Dns, reason));
                return Err(ResponseCode::NXDomain);
            }
        }
        match query.query_type() {
            RecordType::A => self
                .names()
                .assign_address(&name)
                .map(Some)
                .map(NameRecord::Address)
                .ok_or(ResponseCode::ServFail),
            _ => Ok(NameRecord::Address(None)),
        }
    }

    /// Answers questions over TCP, each preceded by its length (RFC 1035, 4.2.2), until the client
    /// sends no more.
    pub(super) async fn answer_tcp_questions(&self, mut client: StackConnection) {
        let mut message = Vec::new();
        loop {
            let read = timeout(self.proxy.settings().limits.greeting, async {
                message.resize(client.read_u16().await?.into(), 0);
                if message.len() > MAX_QUESTION_BYTES {
                    return Err(std::io::ErrorKind::InvalidData.into());
                }
                client.read_exact(&mut message).await
            });
            let Ok(Ok(_)) = read.await else { break };
            let Some(answer) = self.answer_question(&message) else { break };
            let Ok(length) = u16::try_from(answer.len()) else { break };
            if client.write_all(&[&length.to_be_bytes(), &answer[..]].concat()).await.is_err() {
                break;
            }
        }
        let _ = client.shutdown().await; // the client may be gone
    }
}
