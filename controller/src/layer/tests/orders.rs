//! Random orders of events: commits, ends of runs, requests, and crashes between any two steps of the controller.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::layer::template::Effective;

#[derive(Clone, Debug)]
enum Step {
    /// Pushes one of few contents, so that some return.
    Push(u8),
    /// Pushes the content before the last one: A, B, A.
    Back,
    Settings(u8),
    /// One reconcile that crashes after this many steps of its decision.
    Look(usize),
    /// Carries out the stored decision, if only a push came since.
    Late,
    /// Stores a decision.
    Decide,
    Begins,
    Waits,
    Approves,
    Claims,
    Ends(RunResult),
    Fails(bool),
    Cancelled,
    Asks,
    Passes(i64),
    Deletes,
}

fn step() -> impl Strategy<Value = Step> {
    use RunResult::{Applied, Expired, Indeterminate, NoChanges, Rejected};
    prop_oneof![
        4 => (0..4_u8).prop_map(Step::Push),
        2 => Just(Step::Back),
        1 => (0..3_u8).prop_map(Step::Settings),
        6 => (0..5_usize).prop_map(Step::Look),
        2 => Just(Step::Decide),
        2 => Just(Step::Late),
        3 => Just(Step::Begins),
        3 => Just(Step::Waits),
        1 => Just(Step::Approves),
        1 => Just(Step::Claims),
        3 => prop::sample::select(vec![Applied, NoChanges, Rejected, Expired, Indeterminate]).prop_map(Step::Ends),
        1 => any::<bool>().prop_map(Step::Fails),
        2 => Just(Step::Cancelled),
        1 => Just(Step::Asks),
        1 => prop::sample::select(vec![1_i64, 90, 60 * 30]).prop_map(Step::Passes),
        1 => Just(Step::Deletes),
    ]
}

struct Play {
    world: World,
    /// The stored decision, and the resourceVersion of the layer that it was made on. A write with another version is refused.
    mind: Option<(Option<String>, Decision)>,
    revision: u8,
    /// The last two pushed contents.
    contents: [u8; 2],
    /// UID, content and settings of each run that planned, in order, independent of the layer's status.
    planned: Vec<(String, String, String)>,
    taken_back: BTreeSet<String>,
}

impl Play {
    fn new() -> Self {
        Self {
            world: World::new().with(&json!({"spec": {"runHistory": 2}})),
            mind: None,
            revision: 0,
            contents: [0, 0],
            planned: vec![],
            taken_back: BTreeSet::new(),
        }
    }

    fn stage(&self) -> Option<(bool, Option<crds::Phase>, bool)> {
        let run = self.world.runs.iter().find(|run| is_open(run))?;
        let status = run.status.as_ref();
        Some((
            status.and_then(|s| s.attempt.as_ref()).is_some(),
            status.and_then(|s| s.phase),
            status.is_some_and(|s| s.claim.is_some()),
        ))
    }

    fn act(&mut self, version: Option<&String>, decision: Decision, steps: usize) {
        // The status write has the resourceVersion as a precondition; without it no action follows.
        if self.world.status() != decision.status
            && version != self.world.layer.metadata.resource_version.as_ref()
        {
            return;
        }
        let before = self.world.made.len();
        self.world.act(decision, steps);
        assert!(
            self.world.runs.iter().filter(|run| is_open(run)).count() <= 1,
            "two runs are under way"
        );
        assert!(self.world.made.len() <= before + 1);
    }

    fn play(&mut self, step: &Step) {
        if let Step::Push(content) = step {
            self.contents = [self.contents[1], *content];
        }
        if matches!(step, Step::Back) {
            self.contents.reverse();
            let back = Step::Push(self.contents[1]);
            self.contents.reverse();
            return self.play(&back);
        }
        self.carry_out(step);
        self.watch();
    }

    /// Records which runs have planned, and which were withdrawn.
    fn watch(&mut self) {
        for run in self
            .world
            .runs
            .iter()
            .filter_map(RunSummary::of)
            .map(|(_, run)| run)
        {
            let of = (
                run.uid.to_string(),
                run.content.to_string(),
                run.settings.to_string(),
            );
            if run.was_taken_back() {
                self.taken_back.insert(of.0);
            } else if run.has_planned() && !self.planned.contains(&of) {
                self.planned.push(of);
            }
        }
    }

    fn carry_out(&mut self, step: &Step) {
        let stage = self.stage();
        let world = &mut self.world;
        match (step, stage) {
            (Step::Push(content), _) => {
                self.revision += 1;
                let revision = self.revision;
                self.world.pushed(revision, &format!("{content:x}"));
            }
            (Step::Settings(n), _) => {
                _ = world.change(&json!({"spec": {"template": {"workspace": format!("w{n}")}}}));
            }
            (Step::Look(steps), _) => {
                let decision = world.decide();
                let version = world.layer.metadata.resource_version.clone();
                self.act(version.as_ref(), decision, *steps);
            }
            (Step::Decide, _) => {
                self.mind = Some((
                    world.layer.metadata.resource_version.clone(),
                    world.decide(),
                ));
            }
            (Step::Late, _) => {
                // Only a push may have come since. An event of a run would wake the layer and cause a new decision.
                if let Some((version, decision)) = self.mind.take()
                    && decision == self.world.decide()
                {
                    self.act(version.as_ref(), decision, usize::MAX);
                }
            }
            (Step::Begins, Some((false, ..))) => _ = world.begins(),
            (Step::Waits, Some((true, Some(crds::Phase::Plan), _))) => _ = world.waits(1),
            // A cancelled run is neither approved nor claimed.
            (Step::Approves | Step::Claims, _)
                if world
                    .open()
                    .is_some_and(|run| run.annotations().contains_key(names::CANCEL)) => {}
            (Step::Approves, Some((_, Some(crds::Phase::AwaitingApproval), false))) => {
                _ = world.approved();
            }
            (Step::Claims, Some((_, Some(crds::Phase::AwaitingApproval), false))) => {
                world.claims();
            }
            (Step::Ends(result), Some((_, phase, claimed))) => {
                let fits = match result {
                    RunResult::NoChanges => phase == Some(crds::Phase::Plan),
                    RunResult::Applied | RunResult::Indeterminate => claimed,
                    _ => phase == Some(crds::Phase::AwaitingApproval) && !claimed,
                };
                if fits {
                    world.ends(*result);
                }
            }
            (Step::Fails(helps), Some((true, ..))) => {
                world.fails(
                    if *helps { "Transient" } else { "Configuration" },
                    "PlanFailed",
                );
            }
            (Step::Cancelled, Some((.., false))) => {
                world.cancelled();
            }
            (Step::Asks, _) => _ = world.annotate(names::PLAN, "now"),
            (Step::Passes(minutes), _) => _ = world.later(*minutes),
            (Step::Deletes, _) => {
                // A person deletes an ended run.
                let ended = world.runs.iter().position(|run| !is_open(run));
                ended.map(|at| world.runs.remove(at));
            }
            _ => {}
        }
    }

    /// Reconciles and ends runs until the layer is idle.
    fn comes_to_rest(&mut self) {
        for _ in 0..60 {
            self.world.settle();
            self.watch();
            let Some((_, phase, claimed)) = self.stage() else {
                return;
            };
            match phase {
                _ if claimed => _ = self.world.ends(RunResult::Applied),
                Some(crds::Phase::AwaitingApproval) => _ = self.world.ends(RunResult::Rejected),
                _ => {
                    if self.stage().is_some_and(|(begun, ..)| !begun) {
                        self.world.begins();
                    }
                    self.world.ends(RunResult::NoChanges);
                }
            }
            self.world.later(1);
        }
        panic!("runs without end");
    }
}

/// At rest, the newest content is planned, or failed with `status.failures`.
fn newest_commit_is_kept(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut play = Play::new();
    for step in steps {
        play.play(step);
    }
    play.comes_to_rest();
    let (world, status) = (&play.world, play.world.status());
    let deletes = steps.iter().any(|step| matches!(step, Step::Deletes));
    if let Some(source) = &status.source {
        let settings = Effective::of(&world.layer, world.repository.as_ref().unwrap())
            .unwrap()
            .digest;
        let of =
            |content: &str, made_with: &str| content == source.content && made_with == settings;
        let says = status
            .last_plan
            .as_ref()
            .is_some_and(|plan| of(&plan.content, &plan.settings));
        let last = play
            .planned
            .iter()
            .rev()
            .find(|(run, ..)| !play.taken_back.contains(run));
        let planned = last.is_some_and(|(_, content, settings)| of(content, settings));
        // A person may delete a run before the layer has seen its end. The layer plans again then.
        prop_assert!(
            says == planned || deletes && !says,
            "the layer says of its plan what is not so"
        );
        let failed = status
            .failures
            .as_ref()
            .is_some_and(|failures| of(&failures.content, &failures.settings));
        prop_assert!(says || failed, "{:#?}", status);
    }
    let mut names = world.made.clone();
    names.sort();
    names.dedup();
    // The name of a deleted run may be reused.
    prop_assert!(
        deletes || names.len() == world.made.len(),
        "a name was used twice"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Burrito 11.3, in every order: the newest content ends planned, or failed with `status.failures`.
    #[test]
    fn no_order_of_events_loses_the_newest_commit(steps in prop::collection::vec(step(), 1..60)) {
        newest_commit_is_kept(&steps)?;
    }

    /// A repeated reconcile creates the same run, and an idle layer creates none.
    #[test]
    fn repeated_reconcile_creates_no_second_run(steps in prop::collection::vec(step(), 1..40)) {
        let mut play = Play::new();
        for step in &steps {
            play.play(step);
            let (o, decision, before) = (play.world.observe(), play.world.decide(), play.world.made.len());
            prop_assert_eq!(&decision, &play.world.decide());
            play.world.act(decision, usize::MAX);
            // Another process with the same observation, a second later.
            let late = decide(&o, play.world.now + SignedDuration::from_secs(1));
            let creates = late.actions.into_iter().filter(|action| matches!(action, Action::Create(_)));
            let late = Decision { actions: creates.collect(), status: play.world.status(), ..Decision::default() };
            play.world.act(late, usize::MAX);
            prop_assert!(play.world.made.len() <= before + 1, "the same look made two runs: {:?}", play.world.made);
        }
        play.comes_to_rest();
        let (made, writes) = (play.world.made.len(), play.world.writes);
        play.world.settle();
        prop_assert_eq!((play.world.made.len(), play.world.writes), (made, writes));
    }

    /// After a plan without changes, no run is created without a new cause.
    #[test]
    fn plan_without_changes_causes_no_further_run(
        steps in prop::collection::vec(step(), 1..40),
        more in prop::collection::vec(step(), 1..20),
    ) {
        let mut play = Play::new();
        for step in &steps {
            play.play(step);
        }
        play.comes_to_rest();
        let status = play.world.status();
        // The plan may be of older content, while the newest failed and has the time of its retry.
        let is_retried = status.failures.is_some_and(|failures| failures.retry_at.is_some());
        let settled = !is_retried && status.last_plan.is_some_and(|plan| plan.result == Some(RunResult::NoChanges));
        if settled {
            let made = play.world.made.len();
            play.world.later(60);
            play.world.settle();
            prop_assert_eq!(play.world.made.len(), made);
            // Other events create none either, unless there is a push, new settings, a request, or an hour passes.
            let sets_off = |step: &&Step| {
                let new = matches!(step, Step::Push(_) | Step::Back | Step::Settings(_) | Step::Asks);
                !new && !matches!(step, Step::Passes(minutes) if *minutes > 60)
            };
            more.iter().filter(sets_off).for_each(|step| play.play(step));
            play.world.settle();
            prop_assert_eq!(play.world.made.len(), made);
            prop_assert!(play.world.runs.iter().all(|run| !is_open(run)));
        }
    }
}

#[test]
fn failed_newest_content_is_retried_beside_an_older_plan() {
    use Step::{Back, Begins, Ends, Fails, Look, Push};
    let no_changes = Ends(RunResult::NoChanges);
    let mut play = Play::new();
    for step in [
        Push(0),
        Look(2),
        Begins,
        no_changes,
        Push(1),
        Look(2),
        Begins,
        Push(0),
        Fails(true),
        Back,
    ] {
        play.play(&step);
    }
    play.comes_to_rest();
    let (made, status) = (play.world.made.len(), play.world.status());
    assert_eq!(status.last_plan.unwrap().result, Some(RunResult::NoChanges));
    assert!(status.failures.unwrap().retry_at.is_some());
    play.world.later(60);
    play.world.settle();
    assert_eq!(play.world.made.len(), made + 1);
}

#[test]
fn run_deleted_before_its_plan_is_seen_is_made_again() {
    use Step::{Begins, Deletes, Fails, Look, Push, Waits};
    let steps = [
        Push(0),
        Look(2),
        Begins,
        Waits,
        Fails(false),
        Deletes,
        Look(2),
        Begins,
        Fails(false),
    ];
    newest_commit_is_kept(&steps).unwrap();
}

/// Names are digests, so their order is random: of ten pairs some are in reverse.
#[test]
fn ended_run_sorts_before_a_run_of_the_same_second() {
    for nth in 0..10 {
        let mut world = World::begun();
        world.ends(RunResult::NoChanges);
        world.settle();
        world.annotate(names::PLAN, &format!("word-{nth}"));
        world.settle();
        world.waits(1);
        let second = world.open_name();
        world.settle();
        assert_eq!(
            world.status().last_plan.map(|run| run.run),
            Some(second.clone())
        );
        assert_eq!(world.status().drift.map(|drift| drift.run), Some(second));
    }
}
