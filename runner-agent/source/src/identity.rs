//! Private keys for ssh, checked before anything starts, since `ssh` reports an unusable key in the same way as a key that the server does
//! not know.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// A private key without a passphrase.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity(String);

/// The reason why a private key is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is no private key.
    #[error(
        "is no private key as ssh-keygen writes it: it has no line BEGIN … PRIVATE KEY, or is cut off"
    )]
    NoKey,
    /// It needs a passphrase.
    #[error(
        "is a private key with a passphrase, which no run can enter; make a key without one for this repository \
         (ssh-keygen -t ed25519 -N '' -f identity), which may only read"
    )]
    Passphrase,
}

impl Identity {
    /// Parses a private key and normalises its line ends for `ssh`.
    ///
    /// # Errors
    /// It is no private key, or has a passphrase.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim_end)
            .skip_while(|line| !line.starts_with("-----BEGIN "))
            .collect();
        let name = lines.first().and_then(|line| {
            line.strip_prefix("-----BEGIN ")?
                .strip_suffix(" PRIVATE KEY-----")
        });
        let (Some(name), Some(end)) = (
            name.or_else(|| (*lines.first()? == "-----BEGIN PRIVATE KEY-----").then_some("")),
            lines.iter().position(|line| {
                line.starts_with("-----END ") && line.ends_with("PRIVATE KEY-----")
            }),
        ) else {
            return Err(IdentityError::NoKey);
        };
        let body = &lines[1..end];
        if name == "ENCRYPTED"
            || body
                .iter()
                .any(|line| line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"))
        {
            return Err(IdentityError::Passphrase);
        }
        if name == "OPENSSH" {
            let bytes = STANDARD
                .decode(body.concat())
                .map_err(|_| IdentityError::NoKey)?;
            let cipher = bytes.strip_prefix(b"openssh-key-v1\0").and_then(|rest| {
                let (length, rest) = rest.split_first_chunk::<4>()?;
                rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
            });
            match cipher {
                Some(b"none") => {}
                Some(_) => return Err(IdentityError::Passphrase),
                None => return Err(IdentityError::NoKey),
            }
        }
        Ok(Self(
            lines[..=end]
                .iter()
                .fold(String::new(), |text, line| text + line + "\n"),
        ))
    }

    /// The file content.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A truncated OpenSSH key.
    fn key(cipher: &str) -> String {
        let mut bytes = b"openssh-key-v1\0".to_vec();
        bytes.extend(u32::try_from(cipher.len()).unwrap().to_be_bytes());
        bytes.extend(cipher.bytes().chain([0; 16]));
        format!(
            "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
            STANDARD.encode(bytes)
        )
    }

    #[test]
    fn keys_with_a_passphrase_are_refused() {
        for text in [
            key("none"),
            key("none").replace('\n', "\r\n"),
            format!("# a comment\n{}\n\n", key("none")),
            "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----".into(),
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----".into(),
        ] {
            let identity = Identity::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(
                identity.text().ends_with("KEY-----\n") && !identity.text().contains('\r'),
                "{text}"
            );
        }
        let rsa = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nAA\n-----END RSA PRIVATE KEY-----";
        let pkcs8 =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----";
        for text in [&key("aes256-ctr"), rsa, pkcs8] {
            assert_eq!(
                Identity::parse(text).err(),
                Some(IdentityError::Passphrase),
                "{text}"
            );
        }
        let cut = key("none");
        let public = "ssh-ed25519 AAAA me@home";
        let other = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----";
        let putty = "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none";
        for text in [
            "",
            public,
            &cut[..60],
            other,
            putty,
            "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----",
        ] {
            assert_eq!(
                Identity::parse(text).err(),
                Some(IdentityError::NoKey),
                "{text}"
            );
        }
    }
}
