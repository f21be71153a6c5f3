//! The claim: makes the approved plan this process's to apply, once.

use crds::{Claim, whole_seconds};

use super::{Done, Driver};
use crate::{
    api::Kind,
    machine::{Mode, State},
    ports::{Api, Clock, Work},
};

impl<A: Api, W: Work, C: Clock> Driver<A, W, C> {
    /// Writes the claim. The write succeeds only if nothing it depends on has changed (`api/write.rs`).
    pub(super) fn claim(&mut self) {
        let automatic = matches!(self.state, State::Claiming(Mode::Automatic, _));
        let checksum = self.view.checksum();
        let now = self.clock.now();
        self.view.claim(
            Claim {
                checksum: checksum.clone(),
                attempt: self.settings.attempt,
                pod_uid: self.settings.pod_uid.clone(),
                nonce: self.settings.nonce.clone(),
                at: whole_seconds(now),
            },
            now,
            self.requests.approver.as_deref().filter(|_| !automatic),
        );
        self.write(Kind::Claim((!automatic).then_some(checksum)), Done::Claimed);
    }
}
