//! The addresses that Git may reach: none of this pod, its link, a metadata service or the API server. An address is judged after the
//! resolution of its name, and exactly that address is connected to.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

/// Never reached: "this host", loopback, link-local, multicast, and the metadata services of clouds that have other addresses.
const NEVER: [&str; 15] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "::/127",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    "fd00:ec2::/32",
    "fd20:ce::254/128",
    "fd00:c1::a9fe:a9fe/128",
    "fd00:42::42/128",
];
/// Time for one connection.
const CONNECT: Duration = Duration::from_secs(30);

/// The address that a connection really goes to: of an IPv6 address that contains one of IPv4, by mapping, compatibility, NAT64 or 6to4, that one.
fn meant(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => match (six.segments(), six.octets()) {
            ([0x64, 0xff9b, 0 | 1, ..], [.., a, b, c, d])
            | ([0x2002, ..], [_, _, a, b, c, d, ..]) => Ipv4Addr::new(a, b, c, d).into(),
            ([0, 0, 0, 0, 0, 0, high, _], [.., a, b, c, d]) if high > 0 => {
                Ipv4Addr::new(a, b, c, d).into()
            }
            _ => six.into(),
        },
        other @ IpAddr::V4(_) => other,
    }
}

/// The places that are not connected to.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Blocks of addresses.
    pub denied: Vec<IpNet>,
    /// Single ports, of the API server's processes: beside them, a node may have a Git server.
    pub endpoints: Vec<SocketAddr>,
}

impl Addresses {
    /// Denies these blocks, and unless `local`, the addresses that [`NEVER`] lists and those of the API server.
    pub fn new(denied: &[IpNet], api_server: &[IpAddr], local: bool) -> Self {
        let never = NEVER.iter().filter_map(|block| block.parse().ok());
        let built_in = never
            .chain(api_server.iter().copied().map(IpNet::from))
            .filter(|_| !local);
        Self {
            denied: built_in.chain(denied.iter().copied()).collect(),
            endpoints: Vec::new(),
        }
    }

    pub fn allows(&self, address: IpAddr) -> bool {
        let address = meant(address);
        !self.denied.iter().any(|block| block.contains(&address))
    }

    /// Resolves a host and connects to the first allowed address that answers.
    ///
    /// # Errors
    /// None does.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the name has no address");
        for address in lookup_host((host, port)).await? {
            match self.one(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn one(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let refused = || io::Error::other(format!("{} is denied", address.ip()));
        let real = SocketAddr::new(meant(address.ip()), address.port());
        if !self.allows(real.ip()) || self.endpoints.contains(&real) {
            return Err(refused());
        }
        let stream = timeout(CONNECT, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        // By its own address a process reaches itself as by loopback.
        let own = stream.local_addr()?.ip() == stream.peer_addr()?.ip();
        if own && !self.allows(Ipv4Addr::LOCALHOST.into()) {
            return Err(refused());
        }
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn addresses() -> Addresses {
        let denied = ["10.96.0.0/12", "fd12::/16"].map(|block| block.parse().unwrap());
        Addresses::new(&denied, &["172.20.0.1".parse().unwrap()], false)
    }

    #[test]
    fn local_addresses_are_denied_in_every_form() {
        let denied = "127.0.0.1 127.255.1.2 0.0.0.0 0.1.2.3 169.254.169.254 169.254.0.1 224.0.0.1 255.255.255.255 172.20.0.1 10.96.0.1 \
            10.111.255.255 :: ::1 ::ffff:127.0.0.1 ::ffff:a9fe:a9fe ::ffff:0.0.0.0 ::ffff:10.96.0.1 ::ffff:172.20.0.1 64:ff9b::7f00:1 \
            64:ff9b::169.254.169.254 64:ff9b:1::7f00:1 2002:7f00:1:: ::7f00:1 fd20:ce::254 fe80::1 febf::1 ff02::1 fd00:ec2::254 fd12::1 168.63.129.16 100.100.100.200";
        for address in denied.split_ascii_whitespace() {
            assert!(!addresses().allows(address.parse().unwrap()), "{address}");
        }
        let allowed = "10.95.255.255 10.112.0.0 172.20.0.2 192.168.1.1 140.82.121.3 1.0.0.1 2606:50c0::1 ::ffff:140.82.121.3 \
            64:ff9b::8c52:7903 2002:8c52:7903::1 fd11::1 223.255.255.255";
        for address in allowed.split_ascii_whitespace() {
            assert!(addresses().allows(address.parse().unwrap()), "{address}");
        }
        let all = Addresses::new(&["0.0.0.0/0".parse().unwrap()], &[], true);
        assert!(!all.allows("1.2.3.4".parse().unwrap()) && all.allows("::1".parse().unwrap()));
    }

    #[test]
    fn every_block_is_understood() {
        assert_eq!(Addresses::new(&[], &[], false).denied.len(), NEVER.len());
    }

    /// The name resolves to loopback; the port listens.
    #[tokio::test]
    async fn name_that_resolves_to_loopback_is_not_connected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in [
            "localhost",
            "127.0.0.1",
            "0.0.0.0",
            "127.1",
            "::ffff:127.0.0.1",
        ] {
            let error = addresses().connect(host, port).await.unwrap_err();
            assert!(!error.to_string().contains("refused"), "{host}: {error}");
        }
        let mut local = Addresses::new(&[], &[], true);
        local.connect("localhost", port).await.unwrap();
        listener.accept().await.unwrap();
        local.endpoints = vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)];
        for host in ["127.0.0.1", "::ffff:127.0.0.1"] {
            let error = local.connect(host, port).await.unwrap_err();
            assert!(error.to_string().ends_with("is denied"), "{host}: {error}");
        }
        let nothing = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(nothing.is_err(), "only the allowed one arrived");
    }
}
