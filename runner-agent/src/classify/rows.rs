//! Texts of the tools, their backends and providers, by class and reason. The first match wins, so rows that must never be retried
//! come before those that may be.

use crds::{FailureClass, Reason};

/// A reason, and the texts that show it, separated by `|`.
struct Row(Reason, &'static str);

/// The system's messages for a full disk or an exceeded quota.
const DISK_FULL: &str = "no space left on device|disk quota exceeded";

/// A state that S3 does not show yet. The tool's own message advises to wait for a minute.
const NOT_YET: &str = "state data in s3 does not have the expected content";

/// Lower-case texts. The first row with a text that matches decides.
const ROWS: &[Row] = &[
    // Before the words of its cause: the lock was lost, or its release failed.
    Row(Reason::LockNotReleased, "error releasing the state lock"),
    // The heading of an error about a lock is no sign of a holder: the request itself may have failed.
    Row(
        Reason::StateLocked,
        "lock info:|conditionalcheckfailedexception|state blob is already locked|\
         state is already locked|http remote state already locked|workspace is already locked|\
         workspace already locked|already locked for workspace creation|\
         error message: resource temporarily unavailable|\
         error 412|statuscode: 412",
    ),
    Row(
        Reason::StalePlan,
        "saved plan is stale|saved plan does not match the given state",
    ),
    Row(
        Reason::StateNotSaved,
        "failed to save state|failed to persist state|failed to upload state|error saving state|\
         errored.tfstate",
    ),
    Row(
        Reason::StateTooNew,
        "the state file uses format version|state snapshot was created by",
    ),
    Row(Reason::StateUnreadable, NOT_YET),
    Row(
        Reason::StateUnreadable,
        "unsupported state file format|invalid state file format|the state file could not be parsed|\
         this state file is encrypted|decryption failed for all provided methods",
    ),
    Row(Reason::DiskFull, DISK_FULL),
    Row(
        Reason::ChecksumMismatch,
        "doesn't match any of the checksums|does not match any of the checksums|checksum mismatch|\
         error verifying checksum|signature verification failed|authentication signature|\
         failed to verify provider",
    ),
    Row(
        Reason::VersionContradiction,
        "unsupported terraform core version|unsupported opentofu core version|this module is not compatible with",
    ),
    Row(Reason::VariableNotSet, "no value for required variable"),
    Row(
        Reason::VariableInvalid,
        "invalid value for variable|invalid value for input variable|value for undeclared variable",
    ),
    Row(
        Reason::InvalidConfiguration,
        "no available releases match|does not have a provider named|inconsistent dependency lock file|\
         backend initialization required|cannot apply incomplete plan|invalid provider configuration|\
         no configuration files|encountered problems during initialisation|\
         encountered problems during initialization",
    ),
    // A run cannot answer prompts, so the next attempt would fail too. This row precedes the one with `: EOF`, which has other causes as
    // well.
    Row(
        Reason::InputRequired,
        "error asking for|a terminal is required to read|no tty present and no askpass",
    ),
    Row(Reason::HostKeyNotKnown, "host key verification failed"),
    Row(Reason::SourceInvalid, "no user exists for uid"),
    Row(
        Reason::Throttled,
        "429 too many requests|status code: 429|statuscode: 429|response code: 429|error 429|error: 429|requestlimitexceeded|throttlingexception|\
         throttling:|toomanyrequests|toomanyupdates|rate limit exceeded|slowdown:",
    ),
    Row(
        Reason::Unauthorized,
        "expiredtoken|no valid credential sources|no valid credential source|invalidclienttokenid|\
         signaturedoesnotmatch|unrecognizedclientexception|authfailure|invalidaccesskeyid|\
         rejected the given authentication credentials|could not find default credentials|\
         unable to authenticate|authentication failed|401 unauthorized|403 forbidden|status code: 401|\
         status code: 403|http response code 401|http response code 403|\
         http remote state endpoint requires auth|http remote state endpoint invalid auth|accessdenied|\
         statuscode: 401|statuscode: 403|response code: 401|response code: 403|returned error: 401|returned error: 403|error 401:|error 403:|\
         xadminusernotfound|invalidtoken|is not authorized to perform|\
         pq: permission denied|password authentication failed|no pg_hba.conf entry|is forbidden: user|\
         has asked for the client to provide credentials|authorizationfailure|authorizationpermissionmismatch|\
         server failed to authenticate the request|\
         required token could not be found|could not read username|could not read password|\
         terminal prompts disabled|permission denied (publickey|invalid_grant",
    ),
    Row(
        Reason::ProviderUnreachable,
        "connection reset by peer|connection refused|tls handshake timeout|i/o timeout|no such host|\
         temporary failure in name resolution|client.timeout exceeded while awaiting headers|\
         context deadline exceeded|network is unreachable|no route to host|unexpected eof|server misbehaving|\
         failed to request discovery document|502 bad gateway|503 service unavailable|504 gateway timeout|\
         status code: 502|status code: 503|status code: 504|status code: 500|statuscode: 500|statuscode: 502|statuscode: 503|statuscode: 504|\
         error 500:|error 502:|error 503:|error 504:|response code: 5|giving up after|conditionalrequestconflict|\
         pq: the database system is|too many clients already|remaining connection slots|\
         terminating connection due to|etcdserver: |server is currently unable to handle the request|\
         http remote state unexpected status: 5|\
         unexpected http response code 5|the requested url returned error: 5|could not resolve host|\
         ssh_exchange_identification|text file busy|: eof",
    ),
];

/// Lower-case texts that show an error of the state's backend.
const OF_BACKEND: &str = "error refreshing state|error acquiring the state lock|existing workspaces|error inspecting states|\
    select workspace|selecting workspace|load state|loading state|get state|state file at gs://|\
    state blob|remote state| backend:|the backend|s3 backend";

/// Lower-case beginnings of the summary of an error about a lock. A provider that does not start, for example, has its words in another
/// summary.
const OF_LOCK: &str = "error acquiring the state lock|error releasing the state lock|error locking state|failed to lock|\
    error refreshing state|error loading state|failed to load state|error selecting workspace|the state is already locked|\
    state blob is already locked|http remote state already locked|workspace is already locked|\
    already locked for workspace creation|cannot lock workspace";

/// Summaries above an `error_message` of the code.
const OF_CODE: &str = "Invalid value for variable|Resource precondition failed|Resource postcondition failed|\
    Module output value precondition failed|Check block assertion failed";

pub(super) fn is_of_lock(summary: &str) -> bool {
    let summary = summary.to_lowercase();
    OF_LOCK.split('|').any(|head| summary.starts_with(head))
}

/// Whether a text shows an error of the state's backend.
pub fn is_of_backend(text: &str) -> bool {
    let text = text.to_lowercase();
    OF_BACKEND.split('|').any(|needle| text.contains(needle))
}

pub(super) fn is_of_code(summary: &str) -> bool {
    OF_CODE.split('|').any(|known| summary == known)
}

/// The class and reason of a text, if known.
pub fn text(text: &str) -> Option<(FailureClass, Reason)> {
    let text = text.to_lowercase();
    let has = |needles: &str| needles.split('|').any(|needle| text.contains(needle));
    let Row(reason, _) = ROWS.iter().find(|Row(_, needles)| has(needles))?;
    Some(match reason {
        Reason::ProviderUnreachable if is_of_backend(&text) => {
            (FailureClass::Transient, Reason::BackendUnreachable)
        }
        Reason::StateUnreadable if has(NOT_YET) => (FailureClass::Transient, *reason),
        reason => (reason.class()?, *reason),
    })
}

pub fn is_disk_full(text: &str) -> bool {
    let text = text.to_lowercase();
    DISK_FULL.split('|').any(|words| text.contains(words))
}
