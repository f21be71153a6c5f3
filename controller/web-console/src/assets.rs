//! The web UI, embedded at build time. Every page has the same document; its `<base href>` is the base path.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};

use crate::{Console, problem::Problem};

/// Files of `controller/ui/dist` by name; `.br` is compressed.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The document of a controller that was built without the UI.
const NOT_BUILT: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Pawl</title></head><body><h1>This \
    controller was built without the web UI</h1><p>The REST API is there: <code>/api/v1</code>. To build the UI, with Node 20.19 or \
    later: <code>cd controller/ui &amp;&amp; npm ci &amp;&amp; npm run build</code>, then build the controller again.</p></body></html>";

/// Answers a path outside of the API: a file of the UI, or the document of its pages.
pub async fn serve(State(console): State<Arc<Console>>, headers: HeaderMap, uri: Uri) -> Response {
    answer(FILES, console.address.base(), &headers, uri.path())
}

fn answer(
    files: &[(&str, &'static [u8])],
    base: &str,
    headers: &HeaderMap,
    path: &str,
) -> Response {
    let name = path.trim_start_matches('/');
    if name == "api" || name.starts_with("api/") {
        return Problem::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "there is no such path; /api/v1/openapi.json describes the API",
        )
        .into_response();
    }
    let of = |name: &str| {
        files
            .iter()
            .find(|(other, _)| *other == name)
            .map(|(_, bytes)| *bytes)
    };
    // An asset of another version is not found rather than the document: a page that is open during an upgrade can tell.
    if name.starts_with("assets/") || name == "icon.svg" {
        // A proxy may remove the header with which browsers accept brotli.
        let compressed = of(&format!("{name}.br")).filter(|_| accepts_brotli(headers));
        let Some(bytes) = compressed.or_else(|| of(name)) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        // Names of assets contain a hash of their content.
        let cached = if name.starts_with("assets/") {
            "public, max-age=31536000, immutable"
        } else {
            "public, max-age=3600"
        };
        let mut response = (head(kind(name), cached), bytes).into_response();
        if compressed.is_some() {
            response.headers_mut().insert(
                header::CONTENT_ENCODING,
                header::HeaderValue::from_static("br"),
            );
        }
        return response;
    }
    let document = of("index.html").map_or(NOT_BUILT.into(), String::from_utf8_lossy);
    let base = format!("<base href=\"{}/\"", escaped(base));
    let document = document.replacen("<base href=\"/\"", &base, 1);
    (head("text/html; charset=utf-8", "no-cache"), document).into_response()
}

fn head(kind: &'static str, cached: &'static str) -> [(HeaderName, &'static str); 2] {
    [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, cached),
    ]
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

fn accepts_brotli(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| ["br", "*"].contains(&coding.split(';').next().unwrap_or_default().trim()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT: &[(&str, &[u8])] = &[
        (
            "index.html",
            b"<html><head><base href=\"/\" /></head></html>",
        ),
        ("assets/index-1.js", b"plain"),
        ("assets/index-1.js.br", b"compressed"),
    ];

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn each_page_has_the_document_with_the_base_path() {
        let response = answer(BUILT, "/infra", &HeaderMap::new(), "/runs/prod/net");
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-cache");
        assert_eq!(
            text(response).await,
            "<html><head><base href=\"/infra/\" /></head></html>"
        );
        let response = answer(&[], "", &HeaderMap::new(), "/");
        assert!(text(response).await.contains("npm run build"));
    }

    #[tokio::test]
    async fn asset_is_compressed_for_clients_that_accept_it() {
        let br = HeaderMap::from_iter([(
            header::ACCEPT_ENCODING,
            header::HeaderValue::from_static("gzip, br;q=1"),
        )]);
        for (headers, sent) in [(br, "compressed"), (HeaderMap::new(), "plain")] {
            let response = answer(BUILT, "", &headers, "/assets/index-1.js");
            let encoded = response.headers().contains_key(header::CONTENT_ENCODING);
            assert_eq!(
                (encoded, text(response).await.as_str()),
                (sent == "compressed", sent)
            );
        }
    }

    #[test]
    fn unknown_assets_and_api_paths_are_not_found() {
        for path in ["/assets/index-2.js", "/api/v1/none", "/api"] {
            let status = answer(BUILT, "", &HeaderMap::new(), path).status();
            assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        }
    }
}
