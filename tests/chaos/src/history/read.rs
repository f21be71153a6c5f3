//! Reads the audit log into a history.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::Path,
};

use anyhow::{Context, Result};
use crds::{Source, TerraformRun};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::Value;

use super::{History, Version, Writer};

/// The present length of an audit log, as a start for a later read.
pub fn end(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file)
        .with_context(|| format!("cannot look at {}", file.display()))?
        .len())
}

/// Reads the events of some namespaces from an offset of the log. `secret` must not occur in it.
pub fn read(file: &Path, since: u64, namespaces: &[String], secret: &str) -> Result<History> {
    let mut log = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    log.seek(SeekFrom::Start(since))?;
    let mut history = History {
        namespaces: namespaces.to_vec(),
        ..History::default()
    };
    for line in BufReader::new(log).split(b'\n') {
        let line = line?;
        if !secret.is_empty()
            && line
                .windows(secret.len())
                .any(|part| part == secret.as_bytes())
        {
            history
                .leaks
                .push(String::from_utf8_lossy(&line).chars().take(300).collect());
        }
        // The last line may be incomplete.
        if let Ok(event) = serde_json::from_slice::<Value>(&line) {
            take(&mut history, &event);
        }
    }
    for versions in history.runs.values_mut() {
        versions.sort_by_key(|version| (version.revision, version.at));
        let mut whole = TerraformRun::default();
        for version in versions.iter_mut() {
            if is_whole(&version.run) {
                whole = version.run.clone();
            } else {
                (version.run.spec, version.run.status) = (whole.spec.clone(), whole.status.clone());
            }
        }
        // A no-op write returns the present version.
        versions.dedup_by_key(|version| version.revision);
    }
    history.pods.sort();
    Ok(history)
}

fn text<'a>(event: &'a Value, pointer: &str) -> &'a str {
    event
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn take(history: &mut History, event: &Value) {
    let verb = text(event, "/verb");
    let writes = matches!(verb, "create" | "update" | "patch" | "delete");
    let code = event
        .pointer("/responseStatus/code")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let namespace = text(event, "/objectRef/namespace");
    let dry = text(event, "/requestURI").contains("dryRun=");
    if !writes || dry || !history.namespaces.iter().any(|wanted| wanted == namespace) {
        return;
    }
    let Ok(at) = text(event, "/stageTimestamp").parse::<Timestamp>() else {
        return;
    };
    if code >= 500 && text(event, "/objectRef/resource") == "terraformruns" {
        let from = text(event, "/requestReceivedTimestamp")
            .parse()
            .unwrap_or(at);
        history.lost.push((
            from,
            at,
            format!("{namespace}/{}", text(event, "/objectRef/name")),
        ));
    }
    if !(200..300).contains(&code) {
        return;
    }
    match (text(event, "/objectRef/resource"), verb) {
        ("pods", "create") if text(event, "/objectRef/subresource").is_empty() => {
            history.pods.push((
                at,
                format!("{namespace}/{}", text(event, "/objectRef/name")),
            ));
        }
        ("terraformruns", _) => {
            let Some(version) = version(event, at) else {
                return;
            };
            history
                .runs
                .entry(version.run.uid().unwrap_or_default())
                .or_default()
                .push(version);
        }
        _ => {}
    }
}

/// The resourceVersion precondition of a write: a field of an object or of a merge patch, or a test operation of a JSON patch.
fn base(request: &Value) -> Option<u64> {
    let test = |operation: &&Value| {
        text(operation, "/op") == "test" && text(operation, "/path") == "/metadata/resourceVersion"
    };
    let value = match request {
        Value::Array(operations) => operations.iter().find(test)?.get("value")?,
        object => object.pointer("/metadata/resourceVersion")?,
    };
    value.as_str()?.parse().ok()
}

/// Whether the response had more than metadata. Every run has a source.
fn is_whole(run: &TerraformRun) -> bool {
    run.spec.source != Source::default()
}

fn version(event: &Value, at: Timestamp) -> Option<Version> {
    let object = event.get("responseObject")?;
    let run = match text(object, "/kind") {
        "TerraformRun" => serde_json::from_value(object.clone()).ok()?,
        // A metadata-only write gets only metadata as response and changes nothing else.
        "PartialObjectMetadata" => {
            let metadata = serde_json::from_value(object.get("metadata")?.clone()).ok()?;
            TerraformRun {
                metadata,
                ..TerraformRun::default()
            }
        }
        // A completed deletion returns a Status.
        _ => return None,
    };
    let extra = |key: &str| {
        let values = event
            .pointer("/user/extra")
            .and_then(|extra| extra.get(format!("authentication.kubernetes.io/{key}")));
        values
            .and_then(|values| values.get(0))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    Some(Version {
        revision: run.resource_version()?.parse().ok()?,
        base: event.get("requestObject").and_then(base),
        at,
        by: Writer {
            user: text(event, "/user/username").to_owned(),
            pod: extra("pod-name"),
            pod_uid: extra("pod-uid"),
        },
        of_status: text(event, "/objectRef/subresource") == "status",
        status_bytes: object
            .get("status")
            .map_or(0, |status| status.to_string().len()),
        run,
    })
}
