//! The URLs and paths of every tool and layout.

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

#[test]
fn assets_have_their_published_names() {
    use Layout::{GitHub, HashiCorp};
    // Tool, layout, base, version; directory, archive, sums, and the suffixes of the signatures.
    let rows = [
        (Tool::Terraform, HashiCorp, "https://r", "1.9.8", "https://r/terraform/1.9.8", "terraform_1.9.8_"),
        (Tool::Terraform, HashiCorp, "https://r/a/", "1.10.0-rc1", "https://r/a/terraform/1.10.0-rc1", "terraform_1.10.0-rc1_"),
        (
            Tool::Terraform,
            GitHub,
            "file:///srv",
            "1.9.8",
            "/srv/hashicorp/terraform/releases/download/v1.9.8",
            "terraform_1.9.8_",
        ),
        (Tool::OpenTofu, GitHub, "https://r", "1.10.6", "https://r/opentofu/opentofu/releases/download/v1.10.6", "tofu_1.10.6_"),
        (Tool::OpenTofu, HashiCorp, "http://127.0.0.1:8080", "1.6.0", "http://127.0.0.1:8080/opentofu/1.6.0", "tofu_1.6.0_"),
        (Tool::Terragrunt, GitHub, "https://r", "v0.93", "https://r/gruntwork-io/terragrunt/releases/download/v0.93.0", ""),
        (Tool::Terragrunt, GitHub, "/srv", "1.1.0", "/srv/gruntwork-io/terragrunt/releases/download/v1.1.0", ""),
    ];
    for (tool, layout, base, version, directory, prefix) in rows {
        let mirror = Mirror { layout, ..Mirror::below(tool, Location::read("the base", base).unwrap()) };
        let assets = mirror.assets(&version.parse().unwrap(), &linux());
        let sums = format!("{prefix}SHA256SUMS");
        let (archive, binary, signatures) = match tool {
            Tool::Terraform => ("linux_amd64.zip", "terraform", vec![".72D7468F.sig", ".sig"]),
            Tool::OpenTofu => ("linux_amd64.zip", "tofu", vec![".gpgsig"]),
            Tool::Terragrunt => ("terragrunt_linux_amd64", "terragrunt", vec![".gpgsig"]),
        };
        let signatures = signatures.iter().map(|suffix| format!("{sums}{suffix}"));
        let wanted: Vec<_> = [format!("{prefix}{archive}"), sums.clone()].into_iter().chain(signatures).collect();
        let all: Vec<_> = [&assets.archive, &assets.sums].into_iter().chain(&assets.signatures).collect();
        assert_eq!(all.iter().map(|asset| asset.name.as_str()).collect::<Vec<_>>(), wanted);
        assert_eq!(assets.entry, binary);
        for asset in all {
            assert_eq!(asset.location.to_string(), format!("{directory}/{}", asset.name));
            assert_eq!(matches!(asset.location, Location::File(_)), directory.starts_with('/'));
        }
    }
}

#[test]
fn names_contain_the_platform() {
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
fn official_mirrors_are_those_of_the_projects() {
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
fn list_of_a_mirror_is_below_its_base() {
    let rows = [
        (Tool::OpenTofu, "https://m/x", "https://m/x/opentofu/opentofu/releases/download/", ListKind::Html),
        (Tool::Terraform, "https://m", "https://m/terraform/", ListKind::Html),
        (Tool::Terragrunt, "/srv", "/srv/gruntwork-io/terragrunt/releases/download", ListKind::Directory),
        (Tool::Terraform, "/srv", "/srv/terraform", ListKind::Directory),
    ];
    for (tool, base, list, kind) in rows {
        let mirror = Mirror::below(tool, Location::read("the base", base).unwrap());
        assert_eq!((mirror.list.to_string().as_str(), mirror.list_kind), (list, kind));
    }
}

#[test]
fn locations_are_parsed_or_refused() {
    for (text, wanted) in [
        ("https://a", "https://a"),
        (" https://a/b// ", "https://a/b"),
        ("http://127.0.0.1:80/", "http://127.0.0.1"),
        ("HTTPS://A/B", "https://a/B"),
        ("file:///srv/x", "/srv/x"),
        ("/srv/x", "/srv/x"),
    ] {
        assert_eq!(Location::read("x", text).unwrap().to_string(), wanted);
    }
    for (text, says) in [
        ("", "the mirror is no address"),
        ("a", "the mirror is no address"),
        ("srv/x", "the mirror is no address"),
        ("file://srv/x", "not from the root"),
        ("ftp://a", "neither https nor http"),
        ("s3://bucket/x", "neither https nor http"),
        ("https://", "the mirror is no address"),
        ("https://me:hidden@a", "name or a password"),
        ("https://hidden@a", "name or a password"),
        ("https://a/?token=hidden", "query or a fragment"),
        ("https://a/#hidden", "query or a fragment"),
    ] {
        let error = fails(Location::read("the mirror", text), Kind::Configuration, says);
        assert!(!error.text.contains("hidden"), "{error}");
    }
}

#[test]
fn credentials_are_sent_to_their_servers_only() {
    let basic = Auth::Basic { user: "me".into(), password: "secret".into() };
    let mut mirror = Mirror::below(Tool::OpenTofu, url("https://m/x"));
    mirror.auth = basic.clone();
    assert_eq!(mirror.auth_for(&url("https://m/x/y")), &basic);
    for other in ["https://m:444/x", "http://m/x", "https://example.org/x", "https://github.com/x"] {
        assert_eq!(mirror.auth_for(&url(other)), &Auth::None, "{other}");
    }
    assert_eq!(mirror.auth_for(&Location::File("/srv/x".into())), &Auth::None);
    // The operator's password is not for the projects' own servers.
    let official = Mirror { auth: basic.clone(), ..Mirror::official(Tool::Terraform) };
    assert_eq!(official.auth_for(&official.list), &Auth::None);
    // A GitHub token is for the API that serves the list.
    let token = Auth::Bearer("t".into());
    let terragrunt = Mirror { github: Some(token.clone()), ..Mirror::official(Tool::Terragrunt) };
    assert_eq!(terragrunt.auth_for(&terragrunt.list), &token);
    assert_eq!(terragrunt.auth_for(&url("https://github.com/gruntwork-io/terragrunt")), &Auth::None);
    let tofu = Mirror { github: Some(token.clone()), ..Mirror::official(Tool::OpenTofu) };
    assert_eq!(tofu.auth_for(&tofu.list), &Auth::None);
    // A mirror may have a token of its own.
    mirror.auth = token.clone();
    assert_eq!(mirror.auth_for(&url("https://m/x/y")), &token);
    assert_eq!(mirror.auth_for(&url("https://github.com/x")), &Auth::None);
}
