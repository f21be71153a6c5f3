//! The network of one cluster: a namespace of its own, joined to the machine by one pair of interfaces.
//!
//! kube-proxy owns tables by fixed names, and kubelet and its kind listen on fixed ports, per network namespace. With
//! a namespace for each, clusters cannot meet, and what a killed one leaves behind goes with its namespace.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::cache;
use super::command::sh;

/// Which cluster uses which number, for all state directories of the machine. Gone after a reboot, as the networks are.
const SLOTS: &str = "/run/pawl/slots";
const MOST: u8 = 100;

/// The network of the cluster with this number: all its addresses lie in `10.(88+N).0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    slot: u8,
}

impl Network {
    /// The network that belongs to a state directory, if it has one.
    pub fn of(state: &Path) -> Option<Self> {
        (0..MOST).find(|slot| holder(*slot).as_deref() == Some(state)).map(|slot| Self { slot })
    }

    /// Takes the first number that is free and whose addresses this machine does not use.
    pub fn claim(state: &Path) -> Result<Self> {
        if let Some(network) = Self::of(state) {
            return Ok(network);
        }
        cache::create_dir(Path::new(SLOTS))?;
        let used = sh("ip", &["-4", "-o", "addr"])? + &sh("ip", &["-4", "route"])?;
        for slot in 0..MOST {
            let network = Self { slot };
            let prefix = format!("10.{}.", network.second());
            if used.split_whitespace().any(|word| word.starts_with(&prefix)) {
                continue;
            }
            // A slot of a state directory that is gone belongs to no one.
            if holder(slot).is_some_and(|holder| !holder.exists()) {
                network.remove()?;
            }
            // A link is made whole or not at all, and only if there is none.
            let draft = Path::new(SLOTS).join(format!(".{}", std::process::id()));
            cache::write(&draft, state.as_os_str().as_encoded_bytes())?;
            let claimed = fs::hard_link(&draft, slot_file(slot));
            cache::remove(&draft)?;
            match claimed {
                Ok(()) => return Ok(network),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).context("cannot reserve a network for the cluster"),
            }
        }
        bail!("all {MOST} networks for clusters are in use; end one with `cluster down --name NAME`, or remove {SLOTS}")
    }

    /// Makes the namespace and the interfaces.
    pub fn create(self) -> Result<()> {
        let (name, host, node) = (self.name(), self.host(), self.node());
        let inside = |args: &[&str]| sh("ip", &[&["-n", &name], args].concat());
        sh("ip", &["netns", "add", &name])?;
        sh("ip", &["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        sh("ip", &["addr", "add", &format!("{host}/30"), "dev", &name])?;
        sh("ip", &["link", "set", &name, "up"])?;
        inside(&["link", "set", "lo", "up"])?;
        inside(&["addr", "add", &format!("{node}/30"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["route", "add", "default", "via", &host.to_string()])?;
        // Programs on this machine reach pods and services by way of the node, as kube-proxy translates there.
        sh("ip", &["route", "add", &format!("10.{}.0.0/16", self.second()), "via", &node.to_string()])?;
        sh("nsenter", &[&format!("--net={}", self.netns().display()), "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        self.open_way_out();
        Ok(())
    }

    /// Lets pods reach what this machine reaches. Without it a cluster works all the same, so nothing fails here.
    fn open_way_out(self) {
        let (name, second) = (self.name(), self.second());
        let own = format!("10.{second}.0.0/16");
        let rules = format!(
            "table ip {name} {{\n chain out {{\n type nat hook postrouting priority srcnat\n \
             ip saddr {own} ip daddr != {own} oifname != \"{name}\" masquerade\n }}\n }}\n"
        );
        let result = sh("sysctl", &["-qw", "net.ipv4.ip_forward=1"]).and_then(|_| sh("nft", &[&rules]));
        if let Err(error) = result {
            super::report::note("network", &format!("pods will reach this machine only: {error:#}"));
        }
    }

    /// Removes all of it, in whatever state it is, and gives the number back.
    pub fn remove(self) -> Result<()> {
        let name = self.name();
        // The pair goes with either end; the namespace's tables and bridge go with the namespace.
        if Path::new("/sys/class/net").join(&name).exists() {
            sh("ip", &["link", "del", &name])?;
        }
        if self.netns().exists() {
            sh("ip", &["netns", "del", &name])?;
        }
        if sh("nft", &["list", "table", "ip", &name]).is_ok() {
            sh("nft", &["delete", "table", "ip", &name])?;
        }
        cache::remove(&slot_file(self.slot))
    }

    /// The name of namespace, interface and cgroup.
    pub fn name(self) -> String {
        format!("pawl{}", self.slot)
    }

    /// The file of the network namespace.
    pub fn netns(self) -> PathBuf {
        Path::new("/run/netns").join(self.name())
    }

    /// This machine's address in the cluster's network: servers of a test bind to it, and pods reach them there.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.second(), 255, 1)
    }

    pub fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.second(), 255, 2)
    }

    /// The addresses of pods.
    pub fn pods(self) -> String {
        format!("10.{}.0.0/17", self.second())
    }

    /// The addresses of services.
    pub fn services(self) -> String {
        format!("10.{}.128.0/18", self.second())
    }

    /// The address of the `kubernetes` service.
    pub fn first_service(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.second(), 128, 1)
    }

    fn second(self) -> u8 {
        88 + self.slot
    }
}

fn slot_file(slot: u8) -> PathBuf {
    Path::new(SLOTS).join(slot.to_string())
}

fn holder(slot: u8) -> Option<PathBuf> {
    fs::read_to_string(slot_file(slot)).ok().map(PathBuf::from)
}
