//! Finding the processes that listen on a port, in a network that several process trees share.
//!
//! A port number alone does not identify a program: on one machine, `127.0.0.1:80`, `127.0.0.2:80`
//! and `[::1]:80` can be three programs. So a connection is made only to an address at which no
//! process outside the tree listens. The connection is checked again once it exists, because
//! between the first check and the connection a program can end and another program can take its
//! address.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::pause::ProcessTree;

/// State of a listening socket, proc_net_tcp(5).
const LISTEN_STATE: &str = "0A";
/// Number of times that a connection is checked. A server may hand the connection to another of its
/// processes during one check.
const CHECK_ROUNDS: u32 = 3;

/// A TCP socket, as a line of the kernel's table describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TcpSocket {
    local: SocketAddr,
    remote: SocketAddr,
    is_listener: bool,
    /// Inode of the socket. The value is 0 for a connection that no process has accepted yet, or
    /// that its process has closed.
    inode: u64,
}

/// Returns the addresses at which processes of the tree, and no others, answer on a TCP port.
///
/// The port belongs to the network that the tree is in.
pub fn own_addresses(tree: &ProcessTree, port: u16) -> io::Result<Vec<SocketAddr>> {
    let listeners: Vec<TcpSocket> = read_sockets(tree)?
        .into_iter()
        .filter(|socket| socket.is_listener && socket.local.port() == port)
        .collect();
    let own = open_inodes(tree, &listeners);
    let mut addresses = Vec::new();
    for listener in listeners.iter().filter(|listener| own.contains(&listener.inode)) {
        for address in reachable_addresses(listener.local.ip()) {
            let address = SocketAddr::new(address, port);
            if !addresses.contains(&address) && is_owned(&listeners, &own, address.ip()) {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
}

/// Returns true if a connection from `ours` to `theirs` leads to a process of the tree. Both
/// addresses must be of the network that the tree is in.
pub fn leads_to(tree: &ProcessTree, ours: SocketAddr, theirs: SocketAddr) -> io::Result<bool> {
    for _ in 0..CHECK_ROUNDS {
        if leads_to_now(tree, ours, theirs)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn leads_to_now(tree: &ProcessTree, ours: SocketAddr, theirs: SocketAddr) -> io::Result<bool> {
    let sockets = read_sockets(tree)?;
    let is_end = |socket: &&TcpSocket| {
        !socket.is_listener
            && is_same_address(socket.local, theirs)
            && is_same_address(socket.remote, ours)
    };
    let Some(end) = sockets.iter().find(is_end) else { return Ok(false) };
    if end.inode != 0 {
        return Ok(!open_inodes(tree, std::slice::from_ref(end)).is_empty());
    }
    // The connection waits for accept(2) by one of the sockets that listen now.
    let is_listener =
        |socket: &&TcpSocket| socket.is_listener && socket.local.port() == theirs.port();
    let listeners: Vec<TcpSocket> = sockets.iter().filter(is_listener).copied().collect();
    Ok(is_owned(&listeners, &open_inodes(tree, &listeners), theirs.ip()))
}

/// Returns true if a socket listens at `address`, and every socket that may answer there belongs to
/// the tree.
fn is_owned(listeners: &[TcpSocket], own: &HashSet<u64>, address: IpAddr) -> bool {
    let mut here =
        listeners.iter().filter(|listener| may_answer(listener.local.ip(), address)).peekable();
    here.peek().is_some() && here.all(|listener| own.contains(&listener.inode))
}

/// Returns true if a socket that listens at `listens_at` may answer at `address`.
///
/// The kernel's table does not show whether a socket at `::` also accepts IPv4, so the function
/// assumes that it may.
fn may_answer(listens_at: IpAddr, address: IpAddr) -> bool {
    match listens_at.to_canonical() {
        exact if exact == address.to_canonical() => true,
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.to_canonical().is_ipv4(),
        _ => false,
    }
}

/// Returns the addresses at which a socket that listens at `listens_at` is reached from the same
/// machine.
fn reachable_addresses(listens_at: IpAddr) -> Vec<IpAddr> {
    match listens_at.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => vec![Ipv4Addr::LOCALHOST.into()],
        // The socket's own family comes first, because the socket may not accept the other family.
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]
        }
        address => vec![address],
    }
}

fn is_same_address(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip().to_canonical(), one.port()) == (other.ip().to_canonical(), other.port())
}

/// Reads the TCP sockets of the network that the tree is in.
fn read_sockets(tree: &ProcessTree) -> io::Result<Vec<TcpSocket>> {
    let mut sockets = Vec::new();
    for table in ["tcp", "tcp6"] {
        match fs_err::read_to_string(format!("/proc/{}/net/{table}", tree.first())) {
            Ok(text) => sockets.extend(text.lines().filter_map(parse_socket)),
            // A kernel without IPv6, or the tree has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

/// Parses one line of the kernel's table.
fn parse_socket(line: &str) -> Option<TcpSocket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    let is_listener = state == LISTEN_STATE;
    Some(TcpSocket {
        local: parse_address(local)?,
        remote: parse_address(remote)?,
        is_listener,
        inode: inode.parse().ok()?,
    })
}

/// Parses an address and a port in hexadecimal. The kernel prints the address as 32-bit words in
/// the machine's byte order.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word =
        |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words: [[u8; 4]; 4] = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            bytes.copy_from_slice(words.as_flattened());
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

/// Returns the inodes of the given sockets that processes of the tree have open.
fn open_inodes(tree: &ProcessTree, sockets: &[TcpSocket]) -> HashSet<u64> {
    let mut wanted: HashSet<u64> =
        sockets.iter().map(|socket| socket.inode).filter(|inode| *inode != 0).collect();
    let mut held = HashSet::new();
    for pid in tree.list_members() {
        if wanted.is_empty() {
            break;
        }
        let descriptors =
            fs_err::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        held.extend(
            descriptors
                .filter_map(|descriptor| socket_inode(&descriptor.path()))
                .filter(|inode| wanted.remove(inode)),
        );
    }
    held
}

/// Returns the inode of the socket behind a descriptor of a process, if the descriptor is a socket.
fn socket_inode(descriptor: &Path) -> Option<u64> {
    let target = fs_err::read_link(descriptor).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;

    /// Program that listens, in a grandchild, at each `family/address/port` of its arguments. It
    /// reads orders from its standard input: `accept` accepts one connection, `close` closes all
    /// listeners.
    const SERVER_SCRIPT: &str = "
import os, socket, sys
if os.fork():
    os.wait(); os._exit(0)
servers, kept = [], []
for word in sys.argv[1:]:
    family, address, port, *flags = word.split('/')
    server = socket.socket(getattr(socket, family))
    if 'reuse' in flags: server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if 'only' in flags: server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind((address, int(port))); server.listen(); servers.append(server)
print('listens', flush=True)
for line in sys.stdin:
    if line == 'accept\\n': kept.append(servers[0].accept())
    if line == 'close\\n': [server.close() for server in servers]
    print('done', flush=True)
";

    /// A process tree that runs [`SERVER_SCRIPT`].
    struct ServerTree {
        shell: Child,
        said: BufReader<ChildStdout>,
        tree: ProcessTree,
    }

    impl ServerTree {
        fn listening(at: &[String]) -> ServerTree {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "exec 3<&0; python3 -c \"$0\" \"$@\" <&3 & wait", SERVER_SCRIPT])
                .args(at);
            let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(shell.stdout.take().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line, "listens\n", "{at:?}");
            let tree = ProcessTree::from_pid(shell.id().cast_signed()).unwrap();
            ServerTree { shell, said, tree }
        }

        fn order(&mut self, order: &str) {
            use std::io::Write;
            writeln!(self.shell.stdin.as_mut().unwrap(), "{order}").unwrap();
            let mut line = String::new();
            self.said.read_line(&mut line).unwrap();
            assert_eq!(line, "done\n");
        }

        fn own(&self, port: u16) -> Vec<String> {
            own_addresses(&self.tree, port)
                .unwrap()
                .iter()
                .map(|address| address.ip().to_string())
                .collect()
        }
    }

    impl Drop for ServerTree {
        fn drop(&mut self) {
            for pid in
                self.tree.list_members().into_iter().filter_map(rustix::process::Pid::from_raw)
            {
                // The process may have ended.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            let _ = self.shell.kill(); // see above
            let _ = self.shell.wait(); // see above
        }
    }

    fn has_ipv6() -> bool {
        TcpListener::bind("[::1]:0").is_ok()
    }

    #[test]
    fn a_tree_owns_a_port_where_its_processes_listen() {
        let mut cases = vec![
            ("AF_INET", "127.0.0.1", "", vec!["127.0.0.1"]),
            ("AF_INET", "127.0.0.2", "", vec!["127.0.0.2"]),
            ("AF_INET", "0.0.0.0", "", vec!["127.0.0.1"]),
        ];
        if has_ipv6() {
            cases.push(("AF_INET6", "::1", "", vec!["::1"]));
            cases.push(("AF_INET6", "::", "", vec!["::1", "127.0.0.1"]));
            cases.push(("AF_INET6", "::ffff:127.0.0.3", "", vec!["127.0.0.3"]));
        }
        for (family, address, flags, expected) in cases {
            let port = free_port();
            let tree = ServerTree::listening(&[format!("{family}/{address}/{port}/{flags}")]);
            assert_eq!(tree.own(port), expected, "{family} {address}");
        }
    }

    #[test]
    fn a_tree_does_not_own_an_address_of_another_program() {
        let others = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = others.local_addr().unwrap().port();
        let mut cases = vec![(format!("AF_INET/127.0.0.2/{port}"), vec!["127.0.0.2"])];
        if has_ipv6() {
            cases.push((format!("AF_INET6/::1/{port}"), vec!["::1"]));
            // By the kernel's table this socket may accept IPv4, although it does not.
            cases.push((format!("AF_INET6/::/{port}/only"), vec!["::1"]));
        }
        for (place, expected) in cases {
            let tree = ServerTree::listening(std::slice::from_ref(&place));
            assert_eq!(tree.own(port), expected, "{place}");
        }
        let own = ProcessTree::from_pid(std::process::id().cast_signed()).unwrap();
        assert!(own_addresses(&own, port).unwrap().is_empty(), "the first one is not below itself");
    }

    #[test]
    fn a_tree_does_not_own_an_address_that_it_shares() {
        let port = free_port();
        for (theirs, ours) in [
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.1"),
            ("127.0.0.1", "0.0.0.0"),
            ("0.0.0.0", "0.0.0.0"),
        ] {
            let at = |address: &str| [format!("AF_INET/{address}/{port}/reuse")];
            let tree = ServerTree::listening(&at(theirs));
            assert_eq!(tree.own(port), ["127.0.0.1"], "{theirs}, alone");
            let _other = ServerTree::listening(&at(ours));
            assert_eq!(tree.own(port), [""; 0], "{theirs} beside {ours}");
        }
    }

    #[test]
    fn a_connection_leads_to_the_tree_that_has_or_will_accept_it() {
        let port = free_port();
        let mut tree = ServerTree::listening(&[format!("AF_INET/127.0.0.2/{port}")]);
        let connected = TcpStream::connect(("127.0.0.2", port)).unwrap();
        let (ours, theirs) = (connected.local_addr().unwrap(), connected.peer_addr().unwrap());
        assert!(leads_to(&tree.tree, ours, theirs).unwrap(), "it waits to be accepted");
        tree.order("accept");
        assert!(leads_to(&tree.tree, ours, theirs).unwrap());
        let other = ServerTree::listening(&[]);
        assert!(!leads_to(&other.tree, ours, theirs).unwrap());
    }

    #[test]
    fn a_connection_to_a_taken_over_address_does_not_lead_to_the_tree() {
        let port = free_port();
        let place = [format!("AF_INET/127.0.0.1/{port}")];
        let mut tree = ServerTree::listening(&place);
        let address = own_addresses(&tree.tree, port).unwrap()[0];
        tree.order("close");
        let mut other = ServerTree::listening(&place);
        let connected = TcpStream::connect(address).unwrap();
        let ours = connected.local_addr().unwrap();
        assert!(
            !leads_to(&tree.tree, ours, address).unwrap(),
            "it waits to be accepted by another"
        );
        other.order("accept");
        assert!(!leads_to(&tree.tree, ours, address).unwrap());
        assert!(leads_to(&other.tree, ours, address).unwrap());
    }

    /// Returns a port that is free at every IPv4 address of the machine.
    fn free_port() -> u16 {
        let probe = TcpListener::bind("0.0.0.0:0").unwrap();
        probe.local_addr().unwrap().port()
    }

    #[test]
    fn lines_of_the_tcp_table_are_parsed() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 \
            00000000     0        0 77 1 0 100";
        let found = parse_socket(line).unwrap();
        assert_eq!(
            (found.local, found.is_listener, found.inode),
            ("127.0.0.1:8080".parse().unwrap(), true, 77)
        );
        let connected = line.replace(" 0A ", " 01 ").replace("00000000:0000", "0200007F:0050");
        let found = parse_socket(&connected).unwrap();
        assert_eq!((found.remote, found.is_listener), ("127.0.0.2:80".parse().unwrap(), false));
        let sixth = line
            .replace("0100007F", "0000000000000000FFFF00000100007F")
            .replace("00000000:0000 0A", &format!("{}:0000 0A", "0".repeat(32)));
        assert_eq!(parse_socket(&sixth).unwrap().local.to_string(), "[::ffff:127.0.0.1]:8080");
        let loopback =
            sixth.replace("0000000000000000FFFF00000100007F", "00000000000000000000000001000000");
        assert_eq!(parse_socket(&loopback).unwrap().local.to_string(), "[::1]:8080");
        for wrong in
            ["  sl  local_address rem_address   st tx_queue", "0: 0100007F 0 0A 0 0 0 0 0 7", ""]
        {
            assert_eq!(parse_socket(wrong), None);
        }
    }
}
