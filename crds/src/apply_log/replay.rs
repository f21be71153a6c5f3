//! The outcome of a journal's lines. Memory grows with the number of touched objects, not of lines.

use std::collections::BTreeMap;

use super::{Action, Ended, Head, Line, Operation};

/// Maximum length of a line, in bytes. A longer one counts as a gap.
const MAX_LINE: usize = 64 << 10;

/// The outcome at one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) kind: String,
    /// Objects that were created or imported and not destroyed since: their IDs, where the tool printed them.
    pub(super) live: Vec<Option<String>>,
    /// Objects that were destroyed.
    pub(super) gone: Vec<Option<String>>,
    /// Operations that were begun and have no end.
    pub(super) open: Vec<(Action, Option<String>)>,
    /// Failed creations.
    pub(super) failed: u32,
}

/// The part of a journal read so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    head: Option<Head>,
    ended: Option<Ended>,
    pub(super) places: BTreeMap<String, Place>,
    begun: u32,
    /// Number of unreadable lines, where information is missing.
    pub(super) gaps: u32,
    partial: Vec<u8>,
    skipping: bool,
}

impl Replay {
    /// Takes the next bytes of the journal, in chunks of any size.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (head, rest) = bytes.split_at(end);
            self.keep(head);
            let line = std::mem::take(&mut self.partial);
            if !std::mem::take(&mut self.skipping) {
                self.line(&line);
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.keep(bytes);
    }

    /// Ends the input. A last line without a line feed was cut off and counts as a gap.
    pub fn finish(&mut self) {
        if self.skipping || !self.partial.is_empty() {
            (self.partial, self.skipping) = (Vec::new(), false);
            self.gaps += 1;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.partial.len() + bytes.len() > MAX_LINE && !self.skipping {
            self.skipping = true;
            self.gaps += 1;
        }
        if self.skipping {
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8]) {
        match Line::parse(line) {
            Some(line) => self.push(line),
            None if line.is_empty() => {}
            None => self.gaps += 1,
        }
    }

    /// Takes one line.
    pub fn push(&mut self, line: Line) {
        match line {
            Line::Begin(head) => self.head = Some(head),
            Line::End(ended) => self.ended = Some(ended),
            Line::Start(operation) => self.start(operation),
            Line::Complete(operation) => self.complete(operation),
            Line::Errored(operation) => {
                let place = self.place(&operation);
                place.close(operation.action);
                place.failed += u32::from(operation.action == Action::Create);
            }
        }
    }

    fn place(&mut self, operation: &Operation) -> &mut Place {
        let place = self.places.entry(operation.address.clone()).or_default();
        if place.kind.is_empty() {
            place.kind.clone_from(&operation.kind);
        }
        place
    }

    fn start(&mut self, operation: Operation) {
        if operation.action == Action::Other {
            return;
        }
        self.begun += 1;
        self.place(&operation)
            .open
            .push((operation.action, operation.id));
    }

    fn complete(&mut self, operation: Operation) {
        let action = operation.action;
        if action == Action::Other {
            return;
        }
        let place = self.place(&operation);
        let begun = place.close(action);
        match action {
            Action::Create | Action::Import => place.live.push(operation.id),
            Action::Delete => {
                // The end of a destruction has no ID, its start has.
                let id = operation.id.or_else(|| begun.flatten());
                if let Some(at) = place.live.iter().position(|live| *live == id) {
                    place.live.remove(at);
                }
                place.gone.push(id);
            }
            Action::Update | Action::Forget | Action::Other => {}
        }
    }

    /// The facts at the start of the apply.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Number of operations that were begun.
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Whether there is nothing to compare with a state.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.gaps == 0
    }

    /// Whether the tool exited by itself and saved its state. If so, the state shows which of the objects that the tool reported as failed
    /// exist.
    pub fn is_judged(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.saved)
    }

    /// Number of objects that were created and not destroyed since.
    pub fn created(&self) -> usize {
        self.places.values().map(|place| place.live.len()).sum()
    }
}

impl Place {
    /// Removes the oldest open operation of this kind. The outer option is `None` without such an operation, the inner one if the tool
    /// printed no ID.
    #[expect(
        clippy::option_option,
        reason = "none is under way, or one that has no ID"
    )]
    fn close(&mut self, action: Action) -> Option<Option<String>> {
        let at = self.open.iter().position(|(open, _)| *open == action)?;
        Some(self.open.remove(at).1)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::apply_log) fn operation(
        action: Action,
        address: &str,
        id: Option<&str>,
    ) -> Operation {
        Operation {
            action,
            address: address.into(),
            kind: crate::apply_log::address::kind(address)
                .unwrap_or_default()
                .into(),
            provider: String::new(),
            id: id.map(Into::into),
            at: String::new(),
        }
    }

    /// Builds a replay from lines like `start create a.b`, `complete create a.b 7`.
    pub(in crate::apply_log) fn replay(lines: &[&str]) -> Replay {
        let mut replay = Replay::default();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            if words[0] == "end" {
                replay.push(Line::End(Ended {
                    code: 1,
                    saved: true,
                }));
                continue;
            }
            let operation = operation(Action::of(words[1]), words[2], words.get(3).copied());
            replay.push(match words[0] {
                "start" => Line::Start(operation),
                "complete" => Line::Complete(operation),
                "errored" => Line::Errored(operation),
                other => panic!("{other}"),
            });
        }
        replay
    }

    #[test]
    fn chunk_size_does_not_change_the_replay() {
        let mut text = Vec::new();
        for n in 0..50 {
            let address = format!("t.a[{n}]");
            text.extend(Line::Start(operation(Action::Create, &address, None)).to_bytes());
            text.extend(Line::Complete(operation(Action::Create, &address, Some("x"))).to_bytes());
        }
        let mut whole = Replay::default();
        whole.feed(&text);
        assert_eq!((whole.created(), whole.begun(), whole.gaps), (50, 50, 0));
        for size in [1, 7, 64, 4096] {
            let mut pieces = Replay::default();
            text.chunks(size).for_each(|piece| pieces.feed(piece));
            pieces.finish();
            assert_eq!(pieces, whole, "{size}");
        }
    }

    #[test]
    fn gaps_are_counted_and_memory_is_bounded() {
        let mut replay = Replay::default();
        replay.feed(b"[12 bytes are missing here: the log could not be kept]\n");
        (0..1000).for_each(|_| replay.feed(&[b'x'; 1000]));
        assert!(replay.partial.capacity() <= 2 * MAX_LINE);
        replay.feed(b"\n{\"event\":\"start\",\"acti");
        replay.finish();
        assert_eq!((replay.gaps, replay.begun()), (3, 0));
    }
}
