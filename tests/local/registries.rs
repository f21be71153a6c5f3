//! The run's registry credentials with the real tools: an HTTPS module registry and a provider mirror that require a token, and an archive
//! server that must not get one.

use std::fs;

use anyhow::{Result, ensure};
use harness::cluster::pki::Pki;
use runner_agent::providers::{Installation, UserConfig, cli_config};
use servers::{auth::Access, registry::Registry};

use crate::place::{End as _, Lab, Test, ended, holds};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let test = |tool: &'static str| {
        Test::new(
            format!("registries::{tool}_asks_each_host_with_its_own_token"),
            move |lab| asked(lab, tool),
        )
    };
    lab.tools().into_iter().map(test).collect()
}

fn asked(lab: &Lab, tool: &'static str) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let dir = tempfile::tempdir()?;
    let pki = Pki::bare(dir.path(), "pawl-test-registry")?;
    let start = |access| runtime.block_on(Registry::start(&pki, access));
    let modules = start(Access::Bearer("modules-token".into()))?;
    let mirror = start(Access::Bearer("mirror-token".into()))?;
    let archives = start(Access::Public)?;
    let part = "output \"from\" {\n  value = \"the registry\"\n}\n";
    modules.publish_code("acme/part/local", part, &archives)?;
    let host = if tool == "tofu" {
        "registry.opentofu.org"
    } else {
        "registry.terraform.io"
    };
    let (version, program) = lab.provider()?;
    mirror.mirror(host, "time", (version, program), &archives)?;

    let main = format!(
        "terraform {{\n  required_providers {{\n    time = {{ source = \"hashicorp/time\" }}\n  }}\n}}\n\
         resource \"time_static\" \"it\" {{}}\n\
         module \"part\" {{\n  source  = \"{}/acme/part/local\"\n  version = \"1.0.0\"\n}}\n",
        modules.host()
    );
    let place = lab.place(tool, &[("main.tf", &main)])?;
    let init = |tokens: &[(String, String)]| -> Result<(i32, String)> {
        let own = format!(
            "provider_installation {{\n  network_mirror {{\n    url = \"{}\"\n  }}\n}}\n",
            mirror.url("/p/")
        );
        let config = place.home().join("pawl.tfrc");
        let user = UserConfig::of(tokens, Some(&own)).map_err(anyhow::Error::msg)?;
        fs::write(&config, cli_config(&Installation::default(), &user))?;
        let mut init = place.program(tool, &["init", "-input=false", "-no-color"]);
        ended(
            init.env("TF_CLI_CONFIG_FILE", config)
                .env("SSL_CERT_FILE", pki.path("ca.crt"))
                .env("NO_PROXY", "*"),
        )
    };
    let tokens = [
        (modules.host(), "modules-token".to_owned()),
        (mirror.host(), "mirror-token".to_owned()),
    ];
    let said = init(&tokens)?.with(0)?;
    for (server, token) in [
        (&modules, Some("Bearer modules-token")),
        (&mirror, Some("Bearer mirror-token")),
        (&archives, None),
    ] {
        let asked = server.asked();
        let asked: Vec<_> = asked
            .iter()
            .filter(|(path, _)| !path.starts_with("/.well-known/"))
            .collect();
        ensure!(
            !asked.is_empty() && asked.iter().all(|(_, sent)| sent.as_deref() == token),
            "{token:?}: {asked:?}"
        );
    }
    ensure!(
        place
            .stack()
            .join(".terraform/modules/part/main.tf")
            .is_file(),
        "{said}"
    );

    // A redirect to another host drops the token. A redirect to another port of the same host, or to a subdomain, retains it: Go treats
    // these as the same server.
    let path = "/v1/modules/acme/part/local/versions";
    for (address, takes_along) in [("127.0.0.2", false), ("127.0.0.1", true)] {
        fs::remove_dir_all(place.stack().join(".terraform"))?;
        let other = runtime.block_on(Registry::start_on(address, &pki, Access::Public))?;
        other.publish_code("acme/part/local", part, &archives)?;
        modules.redirect(path, &other.url(path))?;
        init(&tokens)?.with(0)?;
        let told = other.asked();
        ensure!(
            told == [(
                path.to_owned(),
                takes_along.then(|| "Bearer modules-token".to_owned())
            )],
            "{address}: {told:?}"
        );
    }
    modules.publish_code("acme/part/local", part, &archives)?;

    // A host without its own token gets none, even if others have one.
    fs::remove_dir_all(place.stack().join(".terraform"))?;
    let before = modules.asked().len();
    let said = init(&tokens[1..])?.with(1)?;
    holds(
        &said.split_whitespace().collect::<Vec<_>>().join(" "),
        "401",
    )?;
    ensure!(
        modules.asked().len() > before
            && modules.asked()[before..]
                .iter()
                .all(|(_, sent)| sent.is_none())
    );
    Ok(())
}
