//! Serves providers from the shared cache and stores new ones in it. The cache is an optimisation, so no function here fails.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{PhaseRunner, Shell};
use crate::providers::{Cache, Kept, Lock, Serving};

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

    pub(super) fn provider_mirror(&self) -> PathBuf {
        self.settings.work.join("providers")
    }
}
