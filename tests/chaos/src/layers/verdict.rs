//! Compares layers with the pushes: pure functions of the history, the ledger and the layers' statuses.

use std::collections::BTreeMap;

use crds::{LayerRun, LayerState, TerraformLayerStatus, Trigger, names};
use kube::ResourceExt as _;

use crate::history::{History, Versions, Violation};
use ledger::{Entry, what};

/// A layer at the end.
#[derive(Debug)]
pub(super) struct Kept {
    /// `NAMESPACE/NAME`.
    id: String,
    /// The round of its newest relevant commit.
    newest: u64,
    /// Rounds whose apply began, in order, and whether it succeeded.
    applied: Vec<(u64, bool)>,
    /// Whether its state contains the object of that round.
    made: bool,
    status: TerraformLayerStatus,
}

/// The name of a round's script.
pub(super) fn script(id: &str, round: u64) -> String {
    format!("{id}@{round}")
}

/// The one object of a round.
pub(super) fn resource(round: u64) -> String {
    format!("terraform_data.r[\"{round}\"]")
}

pub(super) fn layer_of(versions: &Versions) -> Option<&String> {
    versions.last()?.run.labels().get(names::LABEL_LAYER)
}

impl Kept {
    /// Combines a layer's ledger entries, state and status.
    pub(super) fn of(id: &str, newest: u64, status: TerraformLayerStatus, ledger: &[Entry], state: &str) -> Self {
        let made = state.contains(&format!("\"index_key\":\"{newest}\""));
        let round = |entry: &Entry| entry.text("script")?.strip_prefix(id)?.strip_prefix('@')?.parse::<u64>().ok();
        let is = |entry: &Entry, kind: &str| entry.what == kind && entry.text("command") == Some("apply");
        let well = |begun: &Entry| {
            ledger.iter().any(|end| {
                is(end, what::COMMAND_END) && end.who == begun.who && round(end) == round(begun) && end.number("exit") == Some(0)
            })
        };
        let begun = ledger.iter().filter(|entry| is(entry, what::COMMAND_START));
        let applied = begun.filter_map(|entry| Some((round(entry)?, well(entry)))).collect();
        Self { id: id.to_owned(), newest, applied, made, status }
    }

    /// Whether its newest relevant commit is applied, and it is idle.
    pub(super) fn is_at_rest(&self) -> bool {
        let status = &self.status;
        let at = |run: Option<&LayerRun>| run.map(|run| run.content.clone());
        let source = status.source.as_ref().map(|source| source.content.clone());
        status.state == Some(LayerState::Idle)
            && status.pending.is_none()
            && status.current_run.is_none()
            && source.is_some()
            && at(status.last_plan.as_ref()) == source
            && at(status.last_apply.as_ref()) == source
            && self.made
    }
}

/// All violations of layers.
pub(super) fn judge(layers: &[Kept], history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |invariant, of: &str, text: String| found.push(Violation { invariant, of: of.to_owned(), text });
    for layer in layers {
        if !layer.is_at_rest() {
            let Kept { id, newest, applied, made, status } = layer;
            let lately = applied.iter().rev().take(3).collect::<Vec<_>>();
            add(
                "L30",
                id,
                format!(
                    "round {newest} was pushed; its state has it: {made}; lately applied, newest first: {lately:?}; the layer says \
                     {status:?}"
                ),
            );
        }
        if let Some(pair) = layer.applied.windows(2).find(|pair| pair[1].0 < pair[0].0) {
            add("S88", &layer.id, format!("round {} was applied after round {}", pair[1].0, pair[0].0));
        }
    }
    let (mut causes, mut names) = (BTreeMap::<_, Vec<String>>::new(), BTreeMap::<_, usize>::new());
    for versions in history.runs.values() {
        let (Some(layer), Some(last)) = (layer_of(versions), versions.last()) else { continue };
        *names.entry(last.of()).or_default() += 1;
        let annotation = |name: &str| last.run.annotations().get(name).cloned().unwrap_or_default();
        if Trigger::of(&annotation(names::TRIGGER)) == Trigger::Commit {
            causes.entry((layer.clone(), annotation(names::CONTENT))).or_default().push(last.of());
        }
    }
    for ((layer, content), runs) in causes.into_iter().filter(|(_, runs)| runs.len() > 1) {
        add("S82", &layer, format!("{} are all of the commit with content {content}", runs.join(", ")));
    }
    for (run, times) in names.into_iter().filter(|(_, times)| *times > 1) {
        add("S82", &run, format!("it was created {times} times"));
    }
    found
}

#[cfg(test)]
mod tests {
    use crds::{LayerSource, TerraformRun};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::history::{Version, Writer};

    fn entry(pod: &str, kind: &str, round: u64) -> Entry {
        let mut detail = json!({"script": script("n/l0", round), "command": "apply"});
        if kind == what::COMMAND_END {
            detail["exit"] = 0.into();
        }
        Entry::new(pod, kind, detail)
    }

    /// Rounds that were applied successfully, one after the other.
    fn ledger(rounds: &[u64]) -> Vec<Entry> {
        let both = |round: &u64| [what::COMMAND_START, what::COMMAND_END].map(|kind| entry(&format!("p{round}"), kind, *round));
        rounds.iter().flat_map(both).collect()
    }

    fn idle() -> TerraformLayerStatus {
        let run = LayerRun {
            run: "r".into(),
            revision: "c".into(),
            content: "x".into(),
            settings: "s".into(),
            trigger: Trigger::Commit,
            result: None,
            at: Time(Timestamp::UNIX_EPOCH),
        };
        let source = LayerSource { content: "x".into(), ..LayerSource::default() };
        TerraformLayerStatus {
            state: Some(LayerState::Idle),
            source: Some(source),
            last_plan: Some(run.clone()),
            last_apply: Some(run),
            ..TerraformLayerStatus::default()
        }
    }

    /// A history with runs of the layer `l0`: name, trigger, content.
    fn history(runs: &[(&str, Trigger, &str)]) -> History {
        let mut history = History::default();
        for (n, (name, trigger, content)) in runs.iter().enumerate() {
            let mut run = TerraformRun::new(name, crds::TerraformRunSpec::default());
            run.metadata.namespace = Some("n".into());
            run.metadata.labels = Some([(names::LABEL_LAYER.to_owned(), "l0".to_owned())].into());
            let annotations =
                [(names::TRIGGER.to_owned(), trigger.as_str().to_owned()), (names::CONTENT.to_owned(), (*content).to_owned())];
            run.metadata.annotations = Some(annotations.into());
            let version = Version {
                revision: 1,
                base: None,
                at: Timestamp::UNIX_EPOCH,
                by: Writer::default(),
                of_status: false,
                run,
                status_bytes: 0,
            };
            history.runs.insert(n.to_string(), vec![version]);
        }
        history
    }

    /// The state of a layer after the successful applies in the ledger.
    fn state(ledger: &[Entry]) -> String {
        let ended =
            ledger.iter().rfind(|entry| entry.what == what::COMMAND_END && entry.text("script").unwrap().starts_with("n/l0@"));
        let round = ended.map_or("none", |entry| entry.text("script").unwrap().rsplit_once('@').unwrap().1);
        json!({"resources": [{"instances": [{"index_key": round}]}]}).to_string()
    }

    fn judged(newest: u64, status: TerraformLayerStatus, ledger: &[Entry], history: &History) -> Vec<&'static str> {
        let kept = Kept::of("n/l0", newest, status, ledger, &state(ledger));
        judge(&[kept], history).iter().map(|violation| violation.invariant).collect()
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn what_is_applied_and_at_rest_is_good() {
        let runs = [("a", Trigger::Commit, "w"), ("b", Trigger::Commit, "x"), ("c", Trigger::Retry, "x")];
        assert_eq!(judged(2, idle(), &ledger(&[0, 2]), &history(&runs)), NONE);
        // An interrupted apply that was repeated.
        let mut twice = vec![entry("p", what::COMMAND_START, 2)];
        twice.extend(ledger(&[2]));
        assert_eq!(judged(2, idle(), &twice, &History::default()), NONE);
    }

    #[test]
    fn a_lost_commit_is_found() {
        assert_eq!(judged(2, idle(), &ledger(&[0, 1]), &History::default()), ["L30"]);
        // An apply began and did not succeed.
        let mut begun = ledger(&[0, 1]);
        begun.push(entry("p2", what::COMMAND_START, 2));
        assert_eq!(judged(2, idle(), &begun, &History::default()), ["L30"]);
        // Ignores another layer's entries.
        let other: Vec<_> = ledger(&[2])
            .into_iter()
            .map(|mut entry| {
                entry.detail.insert("script".into(), script("n/l01", 2).into());
                entry
            })
            .collect();
        assert_eq!(judged(2, idle(), &other, &History::default()), ["L30"]);
    }

    #[test]
    fn a_layer_that_says_otherwise_is_found() {
        let changes: [fn(&mut TerraformLayerStatus); 4] = [
            |status| status.state = Some(LayerState::PlanNeeded),
            |status| status.current_run = Some("r".into()),
            |status| status.last_apply = None,
            |status| status.source.as_mut().unwrap().content = "y".into(),
        ];
        for change in changes {
            let mut status = idle();
            change(&mut status);
            assert_eq!(judged(1, status, &ledger(&[1]), &History::default()), ["L30"]);
        }
    }

    #[test]
    fn an_older_commit_after_a_newer_is_found() {
        assert_eq!(judged(2, idle(), &ledger(&[2, 1, 2]), &History::default()), ["S88"]);
    }

    #[test]
    fn two_runs_of_one_cause_are_found() {
        let twice = [("a", Trigger::Commit, "x"), ("b", Trigger::Commit, "x")];
        assert_eq!(judged(1, idle(), &ledger(&[1]), &history(&twice)), ["S82"]);
        // Two runs with one name, after the first was deleted.
        let again = [("a", Trigger::Drift, "x"), ("a", Trigger::Drift, "x")];
        assert_eq!(judged(1, idle(), &ledger(&[1]), &history(&again)), ["S82"]);
    }
}
