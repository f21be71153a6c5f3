//! Addresses of every tool, layout and place.

use tool_versions::{
    Kind, Mirror, Platform, Tool,
    releases::{
        http::Auth,
        mirror::{Layout, ListKind, Location},
    },
};

use super::fails;

fn url(text: &str) -> Location {
    Location::Url(text.to_owned())
}

fn linux() -> Platform {
    Platform { os: "linux".into(), arch: "amd64".into() }
}

struct Row {
    tool: Tool,
    layout: Layout,
    base: &'static str,
    version: &'static str,
    directory: &'static str,
    /// Archive, entry, sums, signatures.
    names: [&'static str; 3],
    signatures: &'static [&'static str],
}

const ROWS: &[Row] = &[
    Row {
        tool: Tool::Terraform,
        layout: Layout::HashiCorp,
        base: "https://releases.hashicorp.com",
        version: "1.9.8",
        directory: "https://releases.hashicorp.com/terraform/1.9.8",
        names: ["terraform_1.9.8_linux_amd64.zip", "terraform", "terraform_1.9.8_SHA256SUMS"],
        signatures: &["terraform_1.9.8_SHA256SUMS.72D7468F.sig", "terraform_1.9.8_SHA256SUMS.sig"],
    },
    Row {
        tool: Tool::Terraform,
        layout: Layout::HashiCorp,
        base: "https://mirror.example.org/a/b/",
        version: "1.10.0-rc1",
        directory: "https://mirror.example.org/a/b/terraform/1.10.0-rc1",
        names: ["terraform_1.10.0-rc1_linux_amd64.zip", "terraform", "terraform_1.10.0-rc1_SHA256SUMS"],
        signatures: &["terraform_1.10.0-rc1_SHA256SUMS.72D7468F.sig", "terraform_1.10.0-rc1_SHA256SUMS.sig"],
    },
    Row {
        tool: Tool::OpenTofu,
        layout: Layout::GitHub,
        base: "https://github.com",
        version: "1.10.6",
        directory: "https://github.com/opentofu/opentofu/releases/download/v1.10.6",
        names: ["tofu_1.10.6_linux_amd64.zip", "tofu", "tofu_1.10.6_SHA256SUMS"],
        signatures: &["tofu_1.10.6_SHA256SUMS.gpgsig"],
    },
    Row {
        tool: Tool::Terragrunt,
        layout: Layout::GitHub,
        base: "https://github.com",
        version: "v0.93",
        directory: "https://github.com/gruntwork-io/terragrunt/releases/download/v0.93.0",
        names: ["terragrunt_linux_amd64", "terragrunt", "SHA256SUMS"],
        signatures: &["SHA256SUMS.gpgsig"],
    },
    Row {
        tool: Tool::OpenTofu,
        layout: Layout::HashiCorp,
        base: "http://127.0.0.1:8080",
        version: "1.6.0",
        directory: "http://127.0.0.1:8080/opentofu/1.6.0",
        names: ["tofu_1.6.0_linux_amd64.zip", "tofu", "tofu_1.6.0_SHA256SUMS"],
        signatures: &["tofu_1.6.0_SHA256SUMS.gpgsig"],
    },
    Row {
        tool: Tool::Terraform,
        layout: Layout::GitHub,
        base: "file:///srv/mirror",
        version: "1.9.8",
        directory: "/srv/mirror/hashicorp/terraform/releases/download/v1.9.8",
        names: ["terraform_1.9.8_linux_amd64.zip", "terraform", "terraform_1.9.8_SHA256SUMS"],
        signatures: &["terraform_1.9.8_SHA256SUMS.72D7468F.sig", "terraform_1.9.8_SHA256SUMS.sig"],
    },
    Row {
        tool: Tool::Terragrunt,
        layout: Layout::GitHub,
        base: "/srv/mirror",
        version: "1.1.0",
        directory: "/srv/mirror/gruntwork-io/terragrunt/releases/download/v1.1.0",
        names: ["terragrunt_linux_amd64", "terragrunt", "SHA256SUMS"],
        signatures: &["SHA256SUMS.gpgsig"],
    },
];

#[test]
fn files_have_their_published_names_and_places() {
    for row in ROWS {
        let base = Location::read("the base", row.base).unwrap();
        let mirror = Mirror { layout: row.layout, ..Mirror::below(row.tool, base) };
        let assets = mirror.assets(&row.version.parse().unwrap(), &linux());
        let at = |name: &str| format!("{}/{name}", row.directory);
        assert_eq!([&assets.archive.name, &assets.entry, &assets.sums.name], row.names);
        assert_eq!(assets.archive.location.to_string(), at(row.names[0]));
        assert_eq!(assets.sums.location.to_string(), at(row.names[2]));
        assert_eq!(assets.signatures.iter().map(|asset| asset.name.as_str()).collect::<Vec<_>>(), row.signatures);
        for asset in &assets.signatures {
            assert_eq!(asset.location.to_string(), at(&asset.name));
        }
        let is_file = matches!(assets.archive.location, Location::File(_));
        assert_eq!(is_file, row.directory.starts_with('/'));
    }
}

#[test]
fn the_platform_is_in_the_names() {
    let windows = Platform { os: "windows".into(), arch: "386".into() };
    let arm = Platform { os: "darwin".into(), arch: "arm64".into() };
    let version = "1.2.3".parse().unwrap();
    let name = |tool, platform: &Platform| {
        let assets = Mirror::official(tool).assets(&version, platform);
        (assets.archive.name, assets.entry)
    };
    assert_eq!(name(Tool::OpenTofu, &windows), ("tofu_1.2.3_windows_386.zip".into(), "tofu.exe".into()));
    assert_eq!(name(Tool::Terragrunt, &windows), ("terragrunt_windows_386.exe".into(), "terragrunt.exe".into()));
    assert_eq!(name(Tool::Terraform, &arm), ("terraform_1.2.3_darwin_arm64.zip".into(), "terraform".into()));
}

#[test]
fn the_official_places_are_those_of_the_projects() {
    let rows = [
        (Tool::OpenTofu, "https://get.opentofu.org/tofu/api.json", ListKind::OpenTofu, "https://github.com"),
        (
            Tool::Terraform,
            "https://releases.hashicorp.com/terraform/index.json",
            ListKind::HashiCorp,
            "https://releases.hashicorp.com",
        ),
        (
            Tool::Terragrunt,
            "https://api.github.com/repos/gruntwork-io/terragrunt/releases",
            ListKind::GitHub,
            "https://github.com",
        ),
    ];
    for (tool, list, kind, base) in rows {
        let mirror = Mirror::official(tool);
        assert_eq!((mirror.list, mirror.list_kind, mirror.base), (url(list), kind, url(base)));
        assert_eq!((mirror.layout, mirror.auth, mirror.authority), (Layout::of(tool), Auth::None, None));
    }
}

#[test]
fn what_lies_below_a_base_is_listed_there() {
    let rows = [
        (
            Tool::OpenTofu,
            "https://m.example.org/x",
            "https://m.example.org/x/opentofu/opentofu/releases/download/",
            ListKind::Html,
        ),
        (Tool::Terraform, "https://m.example.org", "https://m.example.org/terraform/", ListKind::Html),
        (Tool::Terragrunt, "/srv", "/srv/gruntwork-io/terragrunt/releases/download", ListKind::Directory),
        (Tool::Terraform, "/srv", "/srv/terraform", ListKind::Directory),
    ];
    for (tool, base, list, kind) in rows {
        let mirror = Mirror::below(tool, Location::read("the base", base).unwrap());
        assert_eq!((mirror.list.to_string().as_str(), mirror.list_kind), (list, kind));
    }
}

#[test]
fn places_are_read_or_refused() {
    for (text, wanted) in [
        ("https://a.example.org", "https://a.example.org"),
        (" https://a.example.org/b// ", "https://a.example.org/b"),
        ("http://127.0.0.1:80/", "http://127.0.0.1"),
        ("HTTPS://A.example.org/B", "https://a.example.org/B"),
        ("file:///srv/x", "/srv/x"),
        ("/srv/x", "/srv/x"),
    ] {
        assert_eq!(Location::read("x", text).unwrap().to_string(), wanted);
    }
    for (text, says) in [
        ("", "the mirror is no address"),
        ("a.example.org", "the mirror is no address"),
        ("srv/x", "the mirror is no address"),
        ("file://srv/x", "not from the root"),
        ("ftp://a.example.org", "neither https nor http"),
        ("s3://bucket/x", "neither https nor http"),
        ("https://", "the mirror is no address"),
        ("https://me:hidden@a.example.org", "name or a password"),
        ("https://hidden@a.example.org", "name or a password"),
        ("https://a.example.org/?token=hidden", "query or a fragment"),
        ("https://a.example.org/#hidden", "query or a fragment"),
    ] {
        let error = fails(Location::read("the mirror", text), Kind::Configuration, says);
        assert!(!error.text.contains("hidden"), "{error}");
    }
}

#[test]
fn credentials_are_for_their_servers() {
    let basic = Auth::Basic { user: "me".into(), password: "secret".into() };
    let mut mirror = Mirror::below(Tool::OpenTofu, url("https://m.example.org/x"));
    mirror.auth = basic.clone();
    assert_eq!(mirror.auth_for(&url("https://m.example.org/x/y")), &basic);
    for other in ["https://m.example.org:444/x", "http://m.example.org/x", "https://example.org/x", "https://github.com/x"] {
        assert_eq!(mirror.auth_for(&url(other)), &Auth::None, "{other}");
    }
    assert_eq!(mirror.auth_for(&Location::File("/srv/x".into())), &Auth::None);
    // Nobody has a password for the projects' own servers.
    let official = Mirror { auth: basic.clone(), ..Mirror::official(Tool::Terraform) };
    assert_eq!(official.auth_for(&official.list), &Auth::None);
    // A token is for the API that is asked for the list.
    let token = Auth::Bearer("t".into());
    let terragrunt = Mirror { github: Some(token.clone()), ..Mirror::official(Tool::Terragrunt) };
    assert_eq!(terragrunt.auth_for(&terragrunt.list), &token);
    assert_eq!(terragrunt.auth_for(&url("https://github.com/gruntwork-io/terragrunt")), &Auth::None);
    let tofu = Mirror { github: Some(token.clone()), ..Mirror::official(Tool::OpenTofu) };
    assert_eq!(tofu.auth_for(&tofu.list), &Auth::None);
    // A mirror may want a token as well.
    mirror.auth = token.clone();
    assert_eq!(mirror.auth_for(&url("https://m.example.org/x/y")), &token);
    assert_eq!(mirror.auth_for(&url("https://github.com/x")), &Auth::None);
}
