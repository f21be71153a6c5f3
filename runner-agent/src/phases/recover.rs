//! A recovery run imports objects that another run created and the state lacks. The plan shows the `import` blocks.
//!
//! Objects that cannot be imported are left out and named. A plan that would create such an object again needs manual approval.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use crds::{
    Failure, FailureClass, Operation as Does, Reason, TerraformRun,
    apply_log::{
        Action, Comparison, Line, MAY_EXIST, Object, Operation, Replay,
        address::{is_address, quoted},
    },
    datastore::{NOT_ENDED, NOT_FOUND},
};

use super::{Initialised, PhaseRunner, PlanFacts, Shell};
use crate::{
    classify::{self, OrInternal as _},
    datastore::{failure, retry_for},
    files,
    ports::{Notices, PlanReport},
};

/// Name of the file with the `import` blocks.
pub const RECOVER_FILE: &str = "pawl_recover.tf";
/// Maximum size of that file in bytes; no journal yields more.
const MAX_FILE: u64 = 64 << 20;
/// Time limit for retries of a request to the datastore.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// Prefix of lines that the next journal takes over.
const CARRIED: &str = "# pawl: ";
/// Number of lines before the first block.
const HEAD_LINES: usize = 1;
/// Number of lines of a block.
const BLOCK_LINES: usize = 4;
/// Maximum number of objects named in a history entry.
const NAMED: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct Recovery {
    from: String,
    recorded: u32,
    imports: Vec<Object>,
    /// Objects that are not imported, with the reason.
    left_out: Vec<(Object, String)>,
    uncertain: Vec<Object>,
    still_recorded: usize,
}

impl Recovery {
    fn of(from: &str, comparison: Comparison) -> Self {
        let mut found = Self {
            from: from.to_owned(),
            recorded: comparison.recorded,
            uncertain: comparison.uncertain,
            still_recorded: comparison.still_recorded.len(),
            ..Self::default()
        };
        let mut addresses = BTreeSet::new();
        for object in comparison.not_recorded {
            let why = if object.id.is_none() {
                "the tool printed no ID: import it by hand".to_owned()
            } else if !is_address(&object.address) {
                "its address cannot be written down: import it by hand".to_owned()
            } else if object.occupied || !addresses.insert(object.address.clone()) {
                format!(
                    "the state has another object there: `state rm '{}'`, then recover again",
                    object.address
                )
            } else {
                found.imports.push(object);
                continue;
            };
            found.left_out.push((object, why));
        }
        found
    }

    /// The file's text: the `import` blocks, then the first lines of this run's journal.
    fn text(&self) -> String {
        // Writing to a `String` cannot fail.
        let mut text = format!(
            "# Objects that run {} created and the state lacks; written by Pawl.\n",
            self.from
        );
        for object in &self.imports {
            let id = quoted(object.id.as_deref().unwrap_or_default());
            let _ = write!(
                text,
                "import {{\n  to = {}\n  id = {id}\n}}\n",
                object.address
            );
        }
        for line in self.carried() {
            let _ = write!(
                text,
                "{CARRIED}{}",
                String::from_utf8_lossy(&line.to_bytes())
            );
        }
        text
    }

    fn carried(&self) -> impl Iterator<Item = Line> + '_ {
        let operation = |object: &Object, action| Operation {
            action,
            address: object.address.clone(),
            kind: object.kind.clone(),
            provider: String::new(),
            id: object.id.clone(),
            at: String::new(),
        };
        let imports = self
            .imports
            .iter()
            .map(move |object| Line::Complete(operation(object, Action::Import)));
        let left_out = self
            .left_out
            .iter()
            .map(move |(object, _)| Line::Complete(operation(object, Action::Create)));
        let uncertain = self.uncertain.iter().map(move |object| {
            let action = object.action.unwrap_or(Action::Create);
            Line::Start(operation(object, action))
        });
        imports.chain(left_out).chain(uncertain)
    }

    /// Moves the imports with an index in `blamed` to those left out.
    fn leave_out(&mut self, blamed: &[(usize, String)]) {
        let mut kept = Vec::new();
        for (at, object) in std::mem::take(&mut self.imports).into_iter().enumerate() {
            match blamed.iter().find(|(index, _)| *index == at) {
                Some((_, why)) => self.left_out.push((object, why.clone())),
                None => kept.push(object),
            }
        }
        self.imports = kept;
    }

    /// The imports that a failure of the plan names, each with the failure's text.
    fn blamed(&self, failure: &Failure) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for told in &failure.diagnostics {
            let words = format!(
                "{}\n{}",
                told.summary,
                told.detail.as_deref().unwrap_or_default()
            );
            let said = crds::text::clip(&words, 120);
            let line = told.line.and_then(|line| usize::try_from(line).ok());
            let block = line
                .filter(|_| {
                    told.file
                        .as_deref()
                        .is_some_and(|file| file.rsplit('/').next() == Some(RECOVER_FILE))
                })
                .and_then(|line| line.checked_sub(HEAD_LINES + 1))
                .map(|line| line / BLOCK_LINES);
            let speaks = |object: &Object| {
                told.address.as_deref() == Some(object.address.as_str())
                    || names_address(&words, &object.address)
            };
            let of_type = |object: &Object| {
                let words = words.to_lowercase();
                words.contains("import") && !object.kind.is_empty() && words.contains(&object.kind)
            };
            let all = || self.imports.iter().enumerate();
            let mut hit: Vec<usize> = match block {
                Some(block) => vec![block],
                None => all()
                    .filter(|(_, object)| speaks(object))
                    .map(|(at, _)| at)
                    .collect(),
            };
            if hit.is_empty() {
                hit = all()
                    .filter(|(_, object)| of_type(object))
                    .map(|(at, _)| at)
                    .collect();
            }
            found.extend(
                hit.into_iter()
                    .filter(|at| *at < self.imports.len())
                    .map(|at| (at, said.clone())),
            );
        }
        found
    }

    /// Objects that the plan would create although they may exist, with a line for each.
    fn again(&self, created: &BTreeSet<String>) -> Vec<String> {
        let may =
            |object: &Object, what: String| format!("+ {} ({MAY_EXIST}: {what})", object.address);
        let left_out = self.left_out.iter().map(|(object, why)| {
            let id = object
                .id
                .as_deref()
                .map(|id| format!(" id={id}"))
                .unwrap_or_default();
            (
                object,
                may(object, format!("run {} made it{id}; {why}", self.from)),
            )
        });
        let begun = |object: &&Object| object.action == Some(Action::Create);
        let uncertain = self.uncertain.iter().filter(begun);
        let uncertain = uncertain.map(|object| {
            (
                object,
                may(
                    object,
                    format!("run {} began it; no ID was printed", self.from),
                ),
            )
        });
        left_out
            .chain(uncertain)
            .filter(|(object, _)| created.contains(&object.address))
            .map(|(_, line)| line)
            .collect()
    }

    /// Addresses to look for among the objects that the plan creates.
    pub(super) fn watched(&self) -> BTreeSet<String> {
        let objects = self
            .left_out
            .iter()
            .map(|(object, _)| object)
            .chain(&self.uncertain);
        objects.map(|object| object.address.clone()).collect()
    }

    /// Notes for the history.
    fn notes(&self) -> Vec<String> {
        let mut first = format!(
            "{} imported that run {} created",
            self.imports.len(),
            self.from
        );
        if self.recorded > 0 {
            let _ = write!(first, ", {} are in the state already", self.recorded);
        }
        if !self.uncertain.is_empty() {
            let _ = write!(
                first,
                ", {} it began, with an unknown end",
                self.uncertain.len()
            );
        }
        if self.still_recorded > 0 {
            let _ = write!(
                first,
                ", {} it destroyed are still in the state",
                self.still_recorded
            );
        }
        let mut notes = vec![first];
        notes.extend(
            self.left_out
                .iter()
                .take(NAMED)
                .map(|(object, why)| format!("not imported: {object}: {why}")),
        );
        if self.left_out.len() > NAMED {
            notes.push(format!(
                "not imported: {} more, see the log",
                self.left_out.len() - NAMED
            ));
        }
        notes
    }
}

/// Whether a text contains an address as a whole word, not as the prefix of another address.
fn names_address(text: &str, address: &str) -> bool {
    text.match_indices(address).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + address.len()..].chars().next();
        let part = |c: Option<char>| {
            c.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '[' | '.'))
        };
        // A full stop after the address may end a sentence.
        let end = after == Some('.')
            && !text[at + address.len() + 1..]
                .starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        !part(before) && (end || !part(after))
    })
}

/// The lines that the journal of an apply in this stack takes over.
pub(super) fn carried(stack: &Path) -> Vec<Line> {
    let file = files::left(&stack.join(RECOVER_FILE), MAX_FILE);
    let text = file.and_then(std::io::read_to_string).unwrap_or_default();
    text.lines()
        .filter_map(|line| Line::parse(line.strip_prefix(CARRIED)?.as_bytes()))
        .collect()
}

impl PhaseRunner {
    /// Runs before the plan of a recovery run: compares the journal with the state and writes the `import` blocks.
    pub(super) async fn begin_recovery(
        &self,
        made: &Initialised,
    ) -> Result<Option<Recovery>, Failure> {
        let Initialised {
            run,
            shell,
            state_key,
            ..
        } = made;
        let Some(from) = run
            .spec
            .recover
            .as_ref()
            .map(|recover| recover.from_run.as_str())
        else {
            return Ok(None);
        };
        let replay = self.recovered_journal(from).await?;
        let own = state_key.clone().unwrap_or_default();
        let refuse = |message: String| Err(Reason::InvalidSpec.failure(message));
        if run.spec.operation == Does::RefreshOnly {
            return refuse("a refresh imports nothing: recover with operation Apply".to_owned());
        }
        if replay
            .head()
            .is_some_and(|head| !head.state.is_empty() && head.state != own && !own.is_empty())
        {
            return refuse(format!(
                "run {from} applied to another state than this run has: give it the same backend and workspace"
            ));
        }
        if !shell.tool.found.has_import_blocks() {
            return refuse(
                "a recovery needs `import` blocks: OpenTofu, or Terraform 1.5 or later".to_owned(),
            );
        }
        if fs::symlink_metadata(shell.stack.join(RECOVER_FILE)).is_ok() {
            let message =
                format!("the source has a file {RECOVER_FILE}, a name that Pawl uses for itself");
            return Err(Reason::SourceInvalid.failure(message));
        }
        let facts = self.read_state(shell).await.map_err(|why| {
            let (class, reason) =
                classify::text(&why).unwrap_or((FailureClass::Configuration, Reason::PlanFailed));
            let text =
                format!("the state cannot be compared with the journal of run {from}: {why}");
            Failure {
                class,
                ..reason.failure(text)
            }
        })?;
        let recovery = Recovery::of(from, Comparison::of(&replay, &facts));
        if run.spec.operation == Does::Destroy && !recovery.imports.is_empty() {
            return refuse(
                "a destroy imports nothing: recover with operation Apply, then destroy".to_owned(),
            );
        }
        for object in &recovery.imports {
            self.say(format!(
                "{object} was created by run {from} and is imported"
            ))
            .await;
        }
        write_recovery(&shell.stack, &recovery)?;
        Ok(Some(recovery))
    }

    async fn recovered_journal(&self, from: &str) -> Result<Replay, Failure> {
        let missing = |why: String| {
            Reason::JournalMissing
                .failure(format!("nothing can be recovered from run {from}: {why}"))
        };
        let Some(remote) = &self.remote else {
            return Err(missing(
                "without a datastore its journal is in the log of its pod only".to_owned(),
            ));
        };
        retry_for(PATIENCE, || remote.client.recovered_journal())
            .await
            .map_err(|trouble| match trouble {
                trouble if trouble.is(NOT_FOUND) || trouble.is(NOT_ENDED) => missing(trouble.why()),
                trouble => failure(
                    &format!("the journal of run {from} could not be read"),
                    &trouble,
                ),
            })
    }

    /// Runs after a failed plan: leaves out the imports that made it fail. Returns whether a retry is worthwhile.
    pub(super) async fn recover_again(
        &self,
        shell: &Shell,
        recovery: &mut Option<Recovery>,
        failure: &Failure,
        notices: &Notices,
    ) -> Result<bool, Failure> {
        let may_be_blamed = |r: &&mut Recovery| {
            !r.imports.is_empty() && failure.class == FailureClass::Configuration
        };
        let Some(recovery) = recovery.as_mut().filter(may_be_blamed) else {
            return Ok(false);
        };
        let mut blamed = recovery.blamed(failure);
        if blamed.is_empty() {
            blamed = self.find_blamed(shell, recovery, notices).await?;
        }
        if blamed.is_empty() || self.children.is_stopped() {
            return Ok(false);
        }
        recovery.leave_out(&blamed);
        for (object, why) in &recovery.left_out {
            self.say(format!("{object} is not imported: {why}")).await;
        }
        write_recovery(&shell.stack, recovery)?;
        Ok(true)
    }

    /// If a failure names no import: plans without imports, then with the imports of one type at a time.
    async fn find_blamed(
        &self,
        shell: &Shell,
        recovery: &Recovery,
        notices: &Notices,
    ) -> Result<Vec<(usize, String)>, Failure> {
        let kinds: BTreeSet<&str> = recovery
            .imports
            .iter()
            .map(|object| object.kind.as_str())
            .collect();
        let mut trial = recovery.clone();
        trial.imports.clear();
        if self.try_plan(shell, &trial, notices).await?.is_some() {
            // The failure has another cause than the imports.
            return Ok(Vec::new());
        }
        let mut blamed = Vec::new();
        for kind in kinds {
            trial.imports = recovery
                .imports
                .iter()
                .filter(|object| object.kind == kind)
                .cloned()
                .collect();
            if let Some(why) = self.try_plan(shell, &trial, notices).await? {
                let of_kind = recovery
                    .imports
                    .iter()
                    .enumerate()
                    .filter(|(_, object)| object.kind == kind);
                blamed.extend(of_kind.map(|(at, _)| (at, crds::text::clip(&why.message, 120))));
            }
        }
        Ok(blamed)
    }

    /// Returns the failure of a plan with these imports, if it fails. Discards the plan.
    async fn try_plan(
        &self,
        shell: &Shell,
        recovery: &Recovery,
        notices: &Notices,
    ) -> Result<Option<Failure>, Failure> {
        write_recovery(&shell.stack, recovery)?;
        let mut events = self.events(&shell.stack, notices).quiet();
        let command = self.command(shell, ["plan", "-json", "-input=false", "-lock=false"])?;
        let exit = self.step("plan", &command, &mut events, notices).await?;
        Ok((exit.code != 0).then(|| classify::failure("plan", exit, &events.said())))
    }
}

fn write_recovery(stack: &Path, recovery: &Recovery) -> Result<(), Failure> {
    let path = stack.join(RECOVER_FILE);
    // The failed plan ran the stack's code, which may have replaced the file.
    files::write(&path, recovery.text())
        .or_internal(&format!("{} cannot be written", path.display()))
}

/// Adds to the plan's report the recovered objects, and the objects that the plan would create although they may exist.
pub(super) fn finish_recovery(
    run: &TerraformRun,
    recovery: Option<&Recovery>,
    facts: &PlanFacts,
    report: &mut PlanReport,
) -> Result<(), Failure> {
    let Some(recovery) = recovery else {
        return Ok(());
    };
    let again = recovery.again(&facts.created);
    report.notes = recovery.notes();
    if again.is_empty() {
        return Ok(());
    }
    if run.spec.approval.is_automatic_for(&facts.counts) && run.spec.operation.applies() {
        let message = format!(
            "the plan creates {} that may exist already, and the run approves itself: {}",
            again.len(),
            again
                .iter()
                .take(NAMED)
                .map(|line| line.trim_start_matches("+ "))
                .collect::<Vec<_>>()
                .join("; ")
        );
        return Err(Reason::RecoveryUncertain.failure(message));
    }
    let plain = |line: &String| {
        again
            .iter()
            .any(|marked| marked.starts_with(&format!("{line} (")))
    };
    report.lines.retain(|line| !plain(line));
    // First, so that a status does not cut them off.
    report.lines.splice(0..0, again);
    Ok(())
}

#[cfg(test)]
mod tests;
