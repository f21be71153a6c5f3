//! Whom all that is fetched is trusted by: the authorities of the image and those of the operator, in one file.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// Where images have their authorities, as Go looks for them: Debian and Alpine, Red Hat, SUSE.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// The authorities of this image with an operator's own, as PEM. An image without any trusts the operator's alone.
///
/// # Errors
/// When those of the image cannot be read.
pub fn with_own(own: &str) -> io::Result<Vec<u8>> {
    joined(&image(std::env::var_os("SSL_CERT_FILE")), own)
}

/// Lets commands trust the authorities in a file: Go reads the one name, git, which Debian builds without OpenSSL, the other.
pub fn trust(env: &mut Vec<(OsString, OsString)>, file: &Path) {
    const NAMES: [&str; 2] = ["SSL_CERT_FILE", "GIT_SSL_CAINFO"];
    env.retain(|(name, _)| !NAMES.iter().any(|own| name == own));
    env.extend(NAMES.map(|name| (name.into(), file.into())));
}

/// The files that may hold the authorities of the image; the first one that is there does. What an image says of itself comes first.
fn image(said: Option<OsString>) -> Vec<PathBuf> {
    said.into_iter().map(PathBuf::from).chain(SYSTEM.map(PathBuf::from)).collect()
}

/// An image without any trusts those of the operator alone.
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
    // The last line of a file may have no end.
    all.push(b'\n');
    all.extend_from_slice(own.as_bytes());
    all.push(b'\n');
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_of_the_image_stay_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let (gone, first, second) = (dir.path().join("gone"), dir.path().join("first"), dir.path().join("second"));
        fs::write(&first, "IMAGE").unwrap();
        fs::write(&second, "OTHER").unwrap();
        assert_eq!(joined(&[&gone, &first, &second], "OWN").unwrap(), b"IMAGE\nOWN\n");
        assert_eq!(joined(&[&gone], "OWN").unwrap(), b"\nOWN\n");
        assert_eq!(image(Some("/said".into()))[0], Path::new("/said"));
    }

    #[test]
    fn commands_trust_one_file() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let mut env = vec![pair("PATH", "/bin"), pair("SSL_CERT_FILE", "/image.crt"), pair("SSL_CERT_DIR", "/certs")];
        trust(&mut env, Path::new("/kept/ca.crt"));
        let wanted =
            [("PATH", "/bin"), ("SSL_CERT_DIR", "/certs"), ("SSL_CERT_FILE", "/kept/ca.crt"), ("GIT_SSL_CAINFO", "/kept/ca.crt")];
        assert_eq!(env, wanted.map(|(name, value)| pair(name, value)));
    }
}
