use super::*;
use crds::{FailureClass, reason};

fn put(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[tokio::test]
async fn code_decides_the_tool() {
    let dir = tempfile::tempdir().unwrap();
    let (root, tools) = (dir.path().join("src"), dir.path().join("tools"));
    for version in ["1.9.1", "1.10.6", "1.11.0-rc1"] {
        put(tools.join("opentofu").join(version).join("tofu"), "");
    }
    put(tools.join("opentofu/1.12.0/README"), "no binary");
    put(tools.join("terraform/1.11.4/terraform"), "");
    put(tools.join("terragrunt/0.93.0/terragrunt"), "");
    let stack = root.join("a/b");
    put(stack.join("main.tf"), "");
    let sources = ToolSources::of_dirs(
        vec![dir.path().join("missing"), tools],
        &dir.path().join("cache"),
    );
    let found = async |tool: &Tool| {
        let search = Search {
            tool,
            origin: "spec.tool.version",
            stack: &stack,
            root: &root,
        };
        sources.find(search, &|_| {}).await
    };
    let assert_found = async |title: &str, why: &str| {
        let found = found(&Tool::default()).await.unwrap();
        assert_eq!(
            (found.title().as_str(), found.reason().as_str()),
            (title, why)
        );
    };
    assert_found("OpenTofu 1.10.6", "the newest at hand; OpenTofu by default").await;
    put(
        root.join(".opentofu-version"),
        "# pinned\n\n ~> 1.9.0 # until June\n",
    );
    assert_found("OpenTofu 1.9.1", "from .opentofu-version").await;
    put(root.join("a/.terraform-version"), "1.11.4\n");
    assert_found("Terraform 1.11.4", "from a/.terraform-version").await;
    let named = found(&Tool {
        name: Some(ToolName::OpenTofu),
        version: Some("1.11.0-rc1".into()),
    })
    .await
    .unwrap();
    assert_eq!(named.title(), "OpenTofu 1.11.0-rc1");

    let none = found(&Tool {
        name: Some(ToolName::OpenTofu),
        version: Some("~> 3.0".into()),
    })
    .await
    .unwrap_err();
    assert_eq!(none.reason, reason::TOOL_NOT_FOUND);
    assert_eq!(
        none.message,
        "no OpenTofu `~> 3.0` (from spec.tool.version); versions at hand: 1.11.0-rc1, 1.10.6, 1.9.1"
    );
    put(stack.join("terragrunt.hcl"), "");
    let why = "the newest at hand; Terraform 1.11.4, from a/.terraform-version";
    assert_found("Terragrunt 0.93.0 with Terraform 1.11.4", why).await;
    fs::remove_file(stack.join("terragrunt.hcl")).unwrap();
    put(dir.path().join(".opentofu-version"), "9.9.9");
    fs::remove_file(root.join(".opentofu-version")).unwrap();
    fs::remove_file(root.join("a/.terraform-version")).unwrap();
    assert_eq!(
        found(&Tool::default()).await.unwrap().why,
        "the newest at hand",
        "nothing above the source is read"
    );
}

/// OpenTofu comes from a mirror that does not respond: no server listens on that port.
fn unanswered(dir: &Path, dirs: Vec<PathBuf>) -> ToolSources {
    let said = r#"{"mirrors":[{"tool":"OpenTofu","url":"http://127.0.0.1:9"}]}"#;
    let mut sources =
        ToolSources::new(&said.parse().unwrap(), dirs, &dir.join("cache"), dir).unwrap();
    for channel in &mut sources.installer.channels {
        (channel.rules.tries, channel.rules.proxies) = (1, false);
    }
    sources
}

#[tokio::test]
async fn without_a_list_the_newest_available_version_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let (stack, tools, tool) = (
        dir.path().join("src"),
        dir.path().join("tools"),
        Tool::default(),
    );
    for version in ["1.9.1", "1.10.5", "1.10.6"] {
        put(tools.join("opentofu").join(version).join("tofu"), "");
    }
    put(stack.join(".opentofu-version"), "~> 1.10.0\n");
    let search = Search {
        tool: &tool,
        origin: "spec.tool.version",
        stack: &stack,
        root: &stack,
    };
    let found = unanswered(dir.path(), vec![tools])
        .find(search, &|_| {})
        .await
        .unwrap();
    assert_eq!(found.title(), "OpenTofu 1.10.6");
    let why = found.reason();
    assert!(
        why.starts_with("from .opentofu-version, the newest at hand, since no list can be had: "),
        "{why}"
    );
    let failure = unanswered(dir.path(), Vec::new())
        .find(search, &|_| {})
        .await
        .unwrap_err();
    assert_eq!(
        (failure.class, failure.reason.as_str()),
        (FailureClass::Transient, reason::TOOL_UNAVAILABLE)
    );
    assert!(
        failure.message.contains(".opentofu-version"),
        "{}",
        failure.message
    );
}

/// A directory as a mirror. Terragrunt is a single file, so the test needs no archive.
#[tokio::test]
async fn tool_that_is_not_genuine_is_refused_with_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let (stack, mirror) = (dir.path().join("src"), dir.path().join("mirror"));
    let binary = format!("terragrunt_linux_{}", tool_versions::Platform::here().arch);
    let release = mirror.join("gruntwork-io/terragrunt/releases/download/v0.93.0");
    put(release.join(&binary), "not what was published");
    put(
        release.join("SHA256SUMS"),
        &format!("{}  {binary}\n", "0".repeat(64)),
    );
    put(stack.join(".terragrunt-version"), "0.93.0\n");
    let said = serde_json::json!({"mirrors": [{"tool": "Terragrunt", "url": mirror, "verification": "Sums"}], "offline": true});
    let sources = ToolSources::new(
        &said.to_string().parse().unwrap(),
        Vec::new(),
        &dir.path().join("cache"),
        dir.path(),
    )
    .unwrap();
    let tool = Tool {
        name: Some(ToolName::Terragrunt),
        version: None,
    };
    let search = Search {
        tool: &tool,
        origin: "spec.tool.version",
        stack: &stack,
        root: &stack,
    };
    let failure = sources.find(search, &|_| {}).await.unwrap_err();
    assert_eq!(
        (failure.class, failure.reason.as_str()),
        (FailureClass::Integrity, reason::TOOL_NOT_GENUINE)
    );
    for part in [binary.as_str(), "was published with", ".terragrunt-version"] {
        assert!(
            failure.message.contains(part),
            "{part} in {}",
            failure.message
        );
    }
}
