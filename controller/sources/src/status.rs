//! The status of a repository: pure over the old status and the result of a check. Unchanged parts stay as they were,
//! so a check without news writes nothing.

use crds::{
    Commit, Reason, RefFailure, RefStatus, TerraformRepositoryStatus, conditions,
    reason::{ANSWERED, REFS_KNOWN, SUSPENDED, next_step},
    text::clip,
    whole_seconds,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serving::events::Note;

use crate::failure::Problem;

/// Maximum number of followed refs per repository, the bound of its status.
pub const MAX_REFS: usize = 256;
/// Maximum count of consecutive failures.
const MAX_TIMES: u32 = 1000;

#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// The request before the check started.
    pub request: Option<String>,
    /// The result for each ref that a layer uses.
    pub refs: Vec<(String, Seen)>,
    /// Number of refs beyond the maximum.
    pub beyond: usize,
    /// Why the check failed as a whole.
    pub failed: Option<Problem>,
}

/// The result for a ref.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Its commit is unchanged.
    Same,
    /// It has a new commit, or its commit is known for the first time.
    At(Box<At>),
    Failed(Problem),
    Unseen,
}

/// The position of a ref.
#[derive(Clone, Debug)]
pub struct At {
    /// The commit, with its snapshot.
    pub commit: Commit,
    /// Duration from the check to the stored snapshot.
    pub took: std::time::Duration,
}

/// The status after a check. `step` gives the next step for a problem.
pub fn next(
    old: &TerraformRepositoryStatus,
    look: &Look,
    step: impl Fn(&Problem) -> String,
    now: Timestamp,
) -> TerraformRepositoryStatus {
    let refs: Vec<RefStatus> = look
        .refs
        .iter()
        .filter_map(|(name, seen)| reference(old, name, seen, &step, now))
        .collect();
    let failing: Vec<_> = refs
        .iter()
        .filter_map(|known| Some((&known.name, known.failure.as_ref()?)))
        .collect();
    let own_step = failing.first().and_then(|(_, failure)| failure.step());
    let whole_step = match &look.failed {
        Some(problem) => Some(clip(&step(problem), 1000)),
        None => own_step.clone(),
    };
    let failing: Vec<_> = failing
        .iter()
        .map(|(name, failure)| format!("{name} ({})", failure.reason))
        .collect();
    let (advice, command) = whole_step
        .as_deref()
        .map(next_step::parts)
        .unwrap_or_default();
    let mut status = TerraformRepositoryStatus {
        observed_generation: look.generation,
        conditions: old.conditions.clone(),
        next_step: command,
        advice,
        refs,
        last_handled_reconcile: look.request.clone(),
    };
    let answered = match &look.failed {
        None => (true, ANSWERED, "the last check was answered".to_owned()),
        Some(problem) => {
            let message = conditions::with_step(&problem.message, whole_step.as_deref());
            (false, problem.reason.as_str(), message)
        }
    };
    // A failed ref concerns the layers that name it, and their conditions report it.
    let is_down = look.failed.as_ref().is_some_and(|problem| {
        let since = synced(old)
            .filter(|last| last.status == "False" && last.reason != SUSPENDED)
            .map_or(now, |last| last.last_transition_time.0);
        let is_known = |name: &str| status.refs.iter().any(|known| known.name == name);
        !look.refs.iter().all(|(name, _)| is_known(name))
            || conditions::counts_from(problem.class(), since) <= now
    });
    let large = remarks(&status.refs);
    let ready = if is_down {
        answered.clone()
    } else if look.beyond > 0 {
        let message = format!(
            "{} refs beyond the limit of {MAX_REFS} are not followed",
            look.beyond
        );
        (false, crds::reason::INVALID_SPEC, message)
    } else if !failing.is_empty() {
        let message = format!(
            "these refs have no newer commit for their layers: {}",
            failing.join(", ")
        );
        let message = conditions::with_step(&message, own_step.as_deref());
        (true, ANSWERED, message)
    } else if !large.is_empty() {
        (true, REFS_KNOWN, clip(&large.join("; "), 2000))
    } else if look.refs.is_empty() {
        let message = "no layer names a ref of it yet";
        (true, REFS_KNOWN, message.to_owned())
    } else {
        let message = "every ref that a layer names is known";
        (true, REFS_KNOWN, message.to_owned())
    };
    for (type_, (is, reason, message)) in
        [(conditions::SYNCED, answered), (conditions::READY, ready)]
    {
        let all = &mut status.conditions;
        conditions::set(all, type_, Some(is), reason, &message, look.generation, now);
    }
    // `kubectl describe` prints conditions in this order.
    status
        .conditions
        .sort_by_key(|c| c.type_ != conditions::READY);
    status
}

/// The remarks on large files, each behind its ref.
fn remarks(refs: &[RefStatus]) -> Vec<String> {
    let remark = |known: &RefStatus| {
        let large = known.commit.as_ref()?.large.as_ref()?;
        Some(format!("{}: {large}", known.name))
    };
    refs.iter().filter_map(remark).collect()
}

fn synced(status: &TerraformRepositoryStatus) -> Option<&Condition> {
    let mut all = status.conditions.iter();
    all.find(|c| c.type_ == conditions::SYNCED)
}

/// The Events of a change: what fails now and did not, and that the repository answers again.
pub fn news(old: &TerraformRepositoryStatus, next: &TerraformRepositoryStatus) -> Vec<Note> {
    let note = |reason: &str, warning, text: String| {
        let reason = Reason::parse(reason)?.as_str();
        Some(Note {
            reason,
            warning,
            text,
        })
    };
    let before = synced(old);
    let whole = synced(next).filter(|now| match before {
        Some(before) => (&before.status, &before.reason) != (&now.status, &now.reason),
        None => now.status != "True",
    });
    let whole = whole.and_then(|now| {
        let is_warning = now.status != "True" && now.reason != SUSPENDED;
        note(&now.reason, is_warning, now.message.clone())
    });
    let refs = next.refs.iter().filter_map(|known| {
        let failure = known.failure.as_ref()?;
        let had = old.refs.iter().find(|had| had.name == known.name);
        let had = had.and_then(|had| had.failure.as_ref());
        if had.is_some_and(|had| had.reason == failure.reason) {
            return None;
        }
        let text = format!("{}: {}", known.name, failure.message);
        let text = conditions::with_step(&text, failure.step().as_deref());
        note(&failure.reason, true, text)
    });
    whole.into_iter().chain(refs).collect()
}

pub fn suspended(
    old: &TerraformRepositoryStatus,
    generation: Option<i64>,
    now: Timestamp,
) -> TerraformRepositoryStatus {
    let mut status = TerraformRepositoryStatus {
        observed_generation: generation,
        ..old.clone()
    };
    let message =
        "spec.suspend is true: its refs are not checked, and its layers keep their commits";
    (status.next_step, status.advice) = (None, None);
    conditions::set(
        &mut status.conditions,
        conditions::SYNCED,
        Some(false),
        SUSPENDED,
        message,
        generation,
        now,
    );
    status
}

fn reference(
    old: &TerraformRepositoryStatus,
    name: &str,
    seen: &Seen,
    step: impl Fn(&Problem) -> String,
    now: Timestamp,
) -> Option<RefStatus> {
    let before = old.refs.iter().find(|known| known.name == name);
    match seen {
        Seen::Unseen => before.cloned(),
        Seen::Same => before.map(|before| RefStatus {
            failure: None,
            ..before.clone()
        }),
        Seen::At(at) => {
            let is_same = before
                .and_then(|before| before.commit.as_ref())
                .is_some_and(|c| c.revision == at.commit.revision);
            let since = before
                .filter(|_| is_same)
                .and_then(|before| before.since.clone())
                .unwrap_or_else(|| whole_seconds(now));
            Some(RefStatus {
                name: name.to_owned(),
                commit: Some(at.commit.clone()),
                since: Some(since),
                took: Some(format!("{:.1}s", at.took.as_secs_f64())),
                failure: None,
            })
        }
        Seen::Failed(problem) => {
            let fresh = RefStatus {
                name: name.to_owned(),
                ..RefStatus::default()
            };
            let last = before.and_then(|before| before.failure.as_ref());
            let since = last.map_or_else(|| whole_seconds(now), |last| last.since.clone());
            let (advice, command) = next_step::parts(&clip(&step(problem), 1000));
            let failure = RefFailure {
                class: problem.class(),
                reason: problem.reason.as_str().to_owned(),
                message: clip(&problem.message, 1000),
                next_step: command.unwrap_or_default(),
                advice,
                since,
                times: last.map_or(1, |last| last.times.saturating_add(1).min(MAX_TIMES)),
            };
            Some(RefStatus {
                failure: Some(failure),
                ..before.cloned().unwrap_or(fresh)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use crds::FailureClass;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn commit(revision: &str) -> Commit {
        Commit {
            revision: revision.into(),
            digest: Some("sha256:x".into()),
            ..Commit::default()
        }
    }

    fn seen(revision: &str) -> Seen {
        Seen::At(Box::new(At {
            commit: commit(revision),
            took: std::time::Duration::from_millis(1234),
        }))
    }

    fn failed(reason: Reason) -> Seen {
        Seen::Failed(Problem::new(reason, "there is none"))
    }

    fn look(refs: &[(&str, Seen)]) -> Look {
        let refs = refs
            .iter()
            .map(|(name, seen)| ((*name).to_owned(), seen.clone()))
            .collect();
        Look {
            generation: Some(1),
            refs,
            ..Look::default()
        }
    }

    fn after(
        old: &TerraformRepositoryStatus,
        look: &Look,
        second: i64,
    ) -> TerraformRepositoryStatus {
        next(
            old,
            look,
            |problem| problem.next_step("ns", "r", true),
            at(second),
        )
    }

    fn reason<'a>(status: &'a TerraformRepositoryStatus, type_: &str) -> (&'a str, &'a str) {
        let condition = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap();
        (&condition.status, &condition.reason)
    }

    #[test]
    fn check_without_news_keeps_the_status() {
        let first = after(
            &TerraformRepositoryStatus::default(),
            &look(&[("main", seen("a"))]),
            0,
        );
        assert_eq!(reason(&first, "Ready"), ("True", "RefsKnown"));
        assert_eq!(first.refs[0].took.as_deref(), Some("1.2s"));
        assert_eq!(after(&first, &look(&[("main", Seen::Same)]), 300), first);
        let down = Look {
            failed: Some(Problem::new(Reason::SourceUnreachable, "no route")),
            ..look(&[("main", Seen::Unseen)])
        };
        let second = after(&first, &down, 600);
        assert_eq!(
            (reason(&second, "Ready"), reason(&second, "Synced")),
            (("True", "RefsKnown"), ("False", "SourceUnreachable"))
        );
        assert_eq!(
            after(&second, &down, 900),
            second,
            "an outage is written once"
        );
        let moved = after(&second, &look(&[("main", seen("b"))]), 1200);
        assert_eq!(
            (
                moved.refs[0].since.clone().unwrap().0,
                reason(&moved, "Synced").0
            ),
            (at(1200), "True")
        );
    }

    /// Burrito 11.12: one failing ref hid the others, and each error overwrote the previous one.
    #[test]
    fn deleted_branch_is_reported_beside_a_good_one() {
        let first = after(
            &TerraformRepositoryStatus::default(),
            &look(&[("dev", seen("d")), ("main", seen("a"))]),
            0,
        );
        let gone = [
            ("dev", failed(Reason::RevisionNotFound)),
            ("main", seen("b")),
        ];
        let second = after(&first, &look(&gone), 300);
        assert_eq!(second.refs[1].commit.as_ref().unwrap().revision, "b");
        let dev = &second.refs[0];
        assert_eq!(
            dev.commit.as_ref().unwrap().revision,
            "d",
            "what is known of it stays"
        );
        let failure = dev.failure.as_ref().unwrap();
        assert_eq!(
            (failure.class, failure.times, failure.since.0),
            (FailureClass::Configuration, 1, at(300))
        );
        assert_eq!(reason(&second, "Ready"), ("True", "Answered"));
        assert_eq!(reason(&second, "Synced"), ("True", "Answered"));
        let ready = &second
            .conditions
            .iter()
            .find(|c| c.type_ == "Ready")
            .unwrap()
            .message;
        assert!(
            ready.contains("for their layers: dev (RevisionNotFound)")
                && second.next_step.is_some(),
            "{ready}"
        );
        assert_eq!(
            after(
                &second,
                &look(&[("dev", Seen::Unseen), ("main", Seen::Same)]),
                600
            ),
            second
        );
        let third = after(
            &second,
            &look(&[
                ("dev", failed(Reason::RevisionNotFound)),
                ("main", Seen::Same),
            ]),
            900,
        );
        let failure = third.refs[0].failure.as_ref().unwrap();
        assert_eq!((failure.times, failure.since.0), (2, at(300)));
        let back = after(
            &third,
            &look(&[("dev", Seen::Same), ("main", Seen::Same)]),
            1200,
        );
        assert_eq!(
            (reason(&back, "Ready").0, &back.refs[0].failure),
            ("True", &None)
        );
        assert_eq!(
            after(&third, &look(&[("main", Seen::Same)]), 1200)
                .refs
                .len(),
            1,
            "no layer names it any more"
        );
    }

    #[test]
    fn repository_that_never_responded_is_not_ready() {
        let down = Look {
            failed: Some(Problem::new(Reason::SourceUnauthorized, "no")),
            ..look(&[("main", Seen::Unseen)])
        };
        let status = after(
            &TerraformRepositoryStatus::default(),
            &Look {
                request: Some("1".into()),
                ..down
            },
            0,
        );
        assert_eq!(reason(&status, "Ready"), ("False", "SourceUnauthorized"));
        assert_eq!(
            (status.refs.len(), status.last_handled_reconcile.as_deref()),
            (0, Some("1"))
        );
        let empty = after(&TerraformRepositoryStatus::default(), &look(&[]), 0);
        assert_eq!(reason(&empty, "Ready"), ("True", "RefsKnown"));
        let many = after(
            &TerraformRepositoryStatus::default(),
            &Look {
                beyond: 3,
                ..look(&[("main", seen("a"))])
            },
            0,
        );
        assert_eq!(reason(&many, "Ready"), ("False", "InvalidSpec"));
    }

    #[test]
    fn repository_is_unready_after_an_hours_outage_or_a_refusal() {
        let known = after(
            &TerraformRepositoryStatus::default(),
            &look(&[("main", seen("a"))]),
            0,
        );
        let down = |reason| Look {
            failed: Some(Problem::new(reason, "no")),
            ..look(&[("main", Seen::Unseen)])
        };
        let away = after(&known, &down(Reason::SourceUnreachable), 10);
        let later = after(&away, &down(Reason::SourceUnreachable), 3609);
        assert_eq!(reason(&later, "Ready"), ("True", "RefsKnown"));
        let long = after(&later, &down(Reason::SourceUnreachable), 3610);
        assert_eq!(reason(&long, "Ready"), ("False", "SourceUnreachable"));
        let refused = after(&known, &down(Reason::SecretForbidden), 10);
        assert_eq!(reason(&refused, "Ready"), ("False", "SecretForbidden"));
        let step = refused.next_step.clone().unwrap();
        assert!(refused.conditions[0].message.ends_with(&step), "{step}");
        let back = after(&long, &look(&[("main", Seen::Same)]), 4000);
        let told = |old: &_, next: &_| -> Vec<_> {
            let notes = news(old, next).into_iter();
            notes.map(|note| (note.reason, note.warning)).collect()
        };
        assert_eq!(told(&known, &away), [("SourceUnreachable", true)]);
        assert_eq!(told(&away, &later), [], "once");
        assert_eq!(told(&long, &back), [("Answered", false)]);
        assert_eq!(
            told(&TerraformRepositoryStatus::default(), &refused),
            [("SecretForbidden", true)]
        );
        assert_eq!(told(&TerraformRepositoryStatus::default(), &known), []);
        let gone = after(
            &known,
            &look(&[("main", failed(Reason::RevisionNotFound))]),
            10,
        );
        assert_eq!(told(&known, &gone), [("RevisionNotFound", true)]);
        assert_eq!(
            (reason(&back, "Ready"), back.next_step.clone()),
            (("True", "RefsKnown"), None)
        );
    }

    #[test]
    fn messages_keep_within_their_bounds() {
        let long = Problem::new(Reason::HostKeyNotKnown, "é".repeat(2000));
        let down = Look {
            failed: Some(long.clone()),
            ..look(&[("main", Seen::Failed(long))])
        };
        let status = after(&TerraformRepositoryStatus::default(), &down, 0);
        for condition in &status.conditions {
            let count = condition.message.chars().count();
            assert!(
                count <= 512 && condition.message.contains("known_hosts"),
                "{count}: {}",
                condition.message
            );
        }
        let failure = status.refs[0].failure.as_ref().unwrap();
        assert!(
            failure.message.chars().count() <= 1024 && failure.next_step.chars().count() <= 1024
        );
    }

    #[test]
    fn suspension_is_reported_and_refs_are_kept() {
        let first = after(
            &TerraformRepositoryStatus::default(),
            &look(&[("main", seen("a"))]),
            0,
        );
        let paused = suspended(&first, Some(2), at(10));
        assert_eq!(
            (reason(&paused, "Synced"), &paused.refs),
            (("False", "Suspended"), &first.refs)
        );
        assert_eq!(suspended(&paused, Some(2), at(20)), paused);
    }
}
