//! Why a process of Pawl may be refused something, and why a rule of the chart may be without a request.

use super::audit::STARTING;

/// The authorizer's word for a lacking right.
const NO_RIGHT: &str = " cannot ";

/// Refusals: part or `agent`, verbs, resources, words of the message, and why it is expected or the test that asks for it. `*` is any.
pub(super) const REFUSALS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "*",
        "*",
        "*",
        STARTING,
        "a killed API server serves before it has read the roles; Helm deletes them before the processes have ended",
    ),
    (
        "controller",
        "create",
        "terraformruns",
        "denied request: a probe of the controller",
        "a policy proves by the refusal that it is enforced",
    ),
    (
        "controller",
        "create",
        "terraformruns pods serviceaccounts roles rolebindings events",
        "because it is being terminated",
        "the namespace is being deleted: namespaces::terminating_namespace_is_named_by_its_runs",
    ),
    (
        "controller",
        "create",
        "pods",
        "exceeded quota",
        "failures::exceeded_quota_fails_the_run",
    ),
    (
        "controller",
        "create",
        "pods",
        "error looking up service account",
        "the run names an account that does not exist: failures::*",
    ),
    (
        "controller",
        "create",
        "leases",
        "exceeded quota: no-more-leases",
        "peers::burrito_run_without_its_lease_does_not_begin",
    ),
    (
        "datastore",
        "create patch",
        "configmaps secrets",
        "ValidatingAdmissionPolicy 'pawl-outputs'",
        "the policy proves by the refusal that it is enforced; it leaves foreign objects alone: outputs::*",
    ),
    (
        "datastore",
        "create patch",
        "configmaps secrets",
        NO_RIGHT,
        "outputs::unbound_namespace_gets_no_outputs_until_bound",
    ),
    (
        "sources",
        "get",
        "secrets",
        NO_RIGHT,
        "repositories::secret_is_read_only_where_a_namespace_binds",
    ),
    (
        "server",
        "get",
        "secrets",
        NO_RIGHT,
        "webhooks::guide_leads_to_a_delivery, before the namespace binds the role",
    ),
    (
        "agent",
        "get watch patch",
        "terraformruns terraformruns/status",
        NO_RIGHT,
        "the API server knows a Role up to a second after its creation, and no longer at its deletion; the agent retries",
    ),
    (
        "agent",
        "patch",
        "terraformruns/status",
        "ValidatingAdmissionPolicy 'pawl-status'",
        "a process whose attempt was replaced or whose approval was withdrawn writes once more",
    ),
];

/// No request shows it, since a policy asks the authorizer itself.
const ASKED: &str = "policies ask whether the writer has it";

/// Rights without a request: part, verb, resource, and why.
pub(super) const UNUSED: &[(&str, &str, &str, &str)] = &[
    ("controller", "control", "terraformruns", ASKED),
    ("controller", "control", "terraformlayers", ASKED),
    (
        "controller",
        "patch",
        "apiservices",
        "it mends an APIService that another changed, which no suite does",
    ),
    (
        "controller",
        "patch",
        "events",
        "it counts an Event that repeats, which depends on the time that a test takes",
    ),
    (
        "datastore",
        "create",
        "secrets",
        "a server-side apply that creates needs it, and is logged as a patch",
    ),
];
