//! Large files of a Git server, by the batch API of Git LFS.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    http::{Response, StatusCode, header},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The LFS pointer file of contents.
pub fn pointer(contents: &[u8]) -> String {
    format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n",
        oid(contents),
        contents.len()
    )
}

/// The LFS object id of contents.
pub fn oid(contents: &[u8]) -> String {
    Sha256::digest(contents)
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Contents by object id.
#[derive(Debug, Default)]
pub(super) struct Contents(BTreeMap<String, Vec<u8>>);

impl Contents {
    pub(super) fn add(&mut self, contents: &[u8]) {
        self.0.insert(oid(contents), contents.to_vec());
    }

    /// The answer to a request of `git-lfs`; `base` is the repository's URL. `None` for other requests.
    pub(super) fn answer(&self, base: &str, path: &str, body: &[u8]) -> Option<Response<Body>> {
        let wanted = path.split_once(".git/info/lfs/objects/")?.1;
        if wanted != "batch" {
            let found = self.0.get(wanted).cloned();
            let mut response = Response::new(Body::from(found.clone().unwrap_or_default()));
            *response.status_mut() = if found.is_some() {
                StatusCode::OK
            } else {
                StatusCode::NOT_FOUND
            };
            return Some(response);
        }
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        let object = |object: &Value| {
            let name = object["oid"].as_str().unwrap_or_default();
            let more = if self.0.contains_key(name) {
                json!({"actions": {"download": {"href": format!("{base}/info/lfs/objects/{name}")}}})
            } else {
                json!({"error": {"code": 404, "message": "Object does not exist"}})
            };
            let mut all = json!({"oid": name, "size": object["size"]});
            all.as_object_mut()?.extend(more.as_object()?.clone());
            Some(all)
        };
        let objects: Vec<_> = asked["objects"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(object)
            .collect();
        let mut response = Response::new(Body::from(
            json!({"transfer": "basic", "objects": objects}).to_string(),
        ));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/vnd.git-lfs+json"),
        );
        Some(response)
    }
}
