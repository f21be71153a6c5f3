//! Certificates and keys of one cluster: its own authority, made anew each time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    SanType, SigningKey as _,
};
use serde_json::{Value, json};

use super::cache;

/// Files and user of the certificate by which the API server is known to servers behind it.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// The certificate authority of a cluster and the directory that its files lie in.
pub struct Pki {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// Who a certificate is for.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The name of the files.
    pub file: &'a str,
    pub user: &'a str,
    pub group: &'a str,
    /// Host names and addresses that it may serve.
    pub hosts: &'a [&'a str],
}

/// A certificate and its key, as PEM text.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pki {
    /// Makes an authority, the key that signs the tokens of service accounts (`sa.key`, `sa.pub`), and what the API server proves
    /// itself with when it passes requests on to servers behind it (`front-proxy-ca.crt`, `front-proxy-client.crt`).
    pub fn create(directory: &Path) -> Result<Self> {
        cache::create_dir(directory)?;
        let tokens = KeyPair::generate()?;
        // An authority of its own: whoever has a certificate of it may speak for anybody.
        let front = Self { directory: directory.to_owned(), issuer: authority("pawl-test-front-proxy")? };
        front.write("front-proxy-ca.crt", &front.issuer.pem())?;
        front.issue(Identity { file: FRONT_PROXY, user: FRONT_PROXY, group: "pawl", hosts: &[] })?;
        let pki = Self { directory: directory.to_owned(), issuer: authority("pawl-test-cluster")? };
        pki.write("ca.crt", &pki.issuer.pem())?;
        pki.write("sa.key", &tokens.serialize_pem())?;
        pki.write("sa.pub", &tokens.public_key_pem())?;
        Ok(pki)
    }

    /// Makes an authority of that name and nothing else.
    pub fn bare(directory: &Path, name: &str) -> Result<Self> {
        cache::create_dir(directory)?;
        let pki = Self { directory: directory.to_owned(), issuer: authority(name)? };
        pki.write("ca.crt", &pki.issuer.pem())?;
        Ok(pki)
    }

    /// Issues a certificate, good for serving and for authenticating, and writes it and its key.
    pub fn issue(&self, identity: Identity<'_>) -> Result<Pair> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, identity.user);
        params.distinguished_name.push(DnType::OrganizationName, identity.group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        for host in identity.hosts {
            params.subject_alt_names.push(match host.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*host).try_into()?),
            });
        }
        let key = KeyPair::generate()?;
        let certificate =
            params.signed_by(&key, &self.issuer).with_context(|| format!("cannot issue a certificate for {}", identity.user))?;
        let pair = Pair { certificate: certificate.pem(), key: key.serialize_pem() };
        self.write(&format!("{}.crt", identity.file), &pair.certificate)?;
        self.write(&format!("{}.key", identity.file), &pair.key)?;
        Ok(pair)
    }

    /// The authority's certificate, as PEM text.
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

/// A token of a service account with this payload, signed with the key in a PEM as the API server signs them.
///
/// # Errors
/// When the key is none, or the payload no JSON.
pub fn token(key: &str, payload: &Value) -> Result<String> {
    let key = KeyPair::from_pem(key).context("`sa.key` is no key")?;
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({"alg": "ES256", "typ": "JWT"})), part(payload));
    let signature = key.sign(signed.as_bytes())?;
    // Two integers, each of which may have a zero before it or lack some, in place of two times 32 bytes.
    let (mut fixed, mut rest) = (Vec::new(), signature.get(2..).unwrap_or_default());
    while let [2, length, more @ ..] = rest {
        let (integer, after) = more.split_at_checked(usize::from(*length)).context("a signature that is none")?;
        let digits: Vec<u8> = integer.iter().copied().skip_while(|byte| *byte == 0).collect();
        fixed.extend(std::iter::repeat_n(0, 32 - digits.len().min(32)).chain(digits));
        rest = after;
    }
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(fixed)))
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?).with_context(|| format!("cannot make the authority {name}"))
}

/// A kubeconfig with everything in it, so that the file can be copied anywhere.
pub fn kubeconfig(server: &str, authority: &str, pair: &Pair) -> String {
    let encode = |text: &str| base64(text.as_bytes());
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

fn base64(bytes: &[u8]) -> String {
    let value = serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
