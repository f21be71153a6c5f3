//! Processes a command's output: shows it as the tool prints it, and reads diagnostics and progress from it.

mod buffered;
mod value;

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{BufWriter, Write as _},
    path::PathBuf,
    time::Duration,
};

use crds::{Changed, Diagnostic, Progress};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;

use buffered::Buffered;

use super::{
    diagnostic::ToolDiagnostic,
    journal::{Journal, Touched},
    plan_words,
};
use crate::{
    classify::{FAILED_ACTION, Said},
    ports::{Notice, Notices},
    process::{Log, Sink, Source, cut_marker},
    report::redact::Redactor,
    report::sanitize::sanitize,
};

/// Lines retained for the classification of a failure.
const TAIL: usize = 60;
/// Maximum number of diagnostics retained.
const DIAGNOSTICS: usize = 16;
/// Maximum number of counts retained.
const COUNTS: usize = 8;
/// Bytes of buffered output written at once.
const LET_GO: usize = 32 << 10;
/// Characters retained of a line, of a part of a diagnostic, and of an address, for the description of a failure.
const MAX_TEXT: usize = 2_000;
const MAX_DETAIL: usize = 8_000;
const MAX_ADDRESS: usize = 512;
/// Terragrunt's messages if it takes mocks in place of outputs.
const MOCKED: [&str; 2] = [
    "mock outputs provided and returning those",
    "fallback to mock outputs",
];
/// Maximum number of invoked actions retained.
const ACTIONS: usize = 8;
/// Minimum time between two activity notices. Observers show seconds, so more would not help.
const SIGN_EVERY: Duration = Duration::from_secs(1);

/// An event of the tool's `-json` output. Unknown fields and types are ignored.
#[derive(Deserialize, Debug)]
struct Line {
    #[serde(rename = "@level", default)]
    level: String,
    #[serde(rename = "@message", default)]
    message: String,
    #[serde(rename = "@timestamp", default)]
    at: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    diagnostic: Option<ToolDiagnostic>,
    #[serde(default, deserialize_with = "known")]
    hook: Option<Hook>,
    #[serde(default, deserialize_with = "known")]
    outputs: Option<BTreeMap<String, Output>>,
}

/// A part of an event, unless a tool gives it another form: the event's message is shown anyway.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).ok())
}

impl Line {
    /// Whether the plan's text, the list of outputs or the tool's title repeats this event.
    fn is_said_again(&self) -> bool {
        match self.kind.as_str() {
            "version"
            | "planned_change"
            | "planned_action_invocation"
            | "resource_drift"
            | "outputs" => true,
            "change_summary" => self.message.starts_with("Plan: "),
            _ => false,
        }
    }

    /// Whether the event only reports that the tool is still waiting.
    fn is_heartbeat(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "apply_progress" | "ephemeral_op_progress"
        )
    }
}

#[derive(Deserialize, Debug)]
struct Hook {
    #[serde(default)]
    resource: Option<Resource>,
    #[serde(default)]
    action: Worked,
    #[serde(default)]
    id_key: String,
    #[serde(default)]
    id_value: String,
}

/// The tool's word for its work on a resource; in events of an action (Terraform 1.14 and later) the action.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Worked {
    On(String),
    Action { addr: String },
}

impl Default for Worked {
    fn default() -> Self {
        Self::On(String::new())
    }
}

#[derive(Deserialize, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the tool's own words")]
struct Resource {
    #[serde(default)]
    addr: String,
    #[serde(default)]
    resource_type: String,
    #[serde(default)]
    implied_provider: String,
}

#[derive(Deserialize, Debug)]
struct Output {
    #[serde(default)]
    sensitive: bool,
    #[serde(default)]
    action: Option<String>,
    #[serde(default)]
    value: Option<Value>,
    #[serde(default, rename = "type")]
    kind: Value,
}

/// Strips the colour mark that `init` of both tools leaves at the start of messages about invalid code.
fn unmarked(text: &str) -> &str {
    text.strip_prefix("[reset]").unwrap_or(text)
}

/// The part of a command's standard output that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Render {
    Messages,
    /// All lines unchanged. No events are parsed, since the command is not the tool.
    Lines,
    Nothing,
}

/// Operations on resources, as an apply reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Operations {
    pub begun: u32,
    pub done: u32,
    /// Total number of operations, if the plan is known.
    pub total: u32,
}

impl Operations {
    /// Whether the events report a change. An operation that began and did not end, or failed, may have changed something.
    pub(super) fn changed(self) -> Changed {
        match (self.done, self.begun) {
            (0, 0) => Changed::None,
            (0, _) => Changed::Unknown,
            _ => Changed::Some,
        }
    }
}

/// Consumes the output of a command.
#[derive(Debug)]
pub struct Events {
    log: Log,
    redactor: Redactor,
    notices: Notices,
    render: Render,
    brief: bool,
    colour: bool,
    out: Vec<u8>,
    said: Said,
    tail: VecDeque<String>,
    operations: Operations,
    outputs: u32,
    current: Vec<String>,
    progressed: bool,
    /// The tool read an object, so its provider took the credentials.
    has_read: bool,
    /// This chunk contains something other than a heartbeat.
    happened: bool,
    told_at: Option<Instant>,
    copy: Option<BufWriter<File>>,
    copy_error: Option<std::io::Error>,
    journal: Option<Journal>,
    held: Option<Buffered>,
    /// The counts that a plan's text has, at most a few.
    counts: Vec<[u32; 3]>,
}

impl Events {
    pub(super) fn new(log: Log, redactor: Redactor, notices: Notices) -> Self {
        Self {
            log,
            redactor,
            notices,
            render: Render::Messages,
            brief: false,
            colour: false,
            out: Vec::new(),
            said: Said::default(),
            tail: VecDeque::new(),
            operations: Operations::default(),
            outputs: 0,
            current: Vec::new(),
            progressed: false,
            has_read: false,
            happened: false,
            told_at: None,
            copy: None,
            copy_error: None,
            journal: None,
            held: None,
            counts: Vec::new(),
        }
    }

    /// The counts that a plan's text has.
    pub(super) fn counts(&self) -> &[[u32; 3]] {
        &self.counts
    }

    /// Records each object's operations in a journal.
    pub(super) fn journaled(mut self, journal: Option<Journal>) -> Self {
        self.journal = journal;
        self
    }

    /// Takes the journal with the entries so far.
    pub(super) fn journal(&mut self) -> Option<Journal> {
        self.journal.take()
    }

    /// Copies the shown output to a file as well.
    pub(super) fn copied(mut self, file: File) -> Self {
        self.copy = Some(BufWriter::new(file));
        self
    }

    /// Completes the copy: flushes it, or returns its first write error.
    pub(super) fn finish_copy(&mut self) -> std::io::Result<()> {
        match self.copy_error.take() {
            Some(error) => Err(error),
            None => self.copy.take().map_or(Ok(()), |mut copy| copy.flush()),
        }
    }

    /// Sets the directory the command runs in, relative to the source.
    pub(super) fn below(mut self, below: PathBuf) -> Self {
        self.said.below = below;
        self
    }

    pub(super) fn total(mut self, total: u32) -> Self {
        self.operations.total = total;
        self
    }

    /// Leaves out the events that the plan's text repeats. Used with a terminal.
    pub(super) fn brief(mut self, brief: bool) -> Self {
        self.brief = brief;
        self
    }

    /// Retains colours. Used with a terminal.
    pub(super) fn coloured(mut self, colour: bool) -> Self {
        self.colour = colour;
        self
    }

    pub(super) fn quiet(mut self) -> Self {
        self.render = Render::Nothing;
        self
    }

    /// Treats the output as a script's: no events are parsed.
    pub(super) fn of_a_script(mut self) -> Self {
        self.render = Render::Lines;
        self
    }

    /// Buffers the output until `let_go` or `drop_held`.
    pub(super) fn held(mut self, held: bool) -> Self {
        self.held = held.then(Buffered::default);
        self
    }

    /// Shows the buffered output, now that the redactor knows all secrets.
    pub(super) async fn let_go(&mut self) {
        let Some(held) = self.held.take() else { return };
        for (source, line, cut) in held.lines() {
            self.plain(source, &line, cut);
            if self.out.len() > LET_GO {
                self.chunk().await;
            }
        }
        self.chunk().await;
    }

    /// Discards the buffered output and shows a line in its place.
    pub(super) async fn drop_held(&mut self, why: &str) {
        if self.held.take().is_some() {
            self.plain(Source::Err, why, 0);
            self.chunk().await;
        }
    }

    /// Takes the retained output for the classification of a failure.
    pub fn said(&mut self) -> Said {
        self.said.tail = self.tail.drain(..).collect();
        std::mem::take(&mut self.said)
    }

    pub(super) fn has_read(&self) -> bool {
        self.has_read
    }

    pub(super) fn operations(&self) -> Operations {
        self.operations
    }

    pub(super) fn outputs(&self) -> u32 {
        self.outputs
    }

    /// Redacts secrets and escapes terminal control sequences. Call it before truncation, since the redactor cannot find part of a
    /// secret.
    fn clean(&self, text: &str) -> String {
        self.redactor.redact(&sanitize(text, false)).into_owned()
    }

    fn show(&mut self, text: &str) {
        let clean = self.clean(text);
        self.put(text, &clean);
    }

    /// Shows a cleaned text. Retains the original colours if wanted and if no colour sequence splits a secret.
    fn put(&mut self, text: &str, clean: &str) {
        let text = if self.colour && sanitize(text, false) == clean {
            sanitize(text, true)
        } else {
            clean.into()
        };
        self.out.extend_from_slice(text.as_bytes());
        self.out.push(b'\n');
        if let Some(copy) = &mut self.copy
            && let Err(error) = copy
                .write_all(text.as_bytes())
                .and_then(|()| copy.write_all(b"\n"))
        {
            self.copy = None;
            self.copy_error = Some(error);
        }
    }

    /// Retains the beginning of a line for the description of a failure, since a program's line may be huge.
    fn keep(&mut self, clean: &str) {
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(clean.chars().take(MAX_TEXT).collect());
    }

    fn plain(&mut self, source: Source, line: &str, cut: u64) {
        let line = unmarked(line);
        let clean = if cut > 0 {
            let mut clean = self
                .redactor
                .redact_cut(&sanitize(line, false))
                .into_owned();
            clean.push_str(&cut_marker(cut));
            clean
        } else {
            self.clean(line)
        };
        self.said.mocked |= MOCKED.iter().any(|words| clean.contains(words));
        self.keep(&clean);
        if self.counts.len() < COUNTS
            && let Some(counts) = plan_words::counts(&clean)
        {
            self.counts.push(counts);
        }
        if self.render != Render::Nothing || source == Source::Err {
            self.put(line, &clean);
        }
    }

    fn event(&mut self, event: &Line) {
        if let Some(told) = &event.diagnostic {
            self.diagnostic(told);
        } else if !(self.brief && event.is_said_again()) {
            self.show(unmarked(&event.message));
        }
        if event.level == "error" && event.diagnostic.is_none() {
            // `init` reports backend errors this way.
            for line in unmarked(&event.message).lines() {
                let clean = self.clean(line);
                self.keep(&clean);
            }
        }
        if let Some(outputs) = event
            .outputs
            .as_ref()
            .filter(|outputs| event.kind == "outputs" && !outputs.is_empty())
        {
            self.print_outputs(outputs);
        }
        if let Some(hook) = &event.hook {
            self.hook(&event.kind, hook);
            self.record(event, hook);
        }
    }

    fn record(&mut self, event: &Line, hook: &Hook) {
        let (Some(journal), Some(resource)) = (&mut self.journal, &hook.resource) else {
            return;
        };
        let Worked::On(action) = &hook.action else {
            return;
        };
        let touched = Touched {
            action,
            address: &resource.addr,
            kind: &resource.resource_type,
            provider: &resource.implied_provider,
            id_key: &hook.id_key,
            id: &hook.id_value,
            at: &event.at,
        };
        journal.told(&event.kind, touched);
    }

    fn diagnostic(&mut self, told: &ToolDiagnostic) {
        // Line by line, since the redactor masks multi-line secrets by line.
        for line in told.text().lines() {
            self.show(line);
        }
        self.show("");
        if told.severity != "error" {
            return;
        }
        if self.said.diagnostics.len() == DIAGNOSTICS {
            self.said.more += 1;
            return;
        }
        let kept = |text: &str| {
            self.clean(text)
                .chars()
                .take(MAX_DETAIL)
                .collect::<String>()
        };
        let diagnostic = Diagnostic {
            severity: kept(&told.severity),
            summary: kept(&told.summary),
            detail: Some(told.explained())
                .filter(|text| !text.is_empty())
                .map(|text| kept(&text)),
            address: told.address().map(|address| kept(&address)),
            file: told.range.as_ref().map(|r| kept(&r.filename)),
            line: told.range.as_ref().map(|r| r.start.line),
        };
        self.said.diagnostics.push(diagnostic);
    }

    fn print_outputs(&mut self, outputs: &BTreeMap<String, Output>) {
        // The plan's event of this type has actions instead of values.
        if outputs.values().any(|o| o.action.is_some()) {
            return;
        }
        self.outputs = u32::try_from(outputs.len()).unwrap_or(u32::MAX);
        self.show("");
        self.show("Outputs:");
        self.show("");
        for (name, output) in outputs {
            let value = match (&output.value, output.sensitive) {
                (_, true) | (None, false) => "<sensitive>".to_owned(),
                (Some(value), false) => value::written(value, &output.kind),
            };
            // Line by line, since the redactor masks multi-line secrets by line.
            for line in format!("{name} = {value}").split('\n') {
                self.show(line);
            }
        }
    }

    fn hook(&mut self, kind: &str, hook: &Hook) {
        let resource = hook.resource.as_ref().map_or("", |r| &r.addr);
        let (address, changes) = match &hook.action {
            Worked::On(action) => (
                resource,
                matches!(action.as_str(), "create" | "update" | "delete" | "replace"),
            ),
            Worked::Action { addr } => (addr.as_str(), true),
        };
        let address: String = self.clean(address).chars().take(MAX_ADDRESS).collect();
        match kind {
            "apply_start" | "refresh_start" | "action_start" => {
                self.operations.begun += u32::from(changes && kind != "refresh_start");
                if self.current.len() < 64 {
                    self.current.push(address.clone());
                }
            }
            "apply_complete" | "apply_errored" | "refresh_complete" | "action_complete"
            | "action_errored" => {
                self.operations.done +=
                    u32::from(changes && matches!(kind, "apply_complete" | "action_complete"));
                self.has_read |= kind == "refresh_complete";
                self.current.retain(|current| *current != address);
            }
            _ => return,
        }
        if let Worked::Action { .. } = &hook.action
            && (self.said.actions.len() < ACTIONS || self.said.actions.contains_key(&address))
        {
            let end = match kind {
                "action_start" => "was begun",
                "action_complete" => "ended",
                _ => FAILED_ACTION,
            };
            self.said.actions.insert(address, end);
        }
        self.progressed = true;
    }
}

impl Sink for Events {
    fn line(&mut self, source: Source, line: &str, cut: u64) {
        if let Some(held) = &mut self.held {
            self.happened = true;
            return held.keep(source, line, cut);
        }
        // An event is an object with a type, or at least a message (lines of OpenTofu's `init -json`). Any other line is shown
        // unchanged. When interrupted, Terragrunt writes a carriage return before the next output of its tool.
        let object = line.trim_start_matches('\r');
        if source == Source::Out
            && self.render != Render::Lines
            && object.starts_with('{')
            && let Ok(event) = serde_json::from_str::<Line>(object)
            && !(event.kind.is_empty() && event.message.is_empty())
        {
            self.happened |= !event.is_heartbeat();
            self.event(&event);
        } else {
            self.happened = true;
            self.plain(source, line, cut);
        }
    }

    async fn chunk(&mut self) {
        // Activity within `SIGN_EVERY` is dropped, not reported later, when it would look new.
        if std::mem::take(&mut self.happened)
            && self.told_at.is_none_or(|at| at.elapsed() >= SIGN_EVERY)
        {
            self.told_at = Some(Instant::now());
            let _ = self.notices.send(Notice::Happened);
        }
        if std::mem::take(&mut self.progressed) {
            let progress = Progress {
                done: self.operations.done,
                total: self.operations.total,
                current: self.current.first().cloned(),
                quiet_since: None,
            };
            let _ = self.notices.send(Notice::Progress(progress));
        }
        if !self.out.is_empty() {
            self.log.write(std::mem::take(&mut self.out)).await;
        }
    }
}

#[cfg(test)]
mod tests;
