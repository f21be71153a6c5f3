//! A proxy as ingress-nginx sets it up by default: Debian's nginx, unpacked into the cache. It terminates TLS on a loopback address.

use std::{
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use harness::{cluster::pki::Pair, wait};
use xtask::{cache::Cache, packages};

/// Time limit until it listens.
const PATIENCE: Duration = Duration::from_secs(60);

/// The base path of the console behind it.
pub const BASE: &str = "/pawl";

/// How its settings differ from the defaults of ingress-nginx.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// It strips the base path, as the annotation `rewrite-target` does.
    pub strips: bool,
    /// `proxy_buffer_size`: maximum size of a response's header.
    pub buffer: &'a str,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self {
            strips: false,
            buffer: "4k",
        }
    }
}

/// A running nginx. It ends with this value, or with the thread that started it.
#[derive(Debug)]
pub struct Nginx {
    directory: tempfile::TempDir,
    child: Child,
}

impl Nginx {
    /// Listens on this port and passes requests on to `upstream` (`HOST:PORT`).
    ///
    /// # Errors
    /// When it does not listen.
    pub fn start(port: u16, pair: &Pair, upstream: &str, settings: Settings<'_>) -> Result<Self> {
        let program = packages::unpacked(&Cache::open()?, "nginx", &["nginx"])?;
        let directory = tempfile::Builder::new().prefix("pawl-nginx-").tempdir()?;
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text);
        write("tls.crt", &pair.certificate)?;
        write("tls.key", &pair.key)?;
        write("nginx.conf", &config(port, upstream, settings))?;
        let log = std::fs::File::create(directory.path().join("log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program.join("usr/sbin/nginx"))
            .args([
                Path::new("-e"),
                Path::new("stderr"),
                Path::new("-p"),
                directory.path(),
                Path::new("-c"),
                Path::new("nginx.conf"),
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("failed to start nginx")?;
        let mut nginx = Self { directory, child };
        let listens = wait::until_blocking("nginx listens", PATIENCE, || {
            let answer = TcpStream::connect(("127.0.0.1", port));
            ensure!(
                answer.is_ok() || nginx.child.try_wait()?.is_none(),
                "nginx ended"
            );
            Ok(answer)
        });
        listens.with_context(|| nginx.log())?;
        Ok(nginx)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings are those of ingress-nginx 1.x, with `proxy_buffering` as nginx itself has it: the harder case.
fn config(port: u16, upstream: &str, settings: Settings<'_>) -> String {
    let Settings { strips, buffer } = settings;
    let rewrite = if strips {
        format!("rewrite \"(?i){BASE}(/|$)(.*)\" /$2 break;")
    } else {
        String::new()
    };
    format!(
        r#"daemon off;
master_process off;
pid nginx.pid;
error_log stderr info;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  client_header_buffer_size 1k;
  large_client_header_buffers 4 8k;
  client_body_buffer_size 8k;
  client_max_body_size 1m;
  keepalive_timeout 75s;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream console {{ server {upstream}; keepalive 320; }}
  server {{
    listen 127.0.0.1:{port} ssl http2;
    ssl_certificate tls.crt;
    ssl_certificate_key tls.key;
    location {BASE}/ {{
      {rewrite}
      proxy_pass http://console;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Request-ID $request_id;
      proxy_set_header X-Real-IP $remote_addr;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Forwarded-Port $server_port;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Scheme $scheme;
      proxy_set_header X-Scheme $scheme;
      proxy_set_header X-Original-Forwarded-For $http_x_forwarded_for;
      proxy_set_header Proxy "";
      proxy_connect_timeout 5s;
      proxy_send_timeout 60s;
      proxy_read_timeout 60s;
      proxy_buffering on;
      proxy_buffer_size {buffer};
      proxy_buffers 4 {buffer};
      proxy_max_temp_file_size 1024m;
      proxy_request_buffering on;
      proxy_cookie_domain off;
      proxy_cookie_path off;
      proxy_next_upstream error timeout;
      proxy_next_upstream_tries 3;
      proxy_redirect off;
    }}
  }}
}}
"#
    )
}
