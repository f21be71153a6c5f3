//! Access to private servers: a private certificate authority, and the token of a GitHub App.

use std::{collections::BTreeMap, fmt::Write as _, process::Command};

use serde_json::json;
use sources::{credentials::Data, schedule::Cause};

use super::World;
use servers::{auth::Access, git::GitServer, repo::Change};

/// A Secret, as in the API.
fn secret(keys: &[(&str, &str)]) -> (String, Data) {
    (
        "git".into(),
        keys.iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect::<BTreeMap<_, _>>(),
    )
}

/// The forge gives a token for each group, and people write URLs as their clients do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn longest_matching_credentials_serve_each_submodule() {
    let start = async |repos: &std::path::Path| {
        GitServer::start_tls("127.0.0.1:0".parse().unwrap(), repos)
            .await
            .unwrap()
    };
    let mut world = World::with(&[("app", json!({"path": "app"}))], start).await;
    let authority = world.server.authority().unwrap().to_owned();
    let host = world.server.addr().to_string();
    let mut changes = vec![Change::File("app/main.tf", b"# one\n")];
    let (mut modules, mut links) = (String::new(), Vec::new());
    for (n, (name, token)) in [
        ("team/stacks", "own"),
        ("team/lib", "team"),
        ("team/sub/lib", "sub"),
        ("other/lib", "other"),
    ]
    .into_iter()
    .enumerate()
    {
        world.server.set_access(name, Access::basic("robot", token));
        if n > 0 {
            let repo = world.server.create(name).unwrap();
            links.push((
                format!("m{n}"),
                repo.commit("main", &[("a", name)]).unwrap(),
            ));
            let url = format!("https://somebody@{host}/{name}.git");
            let _ = write!(
                modules,
                "[submodule \"m{n}\"]\n\tpath = m{n}\n\turl = {url}\n"
            );
        }
    }
    changes.push(Change::File(".gitmodules", modules.as_bytes()));
    changes.extend(
        links
            .iter()
            .map(|(path, commit)| Change::Submodule(path, commit)),
    );
    let commit = world.repo.commit_changes("main", &changes).unwrap();
    let login = |token: &str| {
        let keys = [
            ("username", "robot"),
            ("password", token),
            ("ca.crt", &*authority),
        ];
        secret(&keys).1
    };
    let parts = [
        (host.clone(), "other"),
        (format!("{host}/team"), "team"),
        (format!("{host}/team/sub"), "sub"),
    ];
    let git = |(part, token): &(String, &str)| crds::GitCredential {
        host: part.clone(),
        secret_ref: crds::SecretName {
            name: (*token).into(),
        },
    };
    for count in 0..=parts.len() {
        world.repository.spec.credentials = parts[..count].iter().map(git).collect();
        world.further = parts
            .iter()
            .map(|(_, token)| ((*token).into(), login(token)))
            .collect();
        let own = secret(&[
            ("username", "robot"),
            ("password", "own"),
            ("ca.crt", &authority),
        ]);
        world.look_for(Cause::Request, Ok(Some(own))).await;
        let refs = &world.status().refs;
        let failure = refs.iter().find_map(|known| known.failure.as_ref());
        assert_eq!(
            failure.is_none(),
            count == parts.len(),
            "{count} {failure:?}"
        );
    }
    assert_eq!(world.revision("main"), commit);
    assert_eq!(world.read(&commit, "m2/a"), "team/sub/lib");
    let said = serde_json::to_string(world.status()).unwrap();
    assert!(
        !said.contains("somebody:") && !said.contains("robot"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_authority_and_app_token_give_access() {
    let start = async |repos: &std::path::Path| {
        GitServer::start_tls("127.0.0.1:0".parse().unwrap(), repos)
            .await
            .unwrap()
    };
    let mut world = World::with(&[("app", json!({"path": "app"}))], start).await;
    world.commit("main", &[("app/main.tf", "# one\n")]);
    let authority = world.server.authority().unwrap().to_owned();
    world.look_for(Cause::Interval, Ok(None)).await;
    let [status, reason, message] = world.condition("Synced");
    assert!(
        status == "False" && message.contains("certificate that is not trusted"),
        "{reason}: {message}"
    );
    assert_eq!(
        world
            .look_for(Cause::Interval, Ok(Some(secret(&[("ca.crt", &authority)]))))
            .await,
        ["app"]
    );

    // The repository is read with a user's credentials, and with those of an App, whose token comes from the same server.
    world
        .server
        .set_access("team/stacks", Access::basic("robot", "s3cret"));
    let login = [
        ("username", "robot"),
        ("password", "s3cret"),
        ("ca.crt", authority.as_str()),
    ];
    let second = world.commit("main", &[("app/main.tf", "# two\n")]);
    assert_eq!(
        world
            .look_for(Cause::Interval, Ok(Some(secret(&login))))
            .await,
        ["app"]
    );
    assert_eq!(world.revision("main"), second);

    world
        .server
        .set_access("team/stacks", Access::basic("x-access-token", "ghs_t0ken"));
    let key = Command::new("openssl")
        .args([
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
        ])
        .output()
        .unwrap();
    let key = String::from_utf8(key.stdout).unwrap();
    let app = [
        ("githubAppID", "12345"),
        ("githubAppInstallationID", "678"),
        ("githubAppPrivateKey", &key),
        ("ca.crt", &authority),
    ];
    let third = world.commit("main", &[("app/main.tf", "# three\n")]);
    world
        .look_for(Cause::Interval, Ok(Some(secret(&app))))
        .await;
    let [status, reason, message] = world.condition("Synced");
    assert_eq!(
        (status, reason),
        ("False", "SourceUnauthorized"),
        "{message}"
    );
    assert!(
        message.contains("/api/v3/app/installations/678/access_tokens"),
        "{message}"
    );
    world.server.installed("678", "ghs_t0ken");
    assert_eq!(
        world
            .look_for(Cause::Interval, Ok(Some(secret(&app))))
            .await,
        ["app"]
    );
    assert_eq!(
        (world.revision("main"), world.condition("Synced")[0]),
        (third, "True")
    );
    let said = serde_json::to_string(world.status()).unwrap();
    assert!(
        !said.contains("ghs_") && !said.contains("PRIVATE"),
        "{said}"
    );
}
