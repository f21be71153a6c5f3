//! The files of the web UI, embedded by `build.rs` from `controller/ui/dist`.

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};

use crate::problem::Problem;

struct Asset {
    /// The path below the base path.
    name: &'static str,
    plain: &'static [u8],
    brotli: &'static [u8],
}

static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.in"));

/// The page of a build without the UI.
const MISSING: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Pawl</title><h1>Pawl was built without its web UI</h1>\
    <p>In controller/ui: <code>npm ci &amp;&amp; npm run build</code>, then build the controller again. The REST API works.</p>";

/// Serves the files, and the page for each other path outside of `/api`. `base` is the path of `--url`, empty or without a slash at its
/// end.
pub fn router<S: Clone + Send + Sync + 'static>(base: &str) -> Router<S> {
    let page = Bytes::from(page(base, ASSETS));
    Router::new().fallback(move |method: Method, uri: Uri, headers: HeaderMap| {
        let page = page.clone();
        async move { answer(&page, ASSETS, &method, uri.path(), &headers) }
    })
}

/// `index.html` with the base path. The Content-Security-Policy forbids a `<base>`, so the URLs themselves get it.
fn page(base: &str, assets: &[Asset]) -> String {
    let Some(index) = assets.iter().find(|asset| asset.name == "index.html") else {
        return MISSING.to_owned();
    };
    let base = base.replace('&', "&amp;").replace('"', "&quot;");
    String::from_utf8_lossy(index.plain)
        .replace("\"./assets/", &format!("\"{base}/assets/"))
        .replace(
            "name=\"pawl-base\" content=\"\"",
            &format!("name=\"pawl-base\" content=\"{base}\""),
        )
}

fn answer(
    page: &Bytes,
    assets: &'static [Asset],
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Response {
    let name = path.trim_start_matches('/');
    let is_other = name == "api" || name.starts_with("api/") || name == "hooks";
    if is_other || !matches!(*method, Method::GET | Method::HEAD) {
        return not_found(path);
    }
    if !name.starts_with("assets/") {
        return with_headers("text/html; charset=utf-8", "no-cache", page.clone());
    }
    let Some(asset) = assets.iter().find(|asset| asset.name == name) else {
        return not_found(path);
    };
    let kind = match name.rsplit('.').next() {
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        _ => "application/octet-stream",
    };
    let accepts = headers.get_all(header::ACCEPT_ENCODING).iter();
    let is_brotli = accepts
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| {
            let mut parts = word.split(';').map(str::trim);
            parts.next() == Some("br") && parts.all(|part| part != "q=0")
        });
    let body = if is_brotli { asset.brotli } else { asset.plain };
    // The name changes with the content.
    let cache = "public, max-age=31536000, immutable";
    let mut response = with_headers(kind, cache, Bytes::from_static(body));
    let headers = response.headers_mut();
    headers.insert(
        header::VARY,
        HeaderValue::from_static(header::ACCEPT_ENCODING.as_str()),
    );
    if is_brotli {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
    }
    response
}

fn with_headers(kind: &'static str, cache: &'static str, body: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, cache),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body).into_response()
}

fn not_found(path: &str) -> Response {
    Problem::new(
        StatusCode::NOT_FOUND,
        "NotFound",
        format!("there is nothing at {path}; nothing was changed"),
    )
    .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: &[Asset] = &[
        Asset {
            name: "assets/a-1.js",
            plain: b"plain",
            brotli: b"br",
        },
        Asset {
            name: "index.html",
            plain: b"<meta name=\"pawl-base\" content=\"\" /><script src=\"./assets/a-1.js\">",
            brotli: b"",
        },
    ];

    fn get(path: &str, accept: &'static str) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(accept));
        let page = Bytes::from(page("/pawl", TABLE));
        answer(&page, TABLE, &Method::GET, path, &headers)
    }

    #[test]
    fn page_has_the_base_path_in_its_urls() {
        let expected =
            "<meta name=\"pawl-base\" content=\"/pawl\" /><script src=\"/pawl/assets/a-1.js\">";
        assert_eq!(page("/pawl", TABLE), expected);
        assert!(page("/a\"b&", TABLE).contains("content=\"/a&quot;b&amp;\""));
        assert!(page("", &[]).contains("npm ci"));
    }

    #[test]
    fn assets_are_immutable_and_compressed_if_accepted() {
        for (accept, encoding) in [
            ("gzip, br", Some("br")),
            ("br;q=0, gzip", None),
            ("br;q=0.5", Some("br")),
            ("identity", None),
        ] {
            let response = get("/assets/a-1.js", accept);
            let headers = response.headers();
            let found = headers.get(header::CONTENT_ENCODING);
            assert_eq!(found.and_then(|it| it.to_str().ok()), encoding, "{accept}");
            assert!(
                headers[header::CACHE_CONTROL]
                    .to_str()
                    .unwrap()
                    .contains("immutable")
            );
        }
    }

    #[test]
    fn each_path_outside_the_api_is_the_page() {
        for (path, status, cache) in [
            ("/", 200, Some("no-cache")),
            ("/runs/a/b", 200, Some("no-cache")),
            ("/assets/gone.js", 404, None),
            ("/api/v1/unknown", 404, None),
        ] {
            let response = get(path, "");
            let found = response.headers().get(header::CACHE_CONTROL);
            assert_eq!(
                (
                    response.status().as_u16(),
                    found.and_then(|it| it.to_str().ok())
                ),
                (status, cache),
                "{path}"
            );
        }
        let page = Bytes::from(page("", TABLE));
        let posted = answer(&page, TABLE, &Method::POST, "/", &HeaderMap::new());
        assert_eq!(posted.status(), StatusCode::NOT_FOUND);
    }
}
