//! Keeps a status within its size bound, whatever the stack prints.

use crate::{TerraformRunStatus, fields, text::clip};

/// Maximum size of a status as JSON, in bytes.
pub const MAX_STATUS_BYTES: usize = 16 * 1024;

/// Clips every text to its bound in the schema, then drops list entries, the least useful first, until the status fits.
pub fn fit(status: &mut TerraformRunStatus) {
    clip_texts(status);
    // Each step runs only when the previous ones were not enough.
    let steps: [fn(&mut TerraformRunStatus); 12] = [
        |s| shorten_changes(s, 25),
        |s| clip_details(s, 200),
        |s| shorten_journal(s, 10),
        |s| keep_last(&mut s.history, 16),
        |s| keep_last(&mut s.steps, 12),
        |s| {
            s.outputs
                .iter_mut()
                .for_each(|outputs| outputs.values.clear());
        },
        |s| shorten_changes(s, 8),
        |s| s.failure.iter_mut().for_each(|f| f.diagnostics.truncate(1)),
        |s| clip_details(s, 60),
        |s| shorten_journal(s, 3),
        |s| {
            s.history
                .iter_mut()
                .for_each(|line| *line = clip(line, 100));
        },
        |s| {
            s.message
                .iter_mut()
                .chain(&mut s.next_step)
                .chain(&mut s.advice)
                .for_each(|text| *text = clip(text, 500));
        },
    ];
    for step in steps {
        if size(status) <= MAX_STATUS_BYTES {
            return;
        }
        step(status);
    }
}

/// Shortens only the lists of the journal, until the status fits or each list has one line.
pub fn fit_journal(status: &mut TerraformRunStatus) {
    for limit in [20, 10, 5, 3, 1] {
        shorten_journal(status, limit);
        if size(status) <= MAX_STATUS_BYTES {
            return;
        }
    }
}

/// Size of the status as JSON, in bytes.
pub fn size(status: &TerraformRunStatus) -> usize {
    serde_json::to_vec(status).map_or(usize::MAX, |bytes| bytes.len())
}

fn clip_texts(status: &mut TerraformRunStatus) {
    fields::texts(status, |text, max, _| *text = clip(text, max));
    keep_last(&mut status.history, 48);
    keep_last(&mut status.steps, 32);
    shorten_changes(status, 50);
    shorten_journal(status, 20);
    status
        .failure
        .iter_mut()
        .for_each(|failure| failure.diagnostics.truncate(5));
}

fn clip_details(status: &mut TerraformRunStatus, limit: usize) {
    for d in status.failure.iter_mut().flat_map(|f| &mut f.diagnostics) {
        d.summary = clip(&d.summary, limit);
        if let Some(detail) = &mut d.detail {
            *detail = clip(detail, limit);
        }
    }
}

fn keep_last<T>(list: &mut Vec<T>, limit: usize) {
    list.drain(..list.len().saturating_sub(limit));
}

/// Keeps at most `limit` changes. A last line counts the omitted ones, including those of an earlier shortening.
fn shorten_changes(status: &mut TerraformRunStatus, limit: usize) {
    status
        .plan
        .iter_mut()
        .for_each(|plan| shorten(&mut plan.changes, limit));
}

/// Shortens each list of the journal likewise.
fn shorten_journal(status: &mut TerraformRunStatus, limit: usize) {
    if let Some(journal) = &mut status.journal {
        for list in [
            &mut journal.not_recorded,
            &mut journal.uncertain,
            &mut journal.still_recorded,
        ] {
            shorten(list, limit);
        }
    }
}

fn shorten(list: &mut Vec<String>, limit: usize) {
    let hidden: usize = list.last().map_or(0, |line| more(line));
    let shown = list.len() - usize::from(hidden > 0);
    if shown > limit {
        list.truncate(limit);
        list.push(format!("and {} more", shown - limit + hidden));
    }
}

/// The number in a line `and 212 more`; 0 for any other line.
fn more(line: &str) -> usize {
    line.strip_prefix("and ")
        .and_then(|rest| rest.strip_suffix(" more"))
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Diagnostic, Failure, PlanStatus, Reason};

    fn huge() -> TerraformRunStatus {
        let text = "é\"\n".repeat(5_000);
        let (summary, detail) = (text.clone(), Some(text.clone()));
        let diagnostic = Diagnostic {
            summary,
            detail,
            file: Some(text.clone()),
            ..Diagnostic::default()
        };
        TerraformRunStatus {
            message: Some(text.clone()),
            next_step: Some(text.clone()),
            history: vec![text.clone(); 200],
            plan: Some(PlanStatus {
                changes: vec![text.clone(); 300],
                ..PlanStatus::default()
            }),
            failure: Some(Failure {
                message: text,
                diagnostics: vec![diagnostic; 9],
                ..Reason::AgentFault.failure("")
            }),
            ..TerraformRunStatus::default()
        }
    }

    #[test]
    fn oversized_status_is_cut_to_the_limit() {
        let mut status = huge();
        fit(&mut status);
        assert!(size(&status) <= MAX_STATUS_BYTES, "{}", size(&status));
        let again = status.clone();
        fit(&mut status);
        assert_eq!(status, again, "fitting twice changes nothing");
    }

    #[test]
    fn last_line_counts_the_omitted_lines() {
        let mut status = TerraformRunStatus {
            plan: Some(PlanStatus {
                changes: vec!["+ a".into(); 262],
                ..PlanStatus::default()
            }),
            ..TerraformRunStatus::default()
        };
        fit(&mut status);
        assert_eq!(
            status.plan.as_ref().unwrap().changes.last().unwrap(),
            "and 212 more"
        );
        shorten_changes(&mut status, 25);
        assert_eq!(status.plan.unwrap().changes.last().unwrap(), "and 237 more");
    }
}
