//! Setup: source, tool, inputs, and the environment of the tool.

use std::{
    ffi::OsString,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use crds::{Failure, FailureClass, Operation, contract, datastore, reason};

pub(super) use super::anew::make_empty;
use super::{PodWork, inputs, source, tools::Pinned};
use crate::{
    classify::{internal, simple},
    datastore::sealed_inputs::SealedInputs,
    files,
    plan_checksum::Facts,
    ports::{Notice, Notices, SetupReport},
    process::Bounds,
};

/// A source that is on disk.
pub(super) struct Origin {
    /// Where it is from, in words.
    pub(super) source: String,
    pub(super) revision: Option<String>,
    pub(super) stack: PathBuf,
    pub(super) root: PathBuf,
    /// The very tool that has to be used.
    pub(super) pinned: Option<Pinned>,
}

impl PodWork {
    /// Keeps the pod's tokens, its Secrets, and the message that the agent leaves for the kubelet, out of reach of what is started from
    /// now on, and what pods share as it is. Who names an account of his own names it for his code: that code finds its token where clients look
    /// for it. Where the node cannot do that, the status says so, or the attempt fails, as the operator wants it.
    pub(super) async fn confine(&self, notices: &Notices) -> Result<(), Failure> {
        if self.settings.machine().is_some() {
            return Ok(());
        }
        let run = self.run();
        let restores = run.status.as_ref().and_then(|status| status.attempt.as_ref()).is_some_and(|a| a.restores.is_some());
        let own = run.spec.runner.account(restores).is_none().then_some(contract::TOKEN_DIR);
        let fixed = [datastore::TOKEN_DIR, contract::TERMINATION_LOG];
        let mut hidden: Vec<PathBuf> = fixed.into_iter().chain(own).map(PathBuf::from).collect();
        // Of Secrets the agent gives the code what the run says; a credential for the source is none of that.
        hidden.extend([self.settings.mirrors.clone(), self.settings.secrets.clone()]);
        let cache = self.provider_cache();
        if let Some(Err(error)) = &cache {
            self.log.line(&format!("pawl: the cache of providers cannot be used: {error}")).await;
        }
        let cache = cache.and_then(Result::ok);
        // Other pods run what is in a cache that they share, and people read the plan that is kept. Below the work directory it could not
        // be kept apart: nothing could be made there any more.
        let kept = Some(&self.settings.kept).filter(|dir| dir.is_dir() && !dir.starts_with(&self.settings.work));
        let read_only = self.settings.cache.iter().filter(|dir| dir.is_dir()).chain(&cache).chain(kept).cloned().collect();
        match self.children.confine(&Bounds { hidden, read_only }) {
            Ok(()) => self.known().cache = cache,
            Err(error) if self.settings.require_confinement => {
                let message = format!(
                    "nothing was run, since code of the stack would not be confined: this node has no Landlock ({error})"
                );
                return Err(simple(FailureClass::Policy, reason::NO_CONFINEMENT, message));
            }
            Err(error) => {
                let _ = notices.send(Notice::Unconfined);
                let text = format!("pawl: code of the stack could read this pod's tokens: this node has no Landlock ({error})");
                self.log.line(&text).await;
                if cache.is_some() {
                    self.log.line("pawl: nor is the cache of providers used, to which it could write").await;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn run_setup(&self, notices: &Notices) -> Result<SetupReport, Failure> {
        let run = self.run();
        let spec = &run.spec;
        let settings = &self.settings;
        self.make_places(settings.in_place().is_none().then(|| settings.source_dir()))?;
        if spec.runner.plan_service_account_name.is_some() && self.remote.is_none() && settings.machine().is_none() {
            let message = "runner.planServiceAccountName needs a datastore: a plan is applied in another pod than made it";
            return Err(simple(FailureClass::Configuration, reason::INVALID_SPEC, message));
        }
        // What is missing is said before anything is fetched.
        let given = inputs::gather(spec, settings, &self.redactor)?;
        let root = settings.source_dir();
        let (source, revision, path) = match (&spec.source.git, &spec.source.inline) {
            _ if settings.in_place().is_some() => {
                let origin = Origin { source: "folder".to_owned(), revision: None, stack: root.clone(), root, pinned: None };
                return self.prepare(given, origin, notices).await;
            }
            (Some(git), None) => {
                let commit = self.fetch_git(git, notices).await?;
                let short: String = commit.chars().take(7).collect();
                (format!("git {short} of {}", git.revision), Some(commit), git.path.clone())
            }
            (None, Some(inline)) => {
                source::write_inline(inline, &root)?;
                let count = inline.files.len();
                (format!("inline, {count} file{}", if count == 1 { "" } else { "s" }), None, ".".to_owned())
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(simple(
                    FailureClass::Configuration,
                    reason::INVALID_SPEC,
                    "the source needs exactly one of git and inline",
                ));
            }
        };
        source::check_links(&root)?;
        let stack = source::stack(&root, &path, &source)?;
        let root = root.canonicalize().map_err(|error| internal("the source cannot be read", &error))?;
        remove_own_dirs(&stack)?;
        inputs::write(&stack, spec, &given.variables)?;
        if self.wants_managed_state(&stack) {
            self.name_managed_state(&stack).await?;
        }
        self.prepare(given, Origin { source, revision, stack, root, pinned: None }, notices).await
    }

    /// Makes the directories of the attempt, which are empty then: those of every attempt, and these.
    pub(super) fn make_places(&self, more: impl IntoIterator<Item = PathBuf>) -> Result<(), Failure> {
        let settings = &self.settings;
        let places = [settings.kept.clone(), settings.home(), settings.tmp(), parent(&settings.plan_out())];
        for dir in places.into_iter().chain(more) {
            make_empty(&dir).map_err(|error| internal(&format!("{} cannot be made", dir.display()), &error))?;
        }
        self.write_authorities()
    }

    /// Setup for a plan that is there already: nothing is fetched and nothing is written but where temporary files go.
    pub(super) async fn run_setup_of_restored(&self, notices: &Notices) -> Result<SetupReport, Failure> {
        let settings = &self.settings;
        for dir in [settings.home(), settings.tmp()] {
            make_empty(&dir).map_err(|error| internal(&format!("{} cannot be made", dir.display()), &error))?;
        }
        let run = self.run();
        let given = inputs::gather(&run.spec, settings, &self.redactor)?;
        let root = settings.source_dir();
        let path = run.spec.source.git.as_ref().map_or(".", |git| git.path.as_str());
        let stack = source::stack(&root, path, "the plan's folder")?;
        let revision = run.status.as_ref().and_then(|status| status.plan.as_ref()).and_then(|plan| plan.revision.clone());
        self.prepare(given, Origin { source: "the plan that waits".to_owned(), revision, stack, root, pinned: None }, notices)
            .await
    }

    /// Finds the tool for a stack that is there, and keeps what later phases need to know.
    pub(super) async fn prepare(&self, given: inputs::Inputs, origin: Origin, notices: &Notices) -> Result<SetupReport, Failure> {
        let run = self.run();
        let (spec, settings) = (&run.spec, &self.settings);
        let top = settings.machine().filter(|machine| machine.stack.is_some()).map_or(&origin.root, |machine| &machine.root);
        let found = self.find_tool(&spec.tool, &origin, top, notices).await?;
        let report = SetupReport { revision: origin.revision, source: origin.source, tool: found.title(), why: found.reason() };
        self.prove_tool(&found)?;
        let env = self.tool_env(&given.env);
        let inputs = SealedInputs::of(&given.taken).map_err(|error| internal("no random bytes", &error))?;
        let mut known = self.known();
        known.facts = Facts {
            run_uid: settings.run_uid.clone(),
            tool: found.name.as_str().to_owned(),
            tool_version: found.version.to_string(),
            beneath: found.beneath.as_ref().map(|beneath| (beneath.name.as_str().to_owned(), beneath.version.to_string())),
            platform: tool_versions::Platform::here().to_string(),
            workspace: spec.workspace.clone(),
            operation: match spec.operation {
                Operation::Plan => "Plan",
                Operation::Apply => "Apply",
                Operation::Destroy => "Destroy",
                // An attempt of such a run is not adopted.
                Operation::Unknown => "Unknown",
            }
            .to_owned(),
            variables: given.variable_origins,
            env: given.env_origins,
            ..Facts::default()
        };
        known.inputs = inputs;
        known.env = env;
        known.stack = origin.stack;
        known.tool = Some(found);
        Ok(report)
    }

    /// The environment of the tool: nothing of ours but what is listed here, then what the run says.
    fn tool_env(&self, own: &[(String, String)]) -> Vec<(OsString, OsString)> {
        let settings = &self.settings;
        let mut env = settings.inherited.clone();
        // One program reads the name of a proxy in capitals first, another the small one: a run that says either means both.
        let is_said = |name: &OsString| own.iter().any(|(own, _)| name.eq_ignore_ascii_case(own));
        let is_proxy = |name: &OsString| name.to_ascii_lowercase().to_string_lossy().ends_with("_proxy");
        env.retain(|(name, _)| !(is_proxy(name) && is_said(name)));
        let mut set = |name: &str, value: OsString| env.push((name.into(), value));
        if settings.machine().is_some() {
            // A person's own environment, tool configuration and credentials; only what would ask is kept from asking.
            for (name, value) in [("TF_IN_AUTOMATION", "1"), ("TF_INPUT", "0"), ("GIT_TERMINAL_PROMPT", "0")] {
                set(name, value.into());
            }
            return env;
        }
        if !settings.inherited.iter().any(|(name, _)| name == "PATH") {
            set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
        }
        set("HOME", settings.home().into());
        set("TMPDIR", settings.tmp().into());
        set("USER", "pawl".into());
        set("LANG", "C.UTF-8".into());
        set("TF_IN_AUTOMATION", "1".into());
        set("TF_INPUT", "0".into());
        set("CHECKPOINT_DISABLE", "1".into());
        // A prompt for a password is one that nobody sees.
        set("GIT_TERMINAL_PROMPT", "0".into());
        set("TF_CLI_CONFIG_FILE", self.cli_config_path().into());
        for (name, value) in own {
            set(name, value.into());
        }
        env
    }

    fn cli_config_path(&self) -> PathBuf {
        self.settings.kept.join("pawl.tfrc")
    }

    /// Writes the tool's CLI configuration: providers that are at hand come from there, all others from where they are.
    pub(super) fn write_cli_config(&self) -> Result<(), Failure> {
        if self.settings.machine().is_some() {
            return Ok(());
        }
        let path = self.cli_config_path();
        let text = self.cli_config();
        // In place of whatever stands there, be it a link.
        let fresh = path.with_extension("new");
        files::create(&fresh)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|error| internal("the tool's configuration cannot be written", &error))
    }
}

pub(super) fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_path_buf()
}

/// The tool's own directory is made by `init`, and Terragrunt's by itself; one from the repository could hold plugins, modules or a
/// backend nobody reviewed.
fn remove_own_dirs(stack: &Path) -> Result<(), Failure> {
    [".terraform", ".terragrunt-cache"].iter().try_for_each(|name| {
        let dir = stack.join(name);
        let removed = match fs::symlink_metadata(&dir) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&dir),
            Ok(_) => fs::remove_file(&dir),
            Err(_) => Ok(()),
        };
        removed.map_err(|error| internal(&format!("the source's {name} cannot be removed"), &error))
    })
}
