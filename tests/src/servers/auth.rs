//! Who may use a repository or a state: HTTP `Authorization` headers.

use axum::http::{HeaderMap, header};

/// Whom a server lets in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Everyone.
    #[default]
    Public,
    /// Whoever knows this user and password.
    Basic {
        /// User name.
        user: String,
        /// Password.
        password: String,
    },
    /// Whoever sends this bearer token.
    Bearer(String),
}

impl Access {
    /// Access by user and password.
    pub fn basic(user: &str, password: &str) -> Self {
        Self::Basic { user: user.to_owned(), password: password.to_owned() }
    }

    /// Whether a request with these headers is let in.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match self {
            Self::Public => true,
            Self::Basic { user, password } => sent == Some(basic_header(user, password).as_str()),
            Self::Bearer(token) => sent == Some(format!("Bearer {token}").as_str()),
        }
    }

    /// The challenge to answer with when a request is not let in.
    pub fn challenge(&self) -> &'static str {
        match self {
            Self::Bearer(_) => "Bearer realm=\"tests\"",
            Self::Public | Self::Basic { .. } => "Basic realm=\"tests\"",
        }
    }
}

/// The value of an `Authorization` header for a user and a password.
pub fn basic_header(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

/// Base64 with padding; written out because nothing else of these programs needs an encoder.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_usize, |acc, byte| acc << 8 | usize::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let index = group >> (18 - 6 * position) & 0x3f;
            out.push(if position <= chunk.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_vectors_of_rfc_4648() {
        let vectors = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (plain, encoded) in vectors {
            assert_eq!(base64(plain.as_bytes()), encoded, "of {plain}");
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn only_the_right_header_is_let_in() {
        let with = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        let basic = Access::basic("u", "p");
        assert!(basic.admits(&with("Basic dTpw")));
        assert!(!basic.admits(&with("Basic dTpx")));
        assert!(!basic.admits(&HeaderMap::new()));
        assert!(Access::Bearer("t".into()).admits(&with("Bearer t")));
        assert!(!Access::Bearer("t".into()).admits(&with("Bearer u")));
        assert!(Access::Public.admits(&HeaderMap::new()));
    }
}
