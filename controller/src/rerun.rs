//! Answers `pawl.run/rerun=true` by a fresh run of the same spec, once.

use jiff::Timestamp;
use kube::{ResourceExt, api::ObjectMeta};

use crds::{TerraformRun, datastore::StateId, names};

use crate::run::{Action, Decision, Draft, Kind, Observed};

/// Creates the run and remembers its name.
pub fn answer(o: &Observed, now: Timestamp) -> Decision {
    let name = names::rerun_name(&o.run.name_any(), &o.run.uid().unwrap_or_default());
    let mut draft = Draft::new(&o.run, o.status(), now);
    draft.set("rerun", &name);
    draft.note("RerunCreated", false, format!("run {name} has the same spec"));
    Decision::all(vec![Action::CreateRerun, Action::Write(draft.finish(Kind::Rerun))])
}

/// The fresh run. Its name follows from the old one's UID, so asking twice makes one.
pub fn fresh_run(run: &TerraformRun) -> TerraformRun {
    same_spec(run, names::rerun_name(&run.name_any(), &run.uid().unwrap_or_default()), names::RERUN_OF)
}

/// A run of that name with the same spec and the same managed state; `origin` is the annotation that names this one.
pub(crate) fn same_spec(run: &TerraformRun, name: String, origin: &str) -> TerraformRun {
    let own = |key: &str| key.starts_with("pawl.run/") || key == names::LABEL_MANAGED_BY;
    let mut spec = run.spec.clone();
    if spec.source.inline.is_some() {
        // Without it the fresh run would have a state of its own, and none of what this one made.
        spec.stack = Some(StateId::of(&run.name_any(), &spec).stack);
    }
    let labels = run.labels().iter().filter(|(key, _)| !own(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    TerraformRun {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: run.namespace(),
            labels: Some(labels),
            annotations: Some([(origin.to_owned(), run.name_any())].into()),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::TerraformRunSpec;

    #[test]
    fn a_fresh_run_has_the_spec_and_neither_approval_nor_state() {
        let mut run = testing::run();
        run.metadata.labels = Some([("team".into(), "a".into()), ("pawl.run/x".into(), "y".into())].into());
        run.metadata.annotations =
            Some([(names::APPROVE.into(), "sha256:…".into()), (names::RERUN.into(), "true".into())].into());
        let fresh = fresh_run(&run);
        assert_eq!(fresh.spec, TerraformRunSpec { stack: Some("net".into()), ..run.spec.clone() }, "the same managed state");
        let again = fresh_run(&fresh);
        assert_eq!(again.spec.stack.as_deref(), Some("net"));
        assert!(fresh.status.is_none() && fresh.metadata.finalizers.is_none() && fresh.metadata.uid.is_none());
        assert_eq!(fresh.labels().len(), 1);
        assert_eq!(fresh.annotations().iter().collect::<Vec<_>>(), [(&names::RERUN_OF.to_owned(), &"net".to_owned())]);
    }
}
