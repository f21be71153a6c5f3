//! Probes each policy with a dry run that only this policy refuses.

use kube::api::PostParams;

use crds::{TerraformRun, names, text::clip};

use super::missing::Missing;
use crate::{
    cluster::{Cluster, create_params},
    error::{self, Error, ErrorKind},
};

/// Sends all probes at once. Returns the first that was not refused as expected.
pub(super) async fn all(namespace: &str, ctx: &Cluster) -> Result<Option<Missing>, Error> {
    for answer in
        futures::future::join_all(names::POLICIES.map(|policy| probe(namespace, policy, ctx))).await
    {
        if let Some(missing) = answer.inspect_err(|error| ctx.metrics.failed(error))? {
            return Ok(Some(missing));
        }
    }
    Ok(None)
}

async fn probe(namespace: &str, policy: &str, ctx: &Cluster) -> Result<Option<Missing>, Error> {
    let params = PostParams {
        dry_run: true,
        ..create_params()
    };
    let (api, probe) = (ctx.runs(namespace), probe_of(namespace, policy));
    match error::call("probe the policies", api.create(&params, &probe)).await {
        Ok(_) => {
            let text = format!(
                "a dry run was not refused by the admission policy {policy}; it is missing, or its binding is"
            );
            Ok(Some(Missing {
                let_through: true,
                ..Missing::policy(text)
            }))
        }
        Err(error) => lack(namespace, policy, error),
    }
}

/// The lack that remains after a refusal.
fn lack(namespace: &str, policy: &str, error: Error) -> Result<Option<Missing>, Error> {
    // Nothing can be created there, so no policy is evaluated.
    if error.is_of_terminating_namespace() {
        return Ok(Some(Missing::namespace(namespace)));
    }
    Ok(judge("a dry run", policy, error)?
        .err()
        .map(Missing::policy))
}

/// Whether the policy itself refused.
fn judge(what: &str, policy: &str, error: Error) -> Result<Result<(), String>, Error> {
    match error.kind() {
        ErrorKind::Forbidden | ErrorKind::Invalid => {
            let said = error
                .status()
                .map(|status| status.message.clone())
                .unwrap_or_default();
            if serving::call::is_of_policy(&said, policy) {
                Ok(Ok(()))
            } else {
                let said = clip(&said, 200);
                Ok(Err(format!(
                    "{what} was refused, but not by the admission policy {policy}: {said}"
                )))
            }
        }
        ErrorKind::Conflict
        | ErrorKind::AlreadyExists
        | ErrorKind::NotFound
        | ErrorKind::Unauthenticated
        | ErrorKind::Throttled
        | ErrorKind::Server
        | ErrorKind::Timeout
        | ErrorKind::Transport
        | ErrorKind::Internal => Err(error),
    }
}

/// A run that only this policy refuses, for any client.
fn probe_of(namespace: &str, policy: &str) -> TerraformRun {
    let mut probe = TerraformRun {
        metadata: kube::api::ObjectMeta::default(),
        spec: crds::TerraformRunSpec::default(),
        status: None,
    };
    probe.metadata.generate_name = Some("pawl-probe-".into());
    probe.metadata.namespace = Some(namespace.into());
    probe.metadata.annotations = Some([(names::PROBE.to_owned(), policy.to_owned())].into());
    probe.spec.workspace = "default".into();
    probe.spec.source.inline = Some(crds::InlineSource {
        files: [("main.tf".to_owned(), String::new())].into(),
    });
    probe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::reason;
    use kube::core::Status;
    use serving::call::CallError;

    fn refused(code: u16, message: &str) -> Error {
        CallError::Refused {
            what: "test",
            status: Box::new(Status {
                code,
                message: message.into(),
                ..Status::default()
            }),
        }
        .into()
    }

    #[test]
    fn only_the_policy_itself_proves_that_it_is_enforced() {
        let by = "terraformruns.pawl.run \"x\" is forbidden: ValidatingAdmissionPolicy 'pawl-approval' with binding \
                  'pawl-approval' denied request: x may not";
        for (policy, code, said, proves) in [
            ("pawl-approval", 403, by, true),
            ("pawl-approval", 422, by, true),
            ("pawl-status", 403, by, false),
            ("pawl-approval", 403, "cannot patch resource", false),
            ("pawl-approval", 422, "a claim never changes", false),
        ] {
            assert_eq!(
                judge("a", policy, refused(code, said)).unwrap().is_ok(),
                proves,
                "{policy} {code} {said}"
            );
        }
    }

    #[test]
    fn terminating_namespace_is_not_a_missing_policy() {
        let of_status = |status: serde_json::Value| -> Error {
            CallError::Refused {
                what: "test",
                status: serde_json::from_value(status).unwrap(),
            }
            .into()
        };
        let going = |cause: &str| {
            let details = serde_json::json!({"causes": [{"reason": cause, "message": "m", "field": "metadata.namespace"}]});
            let message =
                "unable to create new content in namespace team because it is being terminated";
            of_status(
                serde_json::json!({"code": 403, "reason": "Forbidden", "message": message, "details": details}),
            )
        };
        let of = |error| {
            lack("team", "pawl-approval", error)
                .unwrap()
                .unwrap()
                .reason
        };
        assert_eq!(
            of(going("NamespaceTerminating")),
            reason::NAMESPACE_TERMINATING
        );
        assert_eq!(of(going("Other")), reason::POLICY_MISSING);
        let gone = |kind: &str| {
            of_status(
                serde_json::json!({"code": 404, "reason": "NotFound", "details": {"kind": kind, "name": "team"}}),
            )
        };
        assert!(gone("namespaces").is_of_terminating_namespace());
        assert!(!gone("terraformruns").is_of_terminating_namespace());
    }

    #[test]
    fn probe_error_neither_proves_nor_refutes() {
        for code in [401, 404, 409, 429, 500, 503] {
            assert!(
                judge(
                    "a",
                    "pawl-approval",
                    refused(code, "ValidatingAdmissionPolicy 'pawl-approval'")
                )
                .is_err(),
                "{code}"
            );
        }
        assert!(
            judge(
                "a",
                "pawl-approval",
                CallError::Timeout { what: "test" }.into()
            )
            .is_err()
        );
    }

    #[test]
    fn probe_is_a_manual_run_annotated_with_its_policy() {
        for policy in names::POLICIES {
            let probe = serde_json::to_value(probe_of("team", policy)).unwrap();
            assert_eq!(
                probe["metadata"]["annotations"],
                serde_json::json!({names::PROBE: policy})
            );
            assert_eq!(
                (
                    &probe["metadata"]["namespace"],
                    probe["spec"]["approval"]["mode"].as_str()
                ),
                (&"team".into(), Some("Manual"))
            );
        }
    }
}
