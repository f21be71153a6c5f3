//! Whom all that is fetched is trusted by: the authorities of the image and those of the operator, in one file.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use crds::Failure;

use super::PhaseRunner;
use crate::{classify::internal, files};

/// Where images have their authorities, as Go looks for them: Debian and Alpine, Red Hat, SUSE.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

impl PhaseRunner {
    /// Writes the file that commands are told of. It is there before anything is fetched.
    pub(super) fn write_authorities(&self) -> Result<(), Failure> {
        let Some(own) = &self.settings.ca else { return Ok(()) };
        let path = self.settings.ca_file();
        joined(&image(std::env::var_os("SSL_CERT_FILE")), own)
            .and_then(|all| files::create(&path)?.write_all(&all))
            .map_err(|error| internal(&format!("the certificate authorities cannot be written to {}", path.display()), &error))
    }
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
}
