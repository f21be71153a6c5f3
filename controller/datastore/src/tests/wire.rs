//! Tests the service through its socket: TLS, request heads and bodies.

use std::{sync::Arc, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use serving::{
    connections::{common_name, serve},
    tls::Files,
};

use super::Lab;
use crate::{LIMITS, cluster::FrontProxyConfig, http};

/// An authority and the certificates that it issued, PEM.
struct Pki {
    authority: String,
    server: (String, String),
    proxy: (String, String),
    other: (String, String),
    /// Self-signed, with the correct name.
    forged: (String, String),
}

fn pki() -> Pki {
    let named = |name: &str, hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "test");
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let mut authority = named("authority", &[]);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let issue = |name, hosts: &[&str], usage| {
        let (mut params, key) = (named(name, hosts), KeyPair::generate().unwrap());
        params.extended_key_usages = vec![usage];
        (
            params.signed_by(&key, &issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    };
    let forger = KeyPair::generate().unwrap();
    let forged = named("front-proxy-client", &[])
        .self_signed(&forger)
        .unwrap();
    Pki {
        server: issue(
            "datastore",
            &["datastore"],
            ExtendedKeyUsagePurpose::ServerAuth,
        ),
        proxy: issue(
            "front-proxy-client",
            &[],
            ExtendedKeyUsagePurpose::ClientAuth,
        ),
        other: issue("somebody", &[], ExtendedKeyUsagePurpose::ClientAuth),
        forged: (forged.pem(), forger.serialize_pem()),
        authority: issuer.pem(),
    }
}

struct Server {
    lab: Lab,
    pki: Pki,
    address: std::net::SocketAddr,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
    _configs: watch::Sender<Arc<rustls::ServerConfig>>,
}

async fn server() -> Server {
    let (lab, pki) = (Lab::new(), pki());
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("crt"), directory.path().join("key"));
    std::fs::write(&cert, &pki.server.0).unwrap();
    std::fs::write(&key, &pki.server.1).unwrap();
    let proxy = FrontProxyConfig {
        authority: pki.authority.clone(),
        names: vec!["front-proxy-client".into()],
        user_headers: Vec::new(),
    };
    let config = Files::read(&cert, &key)
        .unwrap()
        .config(Some(&proxy.authority))
        .unwrap();
    lab.service.front_proxy.send_replace(Some(Arc::new(proxy)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (configs, config) = watch::channel(Arc::new(config));
    let (stop, stopped) = watch::channel(false);
    let service = lab.service.clone();
    let (router, opened) = (http::router(service.clone()), move || {
        service.metrics.connection()
    });
    let serving = tokio::spawn(serve(
        router,
        opened,
        LIMITS,
        listener,
        Some(config),
        stopped,
    ));
    Server {
        lab,
        pki,
        address,
        stop,
        serving,
        _configs: configs,
    }
}

impl Server {
    async fn connect(
        &self,
        client: Option<&(String, String)>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pki.authority.as_bytes()).unwrap())
            .unwrap();
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from("datastore").unwrap(), stream)
            .await
    }

    async fn say(&self, client: Option<&(String, String)>, request: &[u8]) -> String {
        self.say_within(Duration::from_secs(60), client, request)
            .await
    }

    /// Waits less long, because there may be no response.
    async fn say_oddly(&self, request: &[u8]) -> String {
        self.say_within(Duration::from_secs(5), None, request).await
    }

    async fn say_within(
        &self,
        patience: Duration,
        client: Option<&(String, String)>,
        request: &[u8],
    ) -> String {
        let Ok(mut stream) = self.connect(client).await else {
            return "no TLS".into();
        };
        // A rejected request may be closed before all of it is sent.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(patience, stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn request(head: &str) -> Vec<u8> {
    format!(
        "{}\r\nHost: datastore\r\nConnection: close\r\n\r\n",
        head.trim().replace('\n', "\r\n")
    )
    .into_bytes()
}

#[tokio::test]
async fn people_need_the_api_servers_certificate() {
    let server = server().await;
    assert_eq!(server.lab.put("objects/plan", b"the plan").await.code, 201);
    let plan = request(
        "GET /apis/read.pawl.run/v1alpha1/namespaces/team/terraformruns/net/plan HTTP/1.1\nX-Remote-User: ada",
    );
    assert!(
        server
            .say(Some(&server.pki.proxy), &plan)
            .await
            .ends_with("the plan")
    );
    assert!(server.say(None, &plan).await.starts_with("HTTP/1.1 401"));
    assert!(
        server
            .say(Some(&server.pki.other), &plan)
            .await
            .starts_with("HTTP/1.1 401"),
        "of the same authority, another name"
    );
    let der = CertificateDer::from_pem_slice(server.pki.proxy.0.as_bytes()).unwrap();
    assert_eq!(common_name(&der).as_deref(), Some("front-proxy-client"));
    let answer = server.say(Some(&server.pki.forged), &plan).await;
    assert!(
        !answer.contains("the plan") && !answer.starts_with("HTTP/1.1 200"),
        "{answer}"
    );
    assert!(
        server
            .say(None, &request("GET /healthz HTTP/1.1"))
            .await
            .ends_with("ok\n")
    );
    assert!(
        server
            .say(None, &request("GET /readyz HTTP/1.1"))
            .await
            .ends_with("ok\n")
    );
}

#[tokio::test]
async fn oversized_or_invalid_request_heads_are_rejected() {
    let server = server().await;
    let large = request(&format!(
        "GET /healthz HTTP/1.1\nX-Large: {}",
        "x".repeat(200_000)
    ));
    assert!(!server.say_oddly(&large).await.contains("200 OK"));
    let many = (0..200).fold("GET /healthz HTTP/1.1".to_owned(), |all, n| {
        format!("{all}\nX-{n}: 1")
    });
    assert!(!server.say_oddly(&request(&many)).await.contains("200 OK"));
    for odd in [
        &b"\x00\x01\x02\r\n\r\n"[..],
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        assert!(!server.say_oddly(odd).await.contains("200 OK"));
    }
    let both = b"PUT /v1/namespaces/team/runs/net/attempts/1/claim HTTP/1.1\r\nHost: d\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n";
    assert!(
        !server.say_oddly(both).await.contains("ok\n"),
        "no second request in the first one's body"
    );
    assert!(
        server
            .say(None, &request("GET /healthz HTTP/1.1"))
            .await
            .contains("200 OK"),
        "and it goes on"
    );
}

#[tokio::test]
async fn shutdown_waits_for_requests_in_progress() {
    let server = server().await;
    let body = super::noise(400_000, 5);
    let head = format!(
        "PUT /v1/namespaces/team/runs/net/attempts/1/objects/bundle HTTP/1.1\r\nHost: d\r\nAuthorization: Bearer pod-1\r\n\
         pawl-nonce: {}\r\npawl-digest: {}\r\nContent-Length: {}\r\n\r\n",
        super::NONCE,
        super::digest(&body),
        body.len()
    );
    let mut stream = server.connect(None).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body[..100_000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let idle = server.connect(None).await.unwrap();
    server.stop.send_replace(true);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        TcpStream::connect(server.address).await.is_err() || server.connect(None).await.is_err(),
        "nobody else comes in"
    );
    stream.write_all(&body[100_000..]).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 201"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    tokio::time::timeout(Duration::from_secs(60), server.serving)
        .await
        .expect("the idle connection is closed")
        .unwrap();
    drop(idle);
}
