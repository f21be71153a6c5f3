//! The Setup phase: source, tool, inputs, and the tool's environment.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crds::{Failure, HookWhen, Reason, TerraformRun};

pub(super) use super::empty_home::make_empty;
use super::{
    PhaseRunner,
    fetch::Fetched,
    git_source,
    given_files::{self, GivenFile},
    inputs,
    phase_results::{Prepared, Shell},
    terragrunt_stack,
    tool_integrity::VerifiedTool,
    tools::Origin,
    variable_files, variables,
};
use crate::{
    classify::OrInternal as _,
    files,
    plan_checksum::Facts,
    ports::{Notice, Notices, SetupReport},
    process::Bounds,
    providers::cli_config,
    sealed_inputs::SealedInputs,
};

impl PhaseRunner {
    /// Hides the pod's tokens, its Secrets and the termination message from processes started from now on, and makes shared
    /// directories read-only. If the run names its own ServiceAccount, its code finds that account's token at the default path.
    /// Without Landlock on the node, the status reports it, or the attempt fails if the operator requires confinement.
    pub(super) async fn confine(
        &self,
        run: &TerraformRun,
        notices: &Notices,
    ) -> Result<Option<PathBuf>, Failure> {
        let restores = run.attempt().is_some_and(|a| a.restores.is_some());
        let has_account = run.spec.runner.account(restores).is_some();
        let Some(hidden) = self.host.hidden(has_account) else {
            return Ok(None);
        };
        let cache = self.provider_cache();
        if let Some(Err(error)) = &cache {
            self.say(format!("the cache of providers cannot be used: {error}"))
                .await;
        }
        let cache = cache.and_then(Result::ok);
        // Other pods execute files of a shared cache, and people read the stored plan, so the stack's code may not write there. A
        // plan directory below the work directory cannot be read-only, since nothing could be created in the work directory any
        // more.
        let kept = Some(&self.settings.kept)
            .filter(|dir| dir.is_dir() && !dir.starts_with(&self.settings.work));
        let read_only = self
            .settings
            .cache
            .iter()
            .filter(|dir| dir.is_dir())
            .chain(&cache)
            .chain(kept)
            .cloned()
            .collect();
        match self.children.confine(&Bounds { hidden, read_only }) {
            Ok(()) => Ok(cache),
            Err(error) if self.settings.require_confinement => {
                let message = format!(
                    "nothing was run, since code of the stack would not be confined: this node has no Landlock ({error})"
                );
                Err(Reason::NoConfinement.failure(message))
            }
            Err(error) => {
                let _ = notices.send(Notice::Unconfined);
                self.say(format!("code of the stack could read this pod's tokens: this node has no Landlock ({error})")).await;
                if cache.is_some() {
                    self.say("nor is the cache of providers used, to which it could write")
                        .await;
                }
                Ok(None)
            }
        }
    }

    pub(super) async fn run_setup(
        &self,
        run: &Arc<TerraformRun>,
        cache: Option<PathBuf>,
        notices: &Notices,
    ) -> Result<(SetupReport, Prepared), Failure> {
        let spec = &run.spec;
        let settings = &self.settings;
        self.make_places(settings.folder.is_none().then(|| settings.source_dir()))?;
        if spec.runner.plan_service_account_name.is_some() && self.remote.is_none() {
            let message = "runner.planServiceAccountName needs a datastore: a plan is applied in another pod than made it";
            return Err(Reason::InvalidSpec.failure(message));
        }
        // Report missing inputs before anything is fetched.
        let mut given = self.inputs(run, settings.folder.is_none()).await?;
        self.check_credentials(&spec.credentials)?;
        self.fix_hooks(run, &given.env)?;
        self.run_hooks(HookWhen::BeforeSetup, None, &Vec::new(), notices)
            .await?;
        let root = settings.source_dir();
        if settings.folder.is_some() {
            self.fix_hooks_of_source(&root, &root)?;
            let origin = Origin::new("folder".to_owned(), None, root.clone(), root);
            return self.prepare_new(run, cache, given, origin, notices).await;
        }
        self.clear_for_source().await?;
        let Fetched {
            source,
            revision,
            without,
        } = self.fetch(spec, &root, notices).await?;
        let root = settings
            .top_dir()
            .canonicalize()
            .or_internal("the source cannot be read")?;
        let stack = git_source::stack(&root, spec.source.path(), &source)?;
        self.leave_out(&root, &stack, without).await?;
        self.fix_hooks_of_source(&stack, &root)?;
        remove_own_dirs(&stack)?;
        inputs::put_all(&stack, &root, &mut given)?;
        let origin = Origin::new(source, revision, stack, root);
        self.prepare_new(run, cache, given, origin, notices).await
    }

    /// Creates or empties the attempt's directories: those of every attempt, and `more`.
    pub(super) fn make_places(
        &self,
        more: impl IntoIterator<Item = PathBuf>,
    ) -> Result<(), Failure> {
        let settings = &self.settings;
        let places = [
            settings.kept.clone(),
            settings.home(),
            settings.tmp(),
            settings.out(),
        ];
        for dir in places.into_iter().chain(more) {
            make_empty(&dir).or_internal(&format!("{} cannot be made", dir.display()))?;
        }
        self.write_authorities()
    }

    /// Writes the file of certificate authorities for commands, before anything is fetched.
    fn write_authorities(&self) -> Result<(), Failure> {
        let Some(own) = &self.settings.ca else {
            return Ok(());
        };
        let path = self.settings.ca_file();
        ::source::authorities::with_own(own)
            .and_then(|all| files::write(&path, all))
            .or_internal(&format!(
                "the certificate authorities cannot be written to {}",
                path.display()
            ))
    }

    /// Setup for an existing plan: fetches nothing, and writes only to the home and temporary directories.
    pub(super) async fn run_setup_of_restored(
        &self,
        run: &Arc<TerraformRun>,
        notices: &Notices,
    ) -> Result<(SetupReport, Prepared), Failure> {
        let settings = &self.settings;
        for dir in [settings.home(), settings.tmp()] {
            make_empty(&dir).or_internal(&format!("{} cannot be made", dir.display()))?;
        }
        let given = self.inputs(run, false).await?;
        self.restore_hooks(run, &given.env, self.kept_hooks(run)?);
        let root = settings.top_dir();
        let stack = git_source::stack(&root, run.spec.source.path(), "the plan's folder")?;
        let revision = run.plan().and_then(|plan| plan.revision.clone());
        let origin = Origin::new("the plan that waits".to_owned(), revision, stack, root);
        self.prepare_new(run, None, given, origin, notices).await
    }

    /// As [`Self::prepare`], and writes the values as the code declares them. The restored files of a plan already have them.
    async fn prepare_new(
        &self,
        run: &Arc<TerraformRun>,
        cache: Option<PathBuf>,
        given: inputs::Inputs,
        origin: Origin,
        notices: &Notices,
    ) -> Result<(SetupReport, Prepared), Failure> {
        let (report, mut prepared) = self.prepare(run, cache, given, origin, notices).await?;
        variables::write_typed(&mut prepared.shell)?;
        Ok((report, prepared))
    }

    /// Finds the tool for a fetched stack.
    pub(super) async fn prepare(
        &self,
        run: &Arc<TerraformRun>,
        cache: Option<PathBuf>,
        mut given: inputs::Inputs,
        origin: Origin,
        notices: &Notices,
    ) -> Result<(SetupReport, Prepared), Failure> {
        let (spec, settings) = (&run.spec, &self.settings);
        let shown = origin.stack.strip_prefix(&origin.root);
        terragrunt_stack::refuse(&origin.stack, shown.unwrap_or(&origin.stack))?;
        let found = self
            .find_tool(
                &spec.tool,
                &origin,
                self.host.version_root(&origin.root),
                notices,
            )
            .await?;
        let variable_args = self.variable_args(&mut given, &origin)?;
        let report = SetupReport {
            revision: origin.revision,
            source: origin.source,
            tool: found.title(),
            why: found.reason(),
        };
        let tool = VerifiedTool::of(found, self.host.remembers_tools())?;
        if tool.found.beneath.is_some() {
            given_files::check_terragrunt(&given.files)?;
        }
        given_files::put_home(&given.files, &settings.home())?;
        // The run's own environment takes precedence.
        let env = self.with_git(&spec.credentials, self.host.tool_env(&given.env))?;
        let user_config = Arc::new(self.user_config(&spec.credentials)?);
        let inputs = SealedInputs::of(&given.taken).or_internal("no random bytes")?;
        let found = &tool.found;
        let facts = Facts {
            run_uid: settings.run_uid.clone(),
            tool: found.name.as_str().to_owned(),
            tool_version: found.version.to_string(),
            beneath: found.beneath.as_ref().map(|beneath| {
                (
                    beneath.name.as_str().to_owned(),
                    beneath.version.to_string(),
                )
            }),
            platform: tool_versions::Platform::here().to_string(),
            workspace: spec.workspace.clone(),
            operation: spec.operation.as_str().to_owned(),
            variables: given.variable_origins,
            env: given.env_origins,
            hooks: self.hook_facts(),
            variable_files: given
                .variable_files
                .into_iter()
                .map(|file| file.origin)
                .collect(),
            env_from: given.env_from,
            files: given.files.iter().map(GivenFile::fact).collect(),
            arguments: given.options.facts(),
            ..Facts::default()
        };
        let shell = Shell {
            stack: origin.stack,
            tool: Arc::new(tool),
            env,
            managed: origin.managed,
            backend: self.keep_backend(spec)?,
            as_plan: Arc::default(),
            rotates: spec.approval.allow_rotation,
            served: Arc::default(),
            installation: Arc::default(),
            user_config,
            options: Arc::new(given.options),
            variable_args: Arc::new(variable_args),
            texts: Arc::new(given.texts),
            files: Arc::new(given.files),
            variables: Arc::new(given.put),
            variables_dir: settings.folder.is_some().then(|| settings.kept.clone()),
        };
        variables::mask_sensitive(run, &shell, &shell.stack, &self.redactor);
        // The provider cache is not used if the run's own configuration determines where providers come from.
        let cache = cache.filter(|_| !shell.user_config.installs);
        Ok((
            report,
            Prepared {
                run: run.clone(),
                shell,
                facts,
                inputs,
                cache,
                notes: given.notes,
            },
        ))
    }

    /// Variables on the tool's command line: those of the run where no files are written beside the code, then a person's own.
    /// Later ones win.
    fn variable_args(
        &self,
        given: &mut inputs::Inputs,
        origin: &Origin,
    ) -> Result<Vec<OsString>, Failure> {
        let mut args = Vec::new();
        if self.settings.folder.is_some() {
            // A person's folder is its own repository, and variable files may not leave it.
            args = variable_files::arguments(
                &given.variable_files,
                &origin.stack,
                self.host.version_root(&origin.root),
            )?;
            if !given.variables.is_empty() {
                given.put = variable_files::of_values(&given.variables);
                let dir = &self.settings.kept;
                for path in variable_files::write_apart(&given.put, dir)? {
                    args.extend(["-var-file".into(), path.into()]);
                }
            }
        }
        args.extend(self.host.plan_args().iter().cloned());
        Ok(args)
    }

    /// Writes the tool's CLI configuration: available providers come from the mirror, all others from their registries.
    pub(super) fn write_cli_config(&self, shell: &Shell) -> Result<(), Failure> {
        let Some(path) = self.host.cli_config() else {
            return Ok(());
        };
        let text = cli_config(&shell.installation, &shell.user_config);
        // Rename replaces any existing entry, even a link.
        let fresh = path.with_extension("new");
        files::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, &path))
            .or_internal("the tool's configuration cannot be written")
    }
}

/// Removes the data directories of the tools from the source; `init` and Terragrunt create them. A directory from the repository
/// could contain plugins, modules or a backend that no reviewer saw.
fn remove_own_dirs(stack: &Path) -> Result<(), Failure> {
    [".terraform", ".terragrunt-cache"]
        .iter()
        .try_for_each(|name| {
            let dir = stack.join(name);
            let removed = match fs::symlink_metadata(&dir) {
                Ok(meta) if meta.is_dir() => fs::remove_dir_all(&dir),
                Ok(_) => fs::remove_file(&dir),
                Err(_) => Ok(()),
            };
            removed.or_internal(&format!("the source's {name} cannot be removed"))
        })
}
