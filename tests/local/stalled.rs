//! A server that accepts requests and answers only when released: a program that sends one hangs in its phase until then.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use harness::wait;

use crate::terminal::PATIENCE;

/// An empty state for requests of a state.
const STATE: &str = r#"{"version":4,"terraform_version":"1.5.7","serial":1,"lineage":"stalled","outputs":{},"resources":[]}"#;

/// A server that answers late. It ends with the test program.
pub(crate) struct Stalled {
    address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    asked: AtomicUsize,
    released: AtomicUsize,
}

impl Stalled {
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let this = Self {
            address: listener.local_addr()?.to_string(),
            shared: Arc::default(),
        };
        let shared = this.shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        Ok(this)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub(crate) fn until_asked(&self) -> Result<()> {
        let asked = || Ok(self.shared.asked.load(Ordering::SeqCst) > 0);
        wait::until_blocking(format!("somebody asks {}", self.address), PATIENCE, asked)
    }

    /// Answers all waiting requests, and all later ones at once.
    pub(crate) fn release(&self) {
        self.shared.released.store(1, Ordering::SeqCst);
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) {
    let mut buffer = [0; 4096];
    let _ = stream.read(&mut buffer);
    shared.asked.fetch_add(1, Ordering::SeqCst);
    while shared.released.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        STATE.len()
    );
    let _ = stream.write_all(format!("{head}{STATE}").as_bytes());
}
