//! Deliveries that are refused: nobody has proven that they come from the forge.

use axum::http::StatusCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such repository.
    Unknown,
    /// Which repositories there are is not known yet.
    Starting,
    /// The repository has no secret that deliveries could be proven with.
    NoSecret,
    /// The API server does not say what the secret is.
    Unavailable,
    /// The delivery has no signature, nor anything in its place.
    NoProof,
    /// It was not made with the secret.
    WrongProof,
    /// A header is there twice, or is not what it has to be.
    Malformed,
    TooLarge,
    /// The body did not come in time.
    TooSlow,
    /// The connection ended before the body did.
    CutOff,
}

impl Refusal {
    /// The word in metrics and answers.
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

    /// What the forge's own page of the delivery shows. Whoever sent it is a stranger: it tells nothing of the cluster.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Unknown => "no repository has this id; the address is /hooks/ and the UID of the TerraformRepository",
            Self::Starting => "the server has just started; deliver again in a moment",
            Self::NoSecret => "this repository takes no deliveries: its webhook has no secret, or the server may not read it",
            Self::Unavailable => "the secret cannot be read at the moment; deliver again",
            Self::NoProof => "the delivery is not signed; give the forge's webhook the secret of this repository",
            Self::WrongProof => "the delivery is not signed with the secret of this repository",
            Self::Malformed => "a header is there twice or has no sense; nothing was looked at",
            Self::TooLarge => "the body is larger than 25 MiB",
            Self::TooSlow => "the body did not come within 30 s",
            Self::CutOff => "the body was cut off",
        }
    }
}
