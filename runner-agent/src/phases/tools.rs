//! The tool of an attempt: found or got in Setup, and by its digest the same to the end.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use crds::{Failure, FailureClass, Tool, ToolName, reason};
use jiff::Timestamp;
use tokio::task::JoinHandle;

use super::{PodWork, setup::Origin};
use crate::{
    classify::{self, simple},
    datastore::bundle::{Head, ToolHead},
    local,
    ports::{Notice, Notices},
    process::RunError,
    tool::{
        Found, Outfit, Search, Stamp, digest,
        find::{Told, failed},
    },
};

/// What getting a tool is called among the steps of a run.
const STEP: &str = "install";
/// Between two looks at whether the attempt is told to end.
const LOOK: Duration = Duration::from_millis(100);

/// Files and their digests, which are the tool's: one, and of Terragrunt that of the tool beneath as well.
pub(super) type Digested = Vec<(Stamp, String)>;

/// The very tool that has to be used.
#[derive(Clone, Debug)]
pub(super) struct Pinned {
    tool: Tool,
    digest: Option<String>,
    beneath: Option<Box<Pinned>>,
}

impl Pinned {
    /// What a plan was made with; none when it is no tool of ours.
    pub(super) fn of(head: &Head) -> Option<Self> {
        let one = |name: &str, version: &str, digest: &Option<String>| {
            let name = ToolName::KNOWN.into_iter().find(|known| known.as_str() == name)?;
            let tool = Tool { name: Some(name), version: Some(version.to_owned()) };
            Some(Self { tool, digest: digest.clone(), beneath: None })
        };
        let mut pinned = one(&head.tool, &head.version, &head.digest)?;
        if let Some(ToolHead { tool, version, digest }) = &head.beneath {
            pinned.beneath = Some(Box::new(one(tool, version, digest)?));
        }
        Some(pinned)
    }
}

impl PodWork {
    /// The pod's own cache, which ends with it. Code of the stack may write there, and so change what this run has; that its tool is the
    /// one which planned is seen before the claim.
    fn own_cache(&self) -> PathBuf {
        self.settings.work.join("cache")
    }

    /// Where tools are from. A cache that pods share is used where the stack's code is kept from writing to it, and the agent is not.
    fn outfit(&self) -> Result<(Outfit, Option<String>), Failure> {
        let settings = &self.settings;
        let own = self.own_cache();
        let Some(said) = &settings.tool_settings else { return Ok((Outfit::of_dirs(settings.tools.clone(), &own), None)) };
        let writes = |dir: &Path| nix::unistd::access(dir, nix::unistd::AccessFlags::W_OK).is_ok();
        let (cache, remark) = match &settings.cache {
            Some(_) if !self.children.is_confined() => {
                (own, Some("the shared cache of tools is not used: code of the stack could write to it".to_owned()))
            }
            Some(dir) if !writes(dir) => {
                (own, Some(format!("the shared cache of tools is not used: the runner's user cannot write to {}", dir.display())))
            }
            Some(dir) => (dir.clone(), None),
            None => (own, None),
        };
        let outfit = Outfit::new(said, settings.tools.clone(), &cache, &settings.mirrors).map_err(failed)?;
        Ok((outfit, remark))
    }

    /// Finds the tool for a stack, and gets it when it is not at hand: a step of its own then. What takes long is told to the log.
    pub(super) async fn find_tool(&self, tool: &Tool, origin: &Origin, top: &Path, notices: &Notices) -> Result<Found, Failure> {
        let (outfit, remark) = self.outfit()?;
        if let Some(remark) = remark {
            self.log.line(&format!("pawl: {remark}")).await;
        }
        let (said, mut told) = tokio::sync::mpsc::unbounded_channel();
        let say = move |told: Told| {
            let _ = said.send(told);
        };
        let find = async move {
            let search = |tool, origin_of| Search { tool, origin: origin_of, stack: &origin.stack, root: top };
            let Some(pinned) = &origin.pinned else {
                return outfit.find(search(tool, "spec.tool.version"), &say).await;
            };
            let mut found = outfit.pinned(search(&pinned.tool, "the plan"), &say).await?;
            if let Some(beneath) = &pinned.beneath {
                found.beneath = Some(Box::new(outfit.pinned(search(&beneath.tool, "the plan"), &say).await?));
            }
            "with which the plan was made".clone_into(&mut found.why);
            same(pinned, &found)?;
            Ok(found)
        };
        let mut begun = false;
        let write = async {
            while let Some(told) = told.recv().await {
                if !std::mem::replace(&mut begun, true) {
                    let _ = notices.send(Notice::Started(STEP, Timestamp::now()));
                }
                let _ = notices.send(Notice::Happened);
                if let Told::Line(line) = told {
                    self.log.line(&format!("pawl: {line}")).await;
                }
            }
        };
        let stopped = async {
            while !self.children.is_stopped() {
                tokio::time::sleep(LOOK).await;
            }
            Err(classify::not_run(STEP, &RunError::Stopped))
        };
        let found = tokio::select! {
            (found, ()) = async { tokio::join!(find, write) } => found,
            stopped = stopped => stopped,
        };
        if begun {
            let _ = notices.send(Notice::Ended(STEP, Timestamp::now(), i32::from(found.is_err())));
        }
        found
    }

    /// Computes the tool's digest, beside what comes next: tools are large.
    pub(super) fn digest_task(&self, found: &Found) -> JoinHandle<io::Result<Digested>> {
        let settings = &self.settings;
        let remembers = settings.machine().is_some() && !settings.restores;
        let files: Vec<_> = found.all().map(|one| (one.binary.clone(), one.digest.clone())).collect();
        tokio::task::spawn_blocking(move || {
            let one = |(path, known): &(PathBuf, Option<String>)| match known {
                // It was compared with the file when it was taken into use.
                Some(digest) => Ok((Stamp::of(path)?, digest.clone())),
                None if remembers => local::tools::digest(path),
                None => stamped_digest(path),
            };
            files.iter().map(one).collect()
        })
    }

    /// The digest of the tool's executable. Computed once, beside `init`; as long as the file's stamp stays (nobody can set a
    /// change time), its bytes are the same. Of Terragrunt it is both digests, with a `+` between.
    pub(super) async fn tool_digest(&self) -> Result<String, Failure> {
        let failed = |error: &dyn std::fmt::Display| classify::internal("the tool's digest cannot be computed", error);
        let found = self.tool()?;
        let task = self.known().tool_digest_task.take();
        if let Some(task) = task {
            let computed = task.await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
            self.known().tool_digest = computed;
        }
        let files: Vec<_> = found.all().map(|one| one.binary.clone()).collect();
        let before = self.known().tool_digest.clone();
        let now: io::Result<Vec<_>> = files.iter().map(|path| Stamp::of(path)).collect();
        let now = now.map_err(|e| failed(&e))?;
        let same = before.iter().map(|(stamp, _)| stamp).eq(now.iter());
        let digests = if same {
            before
        } else {
            let read = move || files.iter().map(|path| stamped_digest(path)).collect::<io::Result<Digested>>();
            let digests = tokio::task::spawn_blocking(read).await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
            self.known().tool_digest.clone_from(&digests);
            digests
        };
        Ok(digests.into_iter().map(|(_, digest)| digest).collect::<Vec<_>>().join("+"))
    }
}

/// What Terragrunt is told: which tool it runs, that nobody answers, and that the tool's own words come through as they are. By the
/// names of before and since its version 0.73 (<https://terragrunt.gruntwork.io/docs/migrate/cli-redesign/>); each reads its own.
pub(super) fn terragrunt_env(tool: &Found, stack: &Path) -> Vec<(OsString, OsString)> {
    let Some(beneath) = &tool.beneath else { return Vec::new() };
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    for name in ["TG_TF_PATH", "TERRAGRUNT_TFPATH"] {
        env.push((name.into(), beneath.binary.clone().into()));
    }
    // Beside the stack, wherever Terragrunt has the tool run.
    env.push(("TF_DATA_DIR".into(), stack.join(".terraform").into()));
    for name in [
        "TG_NON_INTERACTIVE",
        "TERRAGRUNT_NON_INTERACTIVE",
        // Without it each line has a prefix, and JSON is none any more.
        "TG_TF_FORWARD_STDOUT",
        "TERRAGRUNT_FORWARD_TF_STDOUT",
        "TG_NO_COLOR",
        "TERRAGRUNT_NO_COLOR",
        // Phases are ours: `init` runs once, when it is its turn.
        "TG_NO_AUTO_INIT",
        "TERRAGRUNT_NO_AUTO_INIT",
        "TG_NO_AUTO_RETRY",
        "TERRAGRUNT_NO_AUTO_RETRY",
    ] {
        env.push((name.into(), "true".into()));
    }
    env
}

/// That what was found is what the plan was made with.
fn same(pinned: &Pinned, found: &Found) -> Result<(), Failure> {
    if let (Some(wanted), Some(digest)) = (&pinned.digest, &found.digest)
        && wanted != digest
    {
        let message = format!("the plan was made with {} {wanted}, and what is to be had now is {digest}", found.title());
        return Err(simple(FailureClass::Integrity, reason::TOOL_NOT_GENUINE, message));
    }
    match (&pinned.beneath, &found.beneath) {
        (Some(pinned), Some(found)) => same(pinned, found),
        _ => Ok(()),
    }
}

fn stamped_digest(path: &Path) -> io::Result<(Stamp, String)> {
    // The stamp from before: a file that changes while it is read has another one afterwards.
    let stamp = Stamp::of(path)?;
    Ok((stamp, digest(path)?))
}
