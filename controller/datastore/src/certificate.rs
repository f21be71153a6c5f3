//! The service's certificate when the operator provides none: created once and stored in a Secret together with its
//! authority's certificate. The authority's key is discarded, so it never signs another certificate.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use serving::tls::Files;

use crate::{
    cluster::Cluster,
    settings::{SecretName, Settings},
};

/// Entries of the Secret, in the order chain, key, authority.
const ENTRIES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];
/// Validity of a certificate, in years.
const YEARS: i16 = 10;
/// Maximum wait between two tries.
const AGAIN: Duration = Duration::from_secs(10);

/// The certificate to serve with, from the Secret or the files in the settings. A Secret is retried until it succeeds,
/// since nothing can be served without.
///
/// # Errors
/// Only for files: when they cannot be read.
pub async fn obtain(settings: &Settings, cluster: &dyn Cluster) -> anyhow::Result<Files> {
    let Some(secret) = &settings.tls_secret else {
        return Ok(Files::read(&settings.tls_cert, &settings.tls_key)?);
    };
    let mut wait = Duration::from_millis(250);
    loop {
        match settle(cluster, secret, &settings.tls_names).await {
            Ok(files) => return Ok(files),
            Err(error) => {
                tracing::warn!(%secret, error = format!("{error:#}"), "there is no certificate to serve with; retrying");
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(AGAIN);
    }
}

/// The certificate in the Secret; creates one if there is none.
///
/// # Errors
/// When the Secret cannot be read or written, or three writes in a row conflict.
pub async fn settle(
    cluster: &dyn Cluster,
    secret: &SecretName,
    names: &[String],
) -> anyhow::Result<Files> {
    for _ in 0..3 {
        let read = cluster
            .secret(secret)
            .await?
            .context("there is no such Secret; the chart makes it")?;
        if let Some(files) = files(&read.data) {
            return Ok(files);
        }
        if cluster.fill(secret, &read, &make(names)?).await? {
            tracing::info!(%secret, "the certificate of the service was created");
        }
        // Read again: the other writer's content is used.
    }
    anyhow::bail!("other writers change it too often")
}

fn files(entries: &BTreeMap<String, Vec<u8>>) -> Option<Files> {
    let [chain, key, _] = ENTRIES.map(|entry| entries.get(entry).filter(|bytes| !bytes.is_empty()));
    entries.get(ENTRIES[2])?;
    Some(Files::of(chain?.clone(), key?.clone()))
}

/// Creates an authority and a certificate for these host names.
fn make(names: &[String]) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let host = names.first().context("--tls-names is empty")?;
    let today = jiff::Timestamp::now()
        .to_zoned(jiff::tz::TimeZone::UTC)
        .date();
    let params = |hosts: &[String], name: String| -> anyhow::Result<CertificateParams> {
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        // Certificates begin on the first of a month: that day exists in every year, and a clock that is hours late makes no difference.
        let day = |years: i16| {
            let month = u8::try_from(today.month()).unwrap_or(1);
            date_time_ymd(i32::from(today.year() + years), month, 1)
        };
        (params.not_before, params.not_after) = (day(-1), day(YEARS));
        Ok(params)
    };
    let mut authority = params(&[], "Pawl datastore CA".to_owned())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut service = params(names, host.clone())?;
    service.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    service.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = service.signed_by(&key, &authority)?;
    let contents = [certificate.pem(), key.serialize_pem(), authority.pem()];
    Ok(ENTRIES
        .into_iter()
        .zip(contents)
        .map(|(entry, text)| (entry.to_owned(), text.into_bytes()))
        .collect())
}
