//! What the tool prints: the `-json` stream of OpenTofu 1.10 and Terraform 1.11, or text.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::address::Address;
use super::plan::{Act, Change, Counts};
use super::script::Diagnostic;

/// Which tool is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavor {
    Tofu,
    Terraform,
    /// It can say its version, and no more of what it plays is its own.
    Terragrunt,
}

/// Where and how a command prints.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) flavor: Flavor,
    pub(super) version: String,
    pub(super) json: bool,
    /// For the source lines of diagnostics.
    pub(super) dir: PathBuf,
}

/// Prints a line whole, whoever else prints. A reader that went away is none of a fake tool's business.
pub(super) fn line(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Prints a line to stderr.
pub(super) fn error_line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

impl View {
    /// The tool's name for people.
    pub(super) fn name(&self) -> &'static str {
        match self.flavor {
            Flavor::Tofu => "OpenTofu",
            Flavor::Terraform => "Terraform",
            Flavor::Terragrunt => "Terragrunt",
        }
    }

    /// The tool's name on the command line.
    pub(super) fn command(&self) -> &'static str {
        match self.flavor {
            Flavor::Tofu => "tofu",
            Flavor::Terraform => "terraform",
            Flavor::Terragrunt => "terragrunt",
        }
    }

    /// The first message of a `-json` stream.
    pub(super) fn hello(&self) {
        if self.json {
            let message = format!("{} {}", self.name(), self.version);
            self.event(&message, "version", json!({self.command(): self.version, "ui": "1.2"}));
        }
    }

    /// Prints one event of the stream.
    pub(super) fn event(&self, message: &str, kind: &str, detail: Value) {
        self.leveled("info", message, kind, detail);
    }

    fn leveled(&self, level: &str, message: &str, kind: &str, detail: Value) {
        let mut event = Map::new();
        event.insert("@level".to_owned(), level.into());
        event.insert("@message".to_owned(), message.into());
        event.insert("@module".to_owned(), format!("{}.ui", self.command()).into());
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ");
        event.insert("@timestamp".to_owned(), now.to_string().into());
        if let Value::Object(detail) = detail {
            event.extend(detail);
        }
        event.insert("type".to_owned(), kind.into());
        line(&Value::Object(event).to_string());
    }

    /// Prints a message without a meaning for programs.
    pub(super) fn log(&self, text: &str) {
        if self.json { self.event(text, "log", Value::Null) } else { line(text) }
    }

    /// Prints a message of `init`.
    pub(super) fn init_output(&self, text: &str, code: &str) {
        match (self.json, self.flavor) {
            (false, _) => line(&format!("\n{text}")),
            (true, Flavor::Tofu | Flavor::Terragrunt) => self.event(text, "output", Value::Null),
            (true, Flavor::Terraform) => self.event(text, "init_output", json!({"message_code": code})),
        }
    }

    /// Prints a diagnostic, with the source line if the file is there.
    pub(super) fn diagnostic(&self, diagnostic: &Diagnostic) {
        let summary = format!("Error: {}", diagnostic.summary);
        let at = diagnostic.file.as_deref().map(|file| (file, diagnostic.line.unwrap_or(1)));
        let source = at.and_then(|(file, number)| {
            let text = std::fs::read_to_string(self.dir.join(file)).ok()?;
            text.lines().nth(usize::try_from(number).ok()?.checked_sub(1)?).map(str::to_owned)
        });
        if !self.json {
            let mut text = format!("\n{summary}\n");
            if let Some((file, number)) = at {
                let _ = write!(text, "\n  on {file} line {number}:\n");
                let _ = source.iter().try_for_each(|source| writeln!(text, "{number:4}: {source}"));
            }
            error_line(&format!("{text}\n{}\n", diagnostic.detail));
            return;
        }
        let mut detail = json!({"severity": "error", "summary": diagnostic.summary, "detail": diagnostic.detail});
        if let Some(address) = &diagnostic.address {
            detail["address"] = json!(address);
        }
        if let Some((file, number)) = at {
            let end = source.as_ref().map_or(0, String::len);
            detail["range"] = json!({
                "filename": file,
                "start": {"line": number, "column": 1, "byte": 0},
                "end": {"line": number, "column": end + 1, "byte": end},
            });
            detail["snippet"] = json!({
                "context": null, "code": source.unwrap_or_default(), "start_line": number,
                "highlight_start_offset": 0, "highlight_end_offset": end, "values": [],
            });
        }
        self.leveled("error", &summary, "diagnostic", json!({"diagnostic": detail}));
    }

    pub(super) fn planned_change(&self, change: &Change) {
        if self.json && change.act != Act::NoOp {
            let message = format!("{}: Plan to {}", change.address, change.act.word());
            let detail = json!({"change": {"resource": resource(&change.address), "action": change.act.word()}});
            self.event(&message, "planned_change", detail);
        }
    }

    /// Says that the state of a resource is read again.
    pub(super) fn refresh(&self, address: &str, id: &str) {
        let start = format!("{address}: Refreshing state... [id={id}]");
        if !self.json {
            return line(&start);
        }
        let hook = json!({"hook": {"resource": resource(address), "id_key": "id", "id_value": id}});
        self.event(&start, "refresh_start", hook.clone());
        self.event(&format!("{address}: Refresh complete [id={id}]"), "refresh_complete", hook);
    }

    pub(super) fn apply_start(&self, address: &str, act: Act, id: Option<&str>) {
        let id = id.filter(|_| act != Act::Create);
        let message = format!("{address}: {}...{}", act.begun(), suffix(id));
        self.hook("apply_start", &message, &hook(address, act, id, None));
    }

    pub(super) fn apply_progress(&self, address: &str, act: Act, seconds: u64) {
        let message = format!("{address}: Still {}... [{seconds}s elapsed]", act.begun().to_lowercase());
        self.hook("apply_progress", &message, &hook(address, act, None, Some(seconds)));
    }

    pub(super) fn apply_complete(&self, address: &str, act: Act, id: Option<&str>, seconds: u64) {
        let id = id.filter(|_| act != Act::Delete);
        let message = format!("{address}: {} complete after {seconds}s{}", act.noun(), suffix(id));
        self.hook("apply_complete", &message, &hook(address, act, id, Some(seconds)));
    }

    pub(super) fn apply_errored(&self, address: &str, act: Act, seconds: u64) {
        let message = format!("{address}: {} errored after {seconds}s", act.noun());
        self.hook("apply_errored", &message, &hook(address, act, None, Some(seconds)));
    }

    fn hook(&self, kind: &str, message: &str, hook: &Value) {
        if self.json { self.event(message, kind, json!({"hook": hook})) } else { line(message) }
    }

    pub(super) fn planned(&self, counts: Counts) {
        let Counts { add, remove } = counts;
        let message = format!("Plan: {add} to add, 0 to change, {remove} to destroy.");
        self.summary(&message, "plan", counts);
    }

    pub(super) fn applied(&self, counts: Counts) {
        let Counts { add, remove } = counts;
        let message = format!("Apply complete! Resources: {add} added, 0 changed, {remove} destroyed.");
        self.summary(&message, "apply", counts);
        if self.json {
            self.event("Outputs: 0", "outputs", json!({"outputs": {}}));
        }
    }

    fn summary(&self, message: &str, operation: &str, counts: Counts) {
        let Counts { add, remove } = counts;
        if self.json {
            let mut changes = json!({"add": add, "change": 0, "import": 0, "remove": remove});
            if self.flavor == Flavor::Tofu {
                changes["forget"] = json!(0);
            }
            changes["operation"] = json!(operation);
            self.event(message, "change_summary", json!({"changes": changes}));
        } else {
            line(&format!("\n{message}"));
        }
    }
}

fn suffix(id: Option<&str>) -> String {
    id.map(|id| format!(" [id={id}]")).unwrap_or_default()
}

fn hook(address: &str, act: Act, id: Option<&str>, seconds: Option<u64>) -> Value {
    let mut hook = json!({"resource": resource(address), "action": act.word()});
    if let Some(id) = id {
        hook["id_key"] = json!("id");
        hook["id_value"] = json!(id);
    }
    if let Some(seconds) = seconds {
        hook["elapsed_seconds"] = json!(seconds);
    }
    hook
}

/// A resource as each event names it.
fn resource(address: &str) -> Value {
    let parts = Address::parse(address);
    json!({
        "addr": address, "module": parts.module, "resource": parts.resource, "implied_provider": parts.provider(),
        "resource_type": parts.kind, "resource_name": parts.name, "resource_key": parts.key,
    })
}
