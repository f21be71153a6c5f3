//! People with tokens: pages, and streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{TerraformRun, names};
use harness::cluster::ControlPlane;
use kube::Api;
use kube::api::{Patch, PatchParams};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Lab, PATIENCE, objects};
use crate::scale;
use crate::table::{Table, mib, number};

/// Requests for pages.
const PAGES: usize = 2000;
/// Streams of each person, and people.
const OF_ONE: usize = 50;
const PEOPLE: usize = 20;
/// Changes of runs while the streams are open.
const CHANGES: usize = 1000;

/// Pages of 100 rows, as people ask for them.
const QUERIES: [&str; 12] = [
    "layers",
    "layers?sort=-changedAt",
    "layers?q=net",
    "layers?q=cluster+team-07",
    "layers?state=Drifted,Failed",
    "layers?namespace=team-007&sort=path",
    "runs",
    "runs?phase=AwaitingApproval",
    "runs?sort=name",
    "runs?q=dns",
    "runs?result=Failed,Applied",
    "runs?layer=database-00001",
];

/// Bounds each wait for bytes, since a stream lasts as long as the measurement.
pub(super) fn http() -> Result<Client> {
    let http = Client::builder().no_proxy().read_timeout(PATIENCE);
    Ok(http.build()?)
}

/// A new account that may read and approve everything, and its token.
pub(super) fn token(plane: &ControlPlane, namespace: &str, name: &str) -> Result<String> {
    let account = format!("{namespace}:{name}");
    plane.kubectl(&["-n", namespace, "create", "serviceaccount", name])?;
    plane.kubectl(&[
        "create",
        "clusterrolebinding",
        name,
        "--clusterrole=pawl-approver",
        "--serviceaccount",
        &account,
    ])?;
    scale::token(plane, namespace, name, &[])
}

/// Asks for pages one after the other, also for the pages behind them.
pub(super) async fn pages(lab: &Lab, when: &str, table: &mut Table) -> Result<()> {
    let (http, token) = (
        http()?,
        token(
            &lab.plane,
            "default",
            &format!("reader-{}", when.replace(' ', "-")),
        )?,
    );
    let (mut times, mut most, mut next) = (Vec::new(), 0, vec![None::<String>; QUERIES.len()]);
    let before = lab.server.work()?.cpu;
    for turn in 0..PAGES {
        let (query, cursor) = (
            QUERIES[turn % QUERIES.len()],
            &mut next[turn % QUERIES.len()],
        );
        let mut url = format!("{}/api/v1/{query}", lab.url);
        if let Some(cursor) = cursor.take() {
            let mark = if query.contains('?') { '&' } else { '?' };
            url = format!("{url}{mark}cursor={cursor}");
        }
        let begun = Instant::now();
        let asked = http
            .get(url)
            .bearer_auth(&token)
            .header("accept-encoding", "gzip");
        let answer = asked.send().await?.error_for_status()?;
        let sent = answer.bytes().await?;
        times.push(begun.elapsed());
        most = most.max(sent.len());
        // As a browser scrolls: the next page of a list comes with its next turn.
        if turn % 3 != 0 {
            *cursor = following(&sent)?;
        }
    }
    let cpu = lab.server.work()?.cpu.saturating_sub(before).as_secs_f64() * 1000.0;
    let each = cpu / number(PAGES as u64);
    // Names are reviewed and rights are looked up once.
    times.remove(0);
    times.sort();
    let at = |share: usize| times[times.len() * share / 1000].as_secs_f64() * 1000.0;
    let (half, p99) = (at(500), at(990));
    let name = format!("page of 100 rows, {when}: p50, p99 of {PAGES}");
    table.bound(
        &name,
        format!("{half:.1} ms, {p99:.1} ms"),
        "p99 at most 20 ms",
        p99 <= 20.0,
    );
    let name = format!("processor time of the server for a page, {when}");
    table.plain(&name, format!("{each:.1} ms"));
    let kib = number(most as u64) / 1000.0;
    table.bound(
        &format!("largest page as sent, {when}"),
        format!("{kib:.1} KB"),
        "at most 30 KB",
        kib <= 30.0,
    );
    Ok(())
}

fn following(sent: &[u8]) -> Result<Option<String>> {
    use std::io::Read as _;
    let mut text = String::new();
    if sent.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(sent).read_to_string(&mut text)?;
    } else {
        text = String::from_utf8(sent.to_vec())?;
    }
    let page: Value = serde_json::from_str(&text)?;
    Ok(page["next"].as_str().map(str::to_owned))
}

/// Opens as many streams as there may be, changes runs, and reads pages meanwhile.
pub(super) async fn streams(lab: &Lab, table: &mut Table) -> Result<()> {
    let (http, url) = (
        http()?,
        format!(
            "{}/api/v1/stream?topic=layers&topic=runs&topic=inbox",
            lab.url
        ),
    );
    let (bytes, mut open) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let mut last = None;
    for person in 0..PEOPLE {
        let token = token(&lab.plane, "default", &format!("viewer-{person}"))?;
        for _ in 0..OF_ONE {
            let mut stream = http
                .get(&url)
                .bearer_auth(&token)
                .send()
                .await?
                .error_for_status()?;
            let bytes = bytes.clone();
            open.spawn(async move {
                while let Ok(Some(chunk)) = stream.chunk().await {
                    bytes.fetch_add(chunk.len(), Ordering::Relaxed);
                }
            });
        }
        last = Some(token);
    }
    let code = |token: String| async {
        anyhow::Ok(http.get(&url).bearer_auth(token).send().await?.status())
    };
    let own = code(last.context("no person")?).await?;
    let further = code(self::token(&lab.plane, "default", "late")?).await?;
    ensure!(
        (own, further)
            == (
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::SERVICE_UNAVAILABLE
            ),
        "one more stream: {own}, {further}"
    );
    let changing = change(lab);
    let mut most = lab.server.memory()?.resident;
    let watching = async {
        loop {
            most = most.max(lab.server.memory().map_or(0, |memory| memory.resident));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (begun, before) = (Instant::now(), lab.server.work()?.cpu);
    let changed = tokio::select! {
        changed = changing => changed,
        () = watching => Ok(()),
    };
    changed?;
    let (seconds, cpu) = (
        begun.elapsed().as_secs_f64(),
        lab.server.work()?.cpu.saturating_sub(before),
    );
    pages(lab, "with all streams", table).await?;
    let most = most.max(lab.server.memory()?.resident);
    ensure!(
        open.len() == OF_ONE * PEOPLE && open.try_join_next().is_none(),
        "a stream ended"
    );
    let goal = most <= 150 * 1024;
    table.bound(
        "server: memory with 1,000 open streams",
        mib(most),
        "at most 150 MiB",
        goal,
    );
    let sent = number(bytes.load(Ordering::Relaxed) as u64) / 1e6;
    let spent = format!(
        "{seconds:.1} s, {:.1} CPU seconds of the server, {sent:.0} MB sent",
        cpu.as_secs_f64()
    );
    table.plain(&format!("{CHANGES} changes told to 1,000 streams"), spent);
    Ok(())
}

/// Changes runs, one after the other.
async fn change(lab: &Lab) -> Result<()> {
    let admin = lab.plane.client().await?;
    for turn in 0..CHANGES {
        // Runs that ended without changes.
        let number = turn % 10 * 100 + 30 + turn / 10 % 60;
        let (namespace, name) = objects::run_name(number, lab.layers);
        let patch =
            json!({"metadata": {"annotations": {names::REQUESTED_BY: format!("turn-{turn}")}}});
        let api: Api<TerraformRun> = Api::namespaced(admin.clone(), &namespace);
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
    }
    // The last ones arrive.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}
