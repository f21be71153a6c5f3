//! Reading mirrors: pages, credentials, directories.

use std::fs;

use tokio::{fs::File, io::AsyncWriteExt as _};
use tool_versions::{
    Kind, Mirror, Platform, Source, Tool, Version,
    releases::{
        http::Auth,
        mirror::{ListKind, Location},
        read_mirror::List,
    },
};

use super::{
    rules,
    server::{Server, answer, ok},
};
use crate::fails;

/// A mirror with its list on a server.
fn mirror(tool: Tool, server: &Server, path: &str, kind: ListKind) -> Mirror {
    let mut mirror = Mirror::below(tool, Location::Url(server.url("")));
    (mirror.list, mirror.list_kind) = (Location::Url(server.url(path)), kind);
    mirror
}

fn source(mirror: Mirror) -> Source {
    Source::new(mirror, rules()).unwrap()
}

fn tags(from: usize, count: usize) -> Vec<u8> {
    let one = |i| format!("{{\"tag_name\":\"v1.{i}.0\",\"draft\":false}}");
    format!(
        "[{}]",
        (from..from + count).map(one).collect::<Vec<_>>().join(",")
    )
    .into_bytes()
}

fn newest(list: &List) -> (usize, Version) {
    let List::New { versions, .. } = list else {
        panic!("{list:?}")
    };
    (versions.len(), versions[0].clone())
}

#[tokio::test]
async fn all_pages_are_read_with_the_token() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/releases?per_page=100&page=1" => ok(
            "ETag: \"first\"\nContent-Type: application/json",
            &tags(0, 100),
        ),
        "/releases?per_page=100&page=2" => ok("ETag: \"second\"", &tags(100, 100)),
        "/releases?per_page=100&page=3" => ok("", &tags(200, 7)),
        other => panic!("{other}"),
    })
    .await;
    let mut mirror = mirror(Tool::Terragrunt, &server, "/releases", ListKind::GitHub);
    mirror.github = Some(Auth::Bearer("t".into()));
    let list = source(mirror).list(Some("\"old\"")).await.unwrap();
    assert_eq!(newest(&list), (207, "1.206.0".parse().unwrap()));
    assert!(matches!(list, List::New { etag: Some(etag), .. } if etag == "\"first\""));
    assert!(
        server
            .seen()
            .iter()
            .all(|request| request.header("authorization") == Some("Bearer t"))
    );
    // Only the first page is conditional.
    let tags: Vec<_> = server
        .seen()
        .iter()
        .map(|request| request.header("if-none-match").map(str::to_owned))
        .collect();
    assert_eq!(tags, [Some("\"old\"".to_owned()), None, None]);
}

#[tokio::test]
async fn unchanged_list_is_one_request() {
    let server = Server::start(|request, _| match request.header("if-none-match") {
        Some("\"first\"") => answer("304 Not Modified", b""),
        _ => ok("", &tags(0, 100)),
    })
    .await;
    for kind in [ListKind::GitHub, ListKind::OpenTofu] {
        let source = source(mirror(Tool::OpenTofu, &server, "/list", kind));
        assert_eq!(
            source.list(Some("\"first\"")).await.unwrap(),
            List::NotModified
        );
    }
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn endless_pages_are_bounded() {
    let server = Server::start(|_, count| ok("", &tags(count * 100, 100))).await;
    let list = source(mirror(Tool::Terragrunt, &server, "/r", ListKind::GitHub))
        .list(None)
        .await
        .unwrap();
    assert_eq!((newest(&list).0, server.seen().len()), (5000, 50));
}

#[tokio::test]
async fn html_is_a_list_only_for_html_mirrors() {
    let page = b"<a href=\"1.9.8/\">1.9.8</a>";
    let server = Server::start(|_, _| ok("Content-Type: text/html", page)).await;
    let list = source(mirror(
        Tool::Terraform,
        &server,
        "/terraform/",
        ListKind::Html,
    ))
    .list(None)
    .await
    .unwrap();
    assert_eq!(newest(&list).1, "1.9.8".parse().unwrap());
    let result = source(mirror(
        Tool::Terraform,
        &server,
        "/index.json",
        ListKind::HashiCorp,
    ))
    .list(None)
    .await;
    fails(
        result,
        Kind::Unavailable,
        "page of HTML for the list of versions of Terraform",
    );
}

#[tokio::test]
async fn files_are_requested_with_the_password() {
    let server = Server::start(|request, _| {
        if request.path.ends_with("SHA256SUMS") {
            ok("", b"sums")
        } else {
            ok("Content-Type: application/zip", b"zip")
        }
    })
    .await;
    let mut mirror = Mirror::below(Tool::OpenTofu, Location::Url(server.url("")));
    mirror.auth = Auth::Basic {
        user: "me".into(),
        password: "secret".into(),
    };
    let assets = mirror.assets(&"1.10.6".parse().unwrap(), &Platform::here());
    let source = source(mirror);
    assert_eq!(
        source
            .small(&assets.sums.location, "OpenTofu 1.10.6", 1000)
            .await
            .unwrap(),
        b"sums"
    );
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let mut file = File::create(&path).await.unwrap();
    let count = source
        .download(
            &assets.archive,
            "OpenTofu 1.10.6",
            &mut file,
            1000,
            &mut |_, _| {},
        )
        .await
        .unwrap();
    assert_eq!((count, fs::read(&path).unwrap()), (3, b"zip".to_vec()));
    let seen = server.seen();
    assert_eq!(
        seen[0].path,
        "/opentofu/opentofu/releases/download/v1.10.6/tofu_1.10.6_SHA256SUMS"
    );
    assert!(
        seen.iter()
            .all(|request| request.header("authorization") == Some("Basic bWU6c2VjcmV0"))
    );
}

#[tokio::test]
async fn directory_is_a_mirror() {
    let directory = tempfile::tempdir().unwrap();
    let release = directory.path().join("terraform/1.9.8");
    fs::create_dir_all(&release).unwrap();
    fs::create_dir_all(directory.path().join("terraform/.tmp")).unwrap();
    let mirror = Mirror::below(Tool::Terraform, Location::File(directory.path().to_owned()));
    let assets = mirror.assets(
        &"1.9.8".parse().unwrap(),
        &Platform {
            os: "linux".into(),
            arch: "amd64".into(),
        },
    );
    let source = source(mirror);
    assert_eq!(
        newest(&source.list(None).await.unwrap()),
        (1, "1.9.8".parse().unwrap())
    );

    let path = directory.path().join("copy");
    fs::write(&path, b"what was there before").unwrap();
    let (what, archive) = (
        "Terraform 1.9.8",
        release.join("terraform_1.9.8_linux_amd64.zip"),
    );
    let sums = async |cap| source.small(&assets.sums.location, what, cap).await;
    let download = async |cap| {
        let mut file = File::options().write(true).open(&path).await.unwrap();
        let mut told = Vec::new();
        let count = source
            .download(&assets.archive, what, &mut file, cap, &mut |got, whole| {
                told.push((got, whole));
            })
            .await?;
        file.flush().await.unwrap();
        assert_eq!(told, [(count, Some(count))]);
        Ok::<_, tool_versions::Error>(fs::read(&path).unwrap())
    };
    fails(
        sums(10).await,
        Kind::Configuration,
        "there is no Terraform 1.9.8 at",
    );
    fails(
        download(10).await,
        Kind::Configuration,
        "there is no Terraform 1.9.8 at",
    );
    fs::write(release.join("terraform_1.9.8_SHA256SUMS"), b"sums").unwrap();
    fs::write(&archive, b"zip").unwrap();
    assert_eq!(sums(4).await.unwrap(), b"sums");
    assert_eq!(download(10).await.unwrap(), b"zip");
    fails(sums(3).await, Kind::Integrity, "more than 3 bytes");
    fails(download(2).await, Kind::Integrity, "more than 2 bytes");
    fs::remove_file(&archive).unwrap();
    fs::create_dir(&archive).unwrap();
    fails(download(9).await, Kind::Configuration, "is no file");

    let nowhere = Mirror::below(Tool::OpenTofu, Location::File(directory.path().to_owned()));
    fails(
        super::sources::source(nowhere).list(None).await,
        Kind::Configuration,
        "there is no directory",
    );
}
