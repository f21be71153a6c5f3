//! The machine as a table of the design page 0003.

use super::*;

type Answer = (State, Vec<Effect>);

/// The machine as a table: one row per outcome, "nothing" last.
fn table() -> String {
    let manual = Terms {
        plan_only: false,
        mode: Mode::Manual,
    };
    let short = |text: String| {
        let text = ["Stop(", "Write(", "Task(", "Permission(", "Timer("]
            .into_iter()
            .find_map(|kind| {
                text.strip_prefix(kind)?
                    .strip_suffix(')')
                    .map(str::to_owned)
            })
            .unwrap_or(text);
        text.replace("Terms { plan_only: false, mode: Manual }", "…")
            .replace("State::", "")
            .replace(" { ", "(")
            .replace(" }", ")")
            .replace("stop: ", "")
            .replace("stage: ", "")
            .replace("killed: ", "killed=")
            .replace("Some(Terminated)", "stop")
            .replace("retried: ", "retried=")
            .replace("changes: ", "changes=")
            .replace("hooks: ", "hooks=")
    };
    let rows = [
        State::Adopting,
        State::Setup(manual),
        State::Restoring,
        State::RecordingInit(manual),
        State::Init(manual),
        State::RecordingPlan(manual),
        State::Planning(manual),
        State::Planning(Terms {
            mode: Mode::Automatic,
            ..manual
        }),
        State::Planning(Terms {
            plan_only: true,
            ..manual
        }),
        State::RecordingResult(Mode::Manual),
        State::RecordingResult(Mode::Automatic),
        State::Leasing,
        State::Awaiting,
        State::Verifying(Mode::Manual),
        State::Claiming(Mode::Manual, None),
        State::Claiming(Mode::Manual, Some(Stop::Terminated)),
        State::Claiming(Mode::Manual, Some(Stop::Deleted)),
        State::Preparing,
        State::HoldingBack {
            stop: Stop::Terminated,
            killed: false,
        },
        State::HoldingBack {
            stop: Stop::Terminated,
            killed: true,
        },
        State::VerifyingAgain,
        State::Stopping {
            stop: Stop::Terminated,
            killed: false,
        },
        State::Stopping {
            stop: Stop::Terminated,
            killed: true,
        },
        State::Applying,
        State::Interrupting {
            stop: Stop::Terminated,
            stage: Stage::Asked,
        },
        State::Interrupting {
            stop: Stop::Terminated,
            stage: Stage::ProvidersKilled,
        },
        State::Interrupting {
            stop: Stop::Terminated,
            stage: Stage::ToolKilled,
        },
        State::Ending(Ending::Applied),
        State::Finishing(Ending::Applied),
        State::Reporting(Ending::Applied),
        State::Ended,
    ];
    let mut text = String::from("| state | event | next | effects |\n|---|---|---|---|\n");
    for state in rows {
        let mut answers: Vec<(Answer, Vec<Event>)> = Vec::new();
        for event in events() {
            if matches!(event, Event::Write(Write::Adopted(t)) if t != manual) {
                continue;
            }
            let answer = next(&state, &event);
            match answers.iter_mut().find(|(known, _)| *known == answer) {
                Some((_, list)) => list.push(event),
                None => answers.push((answer, vec![event])),
            }
        }
        let all = answers.len() == 1;
        answers.sort_by_key(|(answer, _)| *answer == (state, vec![]));
        for ((after, effects), list) in answers {
            let list: Vec<_> = if all {
                vec!["any".to_owned()]
            } else {
                list.iter().map(|e| short(format!("{e:?}"))).collect()
            };
            let effects: Vec<_> = effects.iter().map(|e| short(format!("{e:?}"))).collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                short(format!("{state:?}")),
                list.join(", "),
                if after == state {
                    "(same)".to_owned()
                } else {
                    short(format!("{after:?}"))
                },
                effects.join(", ")
            );
        }
    }
    text
}

#[test]
fn table_in_the_design_equals_the_machine() {
    const BEGIN: &str = "<!-- table: generated, UPDATE=1 cargo test --release -p runner-agent --lib machine::tests::table -->\n";
    const END: &str = "<!-- /table -->";
    let path = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../design/0003-state-machine.md"
    ));
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page
        .split_once(BEGIN)
        .expect("the page has the first marker");
    let (committed, tail) = rest
        .split_once(END)
        .expect("the page has the second marker");
    let fresh = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{fresh}{END}{tail}")).unwrap();
    } else {
        assert!(
            committed == fresh,
            "the machine differs from {}: run this test with UPDATE=1 and read the difference",
            path.display()
        );
    }
}
