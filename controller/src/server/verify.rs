//! Authenticates deliveries. Before that, only the headers needed for it are read.
//!
//! Bodies are not stored: signatures are computed incrementally, with all secrets at once. So an unknown sender's 25
//! MiB cost no memory, and trying one secret does not consume the body for the other.

use axum::http::{HeaderMap, HeaderValue};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac;
use serde::Deserialize;

use crds::text::clip;

use super::{
    forges::{Forge, Proof, STANDARD_ID, STANDARD_TIME},
    keys::{Key, Keys, same_signature},
    refusal::Refusal,
};

/// Maximum number of signatures checked per delivery.
const SIGNATURES: usize = 8;
/// Maximum size, in bytes, of a body from which event and id are read after authentication. A longer body counts as the move of a ref.
const KEPT: usize = 1 << 20;
/// Maximum length of stored event and id, in characters.
const LONGEST: usize = 128;

/// An authenticated delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    pub forge: &'static str,
    /// The event, as named by the forge.
    pub event: Option<String>,
    /// The forge's delivery id.
    pub id: Option<String>,
    /// Whether the event may have moved a ref.
    pub moves: bool,
}

/// A check in progress, before the end of the body.
pub struct Check {
    forge: &'static Forge,
    event: Option<String>,
    id: Option<String>,
    proof: Begun,
    kept: Option<Vec<u8>>,
}

enum Begun {
    /// The secret itself was sent and is correct.
    Known,
    /// Signatures in progress, one per secret, and the sent ones.
    Signatures {
        with: Vec<hmac::Context>,
        sent: Vec<Vec<u8>>,
    },
}

impl Check {
    /// Checks the headers.
    ///
    /// # Errors
    /// `NoProof`, `WrongProof`, `Malformed`.
    pub fn begin(headers: &HeaderMap, keys: &Keys) -> Result<Self, Refusal> {
        let forge = Forge::of(|header| headers.contains_key(header));
        let proof = forge
            .proofs
            .iter()
            .find(|proof| headers.contains_key(proof.header()))
            .ok_or(Refusal::NoProof)?;
        let given = one(headers, proof.header())?.ok_or(Refusal::NoProof)?;
        let known = |known: bool| {
            if known {
                Ok(Begun::Known)
            } else {
                Err(Refusal::WrongProof)
            }
        };
        let proof = match *proof {
            Proof::Hex { prefix, .. } => {
                let tag = text(given)
                    .and_then(|given| given.strip_prefix(prefix))
                    .and_then(|digits| hex::decode(digits).ok());
                let sent = vec![tag.ok_or(Refusal::WrongProof)?];
                Begun::Signatures {
                    with: keys.iter().map(Key::sign).collect(),
                    sent,
                }
            }
            Proof::Standard => standard(headers, given, keys)?,
            Proof::Token(_) => known(keys.any_is(given.as_bytes()))?,
            Proof::Authorization => {
                known(authorization(given).is_some_and(|secret| keys.any_is(&secret)))?
            }
        };
        let event = forge
            .event
            .map_or(Ok(None), |header| one(headers, header))?
            .and_then(text)
            .map(word);
        let ids = forge
            .ids
            .iter()
            .find(|header| headers.contains_key(**header));
        let id = ids
            .map_or(Ok(None), |header| one(headers, header))?
            .and_then(text)
            .map(word);
        // Only after authentication.
        let kept = (forge.in_body && matches!(proof, Begun::Known)).then(Vec::new);
        Ok(Self {
            forge,
            event,
            id: id.filter(|id| !id.is_empty()),
            proof,
            kept,
        })
    }

    pub fn update(&mut self, piece: &[u8]) {
        if let Begun::Signatures { with, .. } = &mut self.proof {
            for context in with {
                context.update(piece);
            }
        }
        match &mut self.kept {
            Some(kept) if kept.len() + piece.len() <= KEPT => kept.extend_from_slice(piece),
            kept => *kept = None,
        }
    }

    /// Decides at the end of the body.
    ///
    /// # Errors
    /// `WrongProof`.
    pub fn end(mut self) -> Result<Signed, Refusal> {
        if let Begun::Signatures { with, sent } = self.proof {
            let made: Vec<hmac::Tag> = with.into_iter().map(hmac::Context::sign).collect();
            let is_made = |sent: &Vec<u8>| {
                made.iter().fold(false, |found, tag| {
                    found | same_signature(tag.as_ref(), sent)
                })
            };
            if !sent.iter().any(is_made) {
                return Err(Refusal::WrongProof);
            }
        }
        if let Some(kept) = self.kept.take() {
            let said: InBody = serde_json::from_slice(&kept).unwrap_or_default();
            (self.event, self.id) = (
                said.event_type.as_deref().map(word),
                said.id.as_deref().map(word),
            );
        }
        Ok(Signed {
            forge: self.forge.name,
            moves: self.forge.moves(self.event.as_deref()),
            event: self.event,
            id: self.id,
        })
    }
}

/// The fields that are read from a body.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InBody {
    event_type: Option<String>,
    id: Option<String>,
}

/// Starts a proof by Standard Webhooks.
fn standard(headers: &HeaderMap, given: &HeaderValue, keys: &Keys) -> Result<Begun, Refusal> {
    let needed = |header| {
        one(headers, header)?
            .and_then(text)
            .ok_or(Refusal::Malformed)
    };
    let (id, time) = (needed(STANDARD_ID)?, needed(STANDARD_TIME)?);
    let tags = text(given)
        .unwrap_or_default()
        .split_ascii_whitespace()
        .take(SIGNATURES);
    let sent: Vec<_> = tags
        .filter_map(|tag| STANDARD.decode(tag.strip_prefix("v1,")?).ok())
        .collect();
    let with = keys.iter().map(|key| {
        let mut context = key.sign_standard();
        context.update(format!("{id}.{time}.").as_bytes());
        context
    });
    Ok(Begun::Signatures {
        with: with.collect(),
        sent,
    })
}

/// The secret in an `Authorization` header: a bearer token, or the password of any user.
fn authorization(given: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, rest) = text(given)?.split_once(' ')?;
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(rest.trim().as_bytes().to_vec()),
        "basic" => {
            let mut pair = STANDARD.decode(rest.trim()).ok()?;
            let colon = pair.iter().position(|byte| *byte == b':')?;
            Some(pair.split_off(colon + 1))
        }
        _ => None,
    }
}

/// A header that occurs at most once. With duplicates, one could be checked and the other used.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(Refusal::Malformed),
    }
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// A text from the sender, clipped for people.
fn word(text: &str) -> String {
    clip(text, LONGEST)
}

#[cfg(test)]
mod tests;
