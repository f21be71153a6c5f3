//! Authorizes requests of pods: a pure decision on the run's current state.

use crds::{
    Operation,
    datastore::{FORBIDDEN, MAX_APPEND, MAX_SMALL, MAX_STATE, ObjectKind, Problem, REPLACED},
    names::attempt_name,
    outputs::MAX_OUTPUTS,
};
use serving::{auth::PodIdentity, problem::problem};

use crate::cluster::RunView;

/// A request of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Write an object of its attempt.
    Put(ObjectKind),
    /// Read an object of any attempt of its run.
    Get(ObjectKind),
    /// Read back an object that it wrote.
    Digest(ObjectKind),
    /// Append to the log of a phase.
    Log(&'static str),
    /// Read the journal of the run in its own spec.
    Recover,
    /// Prove that a claim can be recorded.
    Intent,
    Claim,
    /// Publish outputs.
    Publish,
    /// Read the outputs of other stacks that its own spec references.
    Outputs,
    /// Read the snapshot of the revision in its own spec.
    Source,
    ReadState,
    /// Write the state; only after the claim.
    WriteState,
    /// Read the state of the last apply of its stack and workspace.
    ReadLast,
    /// Record the state of an apply that is elsewhere; only after the claim.
    WriteLast,
    Lock,
    Unlock,
}

impl Ask {
    /// The name in logs and metrics; the maximum size of the body, in bytes; and whether the claiming process may do this
    /// after its attempt was closed, since evidence of an apply's outcome arrives late.
    const fn facts(self) -> (&'static str, u64, bool) {
        const fn is_outcome(kind: ObjectKind) -> bool {
            matches!(kind, ObjectKind::Result | ObjectKind::ErroredState)
        }
        match self {
            Self::Put(kind) => ("put_object", kind.limit(), is_outcome(kind)),
            Self::Get(_) => ("get_object", 0, false),
            Self::Digest(kind) => ("digest", 0, is_outcome(kind)),
            Self::Log(stream) => (
                "append_log",
                MAX_APPEND,
                matches!(stream.as_bytes(), b"apply" | b"journal"),
            ),
            Self::Recover => ("recover", 0, false),
            Self::Intent => ("intent", 0, false),
            Self::Claim => ("claim", MAX_SMALL, false),
            Self::Publish => ("publish_outputs", MAX_OUTPUTS, true),
            Self::Outputs => ("read_outputs", 0, false),
            Self::Source => ("read_source", 0, false),
            Self::ReadState => ("read_state", 0, true),
            Self::WriteState => ("write_state", MAX_STATE, true),
            Self::ReadLast => ("read_last_state", 0, false),
            Self::WriteLast => ("write_last_state", MAX_SMALL, true),
            Self::Lock => ("lock", MAX_SMALL, false),
            Self::Unlock => ("unlock", 0, true),
        }
    }

    pub const fn as_str(self) -> &'static str {
        self.facts().0
    }

    pub const fn limit(self) -> u64 {
        self.facts().1
    }
}

/// Whether the process with this nonce in `pod` holds the claim of its run's newest attempt.
pub fn holds_claim(run: &RunView, pod: &PodIdentity, nonce: &str) -> bool {
    let newest = run.newest();
    run.claim.as_ref().is_some_and(|claim| {
        claim.attempt == newest && claim.pod_uid == pod.uid && claim.nonce == nonce
    })
}

/// Authorizes a request of `pod`, by the process with this nonce, for `attempt` of the run.
///
/// # Errors
/// `Forbidden` when pod, process or run do not match, `AttemptReplaced` when the attempt is over.
pub fn decide(
    run: &RunView,
    pod: &PodIdentity,
    attempt: u32,
    nonce: &str,
    ask: Ask,
) -> Result<(), Problem> {
    let forbidden = |message: &str| Err(problem(FORBIDDEN, message));
    if pod.namespace != run.namespace {
        return forbidden("the run is in another namespace");
    }
    let Some((newest, uid, open)) = &run.attempt else {
        return forbidden("the run has no attempt");
    };
    // The open attempt may read objects of an earlier one. All other requests are for the caller's own attempt.
    let own = if matches!(ask, Ask::Get(_)) {
        *newest
    } else {
        attempt
    };
    if attempt > *newest {
        return forbidden("the run has no such attempt");
    }
    if own < *newest {
        let was_its = pod.name == attempt_name(&run.name, &run.uid, own);
        return if was_its {
            Err(problem(
                REPLACED,
                format!("attempt {own} was replaced by attempt {newest}"),
            ))
        } else {
            forbidden("the attempt belongs to another pod")
        };
    }
    if uid.as_ref() != Some(&pod.uid) {
        // Of older attempts only the names are known. A name tells two refusals apart, and permits nothing.
        let older = (1..*newest).any(|n| pod.name == attempt_name(&run.name, &run.uid, n));
        return if older {
            Err(problem(
                REPLACED,
                format!("the attempt of this pod was replaced by attempt {newest}"),
            ))
        } else {
            forbidden("the attempt belongs to another pod")
        };
    }
    let adopted = run
        .adopted
        .as_ref()
        .filter(|adopted| adopted.attempt == *newest);
    if adopted.is_none_or(|adopted| adopted.pod_uid != pod.uid || adopted.nonce != nonce) {
        return forbidden("the attempt was not adopted by this process");
    }
    let claimed = holds_claim(run, pod, nonce);
    let late = claimed && ask.facts().2;
    if !(*open || late) {
        return Err(problem(REPLACED, format!("attempt {newest} is closed")));
    }
    // Before the claim, a person has approved nothing that runs in the pod. A run that only plans is never approved.
    let writes = matches!(ask, Ask::WriteState | Ask::WriteLast);
    if writes && (!claimed || !run.operation.applies()) {
        return forbidden(
            "a state is written only after the claim of its run, and never by a run that only plans",
        );
    }
    if ask == Ask::Publish && !claimed && run.operation != Operation::Apply {
        return forbidden("only a run that applies publishes outputs that its plan did not change");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crds::Claim;

    use super::*;
    use crate::testing::{NONCE, claim, pod, view};

    const ALL: [Ask; 20] = [
        Ask::Put(ObjectKind::Bundle),
        Ask::Put(ObjectKind::Result),
        Ask::Put(ObjectKind::ErroredState),
        Ask::Get(ObjectKind::Bundle),
        Ask::Digest(ObjectKind::Bundle),
        Ask::Log("plan"),
        Ask::Log("apply"),
        Ask::Log("journal"),
        Ask::Recover,
        Ask::Intent,
        Ask::Claim,
        Ask::Publish,
        Ask::Outputs,
        Ask::Source,
        Ask::ReadState,
        Ask::WriteState,
        Ask::ReadLast,
        Ask::WriteLast,
        Ask::Lock,
        Ask::Unlock,
    ];

    fn reason(result: Result<(), Problem>) -> &'static str {
        match result.map_err(|problem| problem.reason) {
            Ok(()) => "",
            Err(reason) if reason == FORBIDDEN => FORBIDDEN,
            Err(reason) if reason == REPLACED => REPLACED,
            Err(reason) => panic!("{reason}"),
        }
    }

    #[test]
    fn adopted_process_may_do_all_but_write_state_before_claim() {
        let run = view(2, true);
        let claimed = RunView {
            claim: Some(claim(2)),
            ..run.clone()
        };
        for ask in ALL {
            let before = if matches!(ask, Ask::WriteState | Ask::WriteLast) {
                FORBIDDEN
            } else {
                ""
            };
            assert_eq!(
                reason(decide(&run, &pod(&run, 2), 2, NONCE, ask)),
                before,
                "{ask:?}"
            );
            assert_eq!(
                decide(&claimed, &pod(&run, 2), 2, NONCE, ask),
                Ok(()),
                "{ask:?}"
            );
        }
    }

    #[test]
    fn state_write_needs_the_claim_of_the_same_process() {
        let write = |run: &RunView| reason(decide(run, &pod(run, 2), 2, NONCE, Ask::WriteState));
        for open in [true, false] {
            let claimed = RunView {
                claim: Some(claim(2)),
                ..view(2, open)
            };
            assert_eq!(write(&claimed), "");
            let refused = if open { FORBIDDEN } else { REPLACED };
            for other in [
                claim(1),
                Claim {
                    pod_uid: "x".into(),
                    ..claim(2)
                },
                Claim {
                    nonce: "f".repeat(32),
                    ..claim(2)
                },
            ] {
                assert_eq!(
                    write(&RunView {
                        claim: Some(other),
                        ..claimed.clone()
                    }),
                    refused
                );
            }
            assert_eq!(
                write(&RunView {
                    operation: Operation::Plan,
                    ..claimed.clone()
                }),
                FORBIDDEN
            );
            assert_eq!(
                write(&RunView {
                    operation: Operation::Destroy,
                    ..claimed
                }),
                ""
            );
        }
    }

    #[test]
    fn outputs_need_a_claim_or_a_run_that_applies() {
        let publish = |run: &RunView| reason(decide(run, &pod(run, 2), 2, NONCE, Ask::Publish));
        let destroys = RunView {
            operation: Operation::Destroy,
            ..view(2, true)
        };
        assert_eq!(
            (publish(&view(2, true)), publish(&destroys)),
            ("", FORBIDDEN)
        );
        assert_eq!(
            publish(&RunView {
                operation: Operation::Plan,
                ..view(2, true)
            }),
            FORBIDDEN
        );
        assert_eq!(
            publish(&RunView {
                claim: Some(claim(2)),
                ..destroys
            }),
            ""
        );
    }

    #[test]
    fn later_attempt_reads_but_never_writes_earlier_objects() {
        let run = view(3, true);
        for ask in ALL {
            let expected = if matches!(ask, Ask::Get(_)) {
                ""
            } else {
                FORBIDDEN
            };
            assert_eq!(
                reason(decide(&run, &pod(&run, 3), 1, NONCE, ask)),
                expected,
                "{ask:?}"
            );
        }
    }

    #[test]
    fn replaced_attempt_is_rejected() {
        let run = view(2, true);
        for ask in ALL {
            assert_eq!(
                reason(decide(&run, &pod(&run, 1), 1, NONCE, ask)),
                REPLACED,
                "{ask:?}"
            );
        }
        assert_eq!(
            reason(decide(&run, &pod(&run, 1), 2, NONCE, Ask::WriteState)),
            REPLACED,
            "with the number of the newest"
        );
    }

    #[test]
    fn other_pods_and_runs_are_rejected() {
        let run = view(2, true);
        let (own, mut foreign, mut elsewhere, mut again) =
            (pod(&run, 2), pod(&run, 2), pod(&run, 2), pod(&run, 2));
        (foreign.name, foreign.uid) = ("other-abcde-a1".into(), "other".into());
        elsewhere.namespace = "b".into();
        again.uid = "another pod of that name".into();
        for ask in ALL {
            assert_eq!(reason(decide(&run, &foreign, 2, NONCE, ask)), FORBIDDEN);
            assert_eq!(reason(decide(&run, &elsewhere, 2, NONCE, ask)), FORBIDDEN);
            assert_eq!(reason(decide(&run, &again, 2, NONCE, ask)), FORBIDDEN);
            assert_eq!(
                reason(decide(&run, &own, 2, "f", ask)),
                FORBIDDEN,
                "the container was started twice"
            );
            assert_eq!(
                reason(decide(&run, &own, 3, NONCE, ask)),
                FORBIDDEN,
                "no such attempt"
            );
            assert_eq!(
                reason(decide(
                    &RunView {
                        attempt: None,
                        ..run.clone()
                    },
                    &own,
                    2,
                    NONCE,
                    ask
                )),
                FORBIDDEN
            );
            assert_eq!(
                reason(decide(
                    &RunView {
                        adopted: None,
                        ..run.clone()
                    },
                    &own,
                    2,
                    NONCE,
                    ask
                )),
                FORBIDDEN
            );
        }
    }

    #[test]
    fn pod_that_the_attempt_does_not_record_is_rejected() {
        let (run, mut foreign) = (view(2, true), pod(&view(2, true), 2));
        foreign.uid = "foreign".into();
        let adopted = run.adopted.clone().map(|adopted| crds::Adopted {
            pod_uid: foreign.uid.clone(),
            ..adopted
        });
        let claim = Claim {
            pod_uid: foreign.uid.clone(),
            ..claim(2)
        };
        let run = RunView {
            adopted,
            claim: Some(claim),
            ..run
        };
        let unrecorded = RunView {
            attempt: Some((2, None, true)),
            ..run.clone()
        };
        for ask in ALL {
            for run in [&run, &unrecorded] {
                assert_eq!(
                    reason(decide(run, &foreign, 2, NONCE, ask)),
                    FORBIDDEN,
                    "{ask:?}"
                );
            }
        }
    }

    #[test]
    fn closed_attempt_accepts_only_evidence_of_the_claim_holder() {
        let closed = view(2, false);
        let claimed = RunView {
            claim: Some(claim(2)),
            ..closed.clone()
        };
        let others = RunView {
            claim: Some(Claim {
                nonce: "f".repeat(32),
                ..claim(2)
            }),
            ..closed.clone()
        };
        for ask in ALL {
            let proof = match ask {
                Ask::Put(kind) => kind != ObjectKind::Bundle,
                Ask::Log(stream) => stream != "plan",
                other => [
                    Ask::Publish,
                    Ask::ReadState,
                    Ask::WriteState,
                    Ask::WriteLast,
                    Ask::Unlock,
                ]
                .contains(&other),
            };
            assert_eq!(
                reason(decide(&closed, &pod(&closed, 2), 2, NONCE, ask)),
                REPLACED,
                "{ask:?}"
            );
            assert_eq!(
                reason(decide(&claimed, &pod(&closed, 2), 2, NONCE, ask)),
                if proof { "" } else { REPLACED },
                "{ask:?}"
            );
            assert_eq!(
                reason(decide(&others, &pod(&closed, 2), 2, NONCE, ask)),
                REPLACED,
                "{ask:?}"
            );
        }
    }
}
