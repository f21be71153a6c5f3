//! Where `init` takes providers from: the shared cache, which also stores new ones, mirrors and registries. The cache is an optimisation:
//! its errors are only logged.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crds::{Failure, FailureClass, reason};

use super::{PhaseRunner, Shell};
use crate::{
    classify::Said,
    ports::Notices,
    providers::{Cache, Installation, Kept, Lock, Serving},
};

/// The tools' words for a package of a mirror that the lock file does not list.
const OTHER_PACKAGE: &str = "match any of the checksums";

/// Init's handle on the cache.
#[derive(Debug)]
pub(super) struct Cached {
    cache: Cache,
    /// The lock file before `init`.
    lock: Lock,
}

impl PhaseRunner {
    /// The cache's directory, if the run may use it. Refuses a cache that contains the work directory or lies in it, since the
    /// stack's code could write to it.
    pub(super) fn provider_cache(&self) -> Option<io::Result<PathBuf>> {
        let (settings, dir) = (&self.settings, self.settings.provider_cache.as_ref()?);
        let apart = || -> io::Result<PathBuf> {
            // Create both now. Later ones could not be created under confinement.
            for dir in [dir, &settings.work] {
                fs::create_dir_all(dir)?;
            }
            let (dir, work) = (dir.canonicalize()?, settings.work.canonicalize()?);
            if dir.starts_with(&work) || work.starts_with(&dir) {
                return Err(io::Error::other(
                    "it and the work directory lie in each other",
                ));
            }
            Ok(dir)
        };
        Some(apart())
    }

    /// Creates the run's mirror. Call it before `init`, when no code of the stack has run yet.
    pub(super) async fn serve_providers(
        &self,
        cache: Option<PathBuf>,
        shell: &mut Shell,
    ) -> Option<Cached> {
        let (dir, stack, mirror) = (cache?, shell.stack.clone(), self.provider_mirror());
        let serving = tokio::task::spawn_blocking(move || {
            let cache = Cache::at(dir);
            let lock = Lock::of(&stack)
                .map_err(|error| format!("the lock file cannot be read: {error}"))?;
            let serving = cache.serve(&lock, &mirror);
            Ok((cache, lock, serving))
        });
        match serving.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok((cache, lock, Serving { served, notes })) => {
                self.say_of("from the cache of providers", &served).await;
                self.say_of("the cache of providers", &notes).await;
                shell.served = Arc::new(served);
                Some(Cached { cache, lock })
            }
            Err(error) => {
                self.say_of("the cache of providers", &[error]).await;
                None
            }
        }
    }

    /// Stores the providers that `init` installed.
    pub(super) async fn keep_providers(&self, cached: Option<Cached>, stack: &Path) {
        let Some(Cached { cache, lock }) = cached else {
            return;
        };
        let data = stack.join(".terraform");
        let children = self.children.clone();
        let kept = tokio::task::spawn_blocking(move || {
            cache.keep(&lock, &data, &|| children.is_stopped())
        });
        let kept = kept.await.unwrap_or_else(|error| Kept {
            notes: vec![error.to_string()],
            ..Kept::default()
        });
        self.say_of("kept in the cache of providers", &kept.kept)
            .await;
        let platform = tool_versions::Platform::here();
        let why = format!(
            "not kept in the cache of providers, since the lock file has no h1: of {platform} (`providers lock` adds it)"
        );
        self.say_of(&why, &kept.unlisted).await;
        self.say_of("the cache of providers", &kept.notes).await;
    }

    async fn say_of(&self, what: &str, about: &[impl ToString]) {
        if !about.is_empty() {
            let about: Vec<_> = about.iter().map(ToString::to_string).collect();
            self.say(format!("{what}: {}", about.join(", "))).await;
        }
    }

    /// Decides where `init` takes providers from. Call it before `init`, when no code of the stack has run yet.
    pub(super) fn choose_installation(&self, shell: &mut Shell) {
        let lock = Lock::of(&shell.stack).unwrap_or_default();
        let upgrades = ["-upgrade", "-upgrade=true"];
        let upgrades = shell
            .options
            .init
            .iter()
            .any(|arg| upgrades.contains(&arg.as_str()));
        let (image, mirror) = (&self.settings.providers, self.provider_mirror());
        shell.installation =
            Installation::of(image, &mirror, &shell.served, &lock, upgrades).into();
    }

    /// Runs `init`: again with the mirrors alone if a registry cannot be reached, and without a mirror if it has another package than the
    /// lock file lists.
    pub(super) async fn run_tool_init(
        &self,
        shell: &mut Shell,
        args: &[&str],
        notices: &Notices,
    ) -> Result<Said, Failure> {
        let failure = match self.tool_step(shell, "init", args, notices).await {
            Err(failure) => failure,
            said => return said,
        };
        let first = shell.installation.clone();
        let is_away = failure.class == FailureClass::Transient
            && failure.reason != reason::BACKEND_UNREACHABLE;
        let other = if shell.user_config.installs || self.host.cli_config().is_none() {
            None
        } else if is_away {
            first.offline()
        } else if failure.message.contains(OTHER_PACKAGE) {
            first.without(&failure.message)
        } else {
            None
        };
        if let Some(other) = other.filter(|_| !self.children.is_stopped()) {
            self.say(other.note.clone().unwrap_or_default()).await;
            shell.installation = other.into();
            let again = self.tool_step(shell, "init", args, notices).await;
            if again.is_ok() {
                return again;
            }
        }
        let answered = first.answered(&failure.message);
        let message = [vec![failure.message], answered].concat().join("; ");
        Err(Failure { message, ..failure })
    }

    pub(super) fn provider_mirror(&self) -> PathBuf {
        self.settings.work.join("providers")
    }
}
