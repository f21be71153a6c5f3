//! The way of git and its programs to servers: a SOCKS5 proxy on loopback for http, and a program for ssh. Both connect as [`Addresses`]
//! allows. The operator's proxy comes first: it resolves names itself, and its own rules decide.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr},
    os::fd::AsFd as _,
    sync::{Arc, PoisonError, RwLock},
    thread,
    time::Duration,
};

use clap::Args;
use hyper_util::client::proxy::matcher::Matcher;
use ipnet::IpNet;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::addresses::Addresses;

/// Time for the request of a client.
const ASKED: Duration = Duration::from_secs(10);
/// The answers, without a bound address: the connection exists; it does not, whatever the reason.
const CONNECTED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
const REFUSED: [u8; 10] = [5, 1, 0, 1, 0, 0, 0, 0, 0, 0];

/// The way to servers.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// The proxy on loopback.
    at: SocketAddr,
    addresses: Arc<RwLock<Addresses>>,
    program: String,
    operators: Arc<Matcher>,
}

impl Outbound {
    /// Starts the proxy, which ends with the process. `program` has the command `connect`.
    ///
    /// # Errors
    /// It cannot listen.
    pub async fn start(addresses: Addresses, program: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let outbound = Self {
            at: listener.local_addr()?,
            addresses: Arc::new(RwLock::new(addresses)),
            program: program.to_owned(),
            operators: Arc::new(Matcher::from_env()),
        };
        tokio::spawn(listen(listener, outbound.clone()));
        Ok(outbound)
    }

    /// Denies exactly these places beside the blocks of addresses, to connections from now on.
    pub fn deny(&self, endpoints: Vec<SocketAddr>) {
        let mut addresses = self
            .addresses
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        addresses.endpoints = endpoints;
    }

    fn addresses(&self) -> Addresses {
        let addresses = self.addresses.read();
        addresses.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a host that is an address, or `localhost`, may be connected to. Other names are judged when they are resolved.
    pub fn may_reach(&self, host: &str) -> bool {
        let address = if host.eq_ignore_ascii_case("localhost") {
            Ok(Ipv4Addr::LOCALHOST.into())
        } else {
            host.parse()
        };
        address.map_or(true, |address| self.addresses().allows(address))
    }

    /// The line of ssh's configuration.
    pub fn ssh(&self) -> String {
        let (program, mut denied) = (&self.program, String::new());
        let addresses = self.addresses();
        for block in addresses.denied {
            let _ = write!(denied, " --denied-cidrs={block}");
        }
        for endpoint in addresses.endpoints {
            let _ = write!(denied, " --denied-endpoints={endpoint}");
        }
        format!("  ProxyCommand '{program}' connect{denied} -- '%h' %p\n")
    }

    pub fn url(&self) -> String {
        format!("socks5h://{}", self.at)
    }

    /// The proxy for a URL; `None` where the operator's applies.
    pub fn proxy(&self, url: &str) -> Option<String> {
        let operators = |url: http::Uri| self.operators.intercept(&url).is_some();
        if url.parse().is_ok_and(operators) {
            return None;
        }
        Some(self.url())
    }
}

async fn listen(listener: TcpListener, outbound: Outbound) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Too many open files, for example.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let addresses = outbound.addresses();
        tokio::spawn(async move {
            if let Err(error) = serve(client, &addresses).await {
                tracing::debug!(%error, "a connection of git ended");
            }
        });
    }
}

async fn serve(mut client: TcpStream, addresses: &Addresses) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (host, port) = timeout(ASKED, asked(&mut client)).await??;
    match addresses.connect(&host, port).await {
        Ok(mut server) => {
            client.write_all(&CONNECTED).await?;
            copy_bidirectional(&mut client, &mut server).await?;
        }
        Err(error) => {
            tracing::info!(host, port, %error, "not connected");
            client.write_all(&REFUSED).await?;
        }
    }
    Ok(())
}

/// The host and port that a client of SOCKS5 (RFC 1928) asks for.
async fn asked(client: &mut TcpStream) -> io::Result<(String, u16)> {
    let wrong = || io::Error::other("not a request of SOCKS5");
    if client.read_u8().await? != 5 {
        return Err(wrong());
    }
    let mut methods = vec![0; client.read_u8().await?.into()];
    client.read_exact(&mut methods).await?;
    client.write_all(&[5, 0]).await?;
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    let host = match head {
        [5, 1, 0, 1] => {
            let mut four = [0; 4];
            client.read_exact(&mut four).await?;
            Ipv4Addr::from(four).to_string()
        }
        [5, 1, 0, 4] => {
            let mut six = [0; 16];
            client.read_exact(&mut six).await?;
            Ipv6Addr::from(six).to_string()
        }
        [5, 1, 0, 3] => {
            let mut name = vec![0; client.read_u8().await?.into()];
            client.read_exact(&mut name).await?;
            String::from_utf8(name).map_err(|_| wrong())?
        }
        _ => return Err(wrong()),
    };
    Ok((host, client.read_u16().await?))
}

/// Connects ssh of `sources` with a server.
#[derive(Args, Clone, Debug)]
pub struct Connect {
    /// A block of addresses that is not connected to.
    #[arg(long)]
    denied_cidrs: Vec<IpNet>,
    /// An address and port that is not connected to.
    #[arg(long)]
    denied_endpoints: Vec<SocketAddr>,
    host: String,
    port: u16,
}

impl Connect {
    /// Copies standard input to the server, and its answers to standard output, until these end.
    ///
    /// # Errors
    /// There is no connection.
    pub fn run(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut addresses = Addresses::new(&self.denied_cidrs, &[], true);
        addresses.endpoints = self.denied_endpoints;
        let server = runtime.block_on(async {
            let server = addresses.connect(&self.host, self.port).await?;
            server.into_std()
        })?;
        server.set_nonblocking(false)?;
        let to = server.try_clone()?;
        thread::spawn(move || {
            let _ = copy(&mut io::stdin(), &mut &to);
            let _ = to.shutdown(Shutdown::Write);
        });
        // Without the line buffer of `Stdout`, in which packets of ssh would stay.
        let mut own = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        copy(&mut &server, &mut own)
    }
}

/// Copies at once what arrives. `io::copy` lets the kernel splice, which may hold back a packet until more follows.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            count => to.write_all(piece.get(..count).unwrap_or_default())?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tokio::net::TcpSocket;

    use super::*;

    /// Whether git's proxy connects to a host and port.
    async fn connects(outbound: &Outbound, host: &str, port: u16) -> bool {
        let mut client = TcpSocket::new_v4()
            .unwrap()
            .connect(outbound.at)
            .await
            .unwrap();
        let length = u8::try_from(host.len()).unwrap();
        let request = [
            &[5, 1, 0, 5, 1, 0, 3, length],
            host.as_bytes(),
            &port.to_be_bytes(),
        ];
        client.write_all(&request.concat()).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        answer[2..] == CONNECTED
    }

    #[tokio::test]
    async fn http_and_ssh_connect_only_as_addresses_allow() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for local in [true, false] {
            let addresses = Addresses::new(&[], &[], local);
            let outbound = Outbound::start(addresses, "/controller").await.unwrap();
            assert_eq!(connects(&outbound, "localhost", port).await, local);
            assert!(outbound.proxy("http://h/r").is_some());
            let dir = tempfile::tempdir().unwrap();
            let config = dir.path().join("config");
            outbound.deny(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)]);
            assert!(!connects(&outbound, "localhost", port).await);
            std::fs::write(&config, format!("Host *\n{}", outbound.ssh())).unwrap();
            let told = Command::new("ssh")
                .arg("-F")
                .arg(&config)
                .args(["-G", "h"])
                .output()
                .unwrap();
            let told = String::from_utf8(told.stdout).unwrap();
            let line = told.lines().find(|line| line.starts_with("proxycommand"));
            let line = line.unwrap();
            assert!(line.ends_with("-- '%h' %p"), "{line}");
            assert_eq!(line.contains("127.0.0.0/8"), !local, "{line}");
            let endpoint = format!("--denied-endpoints=127.0.0.1:{port} ");
            assert!(line.contains(&endpoint), "{line}");
        }
    }
}
