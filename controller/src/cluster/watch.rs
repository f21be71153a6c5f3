//! Receivers of the objects to reconcile, and the end of watches.

use std::sync::{Arc, PoisonError, RwLock};

use futures::channel::mpsc::UnboundedSender;
use tokio::sync::watch;
use watching::Key;

/// The channel of the objects to reconcile.
pub type Wake = UnboundedSender<Key>;

/// Receivers of the objects to reconcile, each of one namespace or of all.
#[derive(Default)]
pub struct Wakers(RwLock<Vec<(Option<String>, Wake)>>);

impl Wakers {
    pub fn add(&self, scope: Option<String>, wake: Wake) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push((scope, wake));
    }

    pub fn send_all(&self, objects: &[Key]) {
        for object in objects {
            self.send(&object.0, &object.1);
        }
    }

    /// Wakes an object.
    pub fn send(&self, namespace: &str, name: &str) {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for (_, wake) in all
            .iter()
            .filter(|(scope, _)| scope.as_deref().is_none_or(|scope| scope == namespace))
        {
            // The receiver is gone when the controller shuts down.
            let _ = wake.unbounded_send(Arc::new((namespace.into(), name.into())));
        }
    }
}

/// Waits for the stop signal.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A dropped sender means stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Works until `stop`.
pub(crate) async fn until(stop: watch::Receiver<bool>, work: impl Future) {
    tokio::select! {
        _ = work => {}
        () = stopped(stop) => {}
    }
}
