//! What each forge sends: by which header it is known, how its deliveries are proven, and which of its events move a ref.

/// How a delivery proves that it comes from who knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// HMAC-SHA256 of the body as hexadecimal digits, behind a prefix.
    Hex {
        header: &'static str,
        /// What stands before the digits.
        prefix: &'static str,
    },
    /// Standard Webhooks: HMAC-SHA256 of id, time and body in `webhook-signature`.
    Standard,
    /// The secret itself in a header.
    Token(&'static str),
    /// The secret itself as a bearer token, or as the password of anybody.
    Authorization,
}

/// Header with signatures of Standard Webhooks, `v1,BASE64`, separated by spaces.
pub(super) const STANDARD_SIGNATURE: &str = "webhook-signature";
/// Header with the id that they cover.
pub(super) const STANDARD_ID: &str = "webhook-id";
/// Header with the time that they cover, in seconds since 1970. Its age is not judged: a redelivery is harmless.
pub(super) const STANDARD_TIME: &str = "webhook-timestamp";

impl Proof {
    /// The header without which a delivery has no such proof.
    pub const fn header(self) -> &'static str {
        match self {
            Self::Hex { header, .. } | Self::Token(header) => header,
            Self::Standard => STANDARD_SIGNATURE,
            Self::Authorization => "authorization",
        }
    }
}

/// What a forge sends.
#[derive(Debug)]
pub struct Forge {
    /// Its name, as metrics and people know it.
    pub name: &'static str,
    /// The header that it is known by; none for what no other row knows.
    known_by: Option<&'static str>,
    /// The header that names the event; none where the body does, or nothing.
    pub event: Option<&'static str>,
    /// Headers that carry the delivery's id, for people; the first that is present counts.
    pub ids: &'static [&'static str],
    /// The first whose header is there counts, and no other: a wrong signature is not made good by anything else.
    pub proofs: &'static [Proof],
    /// Events that move a ref; all when empty.
    moves: &'static [&'static str],
    /// Whether event and id stand in the body.
    pub in_body: bool,
}

const NO_FORGE: Forge = Forge {
    name: "Generic",
    known_by: None,
    event: None,
    ids: &[STANDARD_ID, "x-request-id"],
    proofs: &[
        Proof::Standard,
        // As Flux' notification-controller sends and takes it.
        Proof::Hex { header: "x-signature", prefix: "sha256=" },
        Proof::Authorization,
        Proof::Token("x-pawl-token"),
    ],
    moves: &[],
    in_body: false,
};

/// In the order in which they are asked for.
pub const FORGES: &[Forge] = &[
    // Before GitHub, whose headers it sends as well. Forgejo sends Gitea's beside its own.
    Forge {
        name: "Gitea",
        known_by: Some("x-gitea-event"),
        event: Some("x-gitea-event"),
        ids: &["x-gitea-delivery"],
        proofs: &[Proof::Hex { header: "x-gitea-signature", prefix: "" }],
        moves: &["push", "create", "delete"],
        ..NO_FORGE
    },
    Forge {
        name: "GitLab",
        known_by: Some("x-gitlab-event"),
        event: Some("x-gitlab-event"),
        // Events that one hook sets off in another share the second.
        ids: &["idempotency-key", "x-gitlab-event-uuid"],
        proofs: &[Proof::Standard, Proof::Token("x-gitlab-token")],
        // System hooks tell of pushes too, and of much else.
        moves: &["Push Hook", "Tag Push Hook", "System Hook"],
        ..NO_FORGE
    },
    Forge {
        name: "Bitbucket",
        known_by: Some("x-event-key"),
        event: Some("x-event-key"),
        // Of Bitbucket Cloud, and of the Data Center.
        ids: &["x-request-uuid", "x-request-id"],
        proofs: &[Proof::Hex { header: "x-hub-signature", prefix: "sha256=" }],
        moves: &["repo:push", "repo:refs_changed"],
        ..NO_FORGE
    },
    Forge {
        name: "GitHub",
        known_by: Some("x-github-event"),
        event: Some("x-github-event"),
        ids: &["x-github-delivery"],
        proofs: &[Proof::Hex { header: "x-hub-signature-256", prefix: "sha256=" }],
        moves: &["push", "create", "delete"],
        ..NO_FORGE
    },
    // It signs nothing: the subscription has a password, or a header of one's own.
    Forge {
        name: "AzureDevOps",
        known_by: Some("x-vss-activityid"),
        ids: &[],
        proofs: &[Proof::Authorization, Proof::Token("x-pawl-token")],
        moves: &["git.push"],
        in_body: true,
        ..NO_FORGE
    },
    NO_FORGE,
];

impl Forge {
    pub fn of(has_header: impl Fn(&str) -> bool) -> &'static Self {
        FORGES.iter().find(|forge| forge.known_by.is_none_or(&has_header)).unwrap_or(&NO_FORGE)
    }

    /// Whether a ref may be elsewhere after an event. One that has no name may be any.
    pub fn moves(&self, event: Option<&str>) -> bool {
        event.is_none_or(|event| self.moves.is_empty() || self.moves.contains(&event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_forge_is_known_by_what_it_sends() {
        let rows: [(&[&str], &str); 7] = [
            // As Gitea 1.26 sends them, and Forgejo 11.
            (&["x-gitea-event", "x-github-event", "x-gogs-event", "x-hub-signature-256"], "Gitea"),
            (&["x-forgejo-event", "x-gitea-event", "x-github-event", "x-gogs-event"], "Gitea"),
            (&["x-gitlab-event", "x-gitlab-token"], "GitLab"),
            (&["x-event-key", "x-hook-uuid"], "Bitbucket"),
            (&["x-github-event", "x-hub-signature", "x-hub-signature-256"], "GitHub"),
            (&["x-vss-activityid", "authorization"], "AzureDevOps"),
            (&["authorization"], "Generic"),
        ];
        for (headers, name) in rows {
            assert_eq!(Forge::of(|header| headers.contains(&header)).name, name, "{headers:?}");
        }
    }

    #[test]
    fn only_what_may_move_a_ref_pokes() {
        let rows: [(&str, &[&str], &[&str]); 5] = [
            ("Gitea", &["push", "create", "delete"], &["issues", "pull_request", "issue_comment", "repository"]),
            ("GitLab", &["Push Hook", "Tag Push Hook", "System Hook"], &["Merge Request Hook", "Note Hook", "Pipeline Hook"]),
            ("Bitbucket", &["repo:push", "repo:refs_changed"], &["pullrequest:created", "diagnostics:ping"]),
            ("GitHub", &["push", "create", "delete"], &["ping", "pull_request", "issue_comment", "check_run"]),
            ("AzureDevOps", &["git.push"], &["git.pullrequest.created", "build.complete"]),
        ];
        for (name, moving, others) in rows {
            let forge = FORGES.iter().find(|forge| forge.name == name).unwrap();
            assert!(forge.moves(None), "{name}");
            for event in moving {
                assert!(forge.moves(Some(event)), "{name}: {event}");
            }
            for event in others {
                assert!(!forge.moves(Some(event)), "{name}: {event}");
            }
        }
        assert!(NO_FORGE.moves(Some("anything")));
    }

    #[test]
    fn header_names_are_as_they_are_looked_up() {
        for forge in FORGES {
            let names = forge.known_by.into_iter().chain(forge.event).chain(forge.ids.iter().copied());
            for name in names.chain(forge.proofs.iter().map(|proof| proof.header())) {
                assert_eq!(name, name.to_ascii_lowercase(), "{}", forge.name);
            }
        }
    }
}
