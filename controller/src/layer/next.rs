//! The actions for a layer, and what it waits for.

use jiff::Timestamp;
use kube::ResourceExt as _;

use crds::{Pending, TerraformLayer, names, text::clip};

use super::{
    decision::Action,
    observed::Namespace,
    run_summary::{RunSummary, SUPERSEDED},
    situation::Situation,
    template::Effective,
    triggers::Cause,
};
use crate::events::Note;

/// The actions for now, and what the layer waits for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Next {
    pub(super) actions: Vec<Action>,
    /// For people.
    pub(super) waits_for: Option<String>,
    /// The next step, for people.
    pub(super) step: Option<String>,
    /// The run that is created now.
    pub(super) made: Option<String>,
    /// When to reconcile again.
    pub(super) at: Option<Timestamp>,
    /// The API server refused the run.
    pub(super) refused: bool,
    /// An Event beside the one of the situation.
    pub(super) note: Option<Note>,
}

impl Next {
    pub(super) fn create(
        s: &Situation<'_>,
        effective: &Effective,
        cause: &Cause,
        now: Timestamp,
    ) -> Self {
        if let Some(held_up) = held_up(s) {
            return held_up;
        }
        match cause.run(s, effective) {
            Ok(run) => refused(s, &run.name, now).unwrap_or_else(|| Self {
                waits_for: Some(format!("run {}", run.name)),
                made: Some(run.name.clone()),
                actions: vec![Action::Create(Box::new(run))],
                ..Self::default()
            }),
            // `Effective::of` validated the settings before, so this is the same error.
            Err(error) => Self {
                waits_for: Some(error),
                ..Self::default()
            },
        }
    }
}

/// Why the run that is due is not created now.
pub(super) fn held_up(s: &Situation<'_>) -> Option<Next> {
    if let Namespace::Frozen(why) = &s.o.namespace {
        return Some(Next {
            waits_for: Some(why.to_string()),
            step: Some(why.next_step()),
            ..Next::default()
        });
    }
    let goes = s.o.namespace == Namespace::Goes;
    goes.then(|| Next {
        waits_for: Some("nothing: its namespace is deleted".into()),
        ..Next::default()
    })
}

/// The same run was refused, and its retry is not due yet.
fn refused(s: &Situation<'_>, run: &str, now: Timestamp) -> Option<Next> {
    let refused =
        s.o.refused
            .as_ref()
            .filter(|refused| refused.run == run && refused.retry_at > now)?;
    let what = format!(
        "the API server refused to create run {run}; nothing was changed: {}",
        refused.text
    );
    let step =
        Some("correct the cause that the API server names; Pawl retries by itself".to_owned());
    Some(Next {
        waits_for: Some(clip(&what, 512)),
        step,
        at: Some(refused.retry_at),
        refused: true,
        ..Next::default()
    })
}

pub(super) fn resumes(s: &Situation<'_>) -> Next {
    let (namespace, name) = (
        s.o.layer.namespace().unwrap_or_default(),
        s.o.layer.name_any(),
    );
    let kind = names::KUBECTL_LAYER;
    let step = if s.o.layer.spec.suspend {
        names::resume_command(kind, &namespace, &name)
    } else {
        format!(
            "kubectl annotate -n {namespace} {kind}/{name} {}-",
            names::SUSPEND
        )
    };
    Next {
        waits_for: Some("a person: the layer is suspended, and makes no runs".into()),
        step: Some(step),
        ..Next::default()
    }
}

/// The plan waits for an approval; the next step is the command for it.
pub(super) fn approval_of(s: &Situation<'_>, pending: &Pending) -> Next {
    let summary = pending.summary.as_deref().unwrap_or("changes");
    let namespace = s.o.layer.namespace().unwrap_or_default();
    Next {
        waits_for: Some(format!("an approval of run {}: {summary}", pending.run)),
        step: Some(names::approve_command(
            &namespace,
            &pending.run,
            &pending.checksum,
        )),
        ..Next::default()
    }
}

pub(super) fn supersede(run: &RunSummary, why: &str) -> Action {
    Action::Supersede {
        run: run.name.to_string(),
        uid: run.uid.to_string(),
        why: clip(&format!("{SUPERSEDED}{why}"), 200),
    }
}

pub(super) fn plan_command(layer: &TerraformLayer) -> String {
    format!(
        "kubectl annotate -n {} --overwrite {}/{} {}=now",
        layer.namespace().unwrap_or_default(),
        names::KUBECTL_LAYER,
        layer.name_any(),
        names::PLAN
    )
}
