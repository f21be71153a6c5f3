//! Resources: address, id, and the action of a plan.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Act {
    NoOp,
    Create,
    Delete,
}

impl Act {
    /// The word in events.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::NoOp => "no-op",
            Self::Create => "create",
            Self::Delete => "delete",
        }
    }

    /// The verb of the start message.
    pub(super) fn begun(self) -> &'static str {
        if self == Self::Delete {
            "Destroying"
        } else {
            "Creating"
        }
    }

    /// The noun of the completion message.
    pub(super) fn noun(self) -> &'static str {
        if self == Self::Delete {
            "Destruction"
        } else {
            "Creation"
        }
    }
}

/// A parsed address of the root module: `terraform_data.r["key"]`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Address<'a> {
    /// `terraform_data`.
    pub(super) kind: &'a str,
    /// `r`.
    pub(super) name: &'a str,
    /// `"key"`, a number, or null.
    pub(super) key: Value,
}

impl<'a> Address<'a> {
    pub(super) fn parse(address: &'a str) -> Self {
        let (base, key) = match address
            .strip_suffix(']')
            .and_then(|rest| rest.split_once('['))
        {
            Some((base, key)) => (base, serde_json::from_str(key).unwrap_or_default()),
            None => (address, Value::Null),
        };
        let (kind, name) = base.split_once('.').unwrap_or((base, ""));
        Self { kind, name, key }
    }

    /// The provider that the type's name implies.
    pub(super) fn provider(&self) -> &str {
        self.kind.split('_').next().unwrap_or_default()
    }
}

/// Number of changes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) add: u64,
    pub(super) remove: u64,
}

impl Counts {
    pub(super) fn count(&mut self, act: Act) {
        match act {
            Act::NoOp => {}
            Act::Create => self.add += 1,
            Act::Delete => self.remove += 1,
        }
    }
}

/// A random id in the form of a UUID.
pub(super) fn random_uuid() -> String {
    let hex = format!("{:032x}", rand::random::<u128>());
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
