//! Tests of the words about locks.

use super::*;

#[test]
fn lock_names_its_holder() {
    let of = |first: &str, who: &str| {
        let detail = format!(
            "Error message: {first}\nLock Info:\n  ID:        l1\n  Path:      \n  Operation: OperationTypeApply\n  Who:       {who}\n  \
             Version:   1.10.6\n  Created:   2026-11-21 10:00:00 +0000 UTC\n  Info:      \n"
        );
        let failure = of(
            "plan",
            vec![diagnostic("Error acquiring the state lock", &detail, None)],
        );
        assert_eq!(failure.class, StateLocked);
        (lock(&failure, "net-2xbdf-a2"), failure.message)
    };
    let (known, message) = of(
        "HTTP remote state already locked: ID=l1",
        "pawl@net-2xbdf-a1",
    );
    assert_eq!(
        message,
        "plan failed: the state is locked by pawl@net-2xbdf-a1 since 2026-11-21 10:00:00 +0000 UTC"
    );
    let known = known.unwrap();
    assert_eq!(
        (known.id.as_str(), known.who.as_str()),
        ("l1", "pawl@net-2xbdf-a1")
    );
    assert_eq!(
        known.created.as_deref(),
        Some("2026-11-21 10:00:00 +0000 UTC")
    );
    // Terraform prints its own lock info.
    let unknown = of(
        "HTTP remote state already locked: ID=l9",
        "pawl@net-2xbdf-a2",
    )
    .0
    .unwrap();
    assert_eq!(
        (unknown.id.as_str(), unknown.who.as_str(), unknown.created),
        ("l9", "unknown", None)
    );
    assert_eq!(lock(&Reason::Throttled.failure("x"), "a"), None);
}

#[test]
fn lock_in_a_summary_alone_names_its_holder() {
    // The words of the kubernetes backend at `init`, OpenTofu 1.12.6.
    let words = "Error loading state: the state is already locked by another tofu client\nLock Info:\n  ID:        l1\n  Who:       \
                 pawl@net-2xbdf-a1\n";
    let failure = of("init", vec![diagnostic(words, "", None)]);
    assert_is(&failure, StateLocked, reason::STATE_LOCKED, words);
    let lock = lock(&failure, "net-2xbdf-a2").unwrap();
    assert_eq!(
        (lock.id.as_str(), lock.who.as_str()),
        ("l1", "pawl@net-2xbdf-a1")
    );
}

#[test]
fn heading_of_a_lock_is_no_holder() {
    // MinIO refuses `encrypt` without KMS.
    let words = "Error message: operation error S3: PutObject, https response error StatusCode: 501, api error NotImplemented: x";
    let told = diagnostic("Error acquiring the state lock", words, None);
    let failure = of("plan", vec![told]);
    assert_is(&failure, Configuration, reason::PLAN_FAILED, words);
    assert_eq!(lock(&failure, "a"), None);
    // The lock's object was taken by another client meanwhile.
    let words = "Error message: operation error S3: GetObject, https response error StatusCode: 404, NoSuchKey: x";
    let told = diagnostic("Error releasing the state lock", words, None);
    assert_is(
        &of("apply", vec![told]),
        Transient,
        reason::LOCK_NOT_RELEASED,
        words,
    );
}

#[test]
fn lock_that_the_code_words_is_none() {
    let words = "Lock Info:\n  ID:        l1\n  Who:       carol@laptop\n";
    let place = Some(("main.tf", 1));
    let at = |address: &str, told: Diagnostic| Diagnostic {
        address: Some(address.into()),
        ..told
    };
    let own = "Error acquiring the state lock";
    for told in [
        diagnostic("Invalid value for variable", words, place),
        at(
            "t.a",
            diagnostic("Resource precondition failed", words, place),
        ),
        at("t.a", diagnostic(own, words, place)),
        at("t.a", diagnostic(own, words, None)),
        diagnostic("Failed to load plugin schemas", words, None),
    ] {
        let found = of("plan", vec![told.clone()]);
        assert_ne!(found.class, StateLocked, "{told:?}");
        // The holder is the one that the tool names.
        let held = of(
            "plan",
            vec![
                told,
                diagnostic(
                    own,
                    "Error message: x\nLock Info:\n  ID: l2\n  Who: dan@ci\n",
                    None,
                ),
            ],
        );
        assert!(held.message.ends_with("locked by dan@ci"), "{held:?}");
        assert_eq!(lock(&held, "a").unwrap().id, "l2");
    }
}

#[test]
fn directory_that_cannot_be_written_is_no_lock() {
    for (call, below, directory) in [
        ("open terraform.tfstate: permission denied", "", "."),
        (
            "open .terraform.tfstate.lock.info: permission denied",
            "net",
            "net",
        ),
        ("mkdir ../state/a: read-only file system", "net", "state"),
        ("open /state/a.tfstate: permission denied", "net", "/state"),
        ("open state/a.tfstate: not a directory", "", "state"),
    ] {
        let detail = format!("Error message: {call}\n\nOpenTofu acquires a state lock to");
        let told = diagnostic("Error acquiring the state lock", &detail, None);
        let said = Said {
            diagnostics: vec![told],
            below: below.into(),
            ..Said::default()
        };
        let f = failure("apply", FAILED, &said);
        assert_is(&f, Configuration, reason::APPLY_FAILED, call);
        let wanted = format!("apply failed: the tool cannot write to directory {directory}, where");
        assert!(f.message.starts_with(&wanted), "{}", f.message);
        assert_eq!(lock(&f, "a"), None);
    }
}
