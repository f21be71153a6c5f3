//! Identifies the process at the other end of a loopback connection, as far as `/proc` shows it.
//!
//! A connection does not identify its process. `/proc/net/tcp` contains the inode of the socket between two addresses, and
//! `/proc/PID/fd` lists a process's sockets by inode.

use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::Path,
};

use super::{
    interrupt::{Children, Role},
    tree::{Executable, parents},
};

/// Whether the tool's own process holds the socket at `peer` that is connected to `here`. False for the tool's children, for other
/// processes of the pod, and if `/proc` does not show it. Takes a few milliseconds at most.
pub fn is_of_tool(children: &Children, peer: SocketAddr, here: SocketAddr) -> bool {
    let (SocketAddr::V4(peer), SocketAddr::V4(here)) = (peer, here) else {
        return false;
    };
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    inode(&sockets, peer, here)
        .is_some_and(|inode| tools(children).into_iter().any(|pid| holds(pid, inode)))
}

/// The inode of the socket at `local` connected to `remote`, from `/proc/net/tcp`. A closed socket has none.
fn inode(sockets: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<u64> {
    sockets.lines().find_map(|line| {
        // `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …`
        let mut fields = line.split_ascii_whitespace();
        let found = (address(fields.nth(1)?)?, address(fields.next()?)?);
        let inode = fields.nth(6)?.parse().ok()?;
        (found == (local, remote) && inode != 0).then_some(inode)
    })
}

/// Parses `0100007F:24C9`: the address in network byte order, printed as a native integer, and the port.
fn address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some(SocketAddrV4::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// The current processes of the tool.
fn tools(children: &Children) -> Vec<i32> {
    let running = children.running();
    let above = running
        .iter()
        .any(|(_, role)| matches!(role, Role::Above(_)));
    let parents = if above { parents() } else { HashMap::new() };
    let of = |(pid, role): (i32, Role)| -> Vec<i32> {
        match role {
            Role::Other => Vec::new(),
            Role::Tool => vec![pid],
            Role::Above(tool) => {
                let Ok(tool) = Executable::of(&tool) else {
                    return Vec::new();
                };
                let below = parents
                    .iter()
                    .filter(|(_, parent)| **parent == pid)
                    .map(|(child, _)| *child);
                below.filter(|child| tool.is_run_by(*child)).collect()
            }
        }
    };
    running.into_iter().flat_map(of).collect()
}

fn holds(pid: i32, inode: u64) -> bool {
    let socket = format!("socket:[{inode}]");
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    open.filter_map(|fd| fs::read_link(fd.path()).ok())
        .any(|to| to == Path::new(&socket))
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, net::TcpListener};

    use super::*;
    use crate::process::{Kept, bash};

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \x20  0: 0100007F:24C9 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65532        0 11 1 0 100 0 0 10 0\n\
        \x20  1: 0100007F:24C9 0100007F:C350 01 00000000:00000000 00:00000000 00000000 65532        0 12 1 0 20 4 30 10 -1\n\
        \x20  2: 0100007F:C351 0100007F:24C9 06 00000000:00000000 03:00000D9B 00000000     0        0 0 3 0\n\
        \x20  3: 0100007F:C350 0100007F:24C9 01 00000000:00000000 00:00000000 00000000 65532        0 13 1 0 20 4 30 10 -1\n";

    #[test]
    fn clients_end_of_a_connection_is_found() {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        // The sample table is from a little-endian machine, like all supported nodes.
        if cfg!(target_endian = "big") {
            return;
        }
        assert_eq!(inode(TABLE, at(50_000), at(9417)), Some(13));
        assert_eq!(
            inode(TABLE, at(9417), at(50_000)),
            Some(12),
            "the other end is another socket"
        );
        assert_eq!(inode(TABLE, at(50_001), at(9417)), None, "closed");
        assert_eq!(inode(TABLE, at(50_002), at(9417)), None);
        for broken in [
            "",
            "\n",
            "x y",
            "0: 0100007F 0100007F:24C9 01",
            "0: 0100007F:C350 0100007F:24C9 01 0 0 0 0 0 x",
        ] {
            assert_eq!(inode(broken, at(50_000), at(9417)), None);
        }
    }

    /// Whether the client that this shell script starts is identified as the tool.
    async fn served(script: &str, role: Role) -> bool {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let here = listener.local_addr().unwrap();
        let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{}; read -u 3", here.port());
        let command = bash(&script.replace("CONNECT", &connect), role);
        let children = Children::default();
        let seen = children.clone();
        let look = tokio::task::spawn_blocking(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            let found = is_of_tool(&seen, peer, here);
            assert!(!is_of_tool(&seen, here, peer), "our own end is nobody's");
            assert!(
                !is_of_tool(&Children::default(), peer, here),
                "nothing is known to run"
            );
            // The client ends and closes the connection.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read(&mut [0; 1]);
            found
        });
        children.run(&command, &mut Kept::default()).await.unwrap();
        look.await.unwrap()
    }

    #[tokio::test]
    async fn tools_own_process_is_told_from_its_children() {
        assert!(served("CONNECT", Role::Tool).await);
        assert!(
            !served("bash -c 'CONNECT'; true", Role::Tool).await,
            "a provider"
        );
        assert!(
            !served("setsid bash -c 'CONNECT' & wait", Role::Tool).await,
            "one that is no longer of its session"
        );
        assert!(!served("CONNECT", Role::Other).await, "another command");
    }

    #[tokio::test]
    async fn terragrunts_child_that_runs_the_tool_is_identified() {
        let above = || Role::Above("/bin/bash".into());
        assert!(served("bash -c 'CONNECT'; true", above()).await);
        assert!(!served("CONNECT", above()).await, "Terragrunt itself");
        assert!(
            !served("bash -c \"bash -c 'CONNECT'; true\"; true", above()).await,
            "a provider that runs the tool"
        );
        assert!(
            !served("bash -c 'CONNECT'; true", Role::Above("/bin/cat".into())).await,
            "a hook that runs something else"
        );
    }
}
