//! Restores an earlier attempt's plan from the datastore to its original path, without planning again.

use std::{path::PathBuf, sync::Arc};

use crds::{Failure, HookWhen, Reason, TerraformRun, datastore::ObjectKind};

use super::{
    Initialised, PhaseRunner, Planned, git_source, given_files,
    tools::{Origin, Pinned},
    variable_files,
};
use crate::{
    classify::{OrInternal as _, internal},
    datastore::{
        bundle::{self, BundleError},
        failure, get_file, retry_for,
    },
    files,
    ports::{Notices, SetupReport},
};

/// Time limit for retries of a request to the datastore.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

impl PhaseRunner {
    /// Downloads the bundle, checks it against the digest in the status, and unpacks it at the same path. Then runs `init` with the
    /// same tool for its providers and backend.
    pub(super) async fn run_restore_from_store(
        &self,
        run: &Arc<TerraformRun>,
        cache: Option<PathBuf>,
        notices: &Notices,
    ) -> Result<(SetupReport, Planned), Failure> {
        let settings = &self.settings;
        let corrupt = |what: String| Reason::StoredPlanCorrupt.failure(what);
        let plan = run.plan().cloned().unwrap_or_default();
        let (Some(remote), Some(wanted)) = (&self.remote, plan.bundle.clone()) else {
            return Err(Reason::StoredPlanMissing.failure("the plan is not with any datastore"));
        };
        self.make_places([settings.source_dir()])?;
        let mut given = self.inputs(run, false).await?;
        let taken = retry_for(PATIENCE, || {
            get_file(
                &remote.client,
                ObjectKind::Bundle,
                plan.attempt,
                &settings.kept,
            )
        })
        .await;
        let file = match taken {
            Ok(file) => file,
            Err(trouble) => {
                // The bundle may be missing because the run was claimed and has ended, and the cluster was restored from an older backup.
                // Then report the recorded claim as the reason.
                if trouble.is(crds::datastore::NOT_FOUND) {
                    self.prove_claim(run).await?;
                }
                return Err(failure(
                    "the plan could not be taken from the datastore",
                    &trouble,
                ));
            }
        };
        let root = settings.source_dir();
        let (to, source_dir) = (settings.plan_file(), root.clone());
        let unpacked =
            tokio::task::spawn_blocking(move || bundle::unpack(&file, &wanted, &to, &source_dir))
                .await
                .or_internal("the plan cannot be unpacked")?;
        let head = unpacked.map_err(|error| match error {
            BundleError::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                internal("the plan cannot be unpacked", &error)
            }
            other => corrupt(format!(
                "the bundle in the datastore is not the plan: {other}"
            )),
        })?;
        files::write(&settings.top_file(), &head.top)
            .or_internal("the name of the source's directory cannot be written")?;
        let code = given.bring_code(&head.inputs);
        if !code.is_empty() {
            let message = format!(
                "{} changed since the plan and would bring code or a path that the approval does not cover; plan again",
                code.join(", ")
            );
            return Err(Reason::InputsChanged.failure(message));
        }
        let changed = head.inputs.changed(&given.taken);
        if !changed.is_empty() && !run.spec.approval.allow_rotation {
            let message = format!(
                "{} changed since the plan, in the Secret, ConfigMap or stack it comes from; plan again, or allow it by \
                 spec.approval.allowRotation",
                changed.join(", ")
            );
            return Err(Reason::InputsChanged.failure(message));
        }
        self.restore_hooks(run, &given.env, head.hooks.clone());
        if let Some(given) = &head.given {
            self.put_inputs(given)?;
        }
        // Links may lead anywhere, as in the pod that made the plan. Setup refused links of the source that lead out.
        let stack = git_source::stack(
            &root,
            &head.stack.display().to_string(),
            "the plan's source",
        )?;
        let root = settings
            .top_dir()
            .canonicalize()
            .or_internal("the source cannot be read")?;
        given_files::put_apart_again(&given.files, &stack)?;
        given.put = variable_files::kept(&stack)?;
        if head.managed {
            self.offer_state().await?;
        }
        let origin = Origin {
            source: format!("plan of attempt {}", plan.attempt),
            revision: plan.revision.clone(),
            stack,
            root,
            managed: head.managed,
            pinned: Some(Pinned::of(&head).ok_or_else(|| {
                corrupt(format!(
                    "the plan is of {}, which is no tool of ours",
                    head.tool
                ))
            })?),
        };
        let (report, prepared) = self.prepare(run, cache, given, origin, notices).await?;
        let mut shell = prepared.shell.clone();
        self.run_hooks_again(&shell, notices).await?;
        let mut args = vec![
            "init",
            "-input=false",
            "-no-color",
            "-get=false",
            "-lockfile=readonly",
        ];
        if shell.tool.found.has_init_json() && !shell.is_terragrunt() {
            args.push("-json");
        }
        let placed = shell.place_backend()?;
        let more = placed.arg.as_ref().map(|arg| arg.to_string_lossy());
        args.extend(more.as_deref());
        let cached = self
            .serve_providers(prepared.cache.clone(), &mut shell)
            .await;
        self.choose_installation(&mut shell);
        shell.enter_workspace(&run.spec.workspace);
        self.run_tool_init(&mut shell, &args, notices).await?;
        self.keep_providers(cached, &shell.stack).await;
        let mut made = Initialised::of(&prepared, shell);
        self.know_backend(&mut made)?;
        self.run_hooks(HookWhen::AfterInit, Some(&made.shell), &Vec::new(), notices)
            .await?;
        Ok((report, Planned::of(made, head.parts, plan.counts)))
    }
}
