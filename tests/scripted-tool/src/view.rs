//! Output of the tool: the `-json` stream of OpenTofu 1.10 and Terraform 1.11; without `-json` only the messages of its events.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::resource::{Act, Address, Counts};
use super::script::Diagnostic;

/// The output of a command.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Executable name of the simulated tool: `tofu` or `terraform`.
    pub(super) command: &'static str,
    pub(super) version: String,
    pub(super) json: bool,
    /// For the source lines of diagnostics.
    pub(super) dir: PathBuf,
}

/// Prints a whole line under the lock of stdout. Ignores a reader that has gone.
pub(super) fn line(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Prints a line to stderr.
pub(super) fn error_line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

impl View {
    /// The tool's product name.
    pub(super) fn name(&self) -> &'static str {
        if self.command == "terraform" {
            "Terraform"
        } else {
            "OpenTofu"
        }
    }

    /// The first message of a `-json` stream.
    pub(super) fn hello(&self) {
        let message = format!("{} {}", self.name(), self.version);
        self.event(
            &message,
            "version",
            json!({self.command: self.version, "ui": "1.2"}),
        );
    }

    /// Prints one event of the stream.
    pub(super) fn event(&self, message: &str, kind: &str, detail: Value) {
        if self.json {
            self.leveled("info", message, kind, detail);
        } else {
            line(message);
        }
    }

    fn leveled(&self, level: &str, message: &str, kind: &str, detail: Value) {
        let mut event = Map::new();
        event.insert("@level".to_owned(), level.into());
        event.insert("@message".to_owned(), message.into());
        event.insert("@module".to_owned(), format!("{}.ui", self.command).into());
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ");
        event.insert("@timestamp".to_owned(), now.to_string().into());
        if let Value::Object(detail) = detail {
            event.extend(detail);
        }
        event.insert("type".to_owned(), kind.into());
        line(&Value::Object(event).to_string());
    }

    /// Prints a message that has no meaning for programs.
    pub(super) fn log(&self, text: &str) {
        self.event(text, "log", Value::Null);
    }

    /// Prints a diagnostic, with the source line if the file exists.
    pub(super) fn diagnostic(&self, diagnostic: &Diagnostic) {
        let summary = format!("Error: {}", diagnostic.summary);
        let at = diagnostic
            .file
            .as_deref()
            .map(|file| (file, diagnostic.line.unwrap_or(1)));
        let source = at.and_then(|(file, number)| {
            let text = std::fs::read_to_string(self.dir.join(file)).ok()?;
            text.lines()
                .nth(usize::try_from(number).ok()?.checked_sub(1)?)
                .map(str::to_owned)
        });
        if !self.json {
            let mut text = format!("\n{summary}\n");
            if let Some((file, number)) = at {
                let _ = write!(text, "\n  on {file} line {number}:\n");
                let _ = source
                    .iter()
                    .try_for_each(|source| writeln!(text, "{number:4}: {source}"));
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
        self.leveled(
            "error",
            &summary,
            "diagnostic",
            json!({"diagnostic": detail}),
        );
    }

    pub(super) fn planned_change(&self, address: &str, act: Act) {
        let detail = json!({"change": {"resource": resource(address), "action": act.word()}});
        self.event(
            &format!("{address}: Plan to {}", act.word()),
            "planned_change",
            detail,
        );
    }

    /// Reports the refresh of a resource.
    pub(super) fn refresh(&self, address: &str, id: &str) {
        let hook = json!({"hook": {"resource": resource(address), "id_key": "id", "id_value": id}});
        self.event(
            &format!("{address}: Refreshing state... [id={id}]"),
            "refresh_start",
            hook.clone(),
        );
        self.event(
            &format!("{address}: Refresh complete [id={id}]"),
            "refresh_complete",
            hook,
        );
    }

    pub(super) fn apply_start(&self, address: &str, act: Act, id: Option<&str>) {
        let message = format!("{address}: {}...{}", act.begun(), suffix(id));
        self.event(&message, "apply_start", hook(address, act, id, None));
    }

    pub(super) fn apply_progress(&self, address: &str, act: Act, seconds: u64) {
        let message = format!(
            "{address}: Still {}... [{seconds}s elapsed]",
            act.begun().to_lowercase()
        );
        self.event(
            &message,
            "apply_progress",
            hook(address, act, None, Some(seconds)),
        );
    }

    pub(super) fn apply_complete(&self, address: &str, act: Act, id: &str, seconds: u64) {
        let id = Some(id).filter(|_| act != Act::Delete);
        let message = format!(
            "{address}: {} complete after {seconds}s{}",
            act.noun(),
            suffix(id)
        );
        self.event(
            &message,
            "apply_complete",
            hook(address, act, id, Some(seconds)),
        );
    }

    pub(super) fn apply_errored(&self, address: &str, act: Act, seconds: u64) {
        let message = format!("{address}: {} errored after {seconds}s", act.noun());
        self.event(
            &message,
            "apply_errored",
            hook(address, act, None, Some(seconds)),
        );
    }

    pub(super) fn planned(&self, Counts { add, remove }: Counts) {
        let message = format!("Plan: {add} to add, 0 to change, {remove} to destroy.");
        self.event(&message, "change_summary", summary("plan", add, remove));
    }

    pub(super) fn applied(&self, Counts { add, remove }: Counts) {
        let message =
            format!("Apply complete! Resources: {add} added, 0 changed, {remove} destroyed.");
        self.event(&message, "change_summary", summary("apply", add, remove));
        self.event("Outputs: 0", "outputs", json!({"outputs": {}}));
    }
}

fn summary(operation: &str, add: u64, remove: u64) -> Value {
    json!({"changes": {"add": add, "change": 0, "import": 0, "remove": remove, "operation": operation}})
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
    json!({"hook": hook})
}

/// A resource in the format of events.
fn resource(address: &str) -> Value {
    let parts = Address::parse(address);
    json!({
        "addr": address, "module": "", "resource": address, "implied_provider": parts.provider(),
        "resource_type": parts.kind, "resource_name": parts.name, "resource_key": parts.key,
    })
}
