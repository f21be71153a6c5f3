//! Generated logins and URLs, against the git of this machine.

use std::{cmp::Reverse, fs::Permissions, os::unix::fs::PermissionsExt as _, process::Command};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crate::{
    Login,
    credentials::{longest_first, part},
    git::Repository,
    ssh::SshFiles,
    url::Url,
};

const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----";

struct World {
    dice: StdRng,
    dir: tempfile::TempDir,
    hosts: &'static [&'static str],
    logins: Vec<Login>,
}

impl World {
    fn new(seed: u64, hosts: &'static [&'static str]) -> Self {
        let mut world = Self {
            dice: StdRng::seed_from_u64(seed),
            dir: tempfile::tempdir().unwrap(),
            hosts,
            logins: Vec::new(),
        };
        for n in 0..world.dice.random_range(1..7) {
            let user = world.one(&["", "", "", "u@", "v@"]);
            let place = format!("{user}{}/{}", world.host(), world.path(0));
            let of = world.one(&["token", "key", "token key"]);
            let value = |name: &str| match name {
                "bearerToken" if of.contains("token") => Some(format!("t{n}")),
                "identity" if of.contains("key") => Some(KEY.to_owned()),
                _ => None,
            };
            let login = Login::of_part(&part(&place).unwrap(), value).unwrap();
            world.logins.push(login);
        }
        world
    }

    fn one(&mut self, all: &[&'static str]) -> &'static str {
        all[self.dice.random_range(0..all.len())]
    }

    fn host(&mut self) -> &'static str {
        let hosts = self.hosts;
        self.one(hosts)
    }

    fn path(&mut self, least: usize) -> String {
        let count = self.dice.random_range(least..4);
        let first = ["a", "ab", "A", "a.git"];
        let names =
            (0..count).map(|n| self.one(if n == 0 { &first } else { &["c", "D", "e.git"] }));
        names.collect::<Vec<_>>().join("/")
    }

    /// Output of git, first to its errors, with the configuration for these logins.
    fn git(&self, args: &[&str]) -> (String, String) {
        let mut repository =
            Repository::new::<std::io::Error>("https://other.example/r", "main").unwrap();
        let keys = self.dir.path().join("keys");
        if keys.exists() {
            repository = repository.with_ssh(keys);
        }
        let env = repository
            .with_logins::<std::io::Error>(&self.logins)
            .unwrap()
            .env(Vec::new(), &[]);
        let path = std::env::var("PATH").unwrap();
        let mut git = Command::new("git");
        git.args(args)
            .current_dir(self.dir.path())
            .env_clear()
            .envs(env)
            .env("PATH", format!("{}:{path}", self.dir.path().display()));
        let output = git.output().unwrap();
        let [errors, text] = [output.stderr, output.stdout]
            .map(|bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned());
        (errors, text)
    }

    /// The answer of a command that reports no error.
    fn answer(&self, args: &[&str]) -> String {
        let (errors, text) = self.git(args);
        assert_eq!(errors, "", "{args:?}");
        text
    }
}

const PLACES: &[&str] = &[
    "h.example",
    "H.example",
    "h.example:443",
    "h.example:8443",
    "g.example",
];

/// Git sends one header after another, unless a longer match came before, and answers this question by the last of the longest ones.
#[test]
fn first_login_for_a_url_is_the_one_that_git_matches() {
    for seed in 0..60 {
        let mut world = World::new(seed, PLACES);
        for _ in 0..6 {
            let user = world.one(&["", "u@"]);
            let scheme = world.one(&["https", "https", "https", "http"]);
            let end = world.one(&["", "/"]);
            let text = format!("{scheme}://{user}{}/{}{end}", world.host(), world.path(1));
            let url = Url::parse(&text).unwrap();
            let first = longest_first(&world.logins).into_iter().find(|login| {
                login.http.is_some()
                    && login.origin == url.origin()
                    && login.covers(url.host(), url.path())
                    && (login.user.is_empty() || login.user == url.user())
            });
            let header = first.and_then(|login| Some(login.http.as_ref()?.header()));
            let found = world.answer(&["config", "--get-urlmatch", "http.extraHeader", &text]);
            let scopes: Vec<_> = world.logins.iter().map(Login::scope).collect();
            assert_eq!(
                found,
                header.unwrap_or_default(),
                "{seed}: {text} of {scopes:?}"
            );
        }
    }
}

/// A URL leaves its protocol if only the other one has a login for it.
#[test]
fn url_is_fetched_by_the_protocol_that_has_a_login_for_it() {
    for seed in 0..60 {
        let mut world = World::new(seed, &["h.example", "g.example"]);
        for login in &mut world.logins {
            login.user.clear();
        }
        for _ in 0..6 {
            let (host, path) = (world.host(), world.path(2));
            let (web, ssh) = (
                format!("https://{host}/{path}"),
                format!("ssh://git@{host}/{path}"),
            );
            let of = |is: fn(&Login) -> bool| {
                let mut all = world.logins.iter().filter(|login| is(login));
                all.any(|login| login.covers(host, &path))
            };
            let (token, key) = (
                of(|login| login.http.is_some()),
                of(|login| login.identity.is_some() && !login.path.is_empty()),
            );
            let scopes: Vec<_> = world
                .logins
                .iter()
                .map(|login| {
                    (
                        login.scope(),
                        login.http.is_some(),
                        login.identity.is_some(),
                    )
                })
                .collect();
            let is_fetched = |from: &str, to: &str| {
                let url = world.answer(&["ls-remote", "--get-url", from]);
                assert_eq!(url, to, "{seed}: {from} with {scopes:?}");
            };
            is_fetched(&web, if key && !token { &ssh } else { &web });
            let key = of(|login| login.identity.is_some());
            for from in [ssh.clone(), format!("git@{host}:{path}")] {
                is_fetched(&from, if token && !key { &web } else { &from });
            }
        }
    }
}

/// Each key is for its part of a host, also for a URL of https.
#[test]
fn ssh_gets_the_key_of_the_longest_part() {
    for seed in 0..40 {
        let mut world = World::new(seed, &["h.example", "g.example"]);
        for login in &mut world.logins {
            (login.http, login.user) = (None, String::new());
        }
        world.logins.retain(|login| login.identity.is_some());
        let dir = world.dir.path();
        let ssh = dir.join("ssh");
        std::fs::write(&ssh, "#!/bin/sh\necho \"$2\" >&2\n").unwrap();
        std::fs::set_permissions(&ssh, Permissions::from_mode(0o755)).unwrap();
        let _files = SshFiles::create(&dir.join("keys"), &world.logins, "").unwrap();
        for _ in 0..4 {
            let (host, path) = (world.host(), world.path(2));
            let all = world.logins.iter().enumerate();
            let parts =
                all.filter(|(_, login)| !login.path.is_empty() && login.covers(host, &path));
            let longest = parts.max_by_key(|(n, login)| (login.path.len(), Reverse(*n)));
            let config = longest.map_or("/config".to_owned(), |(n, _)| format!("/config-{n}"));
            let web = longest.map(|_| format!("https://{host}/{path}"));
            let urls = [
                format!("ssh://git@{host}/{path}"),
                format!("git@{host}:{path}"),
            ];
            for url in urls.into_iter().chain(web) {
                let (errors, _) = world.git(&["ls-remote", &url]);
                let used = errors.lines().next().unwrap_or_default();
                assert!(used.ends_with(&config), "{seed}: {url} by {errors}");
            }
        }
    }
}
