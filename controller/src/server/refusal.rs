//! Reasons for rejecting deliveries that are not authenticated.

use axum::http::StatusCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The repository does not exist.
    Unknown,
    /// The repositories are not listed yet.
    Starting,
    /// The repository has no secret to authenticate deliveries.
    NoSecret,
    /// The Secret cannot be read from the API server.
    Unavailable,
    /// The delivery has no signature or other proof.
    NoProof,
    /// The proof does not match the secret.
    WrongProof,
    /// A header is duplicated or malformed.
    Malformed,
    TooLarge,
    /// The body did not arrive in time.
    TooSlow,
    /// The connection ended before the body was complete.
    CutOff,
}

impl Refusal {
    /// The name in metrics and responses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Starting => "starting",
            Self::NoSecret => "noSecret",
            Self::Unavailable => "unavailable",
            Self::NoProof => "noProof",
            Self::WrongProof => "wrongProof",
            Self::Malformed => "malformed",
            Self::TooLarge => "tooLarge",
            Self::TooSlow => "tooSlow",
            Self::CutOff => "cutOff",
        }
    }

    pub const fn status(self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Starting | Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoSecret => StatusCode::FORBIDDEN,
            Self::NoProof | Self::WrongProof => StatusCode::UNAUTHORIZED,
            Self::Malformed | Self::CutOff => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// The text shown on the forge's page of the delivery. The sender is unknown, so it reveals nothing about the
    /// cluster.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Unknown => {
                "no repository has this id; the address is /hooks/ and the UID of the TerraformRepository"
            }
            Self::Starting => "the server has just started; deliver again in a moment",
            Self::NoSecret => {
                "this repository takes no deliveries: its webhook has no secret, or the server may not read it"
            }
            Self::Unavailable => "the secret cannot be read at the moment; deliver again",
            Self::NoProof => {
                "the delivery is not signed; give the forge's webhook the secret of this repository"
            }
            Self::WrongProof => "the delivery is not signed with the secret of this repository",
            Self::Malformed => "a header is duplicated or malformed; nothing was checked",
            Self::TooLarge => "the body is larger than 25 MiB",
            Self::TooSlow => "the body did not come within 30 s",
            Self::CutOff => "the body was cut off",
        }
    }
}
