//! The deliveries of each forge: its identifying header, the proof of authenticity, and the events that move a ref.

use axum::http::HeaderMap;

/// How a delivery proves that its sender knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// HMAC-SHA256 of the body, in hexadecimal after a prefix.
    Hex {
        header: &'static str,
        /// The text before the digits.
        prefix: &'static str,
    },
    /// Standard Webhooks: HMAC-SHA256 of id, time and body, in `webhook-signature`.
    Standard,
    /// The secret itself in a header.
    Token(&'static str),
    /// The secret itself as a bearer token, or as the password of any user.
    Authorization,
}

/// Header with the signatures of Standard Webhooks, `v1,BASE64`, separated by spaces.
pub(super) const STANDARD_SIGNATURE: &str = "webhook-signature";
/// Header with the signed id.
pub(super) const STANDARD_ID: &str = "webhook-id";
/// Header with the signed Unix time in seconds. Its age is not checked: a redelivery is harmless.
pub(super) const STANDARD_TIME: &str = "webhook-timestamp";

impl Proof {
    /// The header that must be present for this kind of proof.
    pub const fn header(self) -> &'static str {
        match self {
            Self::Hex { header, .. } | Self::Token(header) => header,
            Self::Standard => STANDARD_SIGNATURE,
            Self::Authorization => "authorization",
        }
    }
}

/// The properties of a forge's deliveries.
#[derive(Debug)]
pub struct Forge {
    /// The name in metrics and for people.
    pub name: &'static str,
    /// The identifying header; `None` for deliveries that match no other row.
    known_by: Option<&'static str>,
    /// The header with the event's name; `None` when the event is in the body or missing.
    pub event: Option<&'static str>,
    /// Headers with the delivery's id, for people; the first present one is used.
    pub ids: &'static [&'static str],
    /// The first kind whose header is present is used, and no other: a wrong signature is final.
    pub proofs: &'static [Proof],
    /// Events that move a ref; all events when empty.
    moves: &'static [&'static str],
    /// Events that only test the connection, which some forges send without a signature.
    pings: &'static [&'static str],
    /// Whether event and id are in the body.
    pub in_body: bool,
}

const NO_FORGE: Forge = Forge {
    name: "Generic",
    known_by: None,
    event: None,
    ids: &[STANDARD_ID, "x-request-id"],
    proofs: &[
        Proof::Standard,
        // Compatible with Flux's notification-controller.
        Proof::Hex {
            header: "x-signature",
            prefix: "sha256=",
        },
        Proof::Authorization,
        Proof::Token("x-pawl-token"),
    ],
    moves: &[],
    pings: &[],
    in_body: false,
};

/// The forges, in matching order.
pub const FORGES: &[Forge] = &[
    // Before GitHub, because Gitea also sends GitHub's headers. Forgejo sends Gitea's in addition to its own.
    Forge {
        name: "Gitea",
        known_by: Some("x-gitea-event"),
        event: Some("x-gitea-event"),
        ids: &["x-gitea-delivery"],
        proofs: &[Proof::Hex {
            header: "x-gitea-signature",
            prefix: "",
        }],
        moves: &["push", "create", "delete"],
        ..NO_FORGE
    },
    Forge {
        name: "GitLab",
        known_by: Some("x-gitlab-event"),
        event: Some("x-gitlab-event"),
        // Events caused by another webhook share the second id.
        ids: &["idempotency-key", "x-gitlab-event-uuid"],
        proofs: &[Proof::Standard, Proof::Token("x-gitlab-token")],
        // System hooks report pushes, among many other events.
        moves: &["Push Hook", "Tag Push Hook", "System Hook"],
        ..NO_FORGE
    },
    Forge {
        name: "Bitbucket",
        known_by: Some("x-event-key"),
        event: Some("x-event-key"),
        // The headers of Bitbucket Cloud and of Bitbucket Data Center.
        ids: &["x-request-uuid", "x-request-id"],
        proofs: &[Proof::Hex {
            header: "x-hub-signature",
            prefix: "sha256=",
        }],
        moves: &["repo:push", "repo:refs_changed"],
        pings: &["diagnostics:ping"],
        ..NO_FORGE
    },
    Forge {
        name: "GitHub",
        known_by: Some("x-github-event"),
        event: Some("x-github-event"),
        ids: &["x-github-delivery"],
        proofs: &[Proof::Hex {
            header: "x-hub-signature-256",
            prefix: "sha256=",
        }],
        moves: &["push", "create", "delete"],
        pings: &["ping"],
        ..NO_FORGE
    },
    // Azure DevOps does not sign: the subscription has a password, or a custom header.
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
        FORGES
            .iter()
            .find(|forge| forge.known_by.is_none_or(&has_header))
            .unwrap_or(&NO_FORGE)
    }

    /// The forge of a delivery that only tests the connection, and proves nothing.
    pub fn of_ping(headers: &HeaderMap) -> Option<&'static Self> {
        let forge = Self::of(|header| headers.contains_key(header));
        let event = headers.get(forge.event?)?.to_str().ok()?;
        let proves = |proof: &Proof| headers.contains_key(proof.header());
        (forge.pings.contains(&event) && !forge.proofs.iter().any(proves)).then_some(forge)
    }

    /// Whether an event may have moved a ref. An event without a name may be any.
    pub fn moves(&self, event: Option<&str>) -> bool {
        event.is_none_or(|event| self.moves.is_empty() || self.moves.contains(&event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_forge_is_identified_by_its_headers() {
        let rows: [(&[&str], &str); 7] = [
            // As sent by Gitea 1.26 and Forgejo 11.
            (
                &[
                    "x-gitea-event",
                    "x-github-event",
                    "x-gogs-event",
                    "x-hub-signature-256",
                ],
                "Gitea",
            ),
            (
                &[
                    "x-forgejo-event",
                    "x-gitea-event",
                    "x-github-event",
                    "x-gogs-event",
                ],
                "Gitea",
            ),
            (&["x-gitlab-event", "x-gitlab-token"], "GitLab"),
            (&["x-event-key", "x-hook-uuid"], "Bitbucket"),
            (
                &["x-github-event", "x-hub-signature", "x-hub-signature-256"],
                "GitHub",
            ),
            (&["x-vss-activityid", "authorization"], "AzureDevOps"),
            (&["authorization"], "Generic"),
        ];
        for (headers, name) in rows {
            assert_eq!(
                Forge::of(|header| headers.contains(&header)).name,
                name,
                "{headers:?}"
            );
        }
    }

    #[test]
    fn only_events_that_may_move_a_ref_request() {
        let rows: [(&str, &[&str], &[&str]); 5] = [
            (
                "Gitea",
                &["push", "create", "delete"],
                &["issues", "pull_request", "issue_comment", "repository"],
            ),
            (
                "GitLab",
                &["Push Hook", "Tag Push Hook", "System Hook"],
                &["Merge Request Hook", "Note Hook", "Pipeline Hook"],
            ),
            (
                "Bitbucket",
                &["repo:push", "repo:refs_changed"],
                &["pullrequest:created", "diagnostics:ping"],
            ),
            (
                "GitHub",
                &["push", "create", "delete"],
                &["ping", "pull_request", "issue_comment", "check_run"],
            ),
            (
                "AzureDevOps",
                &["git.push"],
                &["git.pullrequest.created", "build.complete"],
            ),
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
    fn header_names_are_lower_case() {
        for forge in FORGES {
            let names = forge
                .known_by
                .into_iter()
                .chain(forge.event)
                .chain(forge.ids.iter().copied());
            for name in names.chain(forge.proofs.iter().map(|proof| proof.header())) {
                assert_eq!(name, name.to_ascii_lowercase(), "{}", forge.name);
            }
        }
    }
}
