//! Streams logs, to their end or as they grow.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::{sync::mpsc, time::Instant};

use crds::datastore::{LOG_PHASES, NOT_FOUND, Problem};
use serving::problem::corrupt;

use crate::{
    names::{LogKey, RunKey},
    service::Service,
};

/// Polling interval of a log that another replica may write to.
const POLL: Duration = Duration::from_millis(400);
/// Minimum time between two reads of a log.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a log without an end mark may be idle once a later phase has started.
const SILENT: Duration = Duration::from_secs(2);
/// Like [`SILENT`], for a log that has not started.
const EMPTY: Duration = Duration::from_millis(500);

/// One reader of logs.
pub struct Follow {
    pub service: Arc<Service>,
    /// The run.
    pub key: RunKey,
    /// The run's name.
    pub run: String,
    /// Whether to wait for more output.
    pub follow: bool,
    /// Start this many lines before the end.
    pub tail: Option<u64>,
    /// Start at this byte.
    pub offset: u64,
    /// Whether each log starts with a header line.
    pub headers: bool,
    /// The phases, in order.
    pub phases: Vec<&'static str>,
    /// The output; closed when the reader is gone.
    pub out: mpsc::Sender<Result<Bytes, Problem>>,
}

enum Stop {
    /// The reader is gone, or the process shuts down.
    Gone,
    Problem(Problem),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl Follow {
    /// Streams the logs of attempts `first` to `last`; without `last`, up to the newest, including later ones.
    pub async fn run(self, first: u32, last: Option<u32>) {
        if let Err(Stop::Problem(problem)) = self.attempts(first, last).await {
            // The reader may be gone.
            let _ = self.out.send(Err(problem)).await;
        }
    }

    async fn attempts(&self, first: u32, last: Option<u32>) -> Result<(), Stop> {
        let mut attempt = first;
        loop {
            for phase in &self.phases {
                self.log(&LogKey {
                    run: self.key.clone(),
                    attempt,
                    phase,
                })
                .await?;
            }
            if last.is_some_and(|last| attempt >= last) || !self.next_attempt(attempt).await? {
                return Ok(());
            }
            attempt += 1;
        }
    }

    /// Whether there is another attempt. When following, waits until this is known.
    async fn next_attempt(&self, attempt: u32) -> Result<bool, Stop> {
        loop {
            match self
                .service
                .lookup
                .recent(self.key.namespace(), &self.run)
                .await
            {
                Ok(run) if run.uid != self.key.uid() => return Ok(false),
                Ok(run) if run.newest() > attempt => return Ok(true),
                Ok(run) if !self.follow || run.terminal => return Ok(false),
                Err(problem) if problem.reason == NOT_FOUND => return Ok(false),
                // A failing API server tells nothing about the run.
                Err(problem) if !self.follow => return Err(problem.into()),
                Ok(_) | Err(_) => {}
            }
            self.wait(POLL).await?;
        }
    }

    /// Whether the logs of this attempt are final.
    async fn is_over(&self, attempt: u32) -> bool {
        match self
            .service
            .lookup
            .recent(self.key.namespace(), &self.run)
            .await
        {
            Ok(run) if run.uid == self.key.uid() => {
                run.newest() > attempt || (run.terminal && !run.is_open())
            }
            Ok(_) => true,
            // A failing API server tells nothing about the run; a 404 means that it is gone.
            Err(problem) => problem.reason == NOT_FOUND,
        }
    }

    async fn log(&self, key: &LogKey) -> Result<(), Stop> {
        let logs = &self.service.logs;
        let (mut at, mut begun, mut over) = (self.offset, false, false);
        let mut heard = Instant::now();
        let mut grown = logs.grown();
        loop {
            grown.borrow_and_update();
            let index = logs.index(key).await?;
            if !begun && index.length > 0 {
                begun = true;
                if let Some(lines) = self.tail {
                    at = logs.lines_before_end(key, &index, lines).await?;
                }
                if self.headers {
                    self.send(format!("--- attempt {}, {} ---\n", key.attempt, key.phase).into())
                        .await?;
                }
            }
            if index.length > at {
                let mut pieces = logs.read(key, &index, at);
                while let Some(piece) = pieces.next().await {
                    self.send(piece?).await?;
                }
                (at, heard) = (index.length, Instant::now());
            }
            if index.ended && !index.gap {
                return Ok(());
            }
            if !self.follow || over {
                return if index.gap {
                    Err(corrupt(format!("{} has a gap at byte {at}", key.prefix())).into())
                } else {
                    Ok(())
                };
            }
            if heard.elapsed() > (if index.length == 0 { EMPTY } else { SILENT })
                && self.later_began(key).await?
            {
                over = true;
                continue;
            }
            // Read once more after that, to include output written before the end.
            over = self.is_over(key.attempt).await;
            if over {
                continue;
            }
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                waited = self.wait(POLL) => waited?,
                _ = grown.changed() => {}
            }
        }
    }

    async fn later_began(&self, key: &LogKey) -> Result<bool, Problem> {
        let later = LOG_PHASES
            .into_iter()
            .skip_while(|phase| *phase != key.phase)
            .skip(1);
        for phase in later {
            if self
                .service
                .logs
                .index(&LogKey {
                    phase,
                    ..key.clone()
                })
                .await?
                .length
                > 0
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn wait(&self, time: Duration) -> Result<(), Stop> {
        let mut stopped = self.service.stopped.clone();
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            () = self.out.closed() => Err(Stop::Gone),
            // An error means that the sender of the stop signal is gone.
            Ok(_) = stopped.wait_for(|stopped| *stopped) => Err(Stop::Gone),
        }
    }

    async fn send(&self, piece: Bytes) -> Result<(), Stop> {
        self.out.send(Ok(piece)).await.map_err(|_| Stop::Gone)
    }
}
