//! Providers from the shared cache, and back into it. Without it everything goes on, only slower; so nothing here fails.

use std::{fs, io, path::PathBuf};

use super::PodWork;
use crate::providers::{Cache, Kept, Lock, Served, Serving, cli_config};

/// What a run has of the cache.
#[derive(Debug)]
pub(super) struct Cached {
    cache: Cache,
    /// As the lock file was before `init`.
    lock: Lock,
    served: Vec<Served>,
}

impl PodWork {
    /// The cache's directory, when the run may use it: code of the stack is kept from writing there, which it could if its own
    /// work lay in there, or the other way round.
    pub(super) fn provider_cache(&self) -> Option<io::Result<PathBuf>> {
        let (settings, dir) = (&self.settings, self.settings.provider_cache.as_ref()?);
        settings.machine().is_none().then(|| {
            // What is made later on the way to it could not be written.
            for dir in [dir, &settings.work] {
                fs::create_dir_all(dir)?;
            }
            let (dir, work) = (dir.canonicalize()?, settings.work.canonicalize()?);
            if dir.starts_with(&work) || work.starts_with(&dir) {
                return Err(io::Error::other("it and the work directory lie in each other"));
            }
            Ok(dir)
        })
    }

    /// Makes the run's mirror. Called before `init`, when no code of the stack has run yet.
    pub(super) async fn serve_providers(&self) {
        let (dir, stack) = {
            let known = self.known();
            (known.cache.clone(), known.stack.clone())
        };
        let (Some(dir), mirror) = (dir, self.provider_mirror()) else { return };
        let serving = tokio::task::spawn_blocking(move || {
            let cache = Cache::at(dir);
            let lock = Lock::of(&stack).map_err(|error| format!("the lock file cannot be read: {error}"))?;
            let serving = cache.serve(&lock, &mirror);
            Ok((cache, lock, serving))
        });
        match serving.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok((cache, lock, Serving { served, notes })) => {
                self.say("from the cache of providers", &served).await;
                self.say("the cache of providers", &notes).await;
                self.known().cached = Some(Cached { cache, lock, served });
            }
            Err(error) => self.say("the cache of providers", &[error]).await,
        }
    }

    /// Keeps what `init` installed.
    pub(super) async fn keep_providers(&self) {
        let (cached, stack) = {
            let known = self.known();
            (known.cached.as_ref().map(|cached| (cached.cache.clone(), cached.lock.clone())), known.stack.clone())
        };
        let Some((cache, lock)) = cached else { return };
        let children = self.children.clone();
        let kept = tokio::task::spawn_blocking(move || cache.keep(&lock, &stack.join(".terraform"), &|| children.is_stopped()));
        let kept = kept.await.unwrap_or_else(|error| Kept { notes: vec![error.to_string()], ..Kept::default() });
        self.say("kept in the cache of providers", &kept.kept).await;
        let platform = tool_versions::Platform::here();
        let why = format!(
            "not kept in the cache of providers, since the lock file has no h1: of {platform} (`providers lock` adds it)"
        );
        self.say(&why, &kept.unlisted).await;
        self.say("the cache of providers", &kept.notes).await;
    }

    async fn say(&self, what: &str, about: &[impl ToString]) {
        if !about.is_empty() {
            let about: Vec<_> = about.iter().map(ToString::to_string).collect();
            self.log.line(&self.redactor.clean(&format!("pawl: {what}: {}", about.join(", ")))).await;
        }
    }

    /// Where the run's mirror is.
    pub(super) fn provider_mirror(&self) -> PathBuf {
        self.settings.work.join("providers")
    }

    /// The tool's CLI configuration.
    pub(super) fn cli_config(&self) -> String {
        let known = self.known();
        let served = known.cached.as_ref().map_or(&[][..], |cached| &cached.served);
        cli_config(&self.settings.providers, &self.provider_mirror(), served)
    }
}
