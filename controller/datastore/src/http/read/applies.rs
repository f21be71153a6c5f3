//! The records of applies in a namespace as JSON lines, also of runs that were deleted.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use serde_json::json;

use crds::datastore::Problem;

use crate::{names, names::RunKey, objects::claim, service::Service};

/// Number of records that are read at a time.
const AT_ONCE: usize = 8;

/// Streams the records in no particular order: their number has no bound.
///
/// # Errors
/// `Unavailable`. A record that cannot be read becomes a line with its `problem`.
pub async fn list(service: &Arc<Service>, namespace: &str) -> Result<Response, Problem> {
    let below = names::below(&names::top("claims"), namespace);
    let (_, uids) = service.sealed.store().children(&below).await?;
    let (service, namespace) = (service.clone(), namespace.to_owned());
    let lines = stream::iter(uids)
        .map(move |uid| line(service.clone(), namespace.clone(), uid))
        .buffered(AT_ONCE)
        .map(Ok::<_, std::convert::Infallible>);
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    Ok(response)
}

async fn line(service: Arc<Service>, namespace: String, uid: String) -> Bytes {
    let read = async {
        let key = RunKey::new(&namespace, &uid)?;
        let record = claim::get(&service.sealed, &key).await?;
        let end = match &record {
            Some(record) => claim::end(&service.sealed, &service.objects, &key, record).await?,
            None => None,
        };
        Ok::<_, Problem>(record.map(|record| (record, end)))
    };
    let value = match read.await {
        // Deleted since the list.
        Ok(None) => return Bytes::new(),
        Ok(Some((record, end))) => {
            let mut value = json!(record.audit);
            value["run"] = record.run.into();
            value["uid"] = uid.into();
            value["namespace"] = namespace.into();
            value["checksum"] = record.claim.checksum.into();
            value["claimedAt"] = json!(record.at);
            // Without an end the pod did not report one: it still applies, or it was killed.
            value["result"] = json!(end.as_ref().and_then(|end| end.result));
            value["message"] = json!(end.map(|end| end.message));
            value
        }
        Err(problem) => json!({"uid": uid, "namespace": namespace, "problem": problem.to_string()}),
    };
    format!("{value}\n").into()
}
