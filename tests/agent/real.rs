//! Attempts with the real OpenTofu: where a state is, and where providers come from. Left out where it is not built and `PAWL_SUITES` is not
//! set.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::symlink,
};

use crds::{FailureClass, RunResult, reason};
use harness::cluster::gobuild::Toolset;
use runner_agent::settings::Settings;
use serde_json::{Value, json};
use servers::{git::GitServer, state::StateServer};
use tool_versions::Platform;

use crate::{
    common::{Attempt, alone, spec, start_in},
    memory_api::MemoryApi,
    repository::Datastore,
};

const PROVIDER: &str = "terraform-provider-time";

struct Lab {
    tools: Toolset,
    states: StateServer,
    store: Datastore,
}

impl Lab {
    async fn open() -> Option<Self> {
        let tools = Toolset::of_suite(&["tofu", PROVIDER]).unwrap();
        let Some(tools) = tools else {
            eprintln!("left out: OpenTofu is not built yet");
            return None;
        };
        alone();
        let states = StateServer::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Some(Self {
            tools,
            states: states.await.unwrap(),
            store: Datastore::start(),
        })
    }

    /// Starts the run with this number, of the stack `net`.
    fn run(&self, number: u32, code: &str, more: &Value) -> Attempt {
        let dir = tempfile::tempdir().unwrap();
        let version = self.tools.version("tofu").unwrap();
        let place = dir.path().join("tools/opentofu").join(version);
        fs::create_dir_all(&place).unwrap();
        symlink(self.tools.path("tofu").unwrap(), place.join("tofu")).unwrap();
        let mut all = json!({"stack": "net", "source": {"inline": {"files": {"main.tf": code}}},
            "tool": {"name": "OpenTofu", "version": version}});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let uid = format!("uid-{number}");
        let mirror = dir
            .path()
            .join("providers/registry.opentofu.org/hashicorp/time");
        let provider = self.tools.version(PROVIDER).unwrap();
        let mirror = mirror.join(provider).join(Platform::here().to_string());
        fs::create_dir_all(&mirror).unwrap();
        let binary = mirror.join(format!("{PROVIDER}_v{provider}"));
        fs::copy(self.tools.path(PROVIDER).unwrap(), binary).unwrap();
        let adjust = |settings: &mut Settings, api: &MemoryApi| {
            settings.run_uid.clone_from(&uid);
            api.state.lock().unwrap().object["metadata"]["uid"] = uid.clone().into();
            self.store.give(settings, api);
        };
        start_in(dir, &spec(&all, &[]), adjust)
    }

    /// A backend of the run at this path of the server.
    fn backend(&self, path: &str) -> Value {
        json!({"backend": {"type": "http", "config": self.states.backend_config(path)}})
    }
}

fn code(input: &str) -> String {
    format!("resource \"terraform_data\" \"x\" {{\n  input = \"{input}\"\n}}\n")
}

async fn applied(mut a: Attempt) {
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied), "{status:#?}");
}

#[tokio::test]
async fn plan_of_an_older_version_of_the_last_state_waits() {
    let Some(lab) = Lab::open().await else { return };
    let backend = lab.backend("one");
    applied(lab.run(1, &code("a"), &backend)).await;
    applied(lab.run(2, &code("b"), &backend)).await;
    let serials = || -> Vec<_> {
        let versions = lab.states.versions("one");
        versions
            .iter()
            .map(|state| state["serial"].as_u64())
            .collect()
    };
    let newest = serials().pop().flatten().unwrap();
    lab.states.restore("one");
    let restored = serials().pop().flatten().unwrap();
    assert!(restored < newest, "{:?}", serials());
    let a = lab.run(3, &code("c"), &backend);
    a.waits().await;
    let status = a.api.status();
    let summary = status.plan.unwrap().summary;
    assert!(summary.ends_with(", another state"), "{summary}");
    let history = status.history.join("\n");
    let says = [
        format!("the state (backend http) is an older one, serial {restored}; the last apply"),
        format!("…, serial {newest}, at the same place"),
    ];
    for text in says {
        assert!(history.contains(&text), "{text}: {history}");
    }
    a.api.approve();
    applied(a).await;
    // The approval took the older version over.
    applied(lab.run(4, &code("d"), &backend)).await;
}

#[tokio::test]
async fn plan_of_another_state_than_the_last_waits() {
    let Some(lab) = Lab::open().await else { return };
    applied(lab.run(1, &code("a"), &lab.backend("one"))).await;
    // A known lineage at the same place waits for nobody.
    applied(lab.run(2, &code("b"), &lab.backend("one"))).await;
    let lineage = lab.states.current("one").unwrap()["lineage"].clone();
    let a = lab.run(3, &code("b"), &lab.backend("two"));
    a.waits().await;
    let status = a.api.status();
    let plan = status.plan.unwrap();
    assert_eq!(plan.summary, "+1 ~0 -0, another state");
    let history = status.history.join("\n");
    let known = &lineage.as_str().unwrap()[..8];
    for text in [
        "the state (backend http) is empty",
        &format!("ended with lineage {known}…, serial"),
        "at another place",
        "a person has to approve",
    ] {
        assert!(history.contains(text), "{text}: {history}");
    }
    assert!(
        status
            .message
            .unwrap()
            .contains("not that of the stack's last apply")
    );
    a.api.approve();
    applied(a).await;
    // The approval took the new state over.
    applied(lab.run(4, &code("c"), &lab.backend("two"))).await;
    // A destroy of a third state, which has nothing, destroys nothing.
    let mut destroy = lab.backend("three");
    destroy["operation"] = "Destroy".into();
    let mut a = lab.run(5, &code("c"), &destroy);
    let failure = a
        .fails(FailureClass::Configuration, reason::ANOTHER_STATE)
        .await;
    assert!(
        failure
            .message
            .starts_with("there is nothing to destroy, but"),
        "{failure:?}"
    );
    // In its own state it does, and then another state is as good as this one.
    let mut destroy = lab.backend("two");
    destroy["operation"] = "Destroy".into();
    let mut a = lab.run(6, &code("c"), &destroy);
    assert_eq!(a.ends(0).await.result, Some(RunResult::Destroyed));
    applied(lab.run(7, &code("c"), &lab.backend("three"))).await;
}

#[tokio::test]
async fn null_output_is_named_to_its_consumer() {
    let Some(lab) = Lab::open().await else { return };
    let made = code("a")
        + "output \"id\" {\n  value = terraform_data.x.output\n}\noutput \"none\" {\n  value = null\n}\n\
           output \"own\" {\n  value = \"x\"\n}\n";
    let items = json!([{"output": "id"}, {"output": "none"}]);
    let mut more = lab.backend("one");
    more["outputs"] = json!({"configMap": {"name": "net", "items": items}});
    // This datastore records what is published, and writes no object.
    applied(lab.run(1, &made, &more)).await;
    for (number, (name, says)) in [
        ("none", "has a null output none, which variable x wants"),
        ("own", "does not publish its output own, which"),
        ("other", "has no output other, which"),
    ]
    .into_iter()
    .enumerate()
    {
        let from = json!({"outputOf": {"stack": "net", "name": name}});
        let more = json!({"stack": "app", "variables": [{"name": "x", "valueFrom": from}]});
        let mut a = lab.run(
            2 + u32::try_from(number).unwrap(),
            "variable \"x\" {}\n",
            &more,
        );
        let failure = a
            .fails(FailureClass::Configuration, reason::OUTPUT_NOT_FOUND)
            .await;
        assert!(failure.message.contains(says), "{failure:?}");
    }
}

#[tokio::test]
async fn values_of_a_run_are_those_of_its_plan() {
    let Some(lab) = Lab::open().await else { return };
    let values = json!({"text": "5", "whole": 7, "part": 0.1, "large": 12_345_678_901_234_567_890_u64, "flag": true,
        "list": ["a", 1, {"b": [null]}], "map": {"x": 1.5, "ü": 2}, "accent": "e\u{301}"});
    let types = [("text", "number"), ("list", "any"), ("map", "map(number)")];
    let values = values.as_object().unwrap();
    let declared: Vec<_> = values
        .keys()
        .map(|name| {
            let of = types.iter().find(|(of, _)| of == name);
            let of = of.map(|(_, of)| format!("  type = {of}\n"));
            format!("variable \"{name}\" {{\n{}}}\n", of.unwrap_or_default())
        })
        .collect();
    let code = declared.concat()
        + "resource \"terraform_data\" \"x\" {\n  input = [var.text, var.list, var.map, var.large]\n}\n";
    let variables: Vec<_> = values
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let mut more = lab.backend("one");
    more["variables"] = variables.into();
    applied(lab.run(1, &code, &more)).await;
}

#[tokio::test]
async fn backend_of_a_run_is_merged_over_the_codes_block() {
    let Some(lab) = Lab::open().await else { return };
    let url = lab.states.url("x");
    let block = format!(
        "terraform {{\n  backend \"http\" {{\n    lock_address   = \"{url}\"\n    unlock_address = \"{url}\"\n  }}\n}}\n"
    );
    let own = json!({"backend": {"type": "http", "config": {"address": url, "username": "u"}}});
    let mut a = lab.run(1, &(block + &code("a")), &own);
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    let history = status.history.join("\n");
    assert!(
        history.contains("backend http (spec.backend over the code's block)")
            && !history.contains("no lock"),
        "{history}"
    );
    let locks = lab.states.ledger();
    assert!(
        locks
            .iter()
            .any(|entry| format!("{entry:?}").contains("lock")),
        "{locks:?}"
    );
    // A block of another type is replaced. Generators and hooks before init write code, too.
    let s3 = r#"terraform {\n  backend "s3" {\n    bucket = "b"\n    key = "k"\n  }\n}\n"#;
    let mut more = lab.backend("x");
    more["hooks"] = json!([{"name": "gen", "when": "BeforeInit",
        "inline": format!("printf '{s3}' > gen.tf\n")}]);
    let mut a = lab.run(2, &code("b"), &more);
    let history = a.ends(0).await.history.join("\n");
    assert!(
        history.contains("(in place of the code's s3 in gen.tf, without its bucket, key)"),
        "{history}"
    );
}

#[tokio::test]
async fn backend_that_a_hook_writes_is_the_codes() {
    let Some(lab) = Lab::open().await else { return };
    let url = lab.states.url("hook");
    let block = format!(r#"terraform {{\n  backend "http" {{\n    address = "{url}"\n  }}\n}}\n"#);
    let more = json!({"hooks": [{"name": "gen", "when": "BeforeInit",
        "inline": format!("printf '{block}' > gen.tf\n")}]});
    let mut a = lab.run(1, &code("a"), &more);
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    assert!(lab.states.current("hook").is_some(), "{:?}", status.history);
}

#[tokio::test]
async fn managed_state_refuses_a_read_of_the_workspace() {
    let Some(lab) = Lab::open().await else { return };
    let reads = "locals {\n  size = { default = 10, staging = 1 }[terraform.workspace]\n}\n";
    let mut a = lab.run(1, reads, &json!({"workspace": "staging"}));
    let failure = a
        .fails(FailureClass::Configuration, reason::INVALID_SPEC)
        .await;
    assert!(
        failure
            .message
            .starts_with("main.tf:2 reads terraform.workspace"),
        "{failure:?}"
    );
    // Each serves its state at the same port.
    drop(a);
    let repos = tempfile::tempdir().unwrap();
    let server = GitServer::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), repos.path());
    let server = server.await.unwrap();
    let repo = server.create("infra").unwrap();
    repo.commit("main", &[("net/main.tf", reads)]).unwrap();
    let git = json!({"url": server.url("infra"), "revision": "main", "path": "net"});
    let more = json!({"workspace": "staging", "source": {"git": git}});
    let mut a = lab.run(4, "", &more);
    let failure = a
        .fails(FailureClass::Configuration, reason::INVALID_SPEC)
        .await;
    assert!(
        failure
            .message
            .starts_with("net/main.tf:2 reads terraform.workspace"),
        "{failure:?}"
    );
    drop(a);
    let mut a = lab.run(2, reads, &json!({}));
    assert_eq!(a.ends(0).await.result, Some(RunResult::NoChanges));
    drop(a);
    // States of workspaces that lie beside the code would be left behind.
    let more = json!({"hooks": [{"name": "old", "when": "BeforeInit",
        "inline": "mkdir -p terraform.tfstate.d/staging\n"}]});
    let mut a = lab.run(3, &code("a"), &more);
    let failure = a
        .fails(FailureClass::Configuration, reason::NO_DURABLE_STATE)
        .await;
    assert!(
        failure.message.contains("terraform.tfstate.d"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn registry_is_asked_beside_the_mirror_of_the_image() {
    let Some(lab) = Lab::open().await else { return };
    let version = lab.tools.version(PROVIDER).unwrap();
    let started = |number, constraint: &str| {
        let code = format!(
            "terraform {{\n  required_providers {{\n    time = {{ source = \"hashicorp/time\", version = \"{constraint}\" }}\n  }}\n}}\nresource \"time_static\" \"t\" {{}}\n"
        );
        // Nothing answers there.
        let more = json!({"env": [{"name": "HTTPS_PROXY", "value": "http://127.0.0.1:9"}]});
        lab.run(number, &code, &more)
    };
    let mut a = started(1, ">= 0.1");
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    let history = status.history.join("\n");
    assert!(
        history.contains("the registry cannot be reached; a mirror alone serves registry.opentofu.org/hashicorp/time"),
        "{history}"
    );
    drop(a);
    let mut a = started(2, "~> 99.0");
    let failure = a
        .fails(FailureClass::Transient, reason::PROVIDER_UNREACHABLE)
        .await;
    let has = format!(
        "has registry.opentofu.org/hashicorp/time {version}, and its registry was asked too"
    );
    assert!(failure.message.contains(&has), "{failure:?}");
}
