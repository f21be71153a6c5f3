//! One repository.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::Serialize;

use crds::TerraformRepository;

use super::{
    object::{Beside, ObjectPage},
    shown,
};
use crate::{
    acts::{self, Act, Kind, Object},
    lists::LAYERS,
    rows::RepositoryRow,
};

/// A repository, and what its state permits.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryPage {
    pub row: RepositoryRow,
    pub repository: TerraformRepository,
    /// The last deliveries of its webhook that this replica accepted the signature of, the newest first; null when it receives none.
    pub deliveries: Option<Vec<Delivery>>,
    /// The start of this replica: it knows of no earlier delivery, and of none that another replica received.
    pub deliveries_since: Time,
    /// The acts that the repository's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
}

/// A delivery of a forge that proved to know the repository's secret.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// Time of arrival.
    pub time: Time,
    /// `NAMESPACE/NAME` of the repository.
    pub repository: String,
    pub forge: &'static str,
    /// The event, as named by the forge.
    pub event: Option<String>,
    /// The forge's delivery id.
    pub id: Option<String>,
    pub verdict: Verdict,
    /// Why, for people.
    pub reason: &'static str,
}

/// The outcome of a delivery.
#[derive(Serialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// A reconcile of the repository is requested.
    Accepted,
    /// The event moves no ref.
    Ignored,
    /// The body is an HTML form.
    Form,
    /// An unsigned test of the connection.
    Ping,
}

impl Verdict {
    /// The name in metrics and responses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Ignored => "ignored",
            Self::Form => "form",
            Self::Ping => "ping",
        }
    }

    /// The reason, for people.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Accepted => "the refs of the repository are checked",
            Self::Ignored => "this event moves no ref; nothing is checked",
            Self::Form => {
                "the body is a form; choose application/json as the content type of the webhook"
            }
            Self::Ping => {
                "the address is right; this test is not signed, so nothing is checked, and only signed deliveries are accepted"
            }
        }
    }
}

/// The deliveries of a repository, by namespace and name.
pub type Deliveries = Box<dyn Fn(&str, &str) -> Vec<Delivery> + Send + Sync>;

impl ObjectPage for RepositoryPage {
    type Of = TerraformRepository;
    const KIND: Kind = Kind::Repository;

    fn state(repository: &TerraformRepository) -> Object<'_> {
        Object::Repository(repository)
    }

    async fn of(repository: TerraformRepository, beside: Beside<'_>) -> Self {
        let Beside {
            console, person, ..
        } = beside;
        let mut row = RepositoryRow::of(&repository);
        if let Ok(scope) = console.scope(person, LAYERS).await {
            let tables = console.rows.read();
            row.layers = tables.layers_of(&row.namespace, &row.name, &scope);
        }
        let deliveries = console.deliveries.as_ref();
        Self {
            deliveries: deliveries.map(|of| of(&row.namespace, &row.name)),
            deliveries_since: Time(console.started),
            row,
            acts: acts::offered(&Self::state(&repository)),
            repository: shown(repository),
        }
    }
}
