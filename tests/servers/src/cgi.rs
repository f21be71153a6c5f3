//! Passes one request to `git http-backend` as a CGI program.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Runs `git http-backend` below `root` for one request.
pub(super) async fn git_http_backend(
    root: &Path,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
) -> anyhow::Result<Response<Body>> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let mut child = Command::new("git")
        .arg("http-backend")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GATEWAY_INTERFACE", "CGI/1.1")
        .env("REQUEST_METHOD", method.as_str())
        .env("PATH_INFO", uri.path())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", text("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", text("content-encoding"))
        // The client requests protocol version 2 with this header.
        .env("GIT_PROTOCOL", text("git-protocol"))
        // This process created the repositories; ignore the owner of the folder above them.
        .env("GIT_CONFIG_COUNT", "2")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("GIT_CONFIG_KEY_1", "uploadpack.allowAnySHA1InWant")
        .env("GIT_CONFIG_VALUE_1", "true")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("failed to start `git http-backend`")?;
    let mut stdin = child
        .stdin
        .take()
        .context("`git http-backend` has no stdin")?;
    // Write concurrently with the reading: otherwise a large push fills both pipes and blocks.
    let feed = async move {
        let _ = stdin.write_all(body).await;
        drop(stdin);
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    parse(&output.context("failed to run `git http-backend`")?.stdout)
}

/// Parses a CGI response: header lines, an empty line, the body.
fn parse(answer: &[u8]) -> anyhow::Result<Response<Body>> {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        bail!("`git http-backend` answered without a header");
    };
    let mut response = Response::new(Body::from(answer[end + 4..].to_vec()));
    for line in String::from_utf8_lossy(&answer[..end]).lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("status") {
            let code = value.split(' ').next().unwrap_or_default();
            *response.status_mut() =
                StatusCode::from_bytes(code.as_bytes()).context("a status that is no number")?;
        } else {
            let name =
                HeaderName::from_bytes(name.as_bytes()).context("a header name that is none")?;
            response.headers_mut().insert(
                name,
                HeaderValue::from_str(value).context("a header value that is none")?,
            );
        }
    }
    Ok(response)
}
