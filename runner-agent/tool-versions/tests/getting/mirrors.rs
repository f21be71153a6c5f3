//! The URLs and paths of every tool and layout. `environment` has the lists.

use tool_versions::{
    Kind, Mirror, Platform, Tool,
    releases::{
        http::Auth,
        mirror::{Layout, Location},
    },
};

use crate::{fails, table};

fn url(text: &str) -> Location {
    Location::Url(text.to_owned())
}

/// Tool, layout, base, version; directory, and prefix of the files for another platform than this.
const ASSETS: &str = "
    terraform | HashiCorp | https://r | 1.9.8 | https://r/terraform/1.9.8 | terraform_1.9.8_
    terraform | HashiCorp | https://r/a/ | 1.10.0-rc1 | https://r/a/terraform/1.10.0-rc1 | terraform_1.10.0-rc1_
    terraform | GitHub | file:///srv | 1.9.8 | /srv/hashicorp/terraform/releases/download/v1.9.8 | terraform_1.9.8_
    tofu | GitHub | https://r | 1.10.6 | https://r/opentofu/opentofu/releases/download/v1.10.6 | tofu_1.10.6_
    tofu | HashiCorp | http://127.0.0.1:8080 | 1.6.0 | http://127.0.0.1:8080/opentofu/1.6.0 | tofu_1.6.0_
    terragrunt | GitHub | https://r | v0.93 | https://r/gruntwork-io/terragrunt/releases/download/v0.93.0 |
    terragrunt | GitHub | /srv | 1.1.0 | /srv/gruntwork-io/terragrunt/releases/download/v1.1.0 |
";

#[test]
fn assets_have_their_published_names() {
    let other = Platform {
        os: "darwin".into(),
        arch: "riscv64".into(),
    };
    for [tool, layout, base, version, directory, prefix] in table(ASSETS) {
        let tool: Tool = tool.parse().unwrap();
        let layout = if layout == "GitHub" {
            Layout::GitHub
        } else {
            Layout::HashiCorp
        };
        let mirror = Mirror {
            layout,
            ..Mirror::below(tool, Location::read("the base", base).unwrap())
        };
        let assets = mirror.assets(&version.parse().unwrap(), &other);
        let sums = format!("{prefix}SHA256SUMS");
        let (archive, binary, signatures) = match tool {
            Tool::Terraform => (
                "darwin_riscv64.zip",
                "terraform",
                vec![".72D7468F.sig", ".sig"],
            ),
            Tool::OpenTofu => ("darwin_riscv64.zip", "tofu", vec![".gpgsig"]),
            Tool::Terragrunt => ("terragrunt_darwin_riscv64", "terragrunt", vec![".gpgsig"]),
        };
        let signatures = signatures.iter().map(|suffix| format!("{sums}{suffix}"));
        let wanted: Vec<_> = [format!("{prefix}{archive}"), sums.clone()]
            .into_iter()
            .chain(signatures)
            .collect();
        let all: Vec<_> = [&assets.archive, &assets.sums]
            .into_iter()
            .chain(&assets.signatures)
            .collect();
        assert_eq!(
            all.iter()
                .map(|asset| asset.name.as_str())
                .collect::<Vec<_>>(),
            wanted
        );
        assert_eq!(assets.entry, binary);
        for asset in all {
            assert_eq!(
                asset.location.to_string(),
                format!("{directory}/{}", asset.name)
            );
            assert_eq!(
                matches!(asset.location, Location::File(_)),
                directory.starts_with('/')
            );
        }
    }
}

/// A location, and its printed form or `!` with a part of the error.
const LOCATIONS: &str = "
    https://a | https://a
    https://a/b// | https://a/b
    http://127.0.0.1:80/ | http://127.0.0.1
    HTTPS://A/B | https://a/B
    file:///srv/x | /srv/x
    /srv/x | /srv/x
    | !the mirror is no address
    a | !the mirror is no address
    srv/x | !the mirror is no address
    file://srv/x | !not from the root
    ftp://a | !neither https nor http
    s3://bucket/x | !neither https nor http
    https:// | !the mirror is no address
    https://me:hidden@a | !name or a password
    https://hidden@a | !name or a password
    https://a/?token=hidden | !query or a fragment
    https://a/#hidden | !query or a fragment
";

#[test]
fn locations_are_parsed_or_refused() {
    for [text, wanted] in table(LOCATIONS) {
        let read = Location::read("the mirror", &format!(" {text} "));
        match wanted.strip_prefix('!') {
            Some(says) => assert!(
                !fails(read, Kind::Configuration, says)
                    .text
                    .contains("hidden"),
                "{text}"
            ),
            None => assert_eq!(read.unwrap().to_string(), wanted),
        }
    }
}

#[test]
fn credentials_are_sent_to_their_servers_only() {
    let (basic, token) = (
        Auth::Basic {
            user: "me".into(),
            password: "secret".into(),
        },
        Auth::Bearer("t".into()),
    );
    let own = Mirror {
        auth: basic.clone(),
        ..Mirror::below(Tool::OpenTofu, url("https://m/x"))
    };
    // A mirror may have a token of its own.
    let tokened = Mirror {
        auth: token.clone(),
        ..own.clone()
    };
    // The operator's password is not for the projects' own servers.
    let official = Mirror {
        auth: basic.clone(),
        ..Mirror::official(Tool::Terraform)
    };
    // A GitHub token is for the API that serves the list.
    let github = |tool| Mirror {
        github: Some(token.clone()),
        ..Mirror::official(tool)
    };
    let (terragrunt, tofu) = (github(Tool::Terragrunt), github(Tool::OpenTofu));
    let none = Auth::None;
    for (mirror, at, wanted) in [
        (&own, url("https://m/x/y"), &basic),
        (&own, url("https://m:444/x"), &none),
        (&own, url("http://m/x"), &none),
        (&own, url("https://example.org/x"), &none),
        (&own, url("https://github.com/x"), &none),
        (&own, Location::File("/srv/x".into()), &none),
        (&tokened, url("https://m/x/y"), &token),
        (&tokened, url("https://github.com/x"), &none),
        (&official, official.list.clone(), &none),
        (&terragrunt, terragrunt.list.clone(), &token),
        (
            &terragrunt,
            url("https://github.com/gruntwork-io/terragrunt"),
            &none,
        ),
        (&tofu, tofu.list.clone(), &none),
    ] {
        assert_eq!(mirror.auth_for(&at), wanted, "{at}");
    }
}
