//! The Plan phase: runs `plan`, then in parallel counts the changes, prints the text for people, and computes the checksum.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Read, Write as _},
    path::Path,
};

use crds::{Failure, FailureClass, Operation, Reason, changes_digest, names};
use kube::ResourceExt as _;

use super::{
    Events, Initialised, MAX_PLAN, PhaseRunner, PlanFacts, Planned, Shell,
    plan_file::{self, Kept},
    plan_json::read_plan,
    plan_words,
    recover::{RECOVER_FILE, Recovery, finish_recovery},
    terragrunt, variables,
};
use crate::{
    classify::{self, OrInternal as _, internal},
    files::{self, Scratch},
    ports::{Notice, Notices, PlanReport, Work},
    process::{Command, Sink as _, Source, stream},
};

const UNKEPT: &str = "the plan's text cannot be kept";

impl PhaseRunner {
    pub(super) async fn run_plan(
        &self,
        initialised: &Initialised,
        notices: &Notices,
    ) -> Result<(PlanReport, Planned), Failure> {
        let mut made = initialised.clone();
        let file = self.settings.plan_out();
        let out = format!("-out={}", file.display());
        let mut args = vec!["plan", "-json", "-input=false", &out];
        // Terragrunt ends with the exit code of a hook that failed, which may be 2.
        let by_terragrunt = made.shell.is_terragrunt();
        if !by_terragrunt {
            args.push("-detailed-exitcode");
        }
        match made.run.spec.operation {
            Operation::Destroy => args.push("-destroy"),
            Operation::RefreshOnly => args.push("-refresh-only"),
            Operation::Plan | Operation::Apply | Operation::Unknown => {}
        }
        let mut args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        args.extend(made.shell.options.plan.iter().map(OsString::from));
        // Terragrunt runs the tool beside the code that it copied and generated.
        let runs_in = if made.shell.is_terragrunt() {
            self.ran_in()
        } else {
            Some(made.shell.stack.clone())
        };
        if let Some(dir) = runs_in {
            variables::mask_sensitive(&made.run, &made.shell, &dir, &self.redactor);
            for note in variables::before_plan(&made.run, &mut made.shell, &dir)? {
                self.say(note).await;
            }
        }
        let destroys = made.run.spec.operation == Operation::Destroy;
        if destroys && self.is_kept_from_destroy(&made.shell, notices).await? {
            return Err(Reason::InvalidConfiguration.failure(terragrunt::NOT_DESTROYED));
        }
        let mut recovery = self.begin_recovery(&made).await?;
        let shell = &made.shell;
        // Terragrunt writes files of the unit within the command.
        let mut sources = if shell.is_terragrunt() {
            None
        } else {
            Some(self.read_sources(shell, &shell.stack).await?)
        };
        let mut waits = 0;
        let (said, exit) = loop {
            let mut events = self.events(&shell.stack, notices);
            let command = self.command(
                shell,
                args.iter()
                    .cloned()
                    .chain([shell.lock_timeout(waits).into()]),
            )?;
            let exit = self.step("plan", &command, &mut events, notices).await;
            self.unlink_outs();
            let exit = exit?;
            // A crash of the tool's runtime also exits with 2, so the exit code alone does not prove success.
            let ended_well = exit.code == 0 || exit.code == 2 && !by_terragrunt;
            let (said, has_read) = (events.said(), events.has_read());
            let has_ignored = shell.ignored(&said);
            if ended_well && !exit.told && file.is_file() && !(has_ignored && is_partial(&file)) {
                break (said, exit);
            }
            // A failed tool may have written a plan file too.
            if shell.is_terragrunt() && !exit.told && (exit.code == 0 || has_ignored) {
                return self.planned_nothing(made).await;
            }
            let mut failure = self.for_want_of_state(shell, classify::failure("plan", exit, &said));
            // `init` or a refresh has used the credentials. Some servers refuse good ones for a moment, so they are tried once more.
            let worked = has_read || classify::is_of_backend(&failure.message);
            if worked && failure.reason == Reason::Unauthorized && self.settings.attempt == 1 {
                failure.class = FailureClass::Transient;
            }
            if !exit.told
                && self
                    .recover_again(shell, &mut recovery, &failure, notices)
                    .await?
            {
                if let Some(sources) = &mut sources {
                    sources.reread(&shell.stack, RECOVER_FILE);
                }
                continue;
            }
            self.wait_for_lock(shell, "plan", failure, notices).await?;
            waits += 1;
        };
        let ran_in = self.ran_in();
        if made.idle {
            // The unit was excluded from `init` only. The state's place is known from here on.
            self.know_backend(&mut made)?;
        }
        let shell = &made.shell;
        // Kill the remaining processes of plan-time code, so that they cannot change files while they are measured.
        self.kill_others().await;
        self.keep_plan().await?;
        self.keep_inputs(shell, said.mocked).await?;
        let mut facts =
            PlanFacts::from(recovery.as_ref().map(Recovery::watched).unwrap_or_default());
        let refreshes = made.run.spec.operation == Operation::RefreshOnly;
        let may_change = exit.code == 2 || by_terragrunt;
        facts.lists_moves = may_change && refreshes;
        // The world differs from the state where objects drifted; outputs of the code and moves are no drift.
        let is_changed = |facts: &PlanFacts| match (refreshes, by_terragrunt) {
            (true, _) => may_change && facts.counts.drifted > 0,
            (false, true) => facts.has_changes() || facts.applyable == Some(true),
            (false, false) => exit.code == 2,
        };
        let (own, digest) = self.read_kept(facts.clone()).await?;
        let mut state = None;
        let changed = own
            .as_ref()
            .map_or(may_change, |kept| is_changed(&kept.facts));
        self.hooks_after_plan(shell, changed, notices).await?;
        self.keeps_its_providers(&shell.stack)?;
        let own = match own {
            // A plan without changes is not applied.
            Ok(kept) if may_change && kept.has_copies => {
                let origin = self.read_origin(&made, sources, ran_in.as_deref()).await?;
                state = Some(made.state(&origin.state));
                self.compare(kept, origin).await?
            }
            own => own.map(|kept| kept.facts),
        };
        if let Err(why) = &own {
            self.say(format!(
                "the plan file was not read: {why}; counts and changes are what the tool prints, and a person has to approve them"
            ))
            .await;
        }
        let own = own.as_ref();
        let reading = self.read_plan_file(shell, ran_in.as_deref(), &facts, notices);
        // A plan without changes is not printed by a second process of the tool, except at a terminal, where people expect the tool's own
        // output.
        let prints = changed || exit.code != 0 || self.host.terminal().is_some();
        let printing = async {
            if prints {
                self.print_plan(shell, ran_in.as_deref(), own, notices)
                    .await
                    .map(Some)
            } else {
                Ok(None)
            }
        };
        let checksum = self.checksum(shell, &made.facts);
        let (read, text, checksum) = if shell.is_terragrunt() {
            // If only Terragrunt can show the plan, its commands run one after the other: each may rewrite Terragrunt's copy of the unit,
            // which the others read.
            (reading.await, printing.await, checksum.await)
        } else {
            tokio::join!(reading, printing, checksum)
        };
        let (printed, json) = read?;
        let mut facts = agreed(own, printed)?;
        let unread = own
            .err()
            .map(|why| format!("the plan file was not read: {why}; these are the tool's words"))
            .or_else(|| facts.unknown());
        let other_state = match &state {
            Some(now) => self.other_state(now).await?,
            None => None,
        };
        if let Some(why) = &other_state {
            facts.counts.other_state = true;
            self.say(why).await;
        }
        let is_quiet = !facts.has_changes() && facts.counts.drifted == 0;
        if !facts.has_changes() && made.run.spec.operation != Operation::RefreshOnly {
            facts.forget_drift();
        }
        if facts.errored {
            return Err(classify::failure("plan", exit, &said));
        }
        let counted = facts.has_changes();
        if exit.code == 0 && !by_terragrunt && (counted || facts.applyable == Some(true)) {
            let message = "plan ended with 0 (no changes), but the plan file has changes";
            return Err(Reason::PlanUnreadable.failure(message));
        }
        let changes = is_changed(&facts);
        if !changes {
            self.destroys_its_own(&made, ran_in.as_deref()).await?;
        }
        let text = match text? {
            Some(text) => text,
            None if is_quiet => self.print_no_changes(shell, notices)?,
            None => {
                self.print_plan(shell, ran_in.as_deref(), own, notices)
                    .await?
            }
        };
        let (checksum, parts) = checksum?;
        // Without Landlock, code could change the file after it was read.
        if !parts.has_plan(&digest) {
            let message = "the plan file changed while it was shown";
            return Err(Reason::ChecksumMismatch.failure(message));
        }
        // Kill the processes that reading the plan left, so that they cannot change files while they are stored.
        self.kill_others().await;
        let applied = made.run.annotations().get(names::APPLIED);
        // Values of outputs are no objects: where nothing else differs from applied content, nothing drifted.
        let has_changes = changes && !(applied.is_some() && facts.counts.only_outputs());
        if changes && !has_changes {
            self.say("only outputs differ, which is no drift; nothing is applied")
                .await;
        }
        let lines = facts.lines();
        let digest = changes_digest(&lines);
        facts.counts.again = has_changes && digest.as_ref().is_some_and(|own| applied == Some(own));
        let bundle = self
            .store_plan(&made, &parts, (text, json), (has_changes, facts.counts))
            .await?;
        let (platform, state_key) = (made.facts.platform.clone(), made.state_key.clone());
        let counts = facts.counts;
        let mut report = PlanReport {
            has_changes,
            counts,
            lines,
            checksum,
            bundle,
            platform,
            state_key,
            notes: Vec::new(),
            unread,
            other_state,
        };
        finish_recovery(&made.run, recovery.as_ref(), &facts, &mut report)?;
        let planned = Planned::of(made, Some(parts), counts);
        Ok((
            report,
            Planned {
                recovers: recovery.is_some(),
                state,
                ..planned
            },
        ))
    }

    /// Moves the plan from the path the tool wrote to a path that the stack's code cannot write. This file is the plan from here
    /// on: it is shown, hashed, stored and applied.
    async fn keep_plan(&self) -> Result<(), Failure> {
        let (from, to) = (self.settings.plan_out(), self.settings.plan_file());
        let kept = tokio::task::spawn_blocking(move || {
            io::copy(&mut files::left(&from, MAX_PLAN)?, &mut files::create(&to)?)?;
            fs::remove_file(from)
        });
        match kept.await.or_internal("the plan cannot be kept")? {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let message = format!("the plan cannot be read: {error}");
                Err(Reason::PlanUnreadable.failure(message))
            }
            kept => kept.or_internal("the plan cannot be kept"),
        }
    }

    /// A file for the tool's output, if there is a datastore to upload it to.
    fn text(&self) -> Result<Option<Scratch>, Failure> {
        self.remote
            .is_some()
            .then(|| Scratch::create(&self.settings.kept))
            .transpose()
            .or_internal(UNKEPT)
    }

    /// Reads the kept plan file. Returns its digest as well.
    async fn read_kept(
        &self,
        facts: PlanFacts,
    ) -> Result<(Result<Kept, plan_file::Unread>, String), Failure> {
        const FAILED: &str = "the plan cannot be read";
        let path = self.settings.plan_file();
        let read = tokio::task::spawn_blocking(move || {
            let file = files::left(&path, MAX_PLAN)?;
            let digest = files::digest(&file)?;
            io::Result::Ok((plan_file::read(&file, facts), digest))
        });
        read.await.or_internal(FAILED)?.or_internal(FAILED)
    }

    /// Streams `show -json` through the parser. Returns the facts and a copy of the JSON.
    async fn read_plan_file(
        &self,
        shell: &Shell,
        ran_in: Option<&Path>,
        facts: &PlanFacts,
        notices: &Notices,
    ) -> Result<(PlanFacts, Option<Scratch>), Failure> {
        let file = self.settings.plan_file().display().to_string();
        let mut read = Err(internal(
            "the plan cannot be read",
            &"there is no command for it",
        ));
        for command in self.showing(shell, ran_in, &["show", "-json", &file])? {
            let facts = facts.clone();
            read = self.read_shown(shell, &command, facts, notices).await;
            if read.is_ok() || self.children.is_stopped() {
                break;
            }
        }
        read
    }

    async fn read_shown(
        &self,
        shell: &Shell,
        command: &Command,
        facts: PlanFacts,
        notices: &Notices,
    ) -> Result<(PlanFacts, Option<Scratch>), Failure> {
        let unreadable = |what: String| {
            Reason::PlanUnreadable.failure(format!("the plan cannot be read: {what}"))
        };
        let (reader, writer) =
            stream(&command.role).or_internal("there is no stream for the plan")?;
        // The JSON may be large and is printed once, so it is copied for the datastore as it is read.
        let text = self.text()?;
        let copy = text
            .as_ref()
            .map(|text| text.file().try_clone())
            .transpose()
            .or_internal(UNKEPT)?;
        let facts = tokio::task::spawn_blocking(move || {
            let reader = terragrunt::json(File::from(reader))?;
            match copy {
                Some(copy) => {
                    let mut reader = Copying {
                        reader,
                        copy: BufWriter::new(copy),
                    };
                    let facts = read_plan(&mut reader, facts).map_err(io::Error::from)?;
                    // Copy the rest after the last parsed value, if any.
                    io::copy(&mut reader, &mut io::sink())?;
                    reader.copy.flush()?;
                    Ok(facts)
                }
                None => read_plan(reader, facts).map_err(io::Error::from),
            }
        });
        let mut events = self.events(&shell.stack, notices).quiet();
        let _ = notices.send(Notice::Started("show"));
        let exit = self.children.run_into(command, writer, &mut events).await;
        let _ = notices.send(Notice::Ended("show", exit.as_ref().map_or(-1, |e| e.code)));
        let exit = exit.map_err(|error| classify::not_run("show", &error))?;
        if exit.code != 0 {
            let failure = classify::failure("show", exit, &events.said());
            return Err(if exit.signal.is_some() || exit.told {
                failure
            } else {
                unreadable(failure.message)
            });
        }
        let facts = facts.await.map_err(|error| unreadable(error.to_string()))?;
        Ok((facts.map_err(|error| unreadable(error.to_string()))?, text))
    }

    /// A processor of the plan's text that copies it to a file for the datastore.
    fn copied_events(
        &self,
        shell: &Shell,
        notices: &Notices,
    ) -> Result<(Events, Option<Scratch>), Failure> {
        let (events, text) = (self.events(&shell.stack, notices), self.text()?);
        let copy = text
            .as_ref()
            .map(|text| text.file().try_clone())
            .transpose()
            .or_internal(UNKEPT)?;
        Ok((copy.into_iter().fold(events, Events::copied), text))
    }

    /// Prints the text of a plan without changes, as `show` would.
    fn print_no_changes(
        &self,
        shell: &Shell,
        notices: &Notices,
    ) -> Result<Option<Scratch>, Failure> {
        let (mut events, text) = self.copied_events(shell, notices)?;
        events.line(
            Source::Out,
            "No changes. The objects match the configuration.",
            0,
        );
        events.finish_copy().or_internal(UNKEPT)?;
        Ok(text)
    }

    /// Runs `show -no-color` for the log. Returns a copy of the text.
    async fn print_plan(
        &self,
        shell: &Shell,
        ran_in: Option<&Path>,
        own: Result<&PlanFacts, &plan_file::Unread>,
        notices: &Notices,
    ) -> Result<Option<Scratch>, Failure> {
        let file = self.settings.plan_file().display().to_string();
        let mut args = vec!["show", "-no-color", &file];
        if self.host.terminal().is_some_and(|terminal| terminal.colour) {
            args.remove(1);
        }
        let mut printed = Ok(None);
        for command in self.showing(shell, ran_in, &args)? {
            printed = self.print_shown(shell, &command, own, notices).await;
            if printed.is_ok() || self.children.is_stopped() {
                break;
            }
        }
        printed
    }

    async fn print_shown(
        &self,
        shell: &Shell,
        command: &Command,
        own: Result<&PlanFacts, &plan_file::Unread>,
        notices: &Notices,
    ) -> Result<Option<Scratch>, Failure> {
        let (mut events, text) = self.copied_events(shell, notices)?;
        let tool = shell.tool.found.name.as_str();
        // A terminal has the status below the tool's words.
        if self.host.terminal().is_none() {
            for line in plan_words::heading(tool, own) {
                events.line(Source::Out, &line, 0);
            }
        }
        let exit = self.children.run(command, &mut events).await;
        let exit = exit.map_err(|error| classify::not_run("show", &error))?;
        if let Ok(facts) = own
            && let Some(line) = plan_words::contradiction(tool, &facts.counts, events.counts())
        {
            events.line(Source::Out, &line, 0);
            events.chunk().await;
        }
        events.finish_copy().or_internal(UNKEPT)?;
        if exit.code == 0 {
            Ok(text)
        } else {
            Err(classify::failure("show", exit, &events.said()))
        }
    }
}

/// Whether a plan file is what a failed plan left.
fn is_partial(file: &Path) -> bool {
    let read = files::left(file, MAX_PLAN)
        .ok()
        .map(|file| plan_file::read(&file, PlanFacts::default()));
    !matches!(read, Some(Ok(kept)) if !kept.facts.errored)
}

/// The facts of the plan file, with which the tool has to agree. Without them, the facts that the tool printed.
fn agreed(
    own: Result<&PlanFacts, &plan_file::Unread>,
    mut printed: PlanFacts,
) -> Result<PlanFacts, Failure> {
    let Ok(own) = own else {
        printed.counts.unread = true;
        return Ok(printed);
    };
    let mut facts = own.clone();
    facts.take_unknown(&printed);
    facts.errored |= printed.errored;
    facts.applyable = facts.applyable.or(printed.applyable);
    match own.clone().contradicted_by(printed) {
        None => Ok(facts),
        Some((file, tool)) => Err(Reason::PlanContradicted
            .failure(format!("the plan file has {file}, the tool printed {tool}"))),
    }
}

/// Copies everything that is read through it.
struct Copying<R> {
    reader: R,
    copy: BufWriter<File>,
}

impl<R: Read> Read for Copying<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.copy.write_all(&buffer[..count])?;
        Ok(count)
    }
}
