//! The namespaces whose objects a person may list or approve, asked in the person's name.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::Request;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::Mutex as Queue,
    time::{Instant, sleep},
};

use crds::names;
use serving::call::CallError;

use crate::{
    budget::Budget,
    person::{Person, body},
    problem::Problem,
};

/// Lifetime of an answer.
const KEPT: Duration = Duration::from_secs(5 * 60);
/// Age at which an answer is renewed by a request that has reviews left. Expired answers would make rows vanish for a moment.
const RENEWED: Duration = Duration::from_secs(4 * 60);
/// Most reviews a second of one person.
const RATE: usize = 20;
/// Most seconds that a request waits for reviews; later ones ask for the rest.
const SECONDS: usize = 2;
/// Concurrent reviews of one person.
const AT_ONCE: usize = 8;
/// Most identities with cached answers.
const IDENTITIES: usize = 1024;
/// Differs between two tokens of one ServiceAccount.
const TOKEN_ID: &str = "authentication.kubernetes.io/credential-id";

/// A verb and a resource.
type Right = (&'static str, &'static str);

/// The namespaces in which a person has a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    Namespaces(Arc<BTreeSet<String>>),
}

impl Scope {
    pub fn has(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// Answers of the API server, by identity and not by session.
#[derive(Default)]
pub struct Access(Mutex<HashMap<[u8; 32], Known>>);

#[derive(Clone)]
struct Known {
    used: Instant,
    answers: Arc<Queue<Answers>>,
}

struct Answers {
    /// By right and namespace; the whole cluster is the namespace "".
    by: HashMap<(Right, String), (bool, Instant)>,
    budget: Budget,
}

impl Access {
    /// The namespaces among these whose `resource` the person may list. Asks for the whole cluster first, then for the namespaces whose
    /// answers are unknown. With more namespaces than the rate allows in two seconds, later calls complete the scope.
    ///
    /// # Errors
    /// The API server refused the token or did not respond.
    pub async fn scope(
        &self,
        person: &Person,
        resource: &'static str,
        namespaces: impl Iterator<Item = String>,
    ) -> Result<Scope, Problem> {
        self.of_right(person, ("list", resource), namespaces).await
    }

    /// The namespaces among these in which the person may approve runs.
    ///
    /// # Errors
    /// Those of [`Self::scope`].
    pub async fn approvals(
        &self,
        person: &Person,
        namespaces: impl Iterator<Item = String>,
    ) -> Result<Scope, Problem> {
        let right = (names::VERB_APPROVE, "terraformruns");
        self.of_right(person, right, namespaces).await
    }

    async fn of_right(
        &self,
        person: &Person,
        right: Right,
        namespaces: impl Iterator<Item = String>,
    ) -> Result<Scope, Problem> {
        let answers = self.of(&person.user);
        let mut answers = answers.lock().await;
        answers.ask(person, right, vec![String::new()]).await?;
        if answers.is_allowed(right, "") {
            return Ok(Scope::All);
        }
        let namespaces: Vec<_> = namespaces.collect();
        answers.ask(person, right, namespaces.clone()).await?;
        let allowed = namespaces
            .into_iter()
            .filter(|namespace| answers.is_allowed(right, namespace));
        Ok(Scope::Namespaces(Arc::new(allowed.collect())))
    }

    fn of(&self, user: &UserInfo) -> Arc<Queue<Answers>> {
        let now = Instant::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = identity(user);
        if known.len() >= IDENTITIES && !known.contains_key(&hash) {
            let oldest = known.iter().min_by_key(|(_, known)| known.used);
            if let Some(hash) = oldest.map(|(hash, _)| *hash) {
                known.remove(&hash);
            }
        }
        let entry = known.entry(hash).or_insert_with(|| Known {
            used: now,
            answers: Arc::new(Queue::new(Answers {
                by: HashMap::new(),
                budget: Budget::new(RATE, now),
            })),
        });
        entry.used = now;
        entry.answers.clone()
    }
}

impl Answers {
    fn is_allowed(&self, right: Right, namespace: &str) -> bool {
        let now = Instant::now();
        self.by
            .get(&(right, namespace.to_owned()))
            .is_some_and(|(allowed, asked)| *allowed && now.duration_since(*asked) < KEPT)
    }

    /// Asks for the namespaces without an answer, and renews old answers with the reviews that are left.
    async fn ask(
        &mut self,
        person: &Person,
        right: Right,
        namespaces: Vec<String>,
    ) -> Result<(), Problem> {
        let begun = Instant::now();
        self.by
            .retain(|_, (_, asked)| begun.duration_since(*asked) < KEPT);
        let mut wanted: Vec<_> = namespaces
            .into_iter()
            .filter_map(|namespace| {
                let asked = self.by.get(&(right, namespace.clone()));
                let age = asked.map_or(KEPT, |(_, asked)| begun.duration_since(*asked));
                (age >= RENEWED).then_some((age, namespace))
            })
            .collect();
        wanted.sort_by(|one, other| other.cmp(one));
        for second in 0..=SECONDS {
            let taken = self.budget.take(wanted.len(), Instant::now());
            let now: Vec<_> = wanted.drain(..taken).collect();
            let reviews = now.into_iter().map(async |(age, namespace)| {
                (age, may(person, right, &namespace).await, namespace)
            });
            let answered: Vec<_> = stream::iter(reviews)
                .buffer_unordered(AT_ONCE)
                .collect()
                .await;
            for (age, answer, namespace) in answered {
                match answer {
                    Ok(allowed) => {
                        let answer = (allowed, Instant::now());
                        self.by.insert((right, namespace), answer);
                    }
                    // The earlier answer counts until it expires.
                    Err(_) if age < KEPT => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let is_complete = wanted.first().is_none_or(|(age, _)| *age < KEPT);
            if is_complete || second == SECONDS {
                break;
            }
            sleep(self.budget.rest()).await;
        }
        Ok(())
    }
}

async fn may(person: &Person, (verb, resource): Right, namespace: &str) -> Result<bool, CallError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(names::GROUP.into()),
                resource: Some(resource.into()),
                verb: Some(verb.into()),
                namespace: Some(namespace.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    let answer: SelfSubjectAccessReview = person
        .api_server
        .call("review a right", &person.token, body(request, &review))
        .await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// A hash of all that rights can depend on, apart from the id of the token.
fn identity(user: &UserInfo) -> [u8; 32] {
    let mut groups = user.groups.clone().unwrap_or_default();
    groups.sort();
    let mut extra = user.extra.clone().unwrap_or_default();
    extra.remove(TOKEN_ID);
    let all = (&user.username, &user.uid, groups, extra);
    Sha256::digest(serde_json::to_vec(&all).unwrap_or_default()).into()
}

#[cfg(test)]
mod tests;
