//! Logs: appended by offset, without gaps, across restarts.

use crds::datastore::{FORBIDDEN, MAX_APPEND};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{Lab, noise, view};
use crate::{
    names::{LogKey, RunKey},
    testing::collect,
};

async fn read(lab: &Lab, query: &str) -> Vec<u8> {
    let answer = lab
        .of_person("GET", &format!("terraformruns/net/log?{query}"), b"")
        .await;
    assert_eq!(answer.code, 200, "{answer:?}");
    answer.body.unwrap().to_vec()
}

#[tokio::test]
async fn appends_are_accepted_repeated_and_rejected_by_offset() {
    let lab = Lab::new();
    let rows = [
        ("offset=0", &b"hello "[..], "200", Some(6)),
        ("offset=0", b"hello ", "200", Some(6)),
        // Repeated in part.
        ("offset=2", b"llo world", "200", Some(11)),
        // A gap.
        ("offset=12", b"x", "409 WrongOffset", Some(11)),
        ("offset=11", b"", "200", Some(11)),
        // It cannot end before its end.
        ("offset=5&end=true", b"", "400 Invalid", None),
        ("offset=11&end=true", b"!", "200", Some(12)),
        ("offset=11&end=true", b"!", "200", Some(12)),
        ("offset=12", b"more", "409 AlreadyExists", None),
        ("offset=4294967296", b"x", "413 TooLarge", None),
        (
            "offset=0",
            &noise(usize::try_from(MAX_APPEND).unwrap() + 1, 1),
            "413 TooLarge",
            None,
        ),
    ];
    for (n, (query, piece, expected, length)) in rows.into_iter().enumerate() {
        let answer = lab.put(&format!("log/plan?{query}"), piece).await;
        let found = answer.json()["length"].as_u64();
        assert_eq!(
            (answer.brief().as_str(), found),
            (expected, length),
            "row {n}"
        );
    }
    assert_eq!(read(&lab, "phase=plan").await, b"hello world!");
}

#[tokio::test]
async fn log_is_whole_when_every_started_phase_has_an_end() {
    let lab = Lab::new();
    let path = format!(
        "/v1/namespaces/team/uids/{}/attempts/1/log",
        view(1, true).uid
    );
    let whole = async |token| {
        lab.send(
            "GET",
            &path,
            &[("authorization", token)],
            axum::body::Body::empty(),
        )
        .await
    };
    assert_eq!(whole("Bearer pod-1").await.reason(), FORBIDDEN);
    let said = async || {
        whole("Bearer controller").await.json()["whole"]
            .as_bool()
            .unwrap()
    };
    assert!(!said().await, "nothing was ever written");
    for (piece, is) in [
        ("setup?offset=0&end=true", true),
        ("init?offset=0", false),
        ("plan?offset=0&end=true", false),
        ("init?offset=1&end=true", true),
    ] {
        assert_eq!(lab.put(&format!("log/{piece}"), b"x").await.code, 200);
        assert_eq!(said().await, is, "{piece}");
    }
}

#[tokio::test]
async fn log_survives_restarts_with_chunks_of_any_size() {
    let mut lab = Lab::new();
    let mut rng = StdRng::seed_from_u64(8);
    let whole = noise(3 << 20, 8);
    let mut sent = 0;
    while sent < whole.len() {
        let piece = if rng.random_bool(0.2) {
            rng.random_range(1..=1 << 20)
        } else {
            rng.random_range(1..60_000)
        };
        let piece = &whole[sent..(sent + piece).min(whole.len())];
        let answer = lab.put(&format!("log/apply?offset={sent}"), piece).await;
        assert_eq!(answer.json()["length"], sent + piece.len());
        sent += piece.len();
        if rng.random_bool(0.15) {
            lab.restart();
        }
    }
    assert!(read(&lab, "phase=apply").await == whole);
    // The shorter predecessors of the segments are deleted.
    let started = std::time::Instant::now();
    loop {
        let segments = lab
            .files()
            .into_iter()
            .filter(|path| path.to_string_lossy().contains("/log/"))
            .count();
        if segments < 40 {
            break;
        }
        assert!(
            started.elapsed() < std::time::Duration::from_secs(60),
            "{segments}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn replica_with_an_outdated_view_removes_nothing() {
    let lab = Lab::new();
    // Two replicas on one folder, each with its own cache.
    let [one, two] = [(); 2].map(|()| {
        super::service(lab.folder.path(), lab.keys.path(), &lab.cluster)
            .0
            .logs
            .clone()
    });
    let key = LogKey {
        run: RunKey::new("team", "u1").unwrap(),
        attempt: 1,
        phase: "plan",
    };
    let whole = noise(600_000, 3);
    one.append(&key, 0, &whole[..100], false).await.unwrap();
    two.append(&key, 100, &whole[100..200_000], false)
        .await
        .unwrap();
    // A delayed request reaches the first replica.
    one.append(&key, 100, &whole[100..150], false)
        .await
        .unwrap();
    two.append(&key, 200_000, &whole[200_000..500_000], false)
        .await
        .unwrap();
    one.append(&key, 500_000, &whole[500_000..], true)
        .await
        .unwrap();
    let index = two.index(&key).await.unwrap();
    assert_eq!(
        (index.length, index.gap, index.ended),
        (600_000, false, true)
    );
    let read = collect(two.read(&key, &index, 0)).await.unwrap();
    assert!(read == whole);
    let middle = collect(two.read(&key, &index, 123_456)).await.unwrap();
    assert!(middle == whole[123_456..]);
}

#[tokio::test]
async fn tail_starts_at_the_requested_line() {
    let lab = Lab::new();
    let text = (0..20_000).fold(String::new(), |all, n| {
        all + &format!("line {n} of a log that has some segments\n")
    });
    for (n, piece) in text.as_bytes().chunks(100_000).enumerate() {
        assert_eq!(
            lab.put(&format!("log/plan?offset={}", n * 100_000), piece)
                .await
                .code,
            200
        );
    }
    for lines in [0, 1, 3, 9_999, 20_000, 30_000] {
        let expected: String = text
            .lines()
            .skip(20_000_usize.saturating_sub(lines))
            .fold(String::new(), |all, line| all + line + "\n");
        assert!(
            read(&lab, &format!("phase=plan&tail={lines}")).await == expected.as_bytes(),
            "{lines}"
        );
    }
    assert_eq!(
        lab.put(
            &format!("log/plan?offset={}", text.len()),
            b"no newline yet"
        )
        .await
        .code,
        200
    );
    assert_eq!(read(&lab, "phase=plan&tail=1").await, b"no newline yet");
}

#[tokio::test]
async fn offset_continues_without_gap_or_repetition() {
    let lab = Lab::new();
    let text = noise(700_000, 4);
    for (n, piece) in text.chunks(100_000).enumerate() {
        let path = format!("log/plan?offset={}", n * 100_000);
        assert_eq!(lab.put(&path, piece).await.code, 200);
    }
    for at in [0, 1, 99_999, 100_000, 333_333, 699_999, 700_000, 800_000] {
        let read = read(&lab, &format!("phase=plan&attempt=1&offset={at}")).await;
        assert!(read == text[at.min(text.len())..], "{at}");
    }
}
