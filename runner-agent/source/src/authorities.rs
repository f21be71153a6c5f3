//! The certificate authorities for all fetches: those of the image and the operator's, in one file.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// The locations of an image's authorities, in the order of Go: Debian and Alpine, Red Hat, SUSE.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// Joins the authorities of this image with the operator's, as PEM. An image without any trusts the operator's alone.
///
/// # Errors
/// Those of reading the image's file.
pub fn with_own(own: &str) -> io::Result<Vec<u8>> {
    joined(&image(std::env::var_os("SSL_CERT_FILE")), own)
}

/// Makes commands trust the authorities in a file: Go reads the first variable; git, which Debian links with GnuTLS, reads the
/// second.
pub fn trust(env: &mut Vec<(OsString, OsString)>, file: &Path) {
    const NAMES: [&str; 2] = ["SSL_CERT_FILE", "GIT_SSL_CAINFO"];
    env.retain(|(name, _)| !NAMES.iter().any(|own| name == own));
    env.extend(NAMES.map(|name| (name.into(), file.into())));
}

/// The candidate files of the image; the first that exists counts. The environment of the image comes first.
fn image(said: Option<OsString>) -> Vec<PathBuf> {
    said.into_iter()
        .map(PathBuf::from)
        .chain(SYSTEM.map(PathBuf::from))
        .collect()
}

/// An image without any trusts the operator's alone.
fn joined(files: &[impl AsRef<Path>], own: &str) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for file in files {
        match fs::read(file) {
            Ok(bytes) => {
                all = bytes;
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // The last line of a file may lack its newline.
    all.push(b'\n');
    all.extend_from_slice(own.as_bytes());
    all.push(b'\n');
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_authorities_stay_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let (gone, first, second) = (
            dir.path().join("gone"),
            dir.path().join("first"),
            dir.path().join("second"),
        );
        fs::write(&first, "IMAGE").unwrap();
        fs::write(&second, "OTHER").unwrap();
        assert_eq!(
            joined(&[&gone, &first, &second], "OWN").unwrap(),
            b"IMAGE\nOWN\n"
        );
        assert_eq!(joined(&[&gone], "OWN").unwrap(), b"\nOWN\n");
        assert_eq!(image(Some("/said".into()))[0], Path::new("/said"));
    }

    #[test]
    fn commands_trust_one_file() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut env = vec![
            pair("PATH", "/bin"),
            pair("SSL_CERT_FILE", "/image.crt"),
            pair("SSL_CERT_DIR", "/certs"),
        ];
        trust(&mut env, Path::new("/kept/ca.crt"));
        let wanted = [
            ("PATH", "/bin"),
            ("SSL_CERT_DIR", "/certs"),
            ("SSL_CERT_FILE", "/kept/ca.crt"),
            ("GIT_SSL_CAINFO", "/kept/ca.crt"),
        ];
        assert_eq!(env, wanted.map(|(name, value)| pair(name, value)));
    }
}
