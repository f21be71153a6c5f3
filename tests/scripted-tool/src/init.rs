//! `init`, `workspace` and `version`.

use std::path::Path;

use anyhow::Context;
use serde_json::json;
use tool_versions::Platform;

use super::Tool;
use super::backend::Backend;
use super::backend_config::Config;
use super::script::Diagnostic;
use super::view::{Flavor, line};

pub(super) fn version(tool: &Tool) -> Result<i32, Diagnostic> {
    let version = &tool.view.version;
    if tool.view.flavor == Flavor::Terragrunt {
        line(&format!("terragrunt version v{version}"));
        return Ok(0);
    }
    if !tool.args.has("json") {
        line(&format!("{} v{version}\non {}", tool.view.name(), Platform::here()));
        return Ok(0);
    }
    // OpenTofu keeps the other tool's name for this field.
    let text = json!({"terraform_version": version, "platform": Platform::here().to_string(), "provider_selections": {}});
    line(&serde_json::to_string_pretty(&text).context("no version")?);
    Ok(0)
}

pub(super) fn init(tool: &Tool) -> Result<i32, Diagnostic> {
    let name = tool.view.name();
    tool.view.init_output("Initializing the backend...", "initializing_backend_message");
    if tool.args.value("backend") != Some("false") {
        init_backend(tool)?;
    }
    tool.view.init_output("Initializing provider plugins...", "initializing_provider_plugin_message");
    let done = format!("{name} has been successfully initialized!");
    tool.view.init_output(&done, "output_init_success_message");
    Ok(0)
}

fn init_backend(tool: &Tool) -> Result<(), Diagnostic> {
    let overlay = tool.args.values("backend-config");
    let Some(config) = Config::find(&tool.dir, tool.script.state.as_deref(), &overlay)? else { return Ok(()) };
    let backend = Backend::open(Some(&config), &tool.dir, "default")?;
    std::fs::create_dir_all(&tool.data_dir).context("failed to create the data directory")?;
    std::fs::write(tool.data_dir.join("terraform.tfstate"), config.initialized().to_string())
        .context("failed to write the data directory")?;
    let name = tool.view.name();
    let message = format!(
        "Successfully configured the backend \"{}\"! {name} will automatically\nuse this backend unless the backend configuration changes.",
        config.kind
    );
    tool.view.init_output(&message, "backend_configured_success");
    match backend.read() {
        Ok(_) => Ok(()),
        Err(error) => Err(Diagnostic::error(&format!("Error refreshing state: {error:#}"), "")),
    }
}

pub(super) fn workspace(tool: &Tool) -> Result<i32, Diagnostic> {
    let mut words = tool.args.words.iter().map(String::as_str);
    let (verb, name) = (words.next().unwrap_or("show"), words.next().unwrap_or("default"));
    if verb == "show" {
        line(&tool.workspace());
        return Ok(0);
    }
    let backend = tool.backend()?;
    if verb == "list" {
        return list(tool, &backend);
    }
    if name != "default" && matches!(backend, Backend::Http { .. }) {
        return Err(Diagnostic::error("workspaces not supported", ""));
    }
    let folder = tool.dir.join("terraform.tfstate.d").join(name);
    let there = name == "default" || folder.is_dir();
    match verb {
        "select" if !there && !tool.args.has("or-create") => {
            let detail = format!(
                "You can create this workspace with the \"new\" subcommand \nor include the \"-or-create\" flag with the \"select\" subcommand.\nWorkspace \"{name}\" doesn't exist."
            );
            Err(Diagnostic::error(&format!("Workspace \"{name}\" doesn't exist."), &detail))
        }
        "new" if there => Err(Diagnostic::error(&format!("Workspace \"{name}\" already exists"), "")),
        "select" | "new" => {
            if !there {
                std::fs::create_dir_all(&folder).context("failed to create the workspace")?;
            }
            choose(&tool.data_dir, name)?;
            line(&format!("{} to workspace \"{name}\"!", if there { "Switched" } else { "Created and switched" }));
            Ok(0)
        }
        other => Err(Diagnostic::error(&format!("workspace {other} is not played by this tool"), "")),
    }
}

fn list(tool: &Tool, backend: &Backend) -> Result<i32, Diagnostic> {
    if matches!(backend, Backend::Http { .. }) {
        return Err(Diagnostic::error("workspaces not supported", ""));
    }
    let made = std::fs::read_dir(tool.dir.join("terraform.tfstate.d")).into_iter().flatten().flatten();
    let mut names: Vec<_> = made.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.push("default".to_owned());
    names.sort();
    for name in names {
        line(&format!("{} {name}", if name == tool.workspace() { '*' } else { ' ' }));
    }
    Ok(0)
}

fn choose(data_dir: &Path, name: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(data_dir).context("failed to create the data directory")?;
    std::fs::write(data_dir.join("environment"), name).context("failed to choose the workspace")
}
