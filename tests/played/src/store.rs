//! Objects, their versions, and the verbs on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crds::{names, whole_seconds};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub use super::{LAYERS, PODS, RUNS};
use super::{
    Refusal, User, admission,
    patch::{is_absent, merge},
    schema,
};
use crate::trace::Writer;

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Plural resource name.
    pub resource: String,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn of(resource: &str, namespace: &str, name: &str) -> Self {
        Self {
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// A change of an object, ordered by version.
#[derive(Clone, Debug)]
pub struct Change {
    /// The resourceVersion that it created.
    pub version: u64,
    pub key: Key,
    /// The object after the change, or its last state if deleted.
    pub object: Arc<Value>,
    pub deleted: bool,
    /// The writer of a status.
    pub by: Option<Writer>,
}

#[derive(Clone, Debug)]
pub enum Edit {
    /// A merge patch, or a strategic merge patch.
    Merge(Value),
    /// A JSON Patch.
    Json(Vec<Value>),
    Replace(Value),
    /// A server-side apply. The user owns every status field that he ever applied, as a whole.
    Apply(Value),
}

pub type Answer = Result<Arc<Value>, Refusal>;

#[derive(Debug, Default)]
pub struct Store {
    version: u64,
    made: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    changes: Vec<Change>,
    /// Status fields that a user has applied.
    applied: BTreeMap<(Key, String), BTreeSet<String>>,
    /// Whether the chart's policies are missing.
    pub lacks_policies: bool,
    /// How often they were recreated.
    pub policies_made: u32,
}

impl Store {
    /// The newest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Changes after a version.
    pub fn since(&self, version: u64) -> &[Change] {
        let from = self
            .changes
            .partition_point(|change| change.version <= version);
        &self.changes[from..]
    }

    /// The current object.
    ///
    /// # Errors
    /// 404.
    pub fn get(&self, key: &Key) -> Answer {
        self.objects
            .get(key)
            .cloned()
            .ok_or_else(|| Refusal::not_found(&format!("{} \"{}\"", key.resource, key.name)))
    }

    /// Objects of a resource with all these labels (`key=value`, separated by commas).
    pub fn list(&self, resource: &str, namespace: &str, selector: &str) -> Vec<Arc<Value>> {
        let matches = |object: &Value| {
            let pairs = selector.split(',').filter_map(|pair| pair.split_once('='));
            pairs
                .into_iter()
                .all(|(key, value)| object["metadata"]["labels"][key] == value)
        };
        let of_kind = self
            .objects
            .iter()
            .filter(|(key, _)| key.resource == resource && key.namespace == namespace);
        of_kind
            .filter(|(_, object)| matches(object))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The chart's policies or their bindings, as in a list response.
    pub fn policies(&self) -> Vec<Value> {
        let names = names::POLICIES.iter().filter(|_| !self.lacks_policies);
        let uid = format!("{:08x}-0000-4000-9000-000000000000", self.policies_made);
        let object = |name: &&str| json!({"metadata": {"name": name, "uid": uid, "generation": 1}, "spec": {"policyName": name}});
        names.map(object).collect()
    }

    /// Creates an object.
    ///
    /// # Errors
    /// 409 if it exists; refusals of schema and policies.
    pub fn create(
        &mut self,
        user: &User,
        resource: &str,
        namespace: &str,
        mut object: Value,
        dry: bool,
        now: Timestamp,
    ) -> Answer {
        let stem = object["metadata"]["generateName"]
            .as_str()
            .map(|stem| format!("{stem}{}", self.made));
        let name = object["metadata"]["name"]
            .as_str()
            .map(str::to_owned)
            .or(stem)
            .unwrap_or_default();
        let key = Key::of(resource, namespace, &name);
        let uid = format!(
            "{:08x}-0000-4000-8000-{:012x}",
            self.made + 1,
            self.made + 1
        );
        merge(
            &mut object,
            &json!({"metadata": {"name": name, "namespace": namespace, "uid": uid, "generation": 1,
                "creationTimestamp": whole_seconds(now), "deletionTimestamp": null, "resourceVersion": null}}),
        );
        if resource == RUNS {
            if let Some(object) = object.as_object_mut() {
                object.remove("status");
            }
            schema::shape(&mut object)?;
            schema::rules(None, &object)?;
            self.admit(user, None, &object, false)?;
        }
        if resource == LAYERS && !self.lacks_policies {
            admission::admit_layer(user, None, &object)?;
        }
        if resource == PODS {
            object["status"] = json!({"phase": "Pending"});
        }
        if self.objects.contains_key(&key) {
            return Err(Refusal {
                code: 409,
                reason: "AlreadyExists",
                message: format!("{resource} \"{name}\" already exists"),
            });
        }
        if dry {
            return Ok(Arc::new(object));
        }
        self.made += 1;
        Ok(self.put(key, object, None))
    }

    /// Changes an object, or with `status` only its status.
    ///
    /// # Errors
    /// 404; 409 for another version or UID; 422 for a failed test and by the schema; 403 by policies.
    pub fn edit(&mut self, user: &User, key: &Key, status: bool, edit: &Edit, dry: bool) -> Answer {
        let old = self.get(key)?;
        let mut new = (*old).clone();
        match edit {
            Edit::Merge(patch) => merge(&mut new, patch),
            Edit::Json(operations) => {
                // A test treats a missing member as null.
                let operations: Vec<Value> = operations
                    .iter()
                    .filter(|test| !is_absent(&old, test))
                    .cloned()
                    .collect();
                let patch: json_patch::Patch = serde_json::from_value(Value::Array(operations))
                    .map_err(|error| Refusal {
                        code: 400,
                        reason: "BadRequest",
                        message: error.to_string(),
                    })?;
                json_patch::patch(&mut new, &patch)
                    .map_err(|error| Refusal::invalid(error.to_string()))?;
            }
            Edit::Replace(value) => new = value.clone(),
            Edit::Apply(value) => {
                let (given, nothing) = (value["status"].as_object(), Map::new());
                let owned = self
                    .applied
                    .entry((key.clone(), user.name.clone()))
                    .or_default();
                for field in owned.difference(&given.unwrap_or(&nothing).keys().cloned().collect())
                {
                    new["status"][field] = Value::Null;
                }
                for (field, value) in given.unwrap_or(&nothing) {
                    new["status"][field] = value.clone();
                    owned.insert(field.clone());
                }
                if let Some(fields) = new["status"].as_object_mut() {
                    fields.retain(|_, value| !value.is_null());
                }
                new["metadata"]["uid"] = value["metadata"]["uid"].clone();
            }
        }
        for field in ["uid", "resourceVersion"] {
            let given = &new["metadata"][field];
            if !given.is_null() && *given != old["metadata"][field] {
                return Err(Refusal::conflict(&format!("{field} is another")));
            }
        }
        let part = |object: &Value, field: &str| object.get(field).cloned();
        let mut whole = (*old).clone();
        let Some(fields) = whole.as_object_mut() else {
            return Ok(old);
        };
        // A status write changes only the status; other writes never change it.
        let taken: &[&str] = if status {
            &["status"]
        } else {
            &["metadata", "spec", "data", "rules", "subjects"]
        };
        for field in taken {
            match part(&new, field) {
                Some(value) => fields.insert((*field).into(), value),
                None => fields.remove(*field),
            };
        }
        for field in [
            "uid",
            "resourceVersion",
            "name",
            "namespace",
            "creationTimestamp",
            "deletionTimestamp",
            "generation",
        ] {
            if let Some(value) = old["metadata"].get(field) {
                whole["metadata"][field] = value.clone();
            }
        }
        // Empty metadata is not stored.
        if let Some(metadata) = whole["metadata"].as_object_mut() {
            metadata.retain(|_, value| *value != json!([]) && *value != json!({}));
        }
        if key.resource == RUNS {
            if status {
                schema::shape_status(&mut whole)?;
            }
            schema::rules(Some(&old), &whole)?;
            self.admit(user, Some(&old), &whole, status)?;
        }
        if key.resource == LAYERS && whole["spec"] != old["spec"] {
            whole["metadata"]["generation"] =
                json!(old["metadata"]["generation"].as_u64().unwrap_or(0) + 1);
        }
        if key.resource == LAYERS && !status && !self.lacks_policies {
            admission::admit_layer(user, Some(&old), &whole)?;
        }
        let count = |object: &Value| {
            object["metadata"]["finalizers"]
                .as_array()
                .map_or(0, Vec::len)
        };
        let leaving = is_leaving(&whole);
        if leaving && count(&whole) > count(&old) {
            return Err(Refusal::invalid(
                "no new finalizers can be added if the object is being deleted",
            ));
        }
        if dry || whole == *old {
            return Ok(if dry { Arc::new(whole) } else { old });
        }
        let let_go = count(&old) > 0 && count(&whole) == 0 && leaving;
        // A pod stays until its node has confirmed its end.
        if let_go && (key.resource != PODS || whole["metadata"]["deletionGracePeriodSeconds"] == 0)
        {
            return Ok(self.remove(key, whole));
        }
        Ok(self.put(key.clone(), whole, status.then(|| user.writer())))
    }

    fn admit(
        &self,
        user: &User,
        old: Option<&Value>,
        new: &Value,
        status: bool,
    ) -> Result<(), Refusal> {
        if self.lacks_policies {
            Ok(())
        } else {
            admission::admit(user, old, new, status)
        }
    }

    /// Deletes an object. Only marks it if it has finalizers, or if it is a pod on a node with `grace` seconds.
    ///
    /// # Errors
    /// 404; 409 if its UID or version is not the `wanted` one.
    pub fn delete(
        &mut self,
        key: &Key,
        wanted: &Value,
        grace: Option<u64>,
        now: Timestamp,
    ) -> Answer {
        let old = self.get(key)?;
        for field in ["uid", "resourceVersion"] {
            if wanted[field].is_string() && wanted[field] != old["metadata"][field] {
                return Err(Refusal::conflict(&format!("{field} is another")));
            }
        }
        let held = old["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        let placed = key.resource == PODS && !old["spec"]["nodeName"].is_null();
        let ended = ["Succeeded", "Failed"]
            .iter()
            .any(|phase| old["status"]["phase"] == *phase);
        let before = old["metadata"]["deletionGracePeriodSeconds"].as_u64();
        // Of a pod that is being deleted, even if it has ended, only a shorter period than the present one counts.
        let grace = if placed && (!ended || before.is_some()) {
            grace.unwrap_or(0)
        } else {
            0
        };
        // The watch shows first a pod with a grace of 0, then its deletion.
        if !held && grace == 0 && key.resource != PODS {
            return Ok(self.remove(key, (*old).clone()));
        }
        if before.is_some_and(|before| before <= grace) {
            return Ok(old);
        }
        let mut new = (*old).clone();
        if !is_leaving(&new) {
            new["metadata"]["deletionTimestamp"] = json!(whole_seconds(now));
        }
        new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        let marked = self.put(key.clone(), new, None);
        Ok(if held || grace > 0 {
            marked
        } else {
            self.remove(key, (*marked).clone())
        })
    }

    /// A kubelet's write to a pod. Ignored if the pod is gone or another pod has its name.
    pub fn node_writes(&mut self, key: &Key, uid: &str, patch: &Value) {
        let Ok(old) = self.get(key) else { return };
        if old["metadata"]["uid"] != uid {
            return;
        }
        let mut new = (*old).clone();
        merge(&mut new, patch);
        let held = new["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        if new["metadata"]["deletionGracePeriodSeconds"] == 0 && !held {
            self.remove(key, new);
        } else if new != *old {
            self.put(key.clone(), new, None);
        }
    }

    fn put(&mut self, key: Key, mut object: Value, by: Option<Writer>) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        self.objects.insert(key.clone(), object.clone());
        self.changes.push(Change {
            version: self.version,
            key,
            object: object.clone(),
            deleted: false,
            by,
        });
        object
    }

    fn remove(&mut self, key: &Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        self.objects.remove(key);
        self.changes.push(Change {
            version: self.version,
            key: key.clone(),
            object: object.clone(),
            deleted: true,
            by: None,
        });
        object
    }
}

/// A text in an object, by JSON pointer; empty if it is missing.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A label of an object; empty if it is missing.
pub fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["labels"][name]
        .as_str()
        .unwrap_or_default()
}

/// Whether an object is marked for deletion.
pub fn is_leaving(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The body of an error response.
pub fn failure(refusal: &Refusal) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": Map::new(), "status": "Failure", "message": refusal.message,
        "reason": refusal.reason, "code": refusal.code})
}
