//! Finds or installs the tool of an attempt, in Setup.

use std::{
    io,
    path::{Path, PathBuf},
};

use crds::{Failure, Reason, Tool, ToolName};
use tokio::runtime::Handle;
use tool_versions::install::Ask;

use super::PhaseRunner;
use crate::{
    classify,
    datastore::bundle::{Head, ToolHead},
    ports::{Notice, Notices},
    process::{Command, Role, RunError, Sink, Source},
    tool::{
        Found, Search, ToolSources,
        find::{Told, failed},
    },
};

/// Name of the install step among a run's steps.
const STEP: &str = "install";

/// The first line of a command's standard output.
#[derive(Default)]
struct Said(String);

impl Sink for Said {
    fn line(&mut self, source: Source, line: &str, _cut: u64) {
        if source == Source::Out && self.0.is_empty() {
            line.clone_into(&mut self.0);
        }
    }

    async fn chunk(&mut self) {}
}

/// A source on disk.
pub(super) struct Origin {
    /// Its origin in words.
    pub(super) source: String,
    pub(super) revision: Option<String>,
    pub(super) stack: PathBuf,
    pub(super) root: PathBuf,
    /// The datastore stores the state.
    pub(super) managed: bool,
    pub(super) pinned: Option<Pinned>,
}

impl Origin {
    /// A source without a plan: neither its state nor its tool is decided.
    pub(super) const fn new(
        source: String,
        revision: Option<String>,
        stack: PathBuf,
        root: PathBuf,
    ) -> Self {
        Self {
            source,
            revision,
            stack,
            root,
            managed: false,
            pinned: None,
        }
    }
}

/// The exact tool that a plan requires.
#[derive(Clone, Debug)]
pub(super) struct Pinned {
    tool: Tool,
    digest: Option<String>,
    beneath: Option<Box<Pinned>>,
}

impl Pinned {
    /// The tool that made the plan; `None` for an unknown tool.
    pub(super) fn of(head: &Head) -> Option<Self> {
        let one = |name: &str, version: &str, digest: &Option<String>| {
            let name = ToolName::KNOWN
                .into_iter()
                .find(|known| known.as_str() == name)?;
            let tool = Tool {
                name: Some(name),
                version: Some(version.to_owned()),
            };
            Some(Self {
                tool,
                digest: digest.clone(),
                beneath: None,
            })
        };
        let mut pinned = one(&head.tool, &head.version, &head.digest)?;
        if let Some(ToolHead {
            tool,
            version,
            digest,
        }) = &head.beneath
        {
            pinned.beneath = Some(Box::new(one(tool, version, digest)?));
        }
        Some(pinned)
    }
}

impl PhaseRunner {
    /// The pod's own cache, removed with the pod. The stack's code may write there; each start of the tool verifies it again.
    pub(super) fn own_cache(&self) -> PathBuf {
        self.settings.work.join("cache")
    }

    /// Sources of tools. A shared cache is used only if the stack's code cannot write to it and the agent can.
    fn sources(&self) -> Result<(ToolSources, Option<String>), Failure> {
        let settings = &self.settings;
        let own = self.own_cache();
        let Some(said) = &settings.tool_settings else {
            return Ok((ToolSources::of_dirs(settings.tools.clone(), &own), None));
        };
        let writes = |dir: &Path| nix::unistd::access(dir, nix::unistd::AccessFlags::W_OK).is_ok();
        let (cache, remark) = match &settings.cache {
            Some(_) if !self.children.is_confined() => (
                own,
                Some(
                    "the shared cache of tools is not used: code of the stack could write to it"
                        .to_owned(),
                ),
            ),
            Some(dir) if !writes(dir) => (
                own,
                Some(format!(
                    "the shared cache of tools is not used: the runner's user cannot write to {}",
                    dir.display()
                )),
            ),
            Some(dir) => (dir.clone(), None),
            None => (own, None),
        };
        let mut sources = ToolSources::new(said, settings.tools.clone(), &cache, &settings.mirrors)
            .map_err(failed)?;
        if let Some(authorities) = &settings.ca {
            sources.trust(authorities);
        }
        sources.installer.ask = self.ask();
        Ok((sources, remark))
    }

    /// Runs an executable's `--version` under the same confinement as all other commands.
    fn ask(&self) -> Ask {
        let (children, runtime) = (self.children.clone(), Handle::current());
        let (env, dir) = (self.settings.inherited.clone(), self.settings.tmp());
        Ask::by(move |binary| {
            let command = Command {
                program: binary.to_owned(),
                args: vec!["--version".into()],
                env: env.clone(),
                dir: dir.clone(),
                role: Role::Other,
            };
            let mut said = Said::default();
            runtime
                .block_on(children.run(&command, &mut said))
                .map_err(io::Error::other)?;
            Ok(said.0)
        })
    }

    /// Finds the tool for a stack, or installs it as a step of its own. Logs the progress.
    pub(super) async fn find_tool(
        &self,
        tool: &Tool,
        origin: &Origin,
        top: &Path,
        notices: &Notices,
    ) -> Result<Found, Failure> {
        let (sources, remark) = self.sources()?;
        if let Some(remark) = remark {
            self.say(remark).await;
        }
        let (said, mut told) = tokio::sync::mpsc::unbounded_channel();
        let say = move |told: Told| {
            let _ = said.send(told);
        };
        let find = async move {
            let search = |tool, origin_of| Search {
                tool,
                origin: origin_of,
                stack: &origin.stack,
                root: top,
            };
            let Some(pinned) = &origin.pinned else {
                return sources
                    .find(search(tool, self.host.version_option()), &say)
                    .await;
            };
            let mut found = sources
                .pinned(search(&pinned.tool, "the plan"), &say)
                .await?;
            if let Some(beneath) = &pinned.beneath {
                found.beneath = Some(Box::new(
                    sources
                        .pinned(search(&beneath.tool, "the plan"), &say)
                        .await?,
                ));
            }
            "with which the plan was made".clone_into(&mut found.why);
            same(pinned, &found)?;
            Ok(found)
        };
        let mut begun = false;
        let write = async {
            while let Some(told) = told.recv().await {
                if !std::mem::replace(&mut begun, true) {
                    let _ = notices.send(Notice::Started(STEP));
                }
                let _ = notices.send(Notice::Happened);
                if let Told::Line(line) = told {
                    self.say(line).await;
                }
            }
        };
        let found = tokio::select! {
            (found, ()) = async { tokio::join!(find, write) } => found,
            () = self.children.stopped() => Err(classify::not_run(STEP, &RunError::Stopped)),
        };
        if begun {
            let _ = notices.send(Notice::Ended(STEP, i32::from(found.is_err())));
        }
        found
    }
}

/// Checks that the tool is the one that made the plan.
fn same(pinned: &Pinned, found: &Found) -> Result<(), Failure> {
    if let (Some(wanted), Some(digest)) = (&pinned.digest, &found.digest)
        && wanted != digest
    {
        let message = format!(
            "the plan was made with {} {wanted}, and now only {digest} is available",
            found.title()
        );
        return Err(Reason::ToolNotGenuine.failure(message));
    }
    match (&pinned.beneath, &found.beneath) {
        (Some(pinned), Some(found)) => same(pinned, found),
        _ => Ok(()),
    }
}
