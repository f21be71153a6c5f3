//! Whether the API server responds, for open pages: nothing else tells them, since lists are answered from memory.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::Console;

/// Time between two looks while there is a stream.
const PACE: Duration = Duration::from_secs(5);

/// Looks forever. Streams tell what it finds.
pub async fn follow(console: Arc<Console>) {
    loop {
        sleep(PACE).await;
        if console.streams.is_empty() {
            continue;
        }
        let is_away = !console.api_server.is_ready().await;
        let changes = |away: &mut bool| std::mem::replace(away, is_away) != is_away;
        if console.away.send_if_modified(changes) {
            tracing::warn!(is_away, "the API server");
        }
    }
}
