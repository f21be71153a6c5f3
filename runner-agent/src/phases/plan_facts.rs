//! A plan's counts and a bounded list of its changes, whatever the size of the plan. Two readers collect them: of the plan file, and of
//! what the tool prints about it.

use std::collections::BTreeSet;

use crds::{Changes, text::clip};
use sha2::{Digest as _, Sha256};

/// Maximum number of lines retained of each kind of change, and in the whole list.
const LINES: usize = 50;
/// Maximum length of a line in characters.
const LINE: usize = 256;
/// Maximum number of unknown parts that are named.
const UNKNOWN: usize = 8;
/// Maximum number of a plan's entries: 16 MB of digests.
const ENTRIES: usize = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PlanFacts {
    pub(super) counts: Changes,
    /// Whether planning failed and the plan is partial.
    pub(super) errored: bool,
    /// Whether the tool reports something to apply. Only newer tools report it.
    pub(super) applyable: Option<bool>,
    /// The watched addresses that the plan creates.
    pub(super) created: BTreeSet<String>,
    watched: BTreeSet<String>,
    /// Whether moves are among the drift, which is the case if nothing else is planned.
    pub(super) lists_moves: bool,
    /// Parts of the plan's JSON that this release does not know.
    unknown: BTreeSet<String>,
    lists: [List; 11],
    /// A digest of each entry, unsorted.
    entries: Vec<[u8; 16]>,
}

/// The first lines of one kind in the order of addresses, and the number of all changes of that kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    /// With the place of each line: its depth in the tree of modules, and its address with padded numbers.
    lines: BTreeSet<(usize, String, String)>,
    count: usize,
}

/// Kinds of change in reading order: the unknown and losses first.
#[derive(Clone, Copy)]
enum Kind {
    Unknown,
    Destroy,
    Replace,
    Forget,
    Update,
    Create,
    Import,
    Move,
    Invoke,
    Drift,
    Output,
}

/// The part of a plan that has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Resources,
    Drift,
    Outputs,
    Invocations,
}

/// One entry of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) part: Part,
    /// The address, or the name of an output.
    pub(super) address: &'a str,
    /// The previous address. Of an invocation: the resource that triggers it.
    pub(super) previous: &'a str,
    /// Key of the deposed object that it changes.
    pub(super) deposed: &'a str,
    /// The tool's words, joined by commas: `delete,create`.
    pub(super) actions: &'a str,
    /// The tool's word for the reason.
    pub(super) reason: &'a str,
    pub(super) importing: bool,
}

impl Entry<'_> {
    /// An empty entry.
    pub(super) fn of(part: Part) -> Self {
        Self {
            part,
            address: "",
            previous: "",
            deposed: "",
            actions: "",
            reason: "",
            importing: false,
        }
    }

    fn does(&self, action: &str) -> bool {
        self.actions.split(',').any(|word| word == action)
    }

    /// Whether the tools print it. They delete data sources from the state silently. A pure move counts as a change of the plan, and is
    /// listed as drift (`moves`) for some modes only.
    fn is_printed(&self, moves: bool) -> bool {
        match self.part {
            Part::Resources => !(is_data(self.address) && self.actions == "delete"),
            Part::Drift => {
                let is_move = moves && !self.previous.is_empty();
                !is_data(self.address) && (self.actions != "no-op" || is_move)
            }
            Part::Outputs | Part::Invocations => true,
        }
    }

    fn digest(&self) -> [u8; 16] {
        let mut digest = Sha256::new();
        digest.update([self.part as u8, u8::from(self.importing)]);
        for text in [
            self.address,
            self.previous,
            self.deposed,
            self.actions,
            self.reason,
        ] {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
        let whole: [u8; 32] = digest.finalize().into();
        std::array::from_fn(|at| whole[at])
    }
}

/// Splits an address into its modules and the rest.
pub(super) fn modules(address: &str) -> (usize, &str) {
    let (mut depth, mut rest) = (0, address);
    while let Some(name) = rest.strip_prefix("module.") {
        // A key may contain dots and brackets in quotes.
        let (mut quoted, mut escaped, mut within) = (false, false, false);
        let end = name.char_indices().find(|(_, c)| {
            match c {
                _ if std::mem::take(&mut escaped) => {}
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                '[' if !quoted => within = true,
                ']' if !quoted => within = false,
                '.' if !quoted && !within => return true,
                _ => {}
            }
            false
        });
        let Some((end, _)) = end else { break };
        rest = &name[end + 1..];
        depth += 1;
    }
    (depth, rest)
}

/// Whether an address is that of a data source.
fn is_data(address: &str) -> bool {
    modules(address).1.starts_with("data.")
}

/// An address for sorting: with numbers of one length, so that `a[2]` comes before `a[10]`.
fn padded(address: &str) -> String {
    let mut text = String::new();
    for part in address.split_inclusive('[') {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            text.extend(std::iter::repeat_n('0', 10_usize.saturating_sub(digits)));
        }
        text.push_str(part);
    }
    text
}

impl From<BTreeSet<String>> for PlanFacts {
    fn from(watched: BTreeSet<String>) -> Self {
        Self {
            watched,
            ..Self::default()
        }
    }
}

impl PlanFacts {
    /// Adds an object that an apply drops from the state or changes there, without a word of the tool.
    pub(super) fn lose(&mut self, address: &str, how: &str) {
        self.counts.drifted += 1;
        self.add(Kind::Drift, address, &format!("! {address} ({how})"));
    }

    /// One line per change, destroys and replaces first; the last line counts the omitted ones. Outputs are listed by name only.
    pub(super) fn lines(&self) -> Vec<String> {
        let all: usize = self.lists.iter().map(|list| list.count).sum();
        let mut lines: Vec<_> = self
            .lists
            .iter()
            .flat_map(|list| list.lines.iter().map(|(.., line)| line.clone()))
            .take(LINES)
            .collect();
        if all > lines.len() {
            lines.push(format!("and {} more", all - lines.len()));
        }
        lines
    }

    /// Whether a resource, its address or an output changes, or an action is invoked. Drift alone is no change: a plan with nothing else is
    /// not applied.
    pub(super) fn has_changes(&self) -> bool {
        let c = self.counts;
        [
            c.add, c.change, c.destroy, c.import, c.replace, c.forget, c.moved, c.outputs, c.invoke,
        ]
        .iter()
        .any(|count| *count > 0)
    }

    /// Notes a part of the plan that this release does not know.
    pub(super) fn meet(&mut self, part: &str) {
        if self.unknown.len() < UNKNOWN && self.unknown.insert(clip(part, 64)) {
            let line = format!("? {part} (not known to this release of Pawl)");
            self.add(Kind::Unknown, part, &line);
        }
    }

    /// Takes over the unknown parts that the tool printed. A person has to approve such a plan.
    pub(super) fn take_unknown(&mut self, printed: &Self) {
        for part in &printed.unknown {
            self.meet(part);
        }
        self.counts.unread |= !self.unknown.is_empty();
    }

    /// A message that names the unknown parts; `None` if there are none.
    pub(super) fn unknown(&self) -> Option<String> {
        let names: Vec<_> = self.unknown.iter().map(String::as_str).collect();
        let parts = names.join(", ");
        (!names.is_empty())
            .then(|| format!("the plan has parts that this release of Pawl does not know: {parts}"))
    }

    /// Whether there may be more entries than a plan is read with.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() > ENTRIES
    }

    /// Clears the drift of a plan without changes. Such a plan is not applied, so the state takes in none of the drift.
    pub(super) fn forget_drift(&mut self) {
        self.counts.drifted = 0;
        self.lists[Kind::Drift as usize] = List::default();
    }

    /// Compares the plan file with what the tool printed. Returns both in words if they differ.
    pub(super) fn contradicted_by(mut self, mut printed: Self) -> Option<(String, String)> {
        self.entries.sort_unstable();
        printed.entries.sort_unstable();
        if self.entries == printed.entries {
            return None;
        }
        let words = |one: &Self, other: &Self| {
            let (lines, others) = (one.lines(), other.lines());
            let only = lines.iter().find(|line| !others.contains(line));
            let only = only.map(|line| format!(" ({line})")).unwrap_or_default();
            format!("{}{only}", one.counts.summary())
        };
        Some((words(&self, &printed), words(&printed, &self)))
    }

    fn add(&mut self, kind: Kind, address: &str, line: &str) {
        let list = &mut self.lists[kind as usize];
        list.count += 1;
        let address: String = address.chars().take(LINE).collect();
        let (depth, _) = modules(&address);
        let line = (depth, padded(&address), clip(line, LINE));
        list.lines.insert(line);
        if list.lines.len() > LINES {
            list.lines.pop_last();
        }
    }

    /// Takes an entry. `attributes` names those that differ in a drifted resource.
    pub(super) fn take(&mut self, mut entry: Entry<'_>, attributes: impl FnOnce() -> Vec<String>) {
        if entry.previous == entry.address {
            entry.previous = "";
        }
        if !entry.is_printed(self.lists_moves) || self.is_full() {
            return;
        }
        self.entries.push(entry.digest());
        match entry.part {
            Part::Resources => self.resource(&entry),
            Part::Drift => self.drift(&entry, attributes),
            Part::Outputs => self.output(&entry),
            Part::Invocations => {
                self.counts.invoke += 1;
                let by = match entry.previous {
                    "" => String::new(),
                    resource => format!(" (invoked with {resource})"),
                };
                let line = format!("* {}{by}", entry.address);
                self.add(Kind::Invoke, entry.address, &line);
            }
        }
    }

    fn resource(&mut self, entry: &Entry<'_>) {
        let address = entry.address;
        let has = |action: &str| entry.does(action);
        let import = entry.importing;
        let moved = Some(entry.previous).filter(|from| !from.is_empty());
        let c = &mut self.counts;
        c.import += u32::from(import);
        c.moved += u32::from(moved.is_some());
        if has("create") && self.watched.contains(address) {
            self.created.insert(address.to_owned());
        }
        let (kind, sign) = match (has("create"), has("delete"), has("update"), has("forget")) {
            (true, true, _, _) => {
                c.add += 1;
                c.destroy += 1;
                c.replace += 1;
                (Kind::Replace, "-/+")
            }
            (true, false, _, true) => {
                c.add += 1;
                c.forget += 1;
                (Kind::Replace, "./+")
            }
            (true, false, _, false) => {
                c.add += 1;
                (Kind::Create, "+")
            }
            (false, true, _, _) => {
                c.destroy += 1;
                (Kind::Destroy, "-")
            }
            (false, false, true, _) => {
                c.change += 1;
                (Kind::Update, "~")
            }
            (false, false, false, true) => {
                c.forget += 1;
                (Kind::Forget, ".")
            }
            (false, false, false, false) if import => (Kind::Import, "="),
            (false, false, false, false) if moved.is_some() => (Kind::Move, ">"),
            (false, false, false, false) => return,
        };
        let mut line = format!("{sign} {address}");
        for (is, word) in [
            (!entry.deposed.is_empty(), " (deposed)"),
            (matches!(kind, Kind::Forget), " (forgotten)"),
            (import, " (imported)"),
        ] {
            if is {
                line.push_str(word);
            }
        }
        if let Some(from) = moved {
            line = format!("{line} (moved from {from})");
        }
        self.add(kind, address, &line);
    }

    /// Adds a resource that changed since the last apply. The tools' text omits drift that no other change refers to, even if the drift
    /// causes a replacement. This list is complete, like the tools' event stream, since an apply takes all of it into the state.
    fn drift(&mut self, entry: &Entry<'_>, attributes: impl FnOnce() -> Vec<String>) {
        let how = match (entry.does("delete"), entry.does("update")) {
            (true, _) => "deleted outside of the code".to_owned(),
            (false, true) => match attributes().as_slice() {
                [] => "changed outside of the code".to_owned(),
                some => format!("changed outside of the code: {}", some.join(", ")),
            },
            (false, false) if entry.previous.is_empty() => return,
            (false, false) => {
                self.counts.moved += 1;
                let line = format!("> {} (moved from {})", entry.address, entry.previous);
                return self.add(Kind::Move, entry.address, &line);
            }
        };
        self.counts.drifted += 1;
        let moved = match entry.previous {
            "" => String::new(),
            from => format!(" (moved from {from})"),
        };
        let line = format!("! {} ({how}){moved}", entry.address);
        self.add(Kind::Drift, entry.address, &line);
    }

    fn output(&mut self, entry: &Entry<'_>) {
        let has = |action: &str| entry.does(action);
        let sign = match (has("create"), has("delete"), has("update")) {
            (true, false, _) => "+",
            (false, true, _) => "-",
            (true, true, _) | (false, false, true) => "~",
            (false, false, false) => return,
        };
        self.counts.outputs += 1;
        let line = format!("{sign} output.{}", entry.address);
        self.add(Kind::Output, entry.address, &line);
    }
}
