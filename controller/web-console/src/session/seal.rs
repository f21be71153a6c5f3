//! Encryption of a session: AES-256-GCM over a version, the method, the expiry, the id and the token.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
};
use sha2::{Digest as _, Sha256};

use crate::{api_server::Token, method::Method, problem::Problem};

use super::{
    Id, Session, fill,
    pack::{pack, unpack},
};

/// The first byte of the content: whether the token follows as it is, or packed. A version that does not know it sees no session.
const PLAIN: u8 = 1;
const PACKED: u8 = 2;
/// Version, method, expiry and id.
const HEAD: usize = 1 + 1 + 8 + 16;
const METHODS: [Method; 2] = [Method::Token, Method::Oidc];

/// The key of one installation.
pub(super) struct Key(LessSafeKey);

impl Key {
    /// `None` if the cipher cannot be set up.
    pub(super) fn new(secret: &[u8], url: &str) -> Option<Self> {
        let secret = Salt::new(HKDF_SHA256, b"pawl session").extract(secret);
        let info = [url.as_bytes()];
        let material = secret.expand(&info, &AES_256_GCM).ok()?;
        Some(Self(LessSafeKey::new(UnboundKey::from(material))))
    }

    /// Eight digits that tell installations apart and reveal nothing of the key.
    pub(super) fn name(secret: &[u8], url: &str) -> String {
        let digest = Sha256::new()
            .chain_update(b"pawl cookie\0")
            .chain_update(Sha256::digest(secret))
            .chain_update(url)
            .finalize();
        hex::encode(&digest[..4])
    }

    pub(super) fn seal(&self, session: &Session) -> Result<String, Problem> {
        let method = METHODS.iter().position(|method| *method == session.method);
        let plain = session.token.secret();
        let packed = pack(plain).filter(|packed| packed.len() < plain.len());
        let mut content = vec![
            if packed.is_some() { PACKED } else { PLAIN },
            u8::try_from(method.unwrap_or_default()).unwrap_or_default(),
        ];
        content.extend(session.until.to_be_bytes());
        content.extend(session.id);
        content.extend(packed.as_deref().unwrap_or(plain.as_bytes()));
        self.encrypt(content)
    }

    pub(super) fn encrypt(&self, mut content: Vec<u8>) -> Result<String, Problem> {
        let mut nonce = [0; NONCE_LEN];
        fill(&mut nonce)?;
        let unique = Nonce::assume_unique_for_key(nonce);
        // Fails only above 64 GiB.
        let _ = self
            .0
            .seal_in_place_append_tag(unique, Aad::empty(), &mut content);
        Ok(BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &content].concat()))
    }

    pub(super) fn decrypt(&self, value: &str) -> Option<Vec<u8>> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(value).ok()?;
        let (nonce, content) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut content = content.to_vec();
        let content = self
            .0
            .open_in_place(nonce, Aad::empty(), &mut content)
            .ok()?;
        Some(content.to_vec())
    }

    pub(super) fn open(&self, value: &str) -> Option<Session> {
        let content = self.decrypt(value)?;
        let (head, token) = content.split_at_checked(HEAD)?;
        let (version, method) = (head[0], usize::from(head[1]));
        let token = match version {
            PLAIN => std::str::from_utf8(token).ok()?.to_owned(),
            PACKED => unpack(token)?,
            _ => return None,
        };
        Some(Session {
            id: Id::try_from(&head[10..]).ok()?,
            method: *METHODS.get(method)?,
            token: Token::new(&token)?,
            until: i64::from_be_bytes(head[2..10].try_into().ok()?),
        })
    }
}
