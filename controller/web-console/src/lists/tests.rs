use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use watching::Index as _;

use super::{query::Query, *};
use crate::{
    access::Scope,
    rows::{LayerRow, Rows, RunRow, tests as made},
};

fn scope(namespaces: &[&str]) -> Scope {
    let names: BTreeSet<_> = namespaces.iter().map(|name| (*name).to_owned()).collect();
    Scope::Namespaces(Arc::new(names))
}

fn ready(reason: &str, changed: &str) -> Value {
    json!({"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": changed}]})
}

/// Layers `a/l0`, `b/l1`, `a/l2` …, each second of `b` failed.
fn layers(number: usize) -> Rows {
    let rows = Rows::default();
    for index in 0..number {
        let namespace = if index % 2 == 0 { "a" } else { "b" };
        let reason = if index % 4 == 3 {
            "RunFailed"
        } else {
            "UpToDate"
        };
        let status = ready(reason, &format!("2026-01-01T00:{:02}:00Z", index % 60 / 2));
        let layer = made::layer(namespace, &format!("l{index}"), &status);
        made::show(&rows, &[], &[layer]);
    }
    rows
}

fn parsed<R: Listed>(text: &str) -> Result<Query, Problem> {
    query::<R>(form_urlencoded::parse(text.as_bytes()))
}

fn of(rows: &Rows, scope: &Scope, text: &str) -> Page<LayerRow> {
    let query = parsed::<LayerRow>(text).unwrap();
    page(rows.read().layers.rows(), scope, &query)
}

fn names(page: &Page<LayerRow>) -> Vec<String> {
    page.items.iter().map(|row| row.name.to_string()).collect()
}

fn counts(page: &Page<LayerRow>, facet: &str) -> Vec<(String, usize)> {
    let all = page.facets.get(facet).unwrap();
    all.iter().map(|of| (of.value.clone(), of.count)).collect()
}

#[test]
fn facet_counts_rows_of_all_other_filters() {
    let rows = layers(8);
    let all = of(&rows, &Scope::All, "");
    let two = |one: (&str, usize), two: (&str, usize)| {
        vec![(one.0.to_owned(), one.1), (two.0.to_owned(), two.1)]
    };
    assert_eq!(all.total, 8);
    assert_eq!(counts(&all, "state"), two(("InSync", 6), ("Failed", 2)));
    let failed = of(&rows, &Scope::All, "state=Failed");
    assert_eq!(
        (failed.total, names(&failed)),
        (2, vec!["l3".into(), "l7".into()])
    );
    assert_eq!(counts(&failed, "state"), two(("InSync", 6), ("Failed", 2)));
    assert_eq!(counts(&failed, "namespace"), [("b".into(), 2)]);
    let both = of(&rows, &Scope::All, "state=Failed&namespace=a");
    assert_eq!(both.total, 0);
    assert_eq!(counts(&both, "state"), [("InSync".into(), 4)]);
    assert_eq!(counts(&both, "namespace"), [("b".into(), 2)]);
    assert!(counts(&both, "repository").is_empty());
    let either = of(
        &rows,
        &Scope::All,
        "namespace=a,b&state=Failed&state=InSync",
    );
    assert_eq!(either.total, 8);
}

#[test]
fn rows_of_other_namespaces_are_in_no_count() {
    let rows = layers(8);
    let (mine, none) = (scope(&["a", "empty"]), scope(&[]));
    for text in [
        "",
        "state=Failed",
        "q=l",
        "namespace=b",
        "sort=-changedAt&limit=1",
    ] {
        let page = of(&rows, &mine, text);
        let said = serde_json::to_string(&page).unwrap();
        assert!(
            !said.contains("\"b\"") && !said.contains("Failed"),
            "{text}: {said}"
        );
        let nothing = of(&rows, &none, text);
        assert!(nothing.items.is_empty() && nothing.total == 0 && nothing.next.is_none());
        assert!(nothing.facets.values().all(Vec::is_empty), "{text}");
    }
    assert_eq!(of(&rows, &mine, "").total, 4);
    // Nor does a cursor that names a row of another namespace tell anything.
    let first = of(&rows, &Scope::All, "limit=2&sort=-name").next.unwrap();
    let rest = of(&rows, &mine, &format!("sort=-name&cursor={first}"));
    assert!(rest.items.iter().all(|row| &*row.namespace == "a"));
}

#[test]
fn layers_of_a_repository_are_counted_by_right() {
    let rows = layers(8);
    let repository = |namespace: &str| {
        let object = json!({"metadata": {"namespace": namespace, "name": "net"}, "spec": {"url": "https://git.example.org/net"}});
        let object: crds::TerraformRepository = serde_json::from_value(object).unwrap();
        rows.apply(
            &watching::Key::new((namespace.into(), "net".into())),
            &object,
        );
    };
    repository("a");
    repository("b");
    let count = |scope: &Scope| {
        let tables = rows.read();
        let mut found = page(
            tables.repositories.rows(),
            &Scope::All,
            &parsed::<RepositoryRow>("").unwrap(),
        );
        count_layers(&mut found, &tables, scope);
        found.items.iter().map(|row| row.layers).collect::<Vec<_>>()
    };
    assert_eq!(count(&Scope::All), [4, 4]);
    assert_eq!(count(&scope(&["b"])), [0, 4]);
}

#[test]
fn search_needs_each_word_in_some_text() {
    let rows = layers(8);
    for (text, found) in [
        ("q=L3", 1),
        ("q=stacks/l", 8),
        ("q=b+l1", 1),
        ("q=net%20main", 8),
        ("q=l1+absent", 0),
        ("q=b%0Al1", 1),
        ("q=", 8),
    ] {
        assert_eq!(of(&rows, &Scope::All, text).total, found, "{text}");
    }
}

#[test]
fn cursors_reach_each_row_once_while_rows_change() {
    for sort in [
        "name",
        "-name",
        "changedAt",
        "-changedAt",
        "state",
        "-driftSince",
        "-lastApplied",
    ] {
        let rows = layers(40);
        let (mut seen, mut cursor, mut turn) = (Vec::new(), String::new(), 0);
        loop {
            let page = of(
                &rows,
                &Scope::All,
                &format!("sort={sort}&limit=7&cursor={cursor}"),
            );
            seen.extend(names(&page));
            // A row of an earlier page goes, and the last row of this page too.
            for name in [seen.first(), seen.last()].into_iter().flatten() {
                for namespace in ["a", "b"] {
                    let key = watching::Key::new((namespace.into(), name.as_str().into()));
                    watching::Index::<crds::TerraformLayer>::delete(&rows, &key);
                }
            }
            turn += 1;
            let Some(next) = page.next else { break };
            cursor = next;
        }
        assert_eq!(turn, 6, "{sort}");
        let unique: BTreeSet<_> = seen.iter().collect();
        assert_eq!((seen.len(), unique.len()), (40, 40), "{sort}: {seen:?}");
    }
}

#[test]
fn rows_with_equal_values_keep_their_order() {
    let rows = layers(40);
    let all = of(&rows, &Scope::All, "sort=-changedAt");
    let two: Vec<_> = all
        .items
        .iter()
        .map(|row| {
            (
                row.changed_at.clone(),
                row.namespace.clone(),
                row.name.clone(),
            )
        })
        .collect();
    let mut sorted = two.clone();
    sorted.sort_by(|one, two| {
        two.0
            .cmp(&one.0)
            .then_with(|| (&one.1, &one.2).cmp(&(&two.1, &two.2)))
    });
    assert_eq!(two, sorted);
    let none = of(&rows, &Scope::All, "sort=-driftSince");
    assert_eq!(
        none.items.first().map(|row| &*row.name),
        Some("l0"),
        "without a value"
    );
}

#[test]
fn invalid_parameters_are_refused() {
    let other = of(&layers(8), &Scope::All, "limit=1&sort=-name")
        .next
        .unwrap();
    for text in [
        "limit=0".to_owned(),
        "limit=501".to_owned(),
        "limit=x".to_owned(),
        "sort=uid".to_owned(),
        "sort=".to_owned(),
        "colour=red".to_owned(),
        "cursor=x".to_owned(),
        "cursor=e30".to_owned(),
        format!("cursor={other}"),
        format!("sort=name&cursor={other}"),
        format!("q={}", "x".repeat(300)),
        format!("state={}", "x,".repeat(100)),
    ] {
        assert!(parsed::<LayerRow>(&text).is_err(), "{text}");
    }
    assert!(parsed::<LayerRow>(&format!("sort=-name&cursor={other}")).is_ok());
    assert!(parsed::<RunRow>("phase=Plan&layer=net").is_ok());
}

/// The bytes of a page of realistic runs, as sent to a browser.
#[tokio::test]
async fn page_of_100_rows_is_at_most_30_kb() {
    let rows = Rows::default();
    for number in 0..20_000_u32 {
        let hash = format!(
            "{:016x}",
            u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        );
        let mut plan = made::plan(number % 9);
        plan["checksum"] = format!("sha256:{}", hash.repeat(4)).into();
        plan["revision"] = format!("{hash}{hash}{}", &hash[..8]).into();
        let status = json!({"phase": "AwaitingApproval", "plan": plan, "startTime": made::AT,
            "approval": {"by": "alice@example.com", "at": made::AT}});
        let (namespace, layer) = (
            format!("team-{}", number % 50),
            format!("layer-of-a-team-{number}"),
        );
        let mut run = made::run(
            &namespace,
            &format!("{layer}-{}", &hash[..10]),
            &layer,
            &status,
        );
        run.metadata.uid = Some(format!("{}-4c07-9d43-{}", &hash[..8], &hash[4..16]));
        made::show(&rows, &[run], &[]);
    }
    let begun = std::time::Instant::now();
    let page = page(
        rows.read().runs.rows(),
        &Scope::All,
        &parsed::<RunRow>("q=team&sort=name").unwrap(),
    );
    assert_eq!((page.items.len(), page.total), (100, 20_000));
    let mut headers = HeaderMap::new();
    let plain = answer::json(&headers, &page, "none");
    headers.insert(
        "accept-encoding",
        "deflate, gzip;q=0.9, br".parse().unwrap(),
    );
    let zipped = answer::json(&headers, &page, "none");
    let elapsed = begun.elapsed();
    let bytes = async |response: Response| {
        axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .unwrap()
            .len()
    };
    assert_eq!(zipped.headers()["content-encoding"], "gzip");
    let (tag, plain, zipped) = (
        plain.headers()["etag"].clone(),
        bytes(plain).await,
        bytes(zipped).await,
    );
    println!("{plain} bytes, {zipped} compressed; {elapsed:?}");
    assert!(
        zipped <= 30_000 && plain <= 100_000,
        "{plain} bytes, {zipped} compressed"
    );
    headers.insert("if-none-match", tag);
    assert_eq!(answer::json(&headers, &page, "none").status(), 304);
}

#[test]
fn etag_ignores_the_sequence_alone() {
    let rows = layers(8);
    let tag = |sequence: &str, text: &str| {
        let mut page = of(&rows, &Scope::All, text);
        page.sequence = sequence.to_owned();
        answer::json(&HeaderMap::new(), &page, sequence).headers()["etag"].clone()
    };
    assert_eq!(tag("1f-1", ""), tag("1f-2", ""));
    assert_ne!(tag("1f-1", ""), tag("1f-1", "state=Failed"));
}
