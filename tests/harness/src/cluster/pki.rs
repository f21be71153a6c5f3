//! Certificates and keys of one cluster, from a new authority each time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, SigningKey as _,
};
use serde_json::{Value, json};

use super::cache;

/// File name and user of the client certificate with which the API server authenticates to extension API servers.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// The certificate authority of a cluster, and the directory of its files.
pub struct Pki {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// The subject of a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// File name without extension.
    pub file: &'a str,
    pub user: &'a str,
    pub group: &'a str,
    /// Subject alternative names: host names and addresses.
    pub hosts: &'a [&'a str],
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pki {
    /// Creates an authority, the signing key of service account tokens (`sa.key`, `sa.pub`), and the API server's client certificate for
    /// extension API servers (`front-proxy-ca.crt`, `front-proxy-client.crt`).
    pub fn create(directory: &Path) -> Result<Self> {
        cache::create_dir(directory)?;
        let tokens = KeyPair::generate()?;
        // A separate authority: a holder of its certificates can impersonate every user.
        let front = Self {
            directory: directory.to_owned(),
            issuer: authority("pawl-test-front-proxy")?,
        };
        front.write("front-proxy-ca.crt", &front.issuer.pem())?;
        front.issue(Identity {
            file: FRONT_PROXY,
            user: FRONT_PROXY,
            group: "pawl",
            hosts: &[],
        })?;
        let pki = Self {
            directory: directory.to_owned(),
            issuer: authority("pawl-test-cluster")?,
        };
        pki.write("ca.crt", &pki.issuer.pem())?;
        pki.write("sa.key", &tokens.serialize_pem())?;
        pki.write("sa.pub", &tokens.public_key_pem())?;
        Ok(pki)
    }

    /// Creates an authority with that name and nothing else.
    pub fn bare(directory: &Path, name: &str) -> Result<Self> {
        cache::create_dir(directory)?;
        let pki = Self {
            directory: directory.to_owned(),
            issuer: authority(name)?,
        };
        pki.write("ca.crt", &pki.issuer.pem())?;
        Ok(pki)
    }

    /// Issues a certificate for server and client authentication, and writes it and its key.
    pub fn issue(&self, identity: Identity<'_>) -> Result<Pair> {
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, identity.user);
        params
            .distinguished_name
            .push(DnType::OrganizationName, identity.group);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        for host in identity.hosts {
            params.subject_alt_names.push(match host.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*host).try_into()?),
            });
        }
        let key = KeyPair::generate()?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("cannot issue a certificate for {}", identity.user))?;
        let pair = Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        };
        self.write(&format!("{}.crt", identity.file), &pair.certificate)?;
        self.write(&format!("{}.key", identity.file), &pair.key)?;
        Ok(pair)
    }

    /// The authority's certificate, in PEM.
    pub fn authority(&self) -> String {
        self.issuer.pem()
    }

    pub fn path(&self, file: &str) -> String {
        self.directory.join(file).display().to_string()
    }

    fn write(&self, file: &str, content: &str) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.directory.join(file);
        cache::write(&path, content)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot protect {}", path.display()))
    }
}

/// Signs a service account token with this payload and a PEM key, as the API server does.
///
/// # Errors
/// When the key is invalid, or the payload cannot be serialised.
pub fn token(key: &str, payload: &Value) -> Result<String> {
    let key = KeyPair::from_pem(key).context("`sa.key` is no key")?;
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "ES256", "typ": "JWT"})),
        part(payload)
    );
    let signature = key.sign(signed.as_bytes())?;
    // Convert the DER signature, whose two integers may be padded or shortened, to twice 32 bytes.
    let (mut fixed, mut rest) = (Vec::new(), signature.get(2..).unwrap_or_default());
    while let [2, length, more @ ..] = rest {
        let (integer, after) = more
            .split_at_checked(usize::from(*length))
            .context("a signature that is none")?;
        let digits: Vec<u8> = integer
            .iter()
            .copied()
            .skip_while(|byte| *byte == 0)
            .collect();
        fixed.extend(std::iter::repeat_n(0, 32 - digits.len().min(32)).chain(digits));
        rest = after;
    }
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(fixed)))
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
        .with_context(|| format!("cannot make the authority {name}"))
}

/// A kubeconfig with embedded certificates, so that the file can be copied.
pub fn kubeconfig(server: &str, authority: &str, pair: &Pair) -> String {
    let encode = |text: &str| STANDARD.encode(text);
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "pawl", "cluster": {
            "server": server, "certificate-authority-data": encode(authority)}}],
        "users": [{"name": "pawl", "user": {
            "client-certificate-data": encode(&pair.certificate), "client-key-data": encode(&pair.key)}}],
        "contexts": [{"name": "pawl", "context": {"cluster": "pawl", "user": "pawl"}}],
        "current-context": "pawl",
    })
    .to_string()
}
