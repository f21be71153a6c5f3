//! The situation of a layer, derived once from the observation for decisions and conditions alike.

use jiff::Timestamp;

use kube::ResourceExt as _;

use crds::{
    DeletionPolicy, FailureClass, Reason, Remediation, RemediationStrategy, TerraformLayer,
    conditions, names, reason,
};

use super::{drift::Check, facts::Facts, observed::Observed, template::Effective};

/// The message about a layer whose author is unverified.
pub(super) const UNVERIFIED: &str = "the layer asks for rights, and the admission policies were not enforced for a while, so its author is \
                                     unverified; it makes no runs until a person who has these rights confirms it";

#[derive(Clone, Debug)]
pub(super) struct Situation<'a> {
    pub(super) o: &'a Observed,
    pub(super) facts: Facts<'a>,
    /// The content to plan, or why none can be planned.
    pub(super) wanted: Result<Wanted, Hold>,
    /// Why the repository gives no newer commit to a layer that has one.
    pub(super) fault: Option<Hold>,
    /// When the repository's failure counts as a fault.
    pub(super) fault_at: Option<Timestamp>,
    /// When drift is checked; `None` if never, or not now.
    pub(super) check: Result<Option<Timestamp>, String>,
}

/// The content to plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) revision: String,
    /// Digest of its content that is relevant to the layer.
    pub(super) content: String,
    pub(super) effective: Effective,
}

/// Why a layer can create no run until something changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// One word, from `crds::reason`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The next step, for people.
    pub(super) next_step: Option<String>,
    /// It does not pass by itself.
    pub(super) stalled: bool,
}

/// The failure of a repository, as it concerns a layer.
struct Failure {
    hold: Hold,
    /// When it counts against a commit that is known; `None`: never.
    from: Option<Timestamp>,
}

impl<'a> Situation<'a> {
    pub(super) fn of(o: &'a Observed, now: Timestamp) -> Self {
        let facts = Facts::of(o);
        let check = check(o, &facts, now);
        let failure = failure(o);
        let wanted = wanted(o, failure.as_ref());
        let fault = failure.filter(|_| wanted.is_ok() && !o.is_suspended());
        let fault_at = fault.as_ref().and_then(|fault| fault.from);
        Self {
            wanted,
            fault: fault
                .filter(|_| fault_at.is_some_and(|at| at <= now))
                .map(|fault| fault.hold),
            fault_at,
            o,
            facts,
            check,
        }
    }

    pub(super) fn is_planned(&self) -> bool {
        let planned = |wanted: &Wanted| {
            self.facts
                .is_planned(&wanted.content, &wanted.effective.digest)
        };
        self.wanted
            .as_ref()
            .map_or(self.facts.last_plan.is_some(), planned)
    }

    /// Whether the wanted content was applied, or needed no apply.
    pub(super) fn is_settled(&self) -> bool {
        let settled = |wanted: &Wanted| {
            self.facts
                .is_settled(&wanted.content, &wanted.effective.digest)
        };
        self.wanted
            .as_ref()
            .map_or(self.facts.last_apply.is_some(), settled)
    }

    pub(super) fn failed(&self) -> Option<&crds::LayerFailures> {
        match &self.wanted {
            Ok(wanted) => self.facts.failed(&wanted.content, &wanted.effective.digest),
            Err(_) => self.facts.failures.as_ref(),
        }
    }
}

/// Whether a field has an enum value of a newer version.
pub(super) fn has_newer_word(layer: &TerraformLayer) -> bool {
    let RemediationStrategy {
        on_commit,
        on_drift,
        on_delete,
    } = layer.spec.remediation;
    [on_commit, on_drift, on_delete].contains(&Remediation::Unknown)
        || layer.spec.deletion_policy == DeletionPolicy::Unknown
}

fn hold<T>(reason: &'static str, message: String, next_step: Option<String>) -> Result<T, Hold> {
    Err(Hold {
        reason,
        message,
        stalled: next_step.is_some(),
        next_step,
    })
}

/// The settings of the layer's runs, if its repository exists and admits the layer.
pub(super) fn effective(o: &Observed) -> Result<Effective, Hold> {
    let (namespace, name) = o.layer.repository_key();
    let own = o.layer.metadata.namespace.as_deref().unwrap_or_default();
    if o.layer.is_unverified() {
        return hold(
            reason::UNVERIFIED,
            UNVERIFIED.to_owned(),
            Some(names::confirm_command(own, &o.layer.name_any())),
        );
    }
    let repository = o.repository.as_ref().filter(|found| found.admits(own));
    let Some(repository) = repository else {
        // Of another namespace's repositories it tells only which are allowed, not which are there.
        let foreign = namespace != own;
        let (reason, what, step) = if foreign {
            (
                reason::REPOSITORY_NOT_ALLOWED,
                format!(
                    "no TerraformRepository {namespace}/{name} names {own} in spec.allowedNamespaces"
                ),
                format!(
                    "have the owner of {namespace}/{name} add {own} to spec.allowedNamespaces, or correct spec.repository"
                ),
            )
        } else {
            (
                reason::REPOSITORY_NOT_FOUND,
                format!("there is no TerraformRepository {namespace}/{name}"),
                format!(
                    "create TerraformRepository {name} in namespace {namespace}, or correct spec.repository"
                ),
            )
        };
        return hold(reason, what, Some(step));
    };
    let effective = Effective::of(&o.layer, repository).or_else(|error| {
        let step = Some("correct spec.template, or spec.defaults of the repository".to_owned());
        hold(
            reason::TEMPLATE_INVALID,
            format!("the settings give no valid run: {error}"),
            step,
        )
    })?;
    // A named stack is a deliberate choice. A stack derived from path and URL changes with a renamed directory: everything would be planned
    // again from an empty state, and a destroy would find nothing.
    let before = o
        .layer
        .status
        .as_ref()
        .and_then(|status| status.stack.as_deref());
    match before.filter(|before| *before != effective.stack && !effective.names_stack()) {
        Some(before) => {
            let message = format!(
                "its state belongs to stack {before}; with this path and repository it would belong to {}, whose state lists none of its objects",
                effective.stack
            );
            let step = format!(
                "set spec.template.stack: {before} to keep the state, or {} to begin with another",
                effective.stack
            );
            hold(reason::STATE_MOVED, message, Some(step))
        }
        None => Ok(effective),
    }
}

/// The failure that keeps commits from the layer: of the whole repository before its ref, and of its ref before the bound of refs.
fn failure(o: &Observed) -> Option<Failure> {
    let repository = o.repository.as_ref()?;
    let status = repository.status.as_ref()?;
    let failed = |type_| {
        status
            .conditions
            .iter()
            .find(|c| c.type_ == type_ && c.status == "False")
    };
    let known = status
        .refs
        .iter()
        .find(|known| known.name == o.layer.spec.git_ref);
    let whole = failed(conditions::SYNCED)
        .or_else(|| failed(conditions::READY).filter(|_| known.is_none()));
    let (word, message, step, since) = match (whole, known.and_then(|known| known.failure.as_ref()))
    {
        (Some(c), _) => (
            &c.reason,
            conditions::without_step(&c.message),
            status.step(),
            c.last_transition_time.0,
        ),
        (None, Some(of)) => (&of.reason, of.message.as_str(), of.step(), of.since.0),
        (None, None) => return None,
    };
    let word = Reason::parse(word)?;
    let (namespace, name) = o.layer.repository_key();
    let suspended = word == Reason::Suspended;
    let class = word.class().unwrap_or(FailureClass::Configuration);
    let resume = || names::resume_command(names::KUBECTL_REPOSITORY, &namespace, &name);
    Some(Failure {
        hold: Hold {
            reason: word.as_str(),
            message: format!("repository {namespace}/{name}: {message}"),
            next_step: step.or_else(|| suspended.then(resume)),
            stalled: class != FailureClass::Transient,
        },
        // Its layers keep their commits.
        from: (!suspended).then(|| conditions::counts_from(class, since)),
    })
}

fn wanted(o: &Observed, failure: Option<&Failure>) -> Result<Wanted, Hold> {
    let effective = effective(o)?;
    let own = o.layer.metadata.namespace.as_deref().unwrap_or_default();
    if let Some((namespace, name)) = &o.owner {
        let older = if namespace == own {
            format!("layer {name}")
        } else {
            "a layer of another namespace".to_owned()
        };
        let step = "delete one of the two, or give this one spec.template.stack or spec.template.workspace of its own".to_owned();
        return hold(
            reason::STATE_OWNED,
            format!("{older}, which is older, has the same state"),
            Some(step),
        );
    }
    let of = format!("{}\n{}\n", o.layer.spec.git_ref, o.layer.spec.path);
    let source = o
        .layer
        .status
        .as_ref()
        .and_then(|status| status.source.as_ref())
        .filter(|source| source.of.starts_with(&of));
    let Some(source) = source else {
        if let Some(failure) = failure {
            return Err(failure.hold.clone());
        }
        let (namespace, name) = o.layer.repository_key();
        let message = format!(
            "{namespace}/{name} has not been synced at {} yet",
            o.layer.spec.git_ref
        );
        return hold(reason::NO_REVISION, message, None);
    };
    if let Some(missing) = &source.missing {
        let step = Some("correct spec.path or spec.ref, or push what is missing".to_owned());
        return hold(reason::PATH_NOT_FOUND, missing.clone(), step);
    }
    Ok(Wanted {
        revision: source.revision.clone(),
        content: source.content.clone(),
        effective,
    })
}

fn check(o: &Observed, facts: &Facts<'_>, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let stored = o
        .layer
        .status
        .as_ref()
        .and_then(|status| status.next_drift_check.as_ref())
        .map(|at| at.0);
    let uid = o.layer.metadata.uid.as_deref().unwrap_or_default();
    let Some(last) = facts.last.filter(|_| facts.last_plan.is_some()) else {
        // Validates the schedule before it is needed.
        return Check {
            wanted: &o.layer.spec.drift,
            uid,
            last: now,
            started: now,
            stored: None,
        }
        .due(now)
        .map(|_| None);
    };
    let due = Check {
        wanted: &o.layer.spec.drift,
        uid,
        last,
        started: o.started,
        stored,
    }
    .due(now)?;
    Ok(due.filter(|_| facts.current.is_none()))
}
