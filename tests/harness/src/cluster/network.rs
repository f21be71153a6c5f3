//! The network of one cluster: a network namespace, connected to the machine by one veth pair.
//!
//! kube-proxy owns tables with fixed names, and kubelet and others listen on fixed ports, per network namespace. Separate namespaces keep
//! clusters apart, and removing one removes all that a killed cluster left in it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::cache;
use super::command::sh;

/// Links from number to state directory, for all clusters of the machine. On a tmpfs, so a reboot removes them with the networks.
const SLOTS: &str = "/run/pawl/slots";
const MOST: u8 = 100;

/// The network of the cluster with this number. All its addresses are in `10.(88+N).0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    slot: u8,
}

impl Network {
    /// The network that belongs to a state directory, if it has one.
    pub fn of(state: &Path) -> Option<Self> {
        (0..MOST)
            .find(|slot| holder(*slot).as_deref() == Some(state))
            .map(|slot| Self { slot })
    }

    /// Claims the first free number whose addresses this machine does not use.
    pub fn claim(state: &Path) -> Result<Self> {
        if let Some(network) = Self::of(state) {
            return Ok(network);
        }
        cache::create_dir(Path::new(SLOTS))?;
        let used = sh("ip", &["-4", "-o", "addr"])? + &sh("ip", &["-4", "route"])?;
        for slot in 0..MOST {
            let network = Self { slot };
            let prefix = format!("10.{}.", network.second());
            if used
                .split_whitespace()
                .any(|word| word.starts_with(&prefix))
            {
                continue;
            }
            // The state directory was removed, so the slot is free.
            if holder(slot).is_some_and(|holder| !holder.exists()) {
                network.remove()?;
            }
            // Creating a link is atomic and fails if it exists.
            let draft = Path::new(SLOTS).join(format!(".{}", std::process::id()));
            cache::write(&draft, state.as_os_str().as_encoded_bytes())?;
            let claimed = fs::hard_link(&draft, slot_file(slot));
            cache::remove(&draft)?;
            match claimed {
                Ok(()) => return Ok(network),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).context("cannot reserve a network for the cluster");
                }
            }
        }
        bail!(
            "all {MOST} networks for clusters are in use; end one with `cluster down --name NAME`, or remove {SLOTS}"
        )
    }

    /// Creates the namespace and the interfaces.
    pub fn create(self) -> Result<()> {
        let (name, host, node) = (self.name(), self.host(), self.node());
        let inside = |args: &[&str]| sh("ip", &[&["-n", &name], args].concat());
        sh("ip", &["netns", "add", &name])?;
        sh(
            "ip",
            &[
                "link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &name,
            ],
        )?;
        sh("ip", &["addr", "add", &format!("{host}/30"), "dev", &name])?;
        sh("ip", &["link", "set", &name, "up"])?;
        inside(&["link", "set", "lo", "up"])?;
        inside(&["addr", "add", &format!("{node}/30"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["route", "add", "default", "via", &host.to_string()])?;
        // Programs on this machine reach pods and services through the node, where kube-proxy translates addresses.
        sh(
            "ip",
            &[
                "route",
                "add",
                &format!("10.{}.0.0/16", self.second()),
                "via",
                &node.to_string(),
            ],
        )?;
        sh(
            "nsenter",
            &[
                &format!("--net={}", self.netns().display()),
                "sysctl",
                "-qw",
                "net.ipv4.ip_forward=1",
            ],
        )?;
        self.open_way_out();
        Ok(())
    }

    /// Lets pods reach the networks of this machine. Failures are ignored: a cluster works without it.
    fn open_way_out(self) {
        let (name, second) = (self.name(), self.second());
        let own = format!("10.{second}.0.0/16");
        let rules = format!(
            "table ip {name} {{\n chain out {{\n type nat hook postrouting priority srcnat\n \
             ip saddr {own} ip daddr != {own} oifname != \"{name}\" masquerade\n }}\n }}\n"
        );
        let result =
            sh("sysctl", &["-qw", "net.ipv4.ip_forward=1"]).and_then(|_| sh("nft", &[&rules]));
        if let Err(error) = result {
            super::report::note(
                "network",
                &format!("pods will reach this machine only: {error:#}"),
            );
        }
    }

    /// Removes the network in any state and releases the number.
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

    /// The name of the namespace, the interface and the cgroup.
    pub fn name(self) -> String {
        format!("pawl{}", self.slot)
    }

    /// The file of the network namespace.
    pub fn netns(self) -> PathBuf {
        Path::new("/run/netns").join(self.name())
    }

    /// This machine's address in the cluster's network. Test servers bind to it so that pods can reach them.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.second(), 255, 1)
    }

    pub fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.second(), 255, 2)
    }

    /// CIDR of pods.
    pub fn pods(self) -> String {
        format!("10.{}.0.0/17", self.second())
    }

    /// CIDR of services.
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
