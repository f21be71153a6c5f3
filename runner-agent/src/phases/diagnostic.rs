//! A diagnostic of the tool's `-json` output: rendered as the tool prints it for people, and summarised for a status.

use std::fmt::Write as _;

use serde::Deserialize;

/// Maximum number of expression values before the explanation in a status.
const VALUES: usize = 6;

#[derive(Deserialize, Debug)]
pub(super) struct ToolDiagnostic {
    #[serde(default)]
    pub(super) severity: String,
    #[serde(default)]
    pub(super) summary: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    address: Option<String>,
    #[serde(default)]
    pub(super) range: Option<Range>,
    #[serde(default)]
    snippet: Option<Snippet>,
}

#[derive(Deserialize, Debug)]
pub(super) struct Range {
    #[serde(default)]
    pub(super) filename: String,
    pub(super) start: Position,
}

#[derive(Deserialize, Debug)]
pub(super) struct Position {
    #[serde(default)]
    pub(super) line: u32,
}

#[derive(Deserialize, Debug)]
struct Snippet {
    #[serde(default)]
    context: Option<String>,
    #[serde(default)]
    code: String,
    #[serde(default)]
    start_line: u32,
    #[serde(default)]
    values: Vec<Known>,
    #[serde(default)]
    function_call: Option<Call>,
}

/// The value of an expression that the tool reports with a diagnostic, e.g. `count.index is 1`.
#[derive(Deserialize, Debug)]
struct Known {
    #[serde(default)]
    traversal: String,
    #[serde(default)]
    statement: String,
}

#[derive(Deserialize, Debug)]
struct Call {
    #[serde(default)]
    called_as: String,
}

impl ToolDiagnostic {
    /// Renders the diagnostic as the tool prints it without `-json`.
    pub(super) fn text(&self) -> String {
        let head = if self.severity == "warning" {
            "Warning"
        } else {
            "Error"
        };
        let mut text = format!("{head}: {}\n", self.summary);
        if let Some(address) = &self.address {
            let _ = write!(
                text,
                "\n  with {address}{}",
                if self.range.is_some() { "," } else { "" }
            );
        }
        if let Some(range) = &self.range {
            let _ = write!(text, "\n  on {} line {}", range.filename, range.start.line);
            match &self.snippet {
                Some(snippet) => snippet.put(range.start.line, &mut text),
                None => text.push_str(":\n  (source code not available)"),
            }
        }
        if self.address.is_some() || self.range.is_some() {
            text.push('\n');
        }
        if !self.detail.is_empty() {
            let _ = write!(text, "\n{}", self.detail.trim_end());
        }
        text
    }

    /// The explanation, preceded by the values of expressions. Without the values, errors of several instances look the same.
    pub(super) fn explained(&self) -> String {
        let values = self
            .snippet
            .iter()
            .flat_map(|snippet| snippet.values.iter().take(VALUES));
        let values: Vec<String> = values
            .map(|known| format!("{} {}", known.traversal, known.statement))
            .collect();
        match (values.is_empty(), self.detail.is_empty()) {
            (true, _) => self.detail.clone(),
            (false, true) => format!("{}.", values.join("; ")),
            (false, false) => format!("{}.\n{}", values.join("; "), self.detail),
        }
    }

    /// The object's address, or `var.NAME` if the tool reports a variable by the block that declares it.
    pub(super) fn address(&self) -> Option<String> {
        let declared = || {
            let snippet = self
                .snippet
                .as_ref()
                .filter(|snippet| snippet.context.is_none())?;
            let (name, _) = snippet.code.strip_prefix("variable \"")?.split_once('"')?;
            Some(format!("var.{name}"))
        };
        self.address.clone().or_else(declared)
    }
}

impl Snippet {
    fn put(&self, line: u32, text: &mut String) {
        if let Some(context) = &self.context {
            let _ = write!(text, ", in {context}");
        }
        text.push(':');
        let first = if self.start_line == 0 {
            line
        } else {
            self.start_line
        };
        for (number, code) in (first..).zip(self.code.lines()) {
            let _ = write!(text, "\n{number:4}: {code}");
        }
        if self.values.is_empty() && self.function_call.is_none() {
            return;
        }
        text.push_str("\n    ├────────────────");
        if let Some(call) = &self.function_call {
            let _ = write!(text, "\n    │ while calling {}", call.called_as);
        }
        for known in &self.values {
            let _ = write!(text, "\n    │ {} {}", known.traversal, known.statement);
        }
    }
}
