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
    pub(super) fn of(
        id: &str,
        newest: u64,
        status: TerraformLayerStatus,
        ledger: &[Entry],
        state: &str,
    ) -> Self {
        let made = state.contains(&format!("\"index_key\":\"{newest}\""));
        let round = |entry: &Entry| {
            entry
                .text("script")?
                .strip_prefix(id)?
                .strip_prefix('@')?
                .parse::<u64>()
                .ok()
        };
        let is = |entry: &Entry, kind: &str| {
            entry.what == kind && entry.text("command") == Some("apply")
        };
        let well = |begun: &Entry| {
            ledger.iter().any(|end| {
                is(end, what::COMMAND_END)
                    && end.who == begun.who
                    && round(end) == round(begun)
                    && end.number("exit") == Some(0)
            })
        };
        let begun = ledger.iter().filter(|entry| is(entry, what::COMMAND_START));
        let applied = begun
            .filter_map(|entry| Some((round(entry)?, well(entry))))
            .collect();
        Self {
            id: id.to_owned(),
            newest,
            applied,
            made,
            status,
        }
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
    let mut add =
        |invariant, of: &str, text: String| found.push(Violation::new(invariant, of, text));
    for layer in layers {
        if !layer.is_at_rest() {
            let Kept {
                id,
                newest,
                applied,
                made,
                status,
            } = layer;
            let lately = applied.iter().rev().take(3).collect::<Vec<_>>();
            let text = format!(
                "round {newest} is pushed, made: {made}, applied lately: {lately:?}; the layer reports {status:?}"
            );
            add("L30", id, text);
        }
        if let Some(pair) = layer.applied.windows(2).find(|pair| pair[1].0 < pair[0].0) {
            add(
                "S88",
                &layer.id,
                format!("round {} was applied after round {}", pair[1].0, pair[0].0),
            );
        }
    }
    let (mut causes, mut names) = (
        BTreeMap::<_, Vec<String>>::new(),
        BTreeMap::<_, usize>::new(),
    );
    for versions in history.runs.values() {
        let (Some(layer), Some(last)) = (layer_of(versions), versions.last()) else {
            continue;
        };
        *names.entry(last.of()).or_default() += 1;
        let annotation = |name: &str| {
            last.run
                .annotations()
                .get(name)
                .cloned()
                .unwrap_or_default()
        };
        if Trigger::of(&annotation(names::TRIGGER)) == Trigger::Commit {
            causes
                .entry((layer.clone(), annotation(names::CONTENT)))
                .or_default()
                .push(last.of());
        }
    }
    for ((layer, content), runs) in causes.into_iter().filter(|(_, runs)| runs.len() > 1) {
        add(
            "S82",
            &layer,
            format!(
                "{} are all of the commit with content {content}",
                runs.join(", ")
            ),
        );
    }
    for (run, times) in names.into_iter().filter(|(_, times)| *times > 1) {
        add("S82", &run, format!("it was created {times} times"));
    }
    found
}

#[cfg(test)]
mod tests {
    use crds::{LayerSource, TerraformRunSpec};
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::history::{Version, Writer};
    use played::patch::merge;

    fn entry(pod: &str, kind: &str, round: u64) -> Entry {
        let mut detail = json!({"script": script("n/l0", round), "command": "apply"});
        if kind == what::COMMAND_END {
            detail["exit"] = 0.into();
        }
        Entry::new(pod, kind, detail)
    }

    /// Rounds that were applied successfully, one after the other.
    fn ledger(rounds: &[u64]) -> Vec<Entry> {
        let both = |round: &u64| {
            [what::COMMAND_START, what::COMMAND_END]
                .map(|kind| entry(&format!("p{round}"), kind, *round))
        };
        rounds.iter().flat_map(both).collect()
    }

    fn idle() -> Value {
        let run = json!({"run": "r", "revision": "c", "content": "x", "settings": "s", "trigger": "Commit",
            "at": Timestamp::UNIX_EPOCH});
        let source = LayerSource {
            content: "x".into(),
            ..LayerSource::default()
        };
        json!({"state": "Idle", "source": source, "lastPlan": run, "lastApply": run})
    }

    /// A history with runs of the layer `l0`: name, trigger, content.
    fn history(runs: &[(&str, Trigger, &str)]) -> History {
        let mut history = History::default();
        for (n, (name, trigger, content)) in runs.iter().enumerate() {
            let annotations = json!({names::TRIGGER: trigger.as_str(), names::CONTENT: content});
            let metadata = json!({"name": name, "namespace": "n", "labels": {names::LABEL_LAYER: "l0"},
                "annotations": annotations});
            let run = serde_json::from_value(
                json!({"metadata": metadata, "spec": TerraformRunSpec::default()}),
            )
            .unwrap();
            let by = Writer::default();
            let at = Timestamp::UNIX_EPOCH;
            let version = Version {
                revision: 1,
                base: None,
                at,
                by,
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
        let ended = ledger.iter().rfind(|entry| {
            entry.what == what::COMMAND_END && entry.text("script").unwrap().starts_with("n/l0@")
        });
        let round = ended.map_or("none", |entry| {
            entry.text("script").unwrap().rsplit_once('@').unwrap().1
        });
        json!({"resources": [{"instances": [{"index_key": round}]}]}).to_string()
    }

    fn judged(
        newest: u64,
        status: Value,
        ledger: &[Entry],
        history: &History,
    ) -> Vec<&'static str> {
        let status = serde_json::from_value(status).unwrap();
        let kept = Kept::of("n/l0", newest, status, ledger, &state(ledger));
        judge(&[kept], history)
            .iter()
            .map(|violation| violation.invariant)
            .collect()
    }

    /// The verdict on an idle layer whose rounds were applied, with these runs.
    fn idle_with(
        newest: u64,
        ledger: &[Entry],
        runs: &[(&str, Trigger, &str)],
    ) -> Vec<&'static str> {
        judged(newest, idle(), ledger, &history(runs))
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn applied_layer_at_rest_is_good() {
        let runs = [
            ("a", Trigger::Commit, "w"),
            ("b", Trigger::Commit, "x"),
            ("c", Trigger::Retry, "x"),
        ];
        assert_eq!(idle_with(2, &ledger(&[0, 2]), &runs), NONE);
        // An interrupted apply that was repeated.
        let twice = [vec![entry("p", what::COMMAND_START, 2)], ledger(&[2])].concat();
        assert_eq!(idle_with(2, &twice, &[]), NONE);
    }

    #[test]
    fn a_lost_commit_is_found() {
        // An apply that began and did not succeed, and another layer's entries.
        let begun = [ledger(&[0, 1]), vec![entry("p2", what::COMMAND_START, 2)]].concat();
        let mut other = ledger(&[2]);
        for entry in &mut other {
            entry
                .detail
                .insert("script".into(), script("n/l01", 2).into());
        }
        for ledger in [ledger(&[0, 1]), begun, other] {
            assert_eq!(idle_with(2, &ledger, &[]), ["L30"], "{ledger:?}");
        }
    }

    #[test]
    fn status_that_contradicts_rest_is_found() {
        let changes = [
            json!({"state": "PlanNeeded"}),
            json!({"currentRun": "r"}),
            json!({"lastApply": null}),
            json!({"source": {"content": "y"}}),
        ];
        for change in changes {
            let mut status = idle();
            merge(&mut status, &change);
            assert_eq!(
                judged(1, status, &ledger(&[1]), &History::default()),
                ["L30"],
                "{change}"
            );
        }
    }

    #[test]
    fn an_older_commit_after_a_newer_is_found() {
        assert_eq!(idle_with(2, &ledger(&[2, 1, 2]), &[]), ["S88"]);
    }

    #[test]
    fn two_runs_of_one_cause_are_found() {
        let twice = [("a", Trigger::Commit, "x"), ("b", Trigger::Commit, "x")];
        // Two runs with one name, after the first was deleted.
        let again = [("a", Trigger::Drift, "x"), ("a", Trigger::Drift, "x")];
        for runs in [twice, again] {
            assert_eq!(idle_with(1, &ledger(&[1]), &runs), ["S82"]);
        }
    }
}
