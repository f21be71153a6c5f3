//! Git over ssh: writes the configuration of `ssh`, and finds the host key that it refused. It uses no ssh agent, no prompt, and no other
//! configuration.

use std::{
    cmp::Reverse,
    fmt::Write as _,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::{credentials::Login, forges::KNOWN_HOSTS};

/// A directory with the files of `ssh`. Dropping it removes the directory with its keys.
#[derive(Debug)]
pub struct SshFiles(Option<PathBuf>);

impl SshFiles {
    /// Creates a directory with the keys of logins. `more` is added to the options of all hosts.
    ///
    /// # Errors
    /// Those of the file system; nothing is left.
    pub fn create(dir: &Path, logins: &[Login], more: &str) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(dir)?;
        let files = Self(Some(dir.to_owned()));
        let write = |name: &str, text: &str| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(dir.join(name))?;
            file.write_all(text.as_bytes())
        };
        write("known_hosts", KNOWN_HOSTS)?;
        for (n, login) in logins.iter().enumerate() {
            if let Some(identity) = &login.identity {
                write(&format!("identity-{n}"), identity.text())?;
            }
            if let Some(own) = &login.known_hosts {
                write(&format!("known_hosts-{n}"), own)?;
            }
        }
        write("config", &(config(dir, logins, None) + more))?;
        let mut parts: Vec<(usize, &Login)> = logins
            .iter()
            .enumerate()
            .filter(|(_, login)| login.identity.is_some() && !login.path.is_empty())
            .collect();
        for (n, _) in &parts {
            let text = config(dir, logins, Some(*n)) + more;
            write(&format!("config-{n}"), &text)?;
        }
        if !parts.is_empty() {
            // The first match decides.
            parts.sort_by_key(|(_, login)| Reverse(login.path.len()));
            write(CHOOSER, &chooser(dir, &parts))?;
        }
        Ok(files)
    }

    /// Leaves the files in place, for commands of others.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        self.0.take().unwrap_or_default()
    }

    /// Removes the files now.
    ///
    /// # Errors
    /// Some files are left.
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

/// The value of `GIT_SSH_COMMAND` for the files in a directory.
pub fn command(dir: &Path) -> String {
    let chooser = dir.join(CHOOSER);
    if chooser.exists() {
        format!("sh {}", quoted(&chooser))
    } else {
        format!("ssh -F {}", quoted(&dir.join("config")))
    }
}

/// The script that selects a configuration by the path of a repository, which `ssh` does not know.
const CHOOSER: &str = "ssh";

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Git's last arguments are the host and a command with the path: `git@HOST git-upload-pack 'PATH'`.
fn chooser(dir: &Path, parts: &[(usize, &Login)]) -> String {
    let mut rows = String::new();
    for (n, login) in parts {
        let place = format!("{}/{}", login.host.to_lowercase(), login.path);
        let _ = writeln!(rows, "'{place}'|'{place}/'*) n=-{n} ;;");
    }
    let config = quoted(&dir.join("config"));
    format!(
        r#"host= path= n=
for each do host=$path path=$each; done
host=$(printf %s "${{host##*@}}" | tr A-Z a-z)
path=${{path#* }} path=${{path#\'}} path=${{path#/}} path=${{path%%[\' ]*}}
case "$host/$path" in
{rows}esac
exec ssh -F {config}"$n" "$@"
"#
    )
}

/// The configuration of `ssh`. A host has only its own keys, and its host key must be in its Secret or built in. `ssh` uses the first value
/// of an option, but every `IdentityFile` line. Keys for parts of hosts are in configurations of their own.
fn config(dir: &Path, logins: &[Login], part: Option<usize>) -> String {
    let at = |name: String| {
        format!(
            "\"{}\"",
            dir.join(name).display().to_string().replace('%', "%%")
        )
    };
    let built_in = at("known_hosts".to_owned());
    let mut text = String::new();
    for (n, first) in logins.iter().enumerate() {
        let of_host = |login: &&Login| login.host.eq_ignore_ascii_case(&first.host);
        if logins.iter().take(n).any(|login| of_host(&login)) {
            continue;
        }
        // `ssh` compares this with case.
        let (mut names, mut keys, mut known) = (String::new(), String::new(), String::new());
        for (n, login) in logins
            .iter()
            .enumerate()
            .filter(|(_, login)| of_host(login))
        {
            let _ = write!(names, " {}", login.host);
            let is_meant = part.map_or(login.path.is_empty(), |part| part == n);
            if login.identity.is_some() && is_meant {
                let _ = writeln!(keys, "  IdentityFile {}", at(format!("identity-{n}")));
            }
            if login.known_hosts.is_some() {
                let _ = write!(known, "{} ", at(format!("known_hosts-{n}")));
            }
        }
        if !known.is_empty() {
            let _ = writeln!(keys, "  UserKnownHostsFile {known}{built_in}");
        }
        if !keys.is_empty() {
            let _ = write!(text, "Host{names}\n{keys}");
        }
    }
    let _ = write!(
        text,
        "Host *\n  IdentityFile none\n  UserKnownHostsFile {built_in}\n  GlobalKnownHostsFile /dev/null\n{OPTIONS}"
    );
    text
}

/// The common part. `ssh` does not print the unknown key of a host; the last line makes it print the key without adding it.
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

/// The host key that a host presented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey {
    /// The host in `known_hosts` format: `host`, or `[host]:port`.
    pub host: String,
    /// `SHA256:…`.
    pub fingerprint: String,
    /// The line for `known_hosts`.
    pub line: String,
}

impl HostKey {
    /// Extracts the refused key from the output of `ssh`.
    pub(crate) fn refused(output: &str) -> Option<Self> {
        // Output after the refusal may be of another host.
        let (before, _) = output.split_once(REFUSED)?;
        before.lines().rev().find_map(|line| {
            let words: Vec<&str> = line
                .trim()
                .strip_prefix("pawl: host key ")?
                .split(' ')
                .collect();
            match words[..] {
                [host, kind, fingerprint, key] if fingerprint.starts_with("SHA256:") => {
                    Some(Self {
                        host: host.to_owned(),
                        fingerprint: fingerprint.to_owned(),
                        line: format!("{host} {kind} {key}"),
                    })
                }
                _ => None,
            }
        })
    }
}

/// The message of `ssh` when host key verification fails.
pub(crate) const REFUSED: &str = "Host key verification failed";
/// The additional message when another key of the host is known.
pub(crate) const CHANGED: &str = "REMOTE HOST IDENTIFICATION HAS CHANGED";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::identity::Identity;

    fn login(host: &str) -> Login {
        let identity =
            Identity::parse("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----").ok();
        Login {
            host: host.into(),
            identity,
            known_hosts: Some("h k x".into()),
            ..Login::default()
        }
    }

    #[test]
    fn files_are_private_and_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("ssh");
        let files =
            SshFiles::create(&at, &[login("a.example.org"), login("b.example.org")], "").unwrap();
        let mode = |name: &str| fs::metadata(at.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(""), mode("identity-0"), mode("identity-1")),
            (0o700, 0o600, 0o600)
        );
        let config = fs::read_to_string(at.join("config")).unwrap();
        let place = at.display();
        assert!(
            config.starts_with("Host a.example.org\n")
                && config.contains("StrictHostKeyChecking yes"),
            "{config}"
        );
        assert_eq!(command(&at), format!("ssh -F '{place}/config'"));
        assert!(
            SshFiles::create(&at, &[], "").is_err(),
            "what lies there is never taken"
        );
        drop(files);
        assert!(!at.exists());
        let kept = SshFiles::create(&at, &[], "").unwrap().keep();
        assert!(kept.join("config").exists());
    }

    /// The effective configuration of `ssh` for a host.
    fn told(at: &Path, host: &str, option: &str) -> Vec<String> {
        let output = std::process::Command::new("ssh")
            .arg("-F")
            .arg(at.join("config"))
            .args(["-G", host])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let values = text
            .lines()
            .filter_map(|line| line.strip_prefix(option)?.strip_prefix(' '));
        values
            .flat_map(|value| value.split(' '))
            .map(|path| path.rsplit('/').next().unwrap().to_owned())
            .collect()
    }

    /// A `known_hosts` entry for all hosts (`*`, `@cert-authority *`) in one Secret would vouch for the hosts of others.
    #[test]
    fn known_hosts_applies_to_its_own_host() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("ssh");
        let with = |host: &str, known: Option<&str>| Login {
            known_hosts: known.map(Into::into),
            ..login(host)
        };
        let logins = [
            with("a.example.org", Some("@cert-authority * ssh-ed25519 AAAA")),
            with("b.example.org", None),
            Login {
                identity: None,
                ..with("A.example.org", Some("a.example.org ssh-ed25519 BBBB"))
            },
        ];
        let _files = SshFiles::create(&at, &logins, "").unwrap();
        for host in ["a.example.org", "A.example.org"] {
            assert_eq!(
                told(&at, host, "userknownhostsfile"),
                ["known_hosts-0", "known_hosts-2", "known_hosts"]
            );
            assert_eq!(told(&at, host, "identityfile"), ["identity-0", "none"]);
        }
        for (host, keys) in [
            ("b.example.org", &["identity-1", "none"][..]),
            ("c.example.org", &["none"]),
        ] {
            assert_eq!(
                (
                    told(&at, host, "userknownhostsfile"),
                    told(&at, host, "identityfile")
                ),
                (
                    vec!["known_hosts".into()],
                    keys.iter().map(|key| (*key).to_owned()).collect()
                ),
                "{host}"
            );
        }
        let read = |name: &str| fs::read_to_string(at.join(name)).unwrap();
        assert!(
            read("known_hosts-0").contains("AAAA") && read("known_hosts").starts_with("github.com")
        );
        assert!(!read("known_hosts").contains('*'));
    }

    #[test]
    fn longest_path_selects_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("it's");
        let with = |host: &str, path: &str| Login {
            path: path.into(),
            ..login(host)
        };
        let logins = [
            with("h.example.org", ""),
            with("H.example.org", "org"),
            with("h.example.org", "org/a.git"),
            with("other", "org"),
        ];
        let _files = SshFiles::create(&at, &logins, "  ProxyCommand none\n").unwrap();
        assert!(command(&at).starts_with("sh "), "{}", command(&at));
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("ssh"), "#!/bin/sh\necho \"$2\"\n").unwrap();
        fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
        let chosen = |arguments: &[&str]| {
            let output = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("{} \"$@\"", command(&at)))
                .arg("sh")
                .args(arguments)
                .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            text.trim().rsplit('/').next().unwrap().to_owned()
        };
        for (host, command, config) in [
            (
                "git@h.example.org",
                "git-upload-pack 'org/a.git'",
                "config-2",
            ),
            (
                "git@H.example.org",
                "git-upload-pack '/org/a.git'",
                "config-2",
            ),
            ("h.example.org", "git-upload-pack '/org/b.git'", "config-1"),
            (
                "h.example.org",
                "git-lfs-authenticate org/b.git download",
                "config-1",
            ),
            (
                "git@h.example.org",
                "git-upload-pack 'organ/b.git'",
                "config",
            ),
            ("git@other", "git-upload-pack '/org/a.git'", "config-3"),
            ("git@third", "git-upload-pack '/org/a.git'", "config"),
        ] {
            let arguments = ["-o", "SendEnv=GIT_PROTOCOL", "-p", "22", host, command];
            assert_eq!(chosen(&arguments), config, "{host} {command}");
        }
        let read = |name: &str| fs::read_to_string(at.join(name)).unwrap();
        assert!(read("config").contains("identity-0") && !read("config").contains("identity-1"));
        assert!(
            read("config-2").contains("identity-2") && !read("config-2").contains("identity-0")
        );
        assert!(read("config-2").ends_with("ProxyCommand none\n"));
    }

    #[test]
    fn last_shown_key_is_the_refused_one() {
        let output = "pawl: host key h NONE NONE NONE\npawl: host key [h]:22 ssh-ed25519 SHA256:abc AAAA\n\
            No ED25519 host key is known for [h]:22 and you have requested strict checking.\nHost key verification failed.\n\
            pawl: host key other ssh-rsa SHA256:def BBBB\n";
        let key = HostKey::refused(output).unwrap();
        assert_eq!(
            (key.host.as_str(), key.fingerprint.as_str()),
            ("[h]:22", "SHA256:abc")
        );
        assert_eq!(key.line, "[h]:22 ssh-ed25519 AAAA");
        assert_eq!(
            HostKey::refused("fatal: Could not read from remote repository."),
            None
        );
    }
}
