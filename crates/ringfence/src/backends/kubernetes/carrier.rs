//! Carrier of the stream to a guest: a process that the API server executes in the pod, and whose
//! standard streams it carries over a WebSocket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use kube::api::{AttachParams, AttachedProcess};
use ringfence_link::LinkFailure;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, SimplexStream, WriteHalf};
use tokio::sync::watch;
use tokio::time::timeout;

use super::cluster::{Cluster, REQUEST_TIMEOUT};
use super::pod::{COMMAND_CONTAINER, GUEST_INSIDE, LINK_SOCKET};
use super::pod_state::PodState;
use crate::host_paths::untrusted::printable;
use crate::session::{Carrier, GuestStream};

/// Size of the buffers between the WebSocket and the link.
const BUFFER_BYTES: usize = 256 * 1024;

/// Carrier that executes the guest's program in a pod.
#[derive(Debug)]
pub(super) struct ExecCarrier {
    pub(super) cluster: Cluster,
    pub(super) pod: String,
    pub(super) states: watch::Receiver<PodState>,
}

impl Carrier for ExecCarrier {
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>> {
        Box::pin(async {
            if let PodState::Ended(end) = &*self.states.borrow() {
                let why = format!("the pod `{}` has ended: {end}", self.pod);
                return Err(LinkFailure::Unreachable { why }.io_error());
            }
            let parameters = AttachParams::default()
                .container(COMMAND_CONTAINER)
                .stdin(true)
                .stdout(true)
                .stderr(false)
                .max_stdin_buf_size(BUFFER_BYTES)
                .max_stdout_buf_size(BUFFER_BYTES);
            let pods = self.cluster.pods();
            let command = [GUEST_INSIDE, "--carry", LINK_SOCKET];
            let executed = timeout(REQUEST_TIMEOUT, pods.exec(&self.pod, command, &parameters));
            let process = match executed.await {
                Ok(Ok(process)) => process,
                Ok(Err(kube::Error::Api(status))) if [401, 403].contains(&status.code) => {
                    let why = printable(&status.message);
                    return Err(LinkFailure::Unreachable { why }.io_error());
                }
                Ok(Err(error)) => return Err(io::Error::other(error)),
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            };
            Ok(Box::new(CarriedStream::new(process)) as Box<dyn GuestStream>)
        })
    }
}

/// Standard streams of a process in a pod. Dropping the value ends the WebSocket.
struct CarriedStream {
    input: WriteHalf<SimplexStream>,
    output: ReadHalf<SimplexStream>,
    _process: AttachedProcess,
}

impl CarriedStream {
    fn new(mut process: AttachedProcess) -> CarriedStream {
        let input = process.stdin().expect("it was asked for");
        let output = process.stdout().expect("it was asked for");
        CarriedStream { input, output, _process: process }
    }
}

impl AsyncRead for CarriedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, into)
    }
}

impl AsyncWrite for CarriedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.input).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.input).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.input).poll_shutdown(context)
    }
}
