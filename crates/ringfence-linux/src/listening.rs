//! Who listens on a port, where several share a network.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use crate::pause::ProcessTree;

/// The state of a socket that listens, proc_net_tcp(5).
const LISTENS: &str = "0A";

/// Whether a process of a tree listens on a TCP port of the network that the tree is in.
pub fn listens(tree: &ProcessTree, port: u16) -> io::Result<bool> {
    let mut sockets = HashSet::new();
    for table in ["tcp", "tcp6"] {
        match fs_err::read_to_string(format!("/proc/{}/net/{table}", tree.first())) {
            Ok(text) => sockets.extend(text.lines().filter_map(|line| listener(line, port))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // a kernel without IPv6, or it has ended
            Err(error) => return Err(error),
        }
    }
    Ok(!sockets.is_empty() && tree.members_at_hand().into_iter().any(|pid| holds(pid, &sockets)))
}

/// The socket of a line of a table, if it listens on the port.
fn listener(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, address, _, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    let (_, found) = address.rsplit_once(':')?;
    let is_it = state == LISTENS && u16::from_str_radix(found, 16) == Ok(port);
    is_it.then(|| format!("socket:[{inode}]"))
}

/// Whether a process has one of these sockets open.
fn holds(pid: i32, sockets: &HashSet<String>) -> bool {
    let descriptors = fs_err::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let leads_to = |path: &Path| fs_err::read_link(path).ok()?.to_str().map(str::to_owned);
    descriptors.filter_map(|descriptor| leads_to(&descriptor.path())).any(|target| sockets.contains(&target))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    use super::*;

    const SERVER: &str = "
import os, socket, sys, time
server = socket.socket(getattr(socket, sys.argv[1])); server.bind((sys.argv[2], 0)); server.listen()
if os.fork():
    server.close(); os.wait()
else:
    print(server.getsockname()[1], flush=True); time.sleep(600)
";

    #[test]
    fn only_ports_of_the_trees_own_processes_count() {
        let others = TcpListener::bind("127.0.0.1:0").unwrap();
        for (family, address) in [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")] {
            let mut shell = Command::new("sh");
            shell.args(["-c", "python3 -c \"$0\" \"$@\" & wait", SERVER, family, address]).stdout(Stdio::piped());
            let mut shell = shell.spawn().unwrap();
            let mut said = String::new();
            BufReader::new(shell.stdout.take().unwrap()).read_line(&mut said).unwrap();
            let port: u16 = said.trim_end().parse().unwrap();
            let tree = ProcessTree::of(shell.id().cast_signed()).unwrap();
            assert!(listens(&tree, port).unwrap(), "{family}");
            assert!(!listens(&tree, others.local_addr().unwrap().port()).unwrap(), "it is ours");
            for pid in tree.members_at_hand().into_iter().filter_map(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL); // it may have ended
            }
            shell.wait().unwrap();
        }
        let own = ProcessTree::of(std::process::id().cast_signed()).unwrap();
        assert!(!listens(&own, others.local_addr().unwrap().port()).unwrap(), "the first one is not below itself");
    }

    #[test]
    fn a_line_tells_who_listens_where() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100";
        assert_eq!(listener(line, 0x1f90).as_deref(), Some("socket:[77]"));
        assert_eq!(listener(line, 80), None);
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), 0x1f90), None);
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue", 0x1f90), None);
    }
}
