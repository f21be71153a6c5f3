use crds::{TerraformLayer, TerraformRepository, names};
use serde_json::{Value, json};

use super::*;
use crate::follow::Follow;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// The commit that a forge reports may be on its servers some seconds later.
#[test]
fn request_without_news_is_followed_by_two_more_checks() {
    let mut memory = Memory::new(at(0));
    let mut due = Vec::new();
    memory.found(false, Cause::Request, at(0));
    while let Some(tries) = memory.unmoved {
        let then = later(tries.at, OF_REQUESTS.after(tries.times));
        due.push(then.duration_since(at(0)).as_secs());
        memory.found(false, Cause::Interval, then);
    }
    assert_eq!(due, [3, 9]);
    memory.found(false, Cause::Interval, at(60));
    assert_eq!(memory.unmoved, None, "only after a request");
    memory.found(false, Cause::Request, at(70));
    memory.found(true, Cause::Interval, at(73));
    assert_eq!(memory.unmoved, None, "it came");
}

#[test]
fn one_slow_check_makes_a_repository_slow_for_an_hour() {
    let mut memory = Memory::new(at(0));
    memory.took(Duration::from_secs(19), at(0));
    assert!(!memory.is_slow(at(0)));
    memory.took(Duration::from_secs(300), at(300));
    // A fast one in between gives nothing back.
    memory.took(Duration::from_secs(1), at(400));
    assert!(memory.is_slow(at(3899)) && !memory.is_slow(at(3900)));
}

/// A repository with a one-minute interval and a layer on `main`, its status, and whether the layer has a source.
fn view(spec: &Value, status: Value, source: bool) -> View {
    let mut all = json!({"url": "https://h/r", "interval": "1m"});
    all.as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let mut repository = TerraformRepository::new("r", serde_json::from_value(all).unwrap());
    let meta = &mut repository.metadata;
    (meta.namespace, meta.uid, meta.generation) = (Some("a".into()), Some("u".into()), Some(1));
    repository.status = serde_json::from_value(status).unwrap();
    let mut layer = TerraformLayer::new(
        "l",
        serde_json::from_value(json!({"repository": {"name": "r"}})).unwrap(),
    );
    layer.metadata.namespace = Some("a".into());
    if source {
        let source = json!({"source": {"of": layer.source_of(), "revision": "a", "content": "x"}});
        layer.status = serde_json::from_value(source).unwrap();
    }
    let mut follow = Follow::default();
    follow.repository(repository);
    follow.layer(&layer);
    follow.view(&("a".into(), "r".into())).unwrap()
}

fn known() -> Value {
    let condition = json!({"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    json!({"observedGeneration": 1, "conditions": [condition], "refs": [{"name": "main", "commit": {"revision": "a"}}]})
}

fn failing(class: &str, times: u32) -> Value {
    let mut status = known();
    status["refs"][0]["failure"] = json!({"class": class, "reason": "R", "message": "", "nextStep": "",
        "since": "2026-01-01T00:00:00Z", "times": times});
    status
}

fn memory(view: &View) -> Memory {
    let mut memory = Memory {
        looked: Some(at(0)),
        ..Memory::new(at(-1000))
    };
    memory.meets(view);
    memory
}

fn seconds(due: Due) -> f64 {
    match due {
        Due::At(then) => then.duration_since(at(0)).as_secs_f64(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn interval_has_a_stable_jitter_of_ten_percent() {
    let view = view(&json!({}), known(), true);
    let mut seen = std::collections::BTreeSet::new();
    for second in 0..50 {
        let memory = Memory {
            looked: Some(at(second * 60)),
            ..memory(&view)
        };
        let then = due(&view, &memory, at(second * 60));
        let wait = seconds(then) - f64::from(i32::try_from(second * 60).unwrap());
        assert!((54.0..=66.0).contains(&wait), "{wait}");
        assert_eq!(due(&view, &memory, at(second * 60 + 10)), then);
        seen.insert((wait * 1000.0).round().to_string());
    }
    assert!(seen.len() > 20, "{seen:?}");
    assert_eq!(
        due(&view, &memory(&view), at(67)),
        Due::Now(Cause::Interval)
    );
}

#[test]
fn after_a_start_new_repositories_are_checked_first() {
    let new = view(&json!({}), json!({"observedGeneration": 1}), false);
    assert_eq!(
        due(&new, &Memory::new(at(0)), at(0)),
        Due::Now(Cause::Interval)
    );
    let known = view(&json!({}), known(), true);
    let mut memory = Memory::new(at(0));
    memory.meets(&known);
    let wait = seconds(due(&known, &memory, at(0)));
    assert!((0.0..60.0).contains(&wait) && wait > 0.0, "{wait}");
    assert_eq!(due(&known, &memory, at(60)), Due::Now(Cause::Interval));
}

#[test]
fn requests_and_changed_specs_or_layers_are_due_at_once() {
    let now = at(1);
    let mut view_ = view(&json!({}), known(), true);
    assert!(matches!(due(&view_, &memory(&view_), now), Due::At(_)));
    let mut requested = (*view_.repository).clone();
    requested.metadata.annotations = Some([(names::RECONCILE.to_owned(), "1".to_owned())].into());
    view_.repository = std::sync::Arc::new(requested.clone());
    assert_eq!(due(&view_, &memory(&view_), now), Due::Now(Cause::Request));
    requested.status.as_mut().unwrap().last_handled_reconcile = Some("1".into());
    view_.repository = std::sync::Arc::new(requested);
    assert!(
        matches!(due(&view_, &memory(&view_), now), Due::At(_)),
        "it is answered"
    );

    let mut older = known();
    older["observedGeneration"] = json!(0);
    let other = view(&json!({}), older, true);
    assert_eq!(due(&other, &memory(&other), now), Due::Now(Cause::Spec));
    let mut without = known();
    without["refs"] = json!([]);
    let without = view(&json!({}), without, false);
    assert_eq!(
        due(&without, &memory(&without), now),
        Due::Now(Cause::Layer)
    );
    let mut left = failing("Configuration", 1);
    left["refs"][0]["name"] = json!("of a deleted layer");
    left["refs"]
        .as_array_mut()
        .unwrap()
        .extend(known()["refs"].as_array().unwrap().clone());
    let left = view(&json!({}), left, true);
    assert_eq!(due(&left, &memory(&left), now), Due::Now(Cause::Layer));
    let fresh = view(&json!({}), known(), false);
    assert_eq!(due(&fresh, &memory(&fresh), now), Due::Now(Cause::Layer));
    let mut memory_ = memory(&fresh);
    let layer = &fresh.layers[0];
    let answer = Answer::new(layer, layer.subject(&fresh.repository.spec.defaults));
    memory_.answered.insert(layer.key.clone(), answer);
    assert!(
        matches!(due(&fresh, &memory_, now), Due::At(_)),
        "what was answered is not asked in a circle"
    );
    let late = view(&json!({}), known(), true);
    assert_eq!(
        due(&late, &memory_, now),
        Due::Now(Cause::Layer),
        "it says something else than it was told"
    );
    let other = view(
        &json!({"defaults": {"variableFiles": [{"path": "x.tfvars"}]}}),
        known(),
        true,
    );
    assert_eq!(
        due(&other, &memory(&late), now),
        Due::Now(Cause::Layer),
        "other settings"
    );
}

#[test]
fn suspended_repository_is_never_due() {
    let view = view(&json!({"suspend": true}), json!({}), false);
    assert_eq!(due(&view, &Memory::new(at(0)), at(9_999_999)), Due::Never);
}

/// Burrito 11.11: a failure to get a token stopped polling until another event. Here a check without a response
/// always has a successor, no later than the interval.
#[test]
fn unreachable_repository_is_retried_forever() {
    let view = view(&json!({}), known(), true);
    for times in [1, 2, 3, 10, 1000, u32::MAX] {
        let memory = Memory {
            failed: Some(Tries { at: at(0), times }),
            ..memory(&view)
        };
        let wait = seconds(due(&view, &memory, at(0)));
        let most = 10.0 * 2f64.powi(i32::try_from(times.min(10)).unwrap() - 1);
        assert!(
            wait >= most.min(60.0) / 2.0 && wait <= most.min(60.0),
            "{times}: {wait}"
        );
        assert_eq!(due(&view, &memory, at(61)), Due::Now(Cause::Interval));
    }
}

/// Burrito 11.12: a failing ref was requested every ten seconds forever.
#[test]
fn failing_ref_backs_off() {
    let rows = [
        ("Configuration", 1, 10),
        ("Configuration", 3, 40),
        ("Transient", 30, 300),
        ("Configuration", 30, 3600),
    ];
    for (class, times, wait) in rows {
        let view = view(&json!({"interval": "24h"}), failing(class, times), true);
        let mut memory = memory(&view);
        memory.refs.insert(
            "main".into(),
            Tries {
                at: at(0),
                times: 1,
            },
        );
        assert_eq!(
            due(&view, &memory, at(0)),
            Due::At(at(wait)),
            "{class} {times}"
        );
        assert_eq!(due(&view, &memory, at(wait)), Due::Now(Cause::Retry));
        let known = &view.repository.status.as_ref().unwrap().refs[0];
        assert!(
            !is_tried(known, &memory, Cause::Interval, at(wait - 1))
                && is_tried(known, &memory, Cause::Request, at(0))
        );
    }
}

#[test]
fn failed_write_is_retried_with_backoff() {
    let view = view(&json!({}), json!({}), false);
    let memory = Memory {
        unwritten: Some(Tries {
            at: at(0),
            times: 1,
        }),
        ..memory(&view)
    };
    assert!((0.5..=1.0).contains(&seconds(due(&view, &memory, at(0)))));
    assert_eq!(due(&view, &memory, at(1)), Due::Now(Cause::Spec));
}
