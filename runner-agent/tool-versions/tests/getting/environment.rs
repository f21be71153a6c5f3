//! Mirrors from the environment variables of tenv.

use tool_versions::{
    Kind, Mirror, Platform, Tool,
    releases::{
        http::Auth,
        mirror::{ListKind, environment::platform},
    },
};

use super::fails;

fn lookup(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    move |name| pairs.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
}

const TG: &str = "https://api.github.com/repos/gruntwork-io/terragrunt/releases";
const TOFU: &str = "https://get.opentofu.org/tofu/api.json";

#[test]
fn variables_select_base_and_list() {
    use ListKind::{Directory, GitHub, HashiCorp, Html, OpenTofu};
    use Tool::{OpenTofu as Tofu, Terraform, Terragrunt};
    type Row<'a> = (Tool, &'a [(&'a str, &'a str)], &'a str, &'a str, ListKind);
    let m = "https://m";
    let rows: &[Row<'_>] = &[
        // Nothing, or the variables of another tool.
        (Tofu, &[], "https://github.com", TOFU, OpenTofu),
        (Tofu, &[("TFENV_REMOTE", m), ("TOFUENV_REMOTE", " "), ("TG_REMOTE", m)], "https://github.com", TOFU, OpenTofu),
        // A base.
        (Tofu, &[("TOFUENV_REMOTE", m)], m, "https://m/opentofu/opentofu/releases/download/", Html),
        (Terraform, &[("TFENV_REMOTE", "https://m/h/")], "https://m/h", "https://m/h/terraform/", Html),
        (Terragrunt, &[("TG_REMOTE", m)], m, "https://m/gruntwork-io/terragrunt/releases/download/", Html),
        (Terraform, &[("TFENV_REMOTE", "file:///srv/m")], "/srv/m", "/srv/m/terraform", Directory),
        (Tofu, &[("TOFUENV_REMOTE", "/srv/m")], "/srv/m", "/srv/m/opentofu/opentofu/releases/download", Directory),
        // A mode.
        (Terraform, &[("TFENV_REMOTE", m), ("TFENV_LIST_MODE", "api")], m, "https://m/terraform/index.json", HashiCorp),
        (
            Terraform,
            &[("TFENV_LIST_MODE", "html")],
            "https://releases.hashicorp.com",
            "https://releases.hashicorp.com/terraform/",
            Html,
        ),
        (Terragrunt, &[("TG_REMOTE", m), ("TG_LIST_MODE", "api")], m, "https://m/repos/gruntwork-io/terragrunt/releases", GitHub),
        (
            Tofu,
            &[("TOFUENV_LIST_MODE", "api")],
            "https://github.com",
            "https://api.github.com/repos/opentofu/opentofu/releases",
            GitHub,
        ),
        (Tofu, &[("TOFUENV_REMOTE", m), ("TOFUENV_LIST_MODE", "mirror")], m, "https://m/tofu/api.json", OpenTofu),
        (Tofu, &[("TOFUENV_LIST_MODE", "mirror")], "https://github.com", TOFU, OpenTofu),
        // The official servers by name.
        (Terragrunt, &[("TG_REMOTE", "https://github.com")], "https://github.com", TG, GitHub),
        (Terragrunt, &[("TG_REMOTE", "https://api.github.com")], "https://github.com", TG, GitHub),
        (Terragrunt, &[("TG_REMOTE", TG)], "https://github.com", TG, GitHub),
        (
            Terraform,
            &[("TFENV_REMOTE", "https://releases.hashicorp.com/")],
            "https://releases.hashicorp.com",
            "https://releases.hashicorp.com/terraform/index.json",
            HashiCorp,
        ),
        // A list on another server.
        (Tofu, &[("TOFUENV_REMOTE", m), ("TOFUENV_LIST_URL", "https://get.opentofu.org/tofu/api.json")], m, TOFU, OpenTofu),
        (Tofu, &[("TOFUENV_LIST_URL", "https://l/v.JSON")], "https://github.com", "https://l/v.JSON", OpenTofu),
        (
            Terraform,
            &[("TFENV_LIST_URL", "https://l/index.json")],
            "https://releases.hashicorp.com",
            "https://l/index.json",
            HashiCorp,
        ),
        (Terraform, &[("TFENV_LIST_URL", "https://l")], "https://releases.hashicorp.com", "https://l/terraform/", Html),
        (Terragrunt, &[("TG_REMOTE", m), ("TG_LIST_URL", TG)], m, TG, GitHub),
        (Terragrunt, &[("TG_REMOTE", m), ("TG_LIST_URL", "https://github.com")], m, TG, GitHub),
        (
            Terragrunt,
            &[("TG_LIST_URL", "/srv/l")],
            "https://github.com",
            "/srv/l/gruntwork-io/terragrunt/releases/download",
            Directory,
        ),
    ];
    for (tool, environment, base, list, kind) in rows {
        let mirror = Mirror::from_environment(*tool, lookup(environment)).unwrap();
        assert_eq!(mirror.base.to_string(), *base, "{environment:?}");
        assert_eq!((mirror.list.to_string().as_str(), mirror.list_kind), (*list, *kind), "{environment:?}");
        assert_eq!(mirror.tool, *tool);
    }
}

#[test]
fn variables_select_credentials() {
    let mirror = |tool, pairs: &[(&str, &str)]| Mirror::from_environment(tool, lookup(pairs)).unwrap();
    let of = |tool, pairs: &[(&str, &str)]| mirror(tool, pairs).auth;
    let token = |tool, pairs: &[(&str, &str)]| mirror(tool, pairs).github;
    let basic = Auth::Basic { user: "me".into(), password: "p w".into() };
    for (tool, prefix) in [(Tool::OpenTofu, "TOFUENV"), (Tool::Terraform, "TFENV"), (Tool::Terragrunt, "TG")] {
        let (user, password) = (format!("{prefix}_REMOTE_USER"), format!("{prefix}_REMOTE_PASSWORD"));
        assert_eq!(of(tool, &[(&user, "me"), (&password, "p w"), ("TENV_GITHUB_TOKEN", "t")]), basic);
        fails(Mirror::from_environment(tool, lookup(&[(&user, "hidden")])), Kind::Configuration, &password);
        let error = fails(Mirror::from_environment(tool, lookup(&[(&password, "hidden")])), Kind::Configuration, &user);
        assert!(!error.text.contains("hidden"));
        assert_eq!(of(tool, &[(&user, ""), (&password, "")]), Auth::None);
        assert_eq!(token(tool, &[("TENV_GITHUB_TOKEN", "t")]), Some(Auth::Bearer("t".into())));
    }
    assert_eq!(token(Tool::OpenTofu, &[("TOFUENV_GITHUB_TOKEN", "u")]), Some(Auth::Bearer("u".into())));
    assert_eq!(
        token(Tool::OpenTofu, &[("TOFUENV_GITHUB_TOKEN", "u"), ("TENV_GITHUB_TOKEN", "t")]),
        Some(Auth::Bearer("t".into()))
    );
    assert_eq!(token(Tool::Terragrunt, &[("TOFUENV_GITHUB_TOKEN", "u")]), None);
}

#[test]
fn errors_name_the_variable_and_hide_its_value() {
    for (tool, name, value, says) in [
        (Tool::OpenTofu, "TOFUENV_REMOTE", "hidden.example.org", "no address"),
        (Tool::Terraform, "TFENV_REMOTE", "ftp://hidden.example.org", "neither https nor http"),
        (Tool::Terragrunt, "TG_REMOTE", "https://me:hidden@m.example.org", "name or a password"),
        (Tool::Terragrunt, "TG_LIST_URL", "https://m/?x=hidden", "query or a fragment"),
        (Tool::Terraform, "TFENV_LIST_MODE", "mirror", "api or html"),
        (Tool::OpenTofu, "TOFUENV_LIST_MODE", "hidden", "api, html or mirror"),
    ] {
        let error = fails(Mirror::from_environment(tool, lookup(&[(name, value)])), Kind::Configuration, says);
        assert!(error.text.contains(name) && !error.text.contains("hidden"), "{error}");
    }
    let api = [("TG_REMOTE", "/srv/m"), ("TG_LIST_MODE", "api")];
    fails(Mirror::from_environment(Tool::Terragrunt, lookup(&api)), Kind::Configuration, "TG_LIST_MODE");
}

#[test]
fn variables_select_the_architecture() {
    let of = |tool, pairs: &[(&str, &str)]| platform(tool, lookup(pairs));
    assert_eq!(of(Tool::OpenTofu, &[]).unwrap(), Platform::here());
    for (tool, name) in [(Tool::OpenTofu, "TOFUENV_ARCH"), (Tool::Terraform, "TFENV_ARCH")] {
        assert_eq!(of(tool, &[(name, "riscv64")]).unwrap().arch, "riscv64");
        assert_eq!(of(tool, &[(name, "riscv64"), ("TENV_ARCH", "s390x")]).unwrap().arch, "s390x");
        assert_eq!(of(Tool::Terragrunt, &[(name, "riscv64")]).unwrap(), Platform::here());
    }
    assert_eq!(of(Tool::Terragrunt, &[("TENV_ARCH", " arm64 ")]).unwrap().arch, "arm64");
    assert_eq!(of(Tool::Terragrunt, &[("TENV_ARCH", "arm64")]).unwrap().os, Platform::here().os);
    for bad in ["../x", "AMD64", "amd 64", "x86_64", "aaaaaaaaaaaaaaaaaaaaa"] {
        fails(of(Tool::OpenTofu, &[("TENV_ARCH", bad)]), Kind::Configuration, "TENV_ARCH");
    }
}
