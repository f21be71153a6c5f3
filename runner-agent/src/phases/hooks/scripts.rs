//! Fixes the scripts of hooks at Setup, and stores them with a plan.

use std::{env, ffi::OsString, io, path::Path, sync::Arc};

use crds::{Failure, HookWhen, Reason, TerraformRun};

use super::{Fixed, KEPT, MAX_KEPT, read};
use crate::{
    classify::OrInternal as _,
    files, guard,
    hooks::{Hook, MAX_SCRIPTS},
    phases::{PhaseRunner, mounted_objects::key_of},
};

impl PhaseRunner {
    /// Fixes the scripts that are available before the source is fetched.
    pub(in crate::phases) fn fix_hooks(
        &self,
        run: &Arc<TerraformRun>,
        env: &[(String, String)],
    ) -> Result<(), Failure> {
        if run.spec.hooks.is_empty() {
            return Ok(());
        }
        let env = self.host.tool_env(env);
        let own = run.spec.hooks.iter().filter(|hook| hook.path.is_none());
        let hooks = own
            .map(|hook| self.own_script(hook, &env))
            .collect::<Result<_, _>>()?;
        *guard(&self.hooks) = Fixed {
            run: run.clone(),
            hooks: Arc::new(hooks),
            env,
            ..Fixed::default()
        };
        Ok(())
    }

    /// Fixes the scripts of the source as well. All scripts are final from here on.
    pub(in crate::phases) fn fix_hooks_of_source(
        &self,
        stack: &Path,
        root: &Path,
    ) -> Result<(), Failure> {
        let (run, known, env) = {
            let fixed = guard(&self.hooks);
            (fixed.run.clone(), fixed.hooks.clone(), fixed.env.clone())
        };
        if run.spec.hooks.is_empty() {
            return Ok(());
        }
        let mut known = known.iter().cloned();
        let mut hooks = Vec::new();
        for spec in &run.spec.hooks {
            match &spec.path {
                Some(path) => hooks.push(self.fixed(
                    spec,
                    self.script_of_source(spec, path, stack, root)?,
                    &env,
                )?),
                None => hooks.extend(known.next()),
            }
        }
        let size: usize = hooks.iter().map(|hook: &Hook| hook.script.len()).sum();
        if size > MAX_SCRIPTS {
            let text = format!(
                "the hooks have {size} bytes in all, more than {} KiB",
                MAX_SCRIPTS >> 10
            );
            return Err(Reason::HookInvalid.failure(text));
        }
        if self.host.keeps_disk() {
            self.keep_hooks(&hooks)
                .or_internal("the hooks cannot be kept")?;
        }
        guard(&self.hooks).hooks = Arc::new(hooks);
        Ok(())
    }

    /// Restores the hooks of a plan that an earlier process made.
    pub(in crate::phases) fn restore_hooks(
        &self,
        run: &Arc<TerraformRun>,
        env: &[(String, String)],
        hooks: Vec<Hook>,
    ) {
        if !hooks.is_empty() {
            let env = self.host.tool_env(env);
            *guard(&self.hooks) = Fixed {
                run: run.clone(),
                hooks: Arc::new(hooks),
                env,
                restores: true,
                values: Vec::new(),
            };
        }
    }

    /// Reads the hooks stored with a plan in a folder.
    pub(in crate::phases) fn kept_hooks(&self, run: &TerraformRun) -> Result<Vec<Hook>, Failure> {
        if run.spec.hooks.is_empty() {
            return Ok(Vec::new());
        }
        let read =
            files::left(&self.settings.kept.join(KEPT), MAX_KEPT).and_then(io::read_to_string);
        let missing = |error: &dyn std::fmt::Display| {
            Reason::StoredPlanMissing.failure(format!(
                "the hooks that the plan was made with cannot be read: {error}"
            ))
        };
        serde_json::from_str(&read.map_err(|error| missing(&error))?)
            .map_err(|error| missing(&error))
    }

    fn keep_hooks(&self, hooks: &[Hook]) -> io::Result<()> {
        files::write(
            &self.settings.kept.join(KEPT),
            serde_json::to_string(hooks)?,
        )
    }

    /// Reads a script from the run's spec or from a ConfigMap.
    fn own_script(&self, spec: &crds::Hook, env: &[(OsString, OsString)]) -> Result<Hook, Failure> {
        let name = &spec.name;
        let bytes = match (&spec.inline, &spec.config_map_key_ref) {
            (Some(text), None) => text.clone().into_bytes(),
            (None, key @ Some(_)) => {
                key_of(
                    (None, key.as_ref()),
                    &self.settings,
                    &format!("hook {name}"),
                )?
                .bytes
            }
            (Some(_), Some(_)) | (None, None) => {
                let text =
                    format!("hook {name} needs exactly one of inline, configMapKeyRef and path");
                return Err(Reason::InvalidSpec.failure(text));
            }
        };
        self.fixed(spec, bytes, env)
    }

    fn script_of_source(
        &self,
        spec: &crds::Hook,
        path: &str,
        stack: &Path,
        root: &Path,
    ) -> Result<Vec<u8>, Failure> {
        let name = &spec.name;
        if spec.inline.is_some()
            || spec.config_map_key_ref.is_some()
            || spec.when == HookWhen::BeforeSetup
        {
            let text = format!(
                "hook {name} needs exactly one of inline, configMapKeyRef and path, and no path before Setup"
            );
            return Err(Reason::InvalidSpec.failure(text));
        }
        let invalid =
            |what: &str| Reason::HookInvalid.failure(format!("hook {name}: {path} {what}"));
        let top = self.host.version_root(root);
        let top = top
            .canonicalize()
            .or_internal("the source cannot be read")?;
        let file = stack
            .join(path)
            .canonicalize()
            .map_err(|_| invalid("is not in the source"))?;
        if !file.starts_with(&top) {
            return Err(invalid("leads out of the source"));
        }
        if !file.is_file() {
            return Err(invalid("is no regular file"));
        }
        read(&file).or_internal(&format!("the script of hook {name} cannot be read"))
    }

    /// Builds the hook and checks that its interpreter exists.
    fn fixed(
        &self,
        spec: &crds::Hook,
        bytes: Vec<u8>,
        env: &[(OsString, OsString)],
    ) -> Result<Hook, Failure> {
        let hook = Hook::of(spec, bytes).map_err(|text| Reason::HookInvalid.failure(text))?;
        let (program, argument) = hook.interpreter();
        let missing = |what: &str| {
            let text = format!(
                "hook {}: its #! line wants {what}, which is not there",
                hook.name
            );
            Err(Reason::HookInvalid.failure(text))
        };
        // A program below the work directory is not checked, since an earlier hook may still create it.
        if !Path::new(program).starts_with(&self.settings.work) && !Path::new(program).is_file() {
            return missing(program);
        }
        let is_word = |word: &&str| !word.starts_with('-') && !word.contains(['=', ' ', '/']);
        if let ("/usr/bin/env", Some(word)) = (program, argument.filter(is_word)) {
            let path = env
                .iter()
                .rev()
                .find(|(name, _)| name == "PATH")
                .map(|(_, path)| path.clone())
                .unwrap_or_default();
            if !env::split_paths(&path).any(|dir| dir.join(word).is_file()) {
                return missing(word);
            }
        }
        Ok(hook)
    }
}
