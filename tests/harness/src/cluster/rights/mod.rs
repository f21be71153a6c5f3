//! Rights of Pawl's accounts, judged by audit logs at the end of a suite: each refusal has a reason in a table, and each rule of the chart
//! is used. Judged are requests of Pawl's processes, not of tests that act as one of its accounts.

mod audit;
mod reasons;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{NAMESPACE, cache, cache::Cache, gobuild::Toolset};
use reasons::{REFUSALS, UNUSED};

pub use audit::Log;

/// The parts of Pawl that have an account and rules in the chart.
pub(crate) const PARTS: [&str; 4] = ["controller", "datastore", "server", "sources"];

/// Values with which the chart renders all of its rules.
const VALUES: [&str; 2] = [
    "--set=server.hooks.enabled=true",
    "--set=runner.tools.cache.hostPath=/var/cache/pawl",
];

/// One verb of a rule, on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    part: &'static str,
    verb: String,
    group: String,
    /// With the subresource: `terraformruns/status`.
    resource: String,
    /// Empty if it is for objects of any name.
    names: Vec<String>,
}

impl Right {
    fn permits(&self, request: &audit::Request) -> bool {
        self.part == request.part
            && self.verb == request.verb
            && self.group == request.group
            && self.resource == request.resource
            && (self.names.is_empty() || self.names.contains(&request.name))
    }

    /// `controller: get nodes`.
    fn text(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let names = if self.names.is_empty() {
            String::new()
        } else {
            format!(" {}", self.names.join(", "))
        };
        format!(
            "{}: {} {}{dot}{}{names}",
            self.part, self.verb, self.resource, self.group
        )
    }
}

/// Judges a suite by its audit logs: returns whether it is well, and prints why not. `whole`: every test of the suite ran, so the used rules
/// are kept for the last stage of `cargo ci`.
pub fn judge(suite: &str, logs: &[Log], whole: bool) -> bool {
    judged(suite, logs, whole)
        .inspect_err(|error| println!("test rights ... FAILED\n{error:#}"))
        .is_ok()
}

/// Fails if one of Pawl's processes was refused something without a known reason.
fn judged(suite: &str, logs: &[Log], whole: bool) -> Result<()> {
    let mut requests = BTreeMap::new();
    for log in logs {
        log.read(&mut requests)?;
    }
    let all: usize = requests.values().map(|(count, _)| count).sum();
    ensure!(
        all > 0,
        "no request of Pawl's processes is in the audit logs of {suite}"
    );
    let refused = unexplained(&requests);
    let rights = rights(&rendered()?)?;
    let uses = uses(&rights, &requests);
    if whole {
        let file = Cache::open()?.path(format!("ci-logs/rights/{suite}.json"));
        cache::write(&file, serde_json::to_vec_pretty(&uses)?)?;
    }
    let used = uses.values().filter(|used| used.is_used).count();
    println!(
        "rights: {all} requests of Pawl's processes used {used} of {} rights of the chart",
        uses.len()
    );
    ensure!(
        refused.is_empty(),
        "Pawl's processes were refused without a reason in tests/harness/src/cluster/rights/reasons.rs:\n{}",
        refused.join("\n")
    );
    Ok(())
}

/// The refused requests that no row of the table explains. Prints the reasons of the others.
fn unexplained(requests: &audit::Requests) -> Vec<String> {
    let (mut reasons, mut unknown) = (BTreeMap::new(), Vec::new());
    for (request, (count, example)) in requests {
        let Some(said) = &request.refusal else {
            continue;
        };
        let among =
            |words: &str, word: &str| words == "*" || words.split(' ').any(|other| other == word);
        let row = REFUSALS.iter().find(|(part, verbs, resources, says, _)| {
            among(part, request.part)
                && among(verbs, &request.verb)
                && among(resources, &request.resource)
                && said.contains(says)
        });
        match row {
            Some((.., why)) => *reasons.entry(why).or_insert(0) += count,
            None => unknown.push(format!(
                "{}: {} {}, {count} times, first {example}: {said}",
                request.part, request.verb, request.resource
            )),
        }
    }
    for (why, count) in reasons {
        println!("rights: refused {count} times: {why}");
    }
    unknown
}

/// The use of a right in a suite. The last stage of `cargo ci` reads the same fields.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Use {
    is_used: bool,
    /// Why no request uses it; empty if one has to.
    reason: &'static str,
}

fn uses(rights: &BTreeSet<Right>, requests: &audit::Requests) -> BTreeMap<String, Use> {
    let of = |right: &Right| Use {
        is_used: requests
            .keys()
            .any(|request| request.is_allowed && right.permits(request)),
        reason: UNUSED
            .iter()
            .find(|(part, verb, resource, _)| {
                *part == right.part && *verb == right.verb && *resource == right.resource
            })
            .map_or("", |(.., why)| why),
    };
    rights
        .iter()
        .map(|right| (right.text(), of(right)))
        .collect()
}

/// The chart's objects as YAML.
fn rendered() -> Result<String> {
    let tools = Toolset::ensure(&["helm"])?;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/pawl");
    let mut helm = Command::new(tools.path("helm")?);
    helm.args(["template", "pawl", chart, "-n", NAMESPACE])
        .args(["--kube-version", "1.34.4"])
        .args(VALUES);
    super::command::run(&mut helm).context("helm cannot render the chart")
}

/// The rights of Pawl's own accounts. Roles for people have other names.
fn rights(chart: &str) -> Result<BTreeSet<Right>> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Role {
        metadata: Metadata,
        rules: Vec<Rule>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Rule {
        api_groups: Vec<String>,
        resources: Vec<String>,
        resource_names: Vec<String>,
        verbs: Vec<String>,
    }
    let mut rights = BTreeSet::new();
    for part in chart.split("\n---\n") {
        // Other kinds have other types of `rules`.
        if !part
            .lines()
            .any(|line| ["kind: ClusterRole", "kind: Role"].contains(&line))
        {
            continue;
        }
        let role: Role = serde_saphyr::from_str(part)?;
        let of = role.metadata.name.strip_prefix("pawl-").unwrap_or_default();
        let Some(part) = PARTS
            .into_iter()
            .find(|part| of.split('-').next() == Some(part))
        else {
            continue;
        };
        for rule in &role.rules {
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    rights.extend(rule.verbs.iter().map(|verb| Right {
                        part,
                        verb: verb.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        names: rule.resource_names.clone(),
                    }));
                }
            }
        }
    }
    ensure!(!rights.is_empty(), "the chart has no rules");
    Ok(rights)
}

#[cfg(test)]
mod tests;
