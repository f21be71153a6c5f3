//! Mirrors from the environment variables of tenv.

use tool_versions::{
    Kind, Mirror, Platform, Tool,
    releases::{
        http::Auth,
        mirror::{Layout, environment::platform},
    },
};

use crate::{fails, table};

/// Looks up variables in text: `NAME=VALUE`, separated by `;`.
fn lookup(text: &str) -> impl Fn(&str) -> Option<String> {
    let of = |name: &str, pair: &str| {
        pair.trim_start()
            .split_once('=')
            .filter(|pair| pair.0 == name)
            .map(|pair| pair.1.to_owned())
    };
    move |name| text.split(';').find_map(|pair| of(name, pair))
}

fn mirror(tool: Tool, text: &str) -> Mirror {
    Mirror::from_environment(tool, lookup(text)).unwrap()
}

/// Tool, variables, base, list, and the kind of the list.
const ROWS: &str = "
    # Nothing, or the variables of another tool: the projects' own servers.
    tofu | | https://github.com | https://get.opentofu.org/tofu/api.json | OpenTofu
    terraform | | https://releases.hashicorp.com | https://releases.hashicorp.com/terraform/index.json | HashiCorp
    terragrunt | | https://github.com | https://api.github.com/repos/gruntwork-io/terragrunt/releases | GitHub
    tofu | TFENV_REMOTE=https://m;TOFUENV_REMOTE= ;TG_REMOTE=https://m | https://github.com | https://get.opentofu.org/tofu/api.json | OpenTofu
    # A base.
    tofu | TOFUENV_REMOTE=https://m | https://m | https://m/opentofu/opentofu/releases/download/ | Html
    terraform | TFENV_REMOTE=https://m/h/ | https://m/h | https://m/h/terraform/ | Html
    terragrunt | TG_REMOTE=https://m | https://m | https://m/gruntwork-io/terragrunt/releases/download/ | Html
    terraform | TFENV_REMOTE=file:///srv/m | /srv/m | /srv/m/terraform | Directory
    tofu | TOFUENV_REMOTE=/srv/m | /srv/m | /srv/m/opentofu/opentofu/releases/download | Directory
    # A mode.
    terraform | TFENV_REMOTE=https://m;TFENV_LIST_MODE=api | https://m | https://m/terraform/index.json | HashiCorp
    terraform | TFENV_LIST_MODE=html | https://releases.hashicorp.com | https://releases.hashicorp.com/terraform/ | Html
    terragrunt | TG_REMOTE=https://m;TG_LIST_MODE=api | https://m | https://m/repos/gruntwork-io/terragrunt/releases | GitHub
    tofu | TOFUENV_LIST_MODE=api | https://github.com | https://api.github.com/repos/opentofu/opentofu/releases | GitHub
    tofu | TOFUENV_REMOTE=https://m;TOFUENV_LIST_MODE=mirror | https://m | https://m/tofu/api.json | OpenTofu
    tofu | TOFUENV_LIST_MODE=mirror | https://github.com | https://get.opentofu.org/tofu/api.json | OpenTofu
    # The official servers by name.
    terragrunt | TG_REMOTE=https://github.com | https://github.com | https://api.github.com/repos/gruntwork-io/terragrunt/releases | GitHub
    terragrunt | TG_REMOTE=https://api.github.com | https://github.com | https://api.github.com/repos/gruntwork-io/terragrunt/releases | GitHub
    terragrunt | TG_REMOTE=https://api.github.com/repos/gruntwork-io/terragrunt/releases | https://github.com | https://api.github.com/repos/gruntwork-io/terragrunt/releases | GitHub
    terraform | TFENV_REMOTE=https://releases.hashicorp.com/ | https://releases.hashicorp.com | https://releases.hashicorp.com/terraform/index.json | HashiCorp
    # A list on another server.
    tofu | TOFUENV_REMOTE=https://m;TOFUENV_LIST_URL=https://get.opentofu.org/tofu/api.json | https://m | https://get.opentofu.org/tofu/api.json | OpenTofu
    tofu | TOFUENV_LIST_URL=https://l/v.JSON | https://github.com | https://l/v.JSON | OpenTofu
    terraform | TFENV_LIST_URL=https://l/index.json | https://releases.hashicorp.com | https://l/index.json | HashiCorp
    terraform | TFENV_LIST_URL=https://l | https://releases.hashicorp.com | https://l/terraform/ | Html
    terragrunt | TG_REMOTE=https://m;TG_LIST_URL=https://api.github.com/repos/gruntwork-io/terragrunt/releases | https://m | https://api.github.com/repos/gruntwork-io/terragrunt/releases | GitHub
    terragrunt | TG_REMOTE=https://m;TG_LIST_URL=https://github.com | https://m | https://api.github.com/repos/gruntwork-io/terragrunt/releases | GitHub
    terragrunt | TG_LIST_URL=/srv/l | https://github.com | /srv/l/gruntwork-io/terragrunt/releases/download | Directory
";

#[test]
fn variables_select_base_and_list() {
    for [tool, variables, base, list, kind] in table(ROWS) {
        let tool: Tool = tool.parse().unwrap();
        let mirror = mirror(tool, variables);
        let found = (
            mirror.base.to_string(),
            mirror.list.to_string(),
            format!("{:?}", mirror.list_kind),
        );
        assert_eq!(
            found,
            (base.to_owned(), list.to_owned(), kind.to_owned()),
            "{variables}"
        );
        let rest = (mirror.tool, mirror.layout, mirror.auth, mirror.authority);
        assert_eq!(
            rest,
            (tool, Layout::of(tool), Auth::None, None),
            "{variables}"
        );
    }
}

#[test]
fn variables_select_credentials() {
    let bearer = |token: &str| Some(Auth::Bearer(token.to_owned()));
    let fault = |tool, text: &str, says: &str| {
        fails(
            Mirror::from_environment(tool, lookup(text)),
            Kind::Configuration,
            says,
        )
    };
    for (tool, prefix) in [
        (Tool::OpenTofu, "TOFUENV"),
        (Tool::Terraform, "TFENV"),
        (Tool::Terragrunt, "TG"),
    ] {
        let [user, password] = ["USER", "PASSWORD"].map(|part| format!("{prefix}_REMOTE_{part}"));
        let both = mirror(
            tool,
            &format!("{user}=me;{password}=p w;TENV_GITHUB_TOKEN=t"),
        )
        .auth;
        assert_eq!(
            both,
            Auth::Basic {
                user: "me".into(),
                password: "p w".into()
            }
        );
        fault(tool, &format!("{user}=hidden"), &password);
        assert!(
            !fault(tool, &format!("{password}=hidden"), &user)
                .text
                .contains("hidden")
        );
        assert_eq!(
            mirror(tool, &format!("{user}=;{password}=")).auth,
            Auth::None
        );
        assert_eq!(mirror(tool, "TENV_GITHUB_TOKEN=t").github, bearer("t"));
    }
    for (tool, variables, token) in [
        (Tool::OpenTofu, "TOFUENV_GITHUB_TOKEN=u", bearer("u")),
        (
            Tool::OpenTofu,
            "TOFUENV_GITHUB_TOKEN=u;TENV_GITHUB_TOKEN=t",
            bearer("t"),
        ),
        (Tool::Terragrunt, "TOFUENV_GITHUB_TOKEN=u", None),
    ] {
        assert_eq!(mirror(tool, variables).github, token, "{variables}");
    }
}

/// Tool, variables, and a part of the error.
const FAULTS: &str = "
    tofu | TOFUENV_REMOTE=hidden.example.org | no address
    terraform | TFENV_REMOTE=ftp://hidden.example.org | neither https nor http
    terragrunt | TG_REMOTE=https://me:hidden@m.example.org | name or a password
    terragrunt | TG_LIST_URL=https://m/?x=hidden | query or a fragment
    terraform | TFENV_LIST_MODE=mirror | api or html
    tofu | TOFUENV_LIST_MODE=hidden | api, html or mirror
    terragrunt | TG_LIST_MODE=api;TG_REMOTE=/srv/m | TG_LIST_MODE
";

#[test]
fn errors_name_the_variable_and_hide_its_value() {
    for [tool, variables, says] in table(FAULTS) {
        let result = Mirror::from_environment(tool.parse().unwrap(), lookup(variables));
        let error = fails(result, Kind::Configuration, says);
        let (name, _) = variables.split_once('=').unwrap();
        assert!(
            error.text.contains(name) && !error.text.contains("hidden"),
            "{error}"
        );
    }
}

#[test]
fn variables_select_the_architecture() {
    let of = |tool, text: &str| platform(tool, lookup(text));
    let here = Platform::here();
    for (tool, variables, arch) in [
        (Tool::OpenTofu, "", here.arch.as_str()),
        (Tool::OpenTofu, "TOFUENV_ARCH=riscv64", "riscv64"),
        (
            Tool::OpenTofu,
            "TOFUENV_ARCH=riscv64;TENV_ARCH=s390x",
            "s390x",
        ),
        (Tool::Terraform, "TFENV_ARCH=riscv64", "riscv64"),
        (
            Tool::Terraform,
            "TFENV_ARCH=riscv64;TENV_ARCH=s390x",
            "s390x",
        ),
        (
            Tool::Terragrunt,
            "TOFUENV_ARCH=riscv64;TFENV_ARCH=riscv64",
            &here.arch,
        ),
        (Tool::Terragrunt, "TENV_ARCH= arm64 ", "arm64"),
    ] {
        let found = of(tool, variables).unwrap();
        assert_eq!(
            (found.os.as_str(), found.arch.as_str()),
            (here.os.as_str(), arch),
            "{variables}"
        );
    }
    for bad in ["../x", "AMD64", "amd 64", "x86_64", "aaaaaaaaaaaaaaaaaaaaa"] {
        fails(
            of(Tool::OpenTofu, &format!("TENV_ARCH={bad}")),
            Kind::Configuration,
            "TENV_ARCH",
        );
    }
}
