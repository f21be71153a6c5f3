//! Requests of an attempt's pod.

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, request::Parts},
    response::Response,
};

use crds::{
    datastore::{FORBIDDEN, HEADER_DIGEST, HEADER_NONCE, ObjectKind, Problem, Stored},
    outputs::StateOutputs,
};
use serving::{
    auth::PodIdentity,
    problem::{self, invalid, problem},
};

use crate::{
    auth::caller::{self, Ask},
    cluster::RunView,
    journal,
    names::{LogKey, RunKey, StateKey},
    objects::{self, Wrote, claim},
    service::Service,
    state::lock::Holder,
};

use super::{
    answer::{content, empty},
    body::Incoming,
    headers::{digest, text},
    route::Parameters,
    sources,
};

/// A pod's request with a parsed path.
pub struct Request<'a> {
    pub namespace: &'a str,
    pub run: &'a str,
    pub attempt: u32,
    pub ask: Ask,
    pub query: &'a Parameters,
}

/// Handles the request.
///
/// # Errors
/// Every response that is not a success.
pub async fn answer(
    service: &Service,
    request: &Request<'_>,
    parts: &Parts,
    body: Body,
) -> Result<Response, Problem> {
    let identity = service.callers.identify(&parts.headers).await?;
    let pod = identity
        .pod
        .as_ref()
        .ok_or_else(|| problem(FORBIDDEN, "the token is bound to no pod"))?;
    let _permit = service.admit(&pod.uid)?;
    let nonce = text(&parts.headers, HEADER_NONCE)?.unwrap_or_default();
    let run = authorize(service, request, pod, nonce).await?;
    let mut body = Incoming::new(body, request.ask.limit(), &service.metrics);
    let done = carry_out(
        service,
        request,
        &run,
        pod,
        nonce,
        &parts.headers,
        &mut body,
    )
    .await;
    if done.is_err() {
        body.drain().await;
    }
    done
}

async fn authorize(
    service: &Service,
    request: &Request<'_>,
    pod: &PodIdentity,
    nonce: &str,
) -> Result<std::sync::Arc<RunView>, Problem> {
    // Check the namespace before the lookup, so a pod of another namespace cannot probe whether a run exists.
    if pod.namespace != request.namespace {
        return Err(problem(FORBIDDEN, "the run is in another namespace"));
    }
    let decide = |run: &RunView| caller::decide(run, pod, request.attempt, nonce, request.ask);
    if matches!(request.ask, Ask::Log(_)) {
        let run = service
            .lookup
            .recent(request.namespace, request.run)
            .await?;
        // Before a rejection, read the run live: the attempt may just have been adopted.
        if decide(&run).is_ok() {
            return Ok(run);
        }
    }
    let run = service.lookup.live(request.namespace, request.run).await?;
    decide(&run).map(|()| run)
}

async fn carry_out(
    service: &Service,
    request: &Request<'_>,
    run: &RunView,
    pod: &PodIdentity,
    nonce: &str,
    headers: &HeaderMap,
    body: &mut Incoming<'_>,
) -> Result<Response, Problem> {
    let key = RunKey::new(&run.namespace, &run.uid)?;
    let state = || StateKey::new(&run.namespace, run.state.clone());
    let holder = Holder {
        run,
        attempt: request.attempt,
        pod_uid: &pod.uid,
    };
    let lock = request.query.lock.as_deref().unwrap_or_default();
    match request.ask {
        Ask::Put(kind) => {
            let digest = digest(headers)?
                .ok_or_else(|| invalid(format!("the header {HEADER_DIGEST} is missing")))?;
            service.objects.name(&key, &run.name).await?;
            let _permit = service.transfer(kind).await?;
            let (stored, wrote) = service
                .objects
                .put(&key, request.attempt, kind, digest, body.stream())
                .await?;
            Ok(problem::json(created(wrote), &stored))
        }
        Ask::Get(kind) => {
            let object = service.objects.get(&key, request.attempt, kind).await?;
            let object = object.ok_or_else(|| objects::none(request.attempt, kind))?;
            content(service, &object.stored, object.content).await
        }
        Ask::Digest(kind) => {
            let _permit = service.transfer(kind).await?;
            Ok(problem::json(
                StatusCode::OK,
                &service.objects.verify(&key, request.attempt, kind).await?,
            ))
        }
        Ask::Log(phase) => {
            let piece = body.collect().await?;
            service.objects.name(&key, &run.name).await?;
            let log = LogKey {
                run: key,
                attempt: request.attempt,
                phase,
            };
            let length = service
                .logs
                .append(&log, request.query.offset, &piece, request.query.end)
                .await?;
            Ok(problem::json(StatusCode::OK, &length))
        }
        Ask::Recover => journal::of_recovered(service, run).await,
        Ask::Intent => {
            service.objects.name(&key, &run.name).await?;
            claim::prove(&service.sealed, &key, request.attempt, nonce).await?;
            Ok(empty(StatusCode::OK))
        }
        Ask::Claim => {
            let said = body.collect().await?;
            let said =
                serde_json::from_slice(&said).map_err(|_| invalid("the body is no claim"))?;
            Ok(problem::json(
                created(claim::put(&service.sealed, &key, run, said).await?),
                &run.claim,
            ))
        }
        Ask::Publish => {
            let _permit = service.transfer(ObjectKind::Plan).await?;
            let said = body.collect().await?;
            let namespace = service.lookup.namespace(run).await?;
            let told = match &*said {
                [] => Ok(StateOutputs::default()),
                said => serde_json::from_slice(said),
            };
            let told = told.map_err(|error| invalid(error.to_string()))?;
            let found = if told.is_of_no_state() {
                // Before the claim, a person has approved nothing that runs in the pod, so the pod may not supply values.
                let mut found = match service.states.get_for(&state()?, &namespace).await? {
                    None => StateOutputs::default(),
                    Some((_, content)) => journal::read_state(content, StateOutputs::read).await?,
                };
                found.declared = told.declared;
                found
            } else if caller::holds_claim(run, pod, nonce) {
                StateOutputs::read(&*said).map_err(|error| invalid(error.to_string()))?
            } else {
                return Err(problem(
                    FORBIDDEN,
                    "outputs that a pod read itself are published only after the claim of its run",
                ));
            };
            Ok(problem::json(
                StatusCode::OK,
                &service.outputs.publish(run, &namespace, found).await?,
            ))
        }
        Ask::Outputs => {
            let namespace = service.lookup.namespace(run).await?;
            Ok(problem::json(
                StatusCode::OK,
                &service.outputs.taken(run, &namespace).await?,
            ))
        }
        Ask::Source => sources::of_run(service, run).await,
        Ask::ReadState => match service
            .states
            .get_for(&state()?, &service.lookup.namespace(run).await?)
            .await?
        {
            None => Ok(empty(StatusCode::NO_CONTENT)),
            Some((version, stream)) => {
                content(
                    service,
                    &Stored {
                        digest: version.digest,
                        size: version.size,
                    },
                    stream,
                )
                .await
            }
        },
        Ask::WriteState => {
            let key = state()?;
            // Reject before reading the body. The lock is checked again after the body has arrived.
            let newest = service.states.newest(&key).await?;
            if !holder.holds(&newest.head, lock) {
                return Err(newest.head.locked());
            }
            let begun = tokio::time::Instant::now();
            let permit = service.transfer(ObjectKind::Bundle).await?;
            let written = service
                .states
                .receive(&key, body.stream(), digest(headers)?)
                .await?;
            drop(permit);
            if begun.elapsed() > std::time::Duration::from_secs(1) {
                let decided = authorize(service, request, pod, nonce).await;
                if let Err(problem) = decided {
                    service.states.give_up(written).await;
                    return Err(problem);
                }
            }
            service.states.put(&key, &holder, lock, written).await?;
            Ok(empty(StatusCode::OK))
        }
        Ask::ReadLast => {
            let namespace = service.lookup.namespace(run).await?;
            Ok(match service.states.last(&state()?, &namespace).await? {
                Some(last) => problem::json(StatusCode::OK, &last),
                None => empty(StatusCode::NO_CONTENT),
            })
        }
        Ask::WriteLast => {
            let said = body.collect().await?;
            let last = serde_json::from_slice(&said)
                .map_err(|_| invalid("the body is no state of an apply"))?;
            let namespace = service.lookup.namespace(run).await?;
            service
                .states
                .applied_elsewhere(&state()?, &namespace, &last)
                .await?;
            Ok(empty(StatusCode::OK))
        }
        Ask::Lock => {
            let info = body.collect().await?;
            let namespace = service.lookup.namespace(run).await?;
            service
                .states
                .lock(&state()?, &holder, &namespace, &info, &service.lookup)
                .await?;
            Ok(empty(StatusCode::OK))
        }
        Ask::Unlock => {
            service.states.unlock(&state()?, &holder, lock).await?;
            Ok(empty(StatusCode::OK))
        }
    }
}

const fn created(wrote: Wrote) -> StatusCode {
    match wrote {
        Wrote::Created => StatusCode::CREATED,
        Wrote::Same => StatusCode::OK,
    }
}
