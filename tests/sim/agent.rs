//! An agent's process: the real driver with a simulated API and tool.

use std::{sync::Arc, time::Duration};

use crds::{TerraformRun, clock::ServerClock, names};
use futures::{Stream, stream};
use played::{
    Refusal, User,
    store::{Edit, Key, RUNS, label, text},
};
use runner_agent::{
    driver::Driver,
    ports::{Api, ApiError, Seen},
    settings::Settings,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::mpsc, time::sleep};

use crate::{
    work::PlayedWork,
    world::{NS, Process, Shared, Trouble, World, clock, date, millis, now},
};

/// The API of the run, as one agent reaches it.
#[derive(Clone)]
pub(crate) struct PlayedApi {
    shared: Shared,
    process: Process,
    run: String,
    clock: ServerClock,
}

impl From<Trouble> for ApiError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Lost => Self {
                code: None,
                text: "no answer".into(),
                after: None,
            },
            Trouble::Refused(refusal) => Self {
                code: Some(refusal.code),
                text: refusal.message,
                after: None,
            },
        }
    }
}

/// Authentication, and the rights of the attempt's Role.
fn allowed(world: &World, process: &Process) -> Result<(), Refusal> {
    if !world.authenticates(&process.user) {
        return Err(Refusal {
            code: 401,
            reason: "Unauthorized",
            message: "Unauthorized".into(),
        });
    }
    let pod = process
        .user
        .pod
        .as_ref()
        .map_or("", |(pod, _)| pod.as_str());
    let there = |resource: &str| world.store.get(&Key::of(resource, NS, pod)).is_ok();
    if there("roles") && there("rolebindings") {
        return Ok(());
    }
    Err(Refusal {
        code: 403,
        reason: "Forbidden",
        message: "no right yet, or none any more".into(),
    })
}

impl PlayedApi {
    async fn request(
        &self,
        what: &'static str,
        operation: impl FnOnce(&mut World, &Process) -> Result<(), Trouble> + Send + 'static,
    ) -> Result<TerraformRun, ApiError> {
        let (process, run, sent) = (self.process.clone(), self.run.clone(), self.clock.sent());
        let answer = self.shared.request(
            &self.process,
            || what.to_owned(),
            move |world| {
                allowed(world, &process)?;
                operation(world, &process)?;
                let object = world.store.get(&Key::of(RUNS, NS, &run))?;
                Ok((TerraformRun::deserialize(&*object).unwrap(), now()))
            },
        );
        let (run, at) = answer.await?;
        self.clock.answered(sent, date(at).as_bytes());
        Ok(run)
    }
}

impl Api for PlayedApi {
    async fn get(&self) -> Result<TerraformRun, ApiError> {
        self.request("get run", |_, _| Ok(())).await
    }

    async fn patch(&self, operations: Vec<Value>) -> Result<TerraformRun, ApiError> {
        let key = Key::of(RUNS, NS, &self.run);
        let wanted = operations
            .iter()
            .find(|o| o["path"] == "/status/phase")
            .map(|o| o["value"].clone());
        let what = if operations.iter().any(|o| o["path"] == "/status/claim") {
            "patch status: claim"
        } else if wanted.is_some() {
            "patch status: phase"
        } else {
            "patch status"
        };
        self.request(what, move |world, process| {
            world
                .store
                .edit(&process.user, &key, true, &Edit::Json(operations), false)?;
            Ok(())
        })
        .await
    }

    async fn watch(
        &self,
        version: &str,
    ) -> Result<impl Stream<Item = Seen> + Send + 'static, ApiError> {
        let from: u64 = version.parse().unwrap();
        let (process, key) = (self.process.clone(), Key::of(RUNS, NS, &self.run));
        self.shared
            .request(
                &self.process,
                || "watch run".to_owned(),
                move |world| Ok(allowed(world, &process)?),
            )
            .await?;
        let (shared, process, changes) = (
            self.shared.clone(),
            self.process.clone(),
            self.shared.changes(),
        );
        Ok(stream::unfold(
            (shared, process, key, changes, from),
            |(shared, process, key, changes, from)| async move {
                process.live().await;
                let mut from = from;
                loop {
                    changes.after(from).await;
                    let seen = shared.act(|world| {
                        let news = world
                            .store
                            .since(from)
                            .iter()
                            .rev()
                            .find(|change| change.key == key);
                        let seen = news.map(|change| change.deleted);
                        from = world.store.version();
                        seen.map(|deleted| (deleted, 2 + world.chance.below(20)))
                    });
                    let Some((deleted, late)) = seen else {
                        continue;
                    };
                    sleep(Duration::from_millis(late)).await;
                    process.live().await;
                    let seen = shared.act(|world| {
                        let until = world
                            .cut_off
                            .get(&process.name)
                            .copied()
                            .unwrap_or(0)
                            .max(world.api_away_until);
                        // Send the newest version only: the driver needs no other.
                        match world.run(&key.name) {
                            _ if millis() < until => Seen::Lost,
                            Some(run) if !deleted => Seen::Run(run),
                            Some(_) | None => Seen::Gone,
                        }
                    });
                    return Some((seen, (shared, process, key, changes, from)));
                }
            },
        ))
    }
}

/// A started container: its process, and the handle that stops it.
pub(crate) struct Started {
    pub process: Process,
    pub stop: mpsc::UnboundedSender<()>,
    pub task: tokio::task::JoinHandle<u8>,
    pub log: tempfile::NamedTempFile,
}

/// Starts the container of a pod.
pub(crate) fn start(shared: &Shared, pod: &Value, count: u32) -> Started {
    let [name, uid] =
        ["/metadata/name", "/metadata/uid"].map(|pointer| text(pod, pointer).to_owned());
    let whose = &uid[4..8];
    let process = Process::new(
        &format!("{name}/{whose}/{count}"),
        User::pod(NS, &name, &uid),
    );
    let log = tempfile::Builder::new().tempfile_in(memory()).unwrap();
    let grace = pod["spec"]["terminationGracePeriodSeconds"]
        .as_u64()
        .unwrap_or(30);
    let (nonce, has_store, seed) = {
        let mut world = shared.lock();
        world.note(&format!("   {} starts", process.name));
        world
            .agents
            .entry(uid.clone())
            .or_default()
            .push(process.clone());
        (
            format!("{:016x}{:016x}", world.chance.next(), world.chance.next()),
            world.schedule.scene.datastore,
            world.schedule.seed,
        )
    };
    let settings = Arc::new(Settings {
        namespace: NS.into(),
        run: label(pod, names::LABEL_RUN).into(),
        run_uid: label(pod, names::LABEL_RUN_UID).into(),
        attempt: label(pod, names::LABEL_ATTEMPT).parse().unwrap(),
        pod_name: name,
        pod_uid: uid,
        nonce,
        grace: Duration::from_secs(grace),
        termination_log: log.path().to_path_buf(),
        ..Settings::below("/nowhere".as_ref())
    });
    let clock = clock(seed, &process.name);
    let api = PlayedApi {
        shared: shared.clone(),
        process: process.clone(),
        run: settings.run.clone(),
        clock: clock.clone(),
    };
    let work = PlayedWork::new(shared.clone(), process.clone(), settings.clone(), has_store);
    let driver = Driver::new(Arc::new(api), Arc::new(work), clock, settings);
    let (stop, stops) = mpsc::unbounded_channel();
    let task = tokio::spawn(driver.run(stops));
    Started {
        process,
        stop,
        task,
        log,
    }
}

/// Directory of short-lived files.
pub(crate) fn memory() -> &'static std::path::Path {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        std::path::Path::new("/tmp")
    }
}
