//! Addresses of resources, taken apart.

use serde_json::Value;

/// An address such as `module.m.terraform_data.r["key"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `module.m`, or empty for the root module.
    pub(super) module: String,
    /// `terraform_data.r["key"]`.
    pub(super) resource: String,
    /// `terraform_data`.
    pub(super) kind: String,
    /// `r`.
    pub(super) name: String,
    /// `"key"`, a number, or null.
    pub(super) key: Value,
}

impl Address {
    /// Takes an address apart; what is none gives empty parts.
    pub(super) fn parse(address: &str) -> Self {
        let (base, key) = match address.strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
            Some((base, key)) => (base, serde_json::from_str(key).unwrap_or_default()),
            None => (address, Value::Null),
        };
        let (base, name) = base.rsplit_once('.').unwrap_or(("", base));
        let (module, kind) = base.rsplit_once('.').unwrap_or(("", base));
        let resource = address.strip_prefix(module).unwrap_or(address).trim_start_matches('.').to_owned();
        Self { module: module.to_owned(), resource, kind: kind.to_owned(), name: name.to_owned(), key }
    }

    /// The provider that the type's name implies.
    pub(super) fn provider(&self) -> &str {
        self.kind.split('_').next().unwrap_or_default()
    }

    /// The provider's full name.
    pub(super) fn provider_name(&self) -> String {
        match self.provider() {
            "terraform" => "terraform.io/builtin/terraform".to_owned(),
            // No real registry: nothing is ever fetched for this name.
            other => format!("registry.invalid/hashicorp/{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_part_is_found() {
        let address = Address::parse("module.a.module.b.null_resource.r[\"k\"]");
        assert_eq!(address.module, "module.a.module.b");
        assert_eq!(address.resource, "null_resource.r[\"k\"]");
        assert_eq!((address.kind.as_str(), address.name.as_str(), &address.key), ("null_resource", "r", &json!("k")));
        assert_eq!(address.provider(), "null");
        let plain = Address::parse("terraform_data.r[2]");
        assert_eq!((plain.module.as_str(), plain.resource.as_str(), &plain.key), ("", "terraform_data.r[2]", &json!(2)));
        assert_eq!(Address::parse("terraform_data.r").key, Value::Null);
    }
}
