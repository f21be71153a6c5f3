//! The reconciler's context: clients, caches and in-memory state.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use datastore_client::controller::Datastore;

use super::{expectations::Memory, outage::Outage};
use crate::{
    cluster::Cluster,
    events::Events,
    policies::Prober,
    slots::Slots,
    state_queue::{newer_plans::NewerPlans, queue::Queue},
};

pub struct Context {
    pub cluster: Arc<Cluster>,
    pub memory: Memory,
    /// Probes whether the admission policies are enforced.
    pub policies: Arc<Prober>,
    /// Runs that have made their plan, by workspace.
    pub newer_plans: Arc<NewerPlans>,
    /// Runs by the state that they apply to.
    pub queue: Arc<Queue>,
    pub slots: Arc<Slots>,
    /// Locks that runs may release, by the controller's permission.
    pub released: Released,
    pub datastore: Option<Arc<Datastore>>,
    pub outage: Outage,
    pub events: Events,
}

impl Context {
    pub fn new(cluster: Cluster, datastore: Option<Datastore>) -> Self {
        let wakers = &cluster.wakers;
        Self {
            memory: Memory::default(),
            policies: Arc::default(),
            newer_plans: Arc::new(NewerPlans::new(wakers.clone())),
            queue: Arc::new(Queue::new(&cluster.settings, wakers.clone())),
            slots: Arc::new(Slots::new(&cluster.settings, wakers.clone())),
            released: Released::default(),
            datastore: datastore.map(Arc::new),
            outage: Outage::default(),
            events: Events::new(cluster.client.clone(), "pawl-controller"),
            cluster: Arc::new(cluster),
        }
    }
}

/// The one run that may release each lock: namespace, name and UID by lock ID. A second run's release could remove a lock that the first
/// run took afterwards.
#[derive(Default)]
pub struct Released(pub(super) Mutex<HashMap<String, (String, String, String)>>);
