//! Git by ssh: the files that `ssh` is told of, and the key that a host showed. No agent, no question, no configuration but this one.

use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::{credentials::Login, forges::KNOWN_HOSTS, identity::Identity};

/// A directory with what `ssh` needs; with this value it goes, and the keys in it.
#[derive(Debug)]
pub struct SshFiles(Option<PathBuf>);

impl SshFiles {
    /// Makes a directory that is not there yet, with the keys of logins.
    ///
    /// # Errors
    /// Those of the file system; then nothing is left.
    pub fn create(dir: &Path, logins: &[Login]) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(dir)?;
        let files = Self(Some(dir.to_owned()));
        let write = |name: &str, text: &str| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(name))?;
            file.write_all(text.as_bytes())
        };
        for (n, identity) in identities(logins) {
            write(&format!("identity-{n}"), identity.text())?;
        }
        let own = logins.iter().filter_map(|login| login.known_hosts.as_deref());
        write("known_hosts", &own.chain([KNOWN_HOSTS]).fold(String::new(), |text, part| text + part.trim_end() + "\n"))?;
        write("config", &config(dir, logins))?;
        Ok(files)
    }

    /// Leaves the files where they are, for commands of others.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        self.0.take().unwrap_or_default()
    }

    /// Removes the files now.
    ///
    /// # Errors
    /// When something of them is left.
    pub fn remove(mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), fs::remove_dir_all)
    }
}

impl Drop for SshFiles {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

/// What git starts, as it stands in `GIT_SSH_COMMAND`, for the files in a directory.
pub fn command(dir: &Path) -> String {
    format!("ssh -F '{}'", dir.join("config").display().to_string().replace('\'', r"'\''"))
}

/// The keys with their numbers.
fn identities(logins: &[Login]) -> impl Iterator<Item = (usize, &Identity)> {
    logins.iter().enumerate().filter_map(|(n, login)| Some((n, login.identity.as_ref()?)))
}

/// The configuration of `ssh`. Of what is said twice the first counts, but of `IdentityFile`, so a host has its own key and no other.
fn config(dir: &Path, logins: &[Login]) -> String {
    let at = |name: &str| format!("\"{}\"", dir.join(name).display().to_string().replace('%', "%%"));
    let mut text = String::new();
    for (n, _) in identities(logins) {
        let _ = write!(text, "Host {}\n  IdentityFile {}\n", logins[n].host, at(&format!("identity-{n}")));
    }
    let _ = write!(
        text,
        "Host *\n  IdentityFile none\n  UserKnownHostsFile {}\n  GlobalKnownHostsFile /dev/null\n{OPTIONS}",
        at("known_hosts")
    );
    text
}

/// The same for all hosts. `ssh` itself names no key of a host that it does not know; the last line has it said, and adds no key.
const OPTIONS: &str = r#"  StrictHostKeyChecking yes
  UpdateHostKeys no
  BatchMode yes
  IdentitiesOnly yes
  IdentityAgent none
  PreferredAuthentications publickey
  ForwardAgent no
  ClearAllForwardings yes
  ControlPath none
  ConnectTimeout 30
  ServerAliveInterval 15
  ServerAliveCountMax 4
  KnownHostsCommand /bin/sh -c 'echo "pawl: host key $0 $1 $2 $3" >&2' %H %t %f %K
"#;

/// The key that a host showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey {
    /// The host as `known_hosts` has it: `host`, or `[host]:port`.
    pub host: String,
    /// `SHA256:…`.
    pub fingerprint: String,
    /// The line that would make it known.
    pub line: String,
}

impl HostKey {
    /// The key that was refused, by what `ssh` printed.
    pub(crate) fn refused(output: &str) -> Option<Self> {
        // What stands behind the refusal may be of another host.
        let (before, _) = output.split_once(REFUSED)?;
        before.lines().rev().find_map(|line| {
            let words: Vec<&str> = line.trim().strip_prefix("pawl: host key ")?.split(' ').collect();
            match words[..] {
                [host, kind, fingerprint, key] if fingerprint.starts_with("SHA256:") => Some(Self {
                    host: host.to_owned(),
                    fingerprint: fingerprint.to_owned(),
                    line: format!("{host} {kind} {key}"),
                }),
                _ => None,
            }
        })
    }
}

/// What `ssh` prints when a host is not the one that it should be.
pub(crate) const REFUSED: &str = "Host key verification failed";
/// What it prints besides when it knows another key of the host.
pub(crate) const CHANGED: &str = "REMOTE HOST IDENTIFICATION HAS CHANGED";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn login(host: &str) -> Login {
        let identity = Identity::parse("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----").ok();
        Login {
            origin: format!("https://{host}/"),
            host: host.into(),
            http: None,
            identity,
            known_hosts: Some("h k x".into()),
            authority: None,
        }
    }

    #[test]
    fn files_are_private_and_go_with_their_value() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("ssh");
        let files = SshFiles::create(&at, &[login("a.example.org"), login("b.example.org")]).unwrap();
        let mode = |name: &str| fs::metadata(at.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("identity-0"), mode("identity-1")), (0o700, 0o600, 0o600));
        let known = fs::read_to_string(at.join("known_hosts")).unwrap();
        assert!(known.starts_with("h k x\nh k x\n") && known.contains("\ngithub.com"), "{known}");
        let config = fs::read_to_string(at.join("config")).unwrap();
        let place = at.display();
        let hosts = format!(
            "Host a.example.org\n  IdentityFile \"{place}/identity-0\"\nHost b.example.org\n  IdentityFile \"{place}/identity-1\"\nHost *\n"
        );
        assert!(config.starts_with(&hosts) && config.contains("StrictHostKeyChecking yes"), "{config}");
        assert_eq!(command(&at), format!("ssh -F '{place}/config'"));
        assert!(SshFiles::create(&at, &[]).is_err(), "what lies there is never taken");
        drop(files);
        assert!(!at.exists());
        let kept = SshFiles::create(&at, &[]).unwrap().keep();
        assert!(kept.join("config").exists());
    }

    #[test]
    fn the_key_that_was_refused_is_the_one_that_was_shown_last() {
        let output = "pawl: host key h NONE NONE NONE\npawl: host key [h]:22 ssh-ed25519 SHA256:abc AAAA\n\
            No ED25519 host key is known for [h]:22 and you have requested strict checking.\nHost key verification failed.\n\
            pawl: host key other ssh-rsa SHA256:def BBBB\n";
        let key = HostKey::refused(output).unwrap();
        assert_eq!((key.host.as_str(), key.fingerprint.as_str()), ("[h]:22", "SHA256:abc"));
        assert_eq!(key.line, "[h]:22 ssh-ed25519 AAAA");
        assert_eq!(HostKey::refused("fatal: Could not read from remote repository."), None);
    }
}
