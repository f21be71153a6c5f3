//! Plan: `plan`, then its reading: counts and changes, the text for people, and the checksum, side by side.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Read, Write as _},
};

use crds::{Failure, Operation, Reason};

use super::{MAX_PLAN, PlanFacts, PodWork, read_plan, terragrunt};
use crate::{
    classify::{self, internal},
    files::{self, Scratch},
    ports::{Notice, Notices, PlanReport, Work},
    process::Command,
};

impl PodWork {
    pub(super) async fn run_plan(&self, notices: &Notices) -> Result<PlanReport, Failure> {
        let file = self.settings.plan_out();
        let out = format!("-out={}", file.display());
        let mut args = vec!["plan", "-json", "-input=false", &out, "-detailed-exitcode"];
        if self.run().spec.operation == Operation::Destroy {
            args.push("-destroy");
        }
        let mut args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        args.extend(self.settings.machine().into_iter().flat_map(|machine| machine.plan_args.clone()));
        self.begin_recovery().await?;
        let mut waits = 0;
        let (mut events, exit) = loop {
            let mut events = self.events(notices);
            let command = self.command(args.iter().cloned().chain([self.lock_timeout(waits).into()]))?;
            let exit = self.step("plan", &command, &mut events, notices).await?;
            // A crash of the tool's runtime exits with 2 as well, so the exit code alone says nothing good.
            if matches!(exit.code, 0 | 2) && !exit.told && file.is_file() {
                break (events, exit);
            }
            let said = events.said();
            // A tool that failed may have written a file all the same.
            if self.is_terragrunt() && !exit.told && (exit.code == 0 || self.ignored(&said)) {
                return self.planned_nothing().await;
            }
            let failure = self.for_want_of_state(classify::failure("plan", exit, &said));
            if !exit.told && self.recover_again(&failure, notices).await? {
                continue;
            }
            self.wait_for_lock("plan", failure, notices).await?;
            waits += 1;
        };
        self.known().ran_in = self.ran_in();
        if self.known().idle {
            // Excluded from `init` alone: only now is it known where its state is.
            let (stack, workspace) = {
                let known = self.known();
                (known.stack.clone(), known.facts.workspace.clone())
            };
            self.know_backend(&stack, &workspace)?;
        }
        // Whatever plan-time code left running must not touch what is about to be measured.
        self.kill_others().await;
        self.keep_plan().await?;
        self.keeps_its_providers()?;
        let (facts, text, checksum) = if self.tool()?.beneath.is_some() {
            // Where the tool alone cannot show it Terragrunt does, each command of which may write its copy of the unit anew, which
            // the others read.
            (self.read_plan_file(notices).await, self.print_plan(notices).await, self.checksum().await)
        } else {
            tokio::join!(self.read_plan_file(notices), self.print_plan(notices), self.checksum())
        };
        let facts = facts?;
        if facts.errored {
            return Err(classify::failure("plan", exit, &events.said()));
        }
        let counted = facts.has_changes();
        if exit.code == 0 && (counted || facts.applyable == Some(true)) {
            let message = "plan ended with 0 (no changes), but the plan file has changes";
            return Err(Reason::PlanUnreadable.failure(message));
        }
        text?;
        let (checksum, parts) = checksum?;
        self.known().parts = Some(parts);
        // Nor what their reading left running what is about to be kept.
        self.kill_others().await;
        self.known().planned = facts.counts.operations();
        let has_changes = exit.code == 2;
        let bundle = self.store_plan(has_changes).await?;
        let (platform, state_key) = {
            let known = self.known();
            (known.facts.platform.clone(), known.state_key.clone())
        };
        let (counts, lines) = (facts.counts, facts.lines());
        let mut report = PlanReport { has_changes, counts, lines, checksum, bundle, platform, state_key, notes: Vec::new() };
        self.finish_recovery(&facts, &mut report)?;
        Ok(report)
    }

    /// Takes the plan from where the tool wrote it to where code of the stack writes nothing. From here on this file is the plan: it is
    /// shown, hashed, kept and applied.
    async fn keep_plan(&self) -> Result<(), Failure> {
        let (from, to) = (self.settings.plan_out(), self.settings.plan_file());
        let kept = tokio::task::spawn_blocking(move || {
            io::copy(&mut files::left(&from, MAX_PLAN)?, &mut files::create(&to)?)?;
            fs::remove_file(from)
        });
        match kept.await.map_err(|error| internal("the plan cannot be kept", &error))? {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let message = format!("the plan cannot be read: {error}");
                Err(Reason::PlanUnreadable.failure(message))
            }
            kept => kept.map_err(|error| internal("the plan cannot be kept", &error)),
        }
    }

    /// A file for what the tool prints, where there is a datastore to have it.
    fn text(&self) -> Result<Option<Scratch>, Failure> {
        let text = self.remote.is_some().then(|| Scratch::create(&self.settings.kept)).transpose();
        text.map_err(|error| internal("what the tool says of the plan cannot be kept", &error))
    }

    /// `show -json`, read as it comes.
    async fn read_plan_file(&self, notices: &Notices) -> Result<PlanFacts, Failure> {
        let file = self.settings.plan_file().display().to_string();
        let mut read = Err(internal("the plan cannot be read", &"there is no command for it"));
        for command in self.showing(&["show", "-json", &file])? {
            read = self.read_shown(&command, notices).await;
            if read.is_ok() || self.children.is_stopped() {
                break;
            }
        }
        read
    }

    async fn read_shown(&self, command: &Command, notices: &Notices) -> Result<PlanFacts, Failure> {
        let unreadable = |what: String| Reason::PlanUnreadable.failure(format!("the plan cannot be read: {what}"));
        let (reader, writer) = io::pipe().map_err(|error| internal("no pipe", &error))?;
        // Kept for the datastore on its way: it may be large, and it is printed once.
        let text = self.text()?;
        let copy = text.as_ref().map(|text| text.file().try_clone()).transpose();
        let copy = copy.map_err(|error| internal("the plan's JSON cannot be kept", &error))?;
        self.known().texts.1 = text;
        let watched = self.watched();
        let facts = tokio::task::spawn_blocking(move || {
            let reader = terragrunt::json(reader)?;
            match copy {
                Some(copy) => {
                    let mut reader = Copying { reader, copy: BufWriter::new(copy) };
                    let facts = read_plan(&mut reader, watched).map_err(io::Error::from)?;
                    // What follows the last value that is read, if anything.
                    io::copy(&mut reader, &mut io::sink())?;
                    reader.copy.flush()?;
                    Ok(facts)
                }
                None => read_plan(reader, watched).map_err(io::Error::from),
            }
        });
        let mut events = self.events(notices).quiet();
        let _ = notices.send(Notice::Started("show"));
        let exit = self.children.run_into(command, writer, &mut events).await;
        let _ = notices.send(Notice::Ended("show", exit.as_ref().map_or(-1, |e| e.code)));
        let exit = exit.map_err(|error| classify::not_run("show", &error))?;
        if exit.code != 0 {
            let failure = classify::failure("show", exit, &events.said());
            return Err(if exit.signal.is_some() || exit.told { failure } else { unreadable(failure.message) });
        }
        facts.await.map_err(|error| unreadable(error.to_string()))?.map_err(|error| unreadable(error.to_string()))
    }

    /// `show -no-color`, for the log.
    async fn print_plan(&self, notices: &Notices) -> Result<(), Failure> {
        let file = self.settings.plan_file().display().to_string();
        let mut args = vec!["show", "-no-color", &file];
        if self.settings.machine().is_some_and(|machine| machine.colour) {
            args.remove(1);
        }
        let mut printed = Ok(());
        for command in self.showing(&args)? {
            printed = self.print_shown(&command, notices).await;
            if printed.is_ok() || self.children.is_stopped() {
                break;
            }
        }
        printed
    }

    async fn print_shown(&self, command: &Command, notices: &Notices) -> Result<(), Failure> {
        let mut events = self.events(notices);
        let text = self.text()?;
        if let Some(text) = &text {
            let copy = text.file().try_clone().map_err(|error| internal("the plan's text cannot be kept", &error))?;
            events = events.copied(copy);
        }
        self.known().texts.0 = text;
        let exit = self.children.run(command, &mut events).await;
        let exit = exit.map_err(|error| classify::not_run("show", &error))?;
        events.finish_copy().map_err(|error| internal("the plan's text cannot be kept", &error))?;
        if exit.code == 0 { Ok(()) } else { Err(classify::failure("show", exit, &events.said())) }
    }
}

/// Reads, and keeps what was read.
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
