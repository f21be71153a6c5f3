//! The parts of the status that concern hooks.

use crds::{FailedHook, HookWhen, RunResult, text::clip};
use jiff::Timestamp;

use super::StatusView;

impl StatusView {
    /// The message while the hooks at the end run, before the result is written.
    pub(in crate::driver) fn hooks_follow(&mut self, result: Option<RunResult>) {
        let done = match result {
            Some(RunResult::Applied) => "applied",
            Some(RunResult::Destroyed) => "destroyed",
            Some(_) | None => return,
        };
        self.status.message = Some(format!("{done} {}; the hooks after it run", self.summary()));
    }

    pub(in crate::driver) fn hook_started(&mut self, name: &str, when: HookWhen, now: Timestamp) {
        self.hook = Some((name.to_owned(), when));
        self.step_started(&format!("hook {name}"), now);
    }

    pub(in crate::driver) fn hook_ended(&mut self, name: &str, now: Timestamp, code: i32) {
        self.hook = None;
        self.step_ended(&format!("hook {name}"), now, code);
    }

    /// Records a failed hook. It does not change the result.
    pub(in crate::driver) fn hook_failed(&mut self, failed: FailedHook, now: Timestamp) {
        self.history("Hook", &failed.message, now);
        if self.ended {
            let message = self.status.message.take().unwrap_or_default();
            self.status.message = Some(format!(
                "{}; {}",
                clip(&message, 700),
                clip(&failed.message, 300)
            ));
            self.status
                .next_step
                .get_or_insert_with(|| self.settings.commands().logs());
        }
        self.status.failed_hook = Some(failed);
    }

    /// Skips the hooks at the end, because the result could not be stored where it outlives the pod.
    pub(in crate::driver) fn hooks_left_out(&mut self, now: Timestamp) {
        let when = if self.status.result == Some(RunResult::Destroyed) {
            HookWhen::AfterDestroy
        } else {
            HookWhen::AfterApply
        };
        let message = "the hooks at the end were not run: the result could not be left with the datastore before".to_owned();
        self.hook_failed(
            FailedHook {
                name: String::new(),
                when,
                message,
            },
            now,
        );
    }

    /// A running hook was stopped.
    pub(in crate::driver) fn hooks_over(&mut self, now: Timestamp) {
        if let Some((name, when)) = self.hook.take() {
            self.step_ended(&format!("hook {name}"), now, 137);
            let message = format!(
                "hook {name} ({}) did not end, and was stopped",
                when.as_str()
            );
            self.hook_failed(
                FailedHook {
                    name,
                    when,
                    message,
                },
                now,
            );
        }
    }
}
