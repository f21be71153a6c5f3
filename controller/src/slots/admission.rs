//! Decides which runs of a queue may take a slot: a pure function of the queue, the open attempts and the bounds.
//!
//! People come before runs that name nobody, then commits, then schedules, but a rank that waits has one slot of each bound, so that none
//! starves. Within a rank the namespace with the fewest open attempts comes first, then the oldest run. A run that the bound of its
//! namespace or repository excludes does not block runs of others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, iter,
};

use jiff::Timestamp;

/// The purpose of a slot. The bounds apply to each class separately, and each has its own queue: an approved apply never waits for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// An attempt that plans, and applies too if no approval is needed.
    Plan,
    /// The apply of a plan that a person approved.
    Apply,
}

/// Priority in the queue, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// A person who names himself, which admission verifies.
    Person,
    /// A client that names nobody: a person, or a program.
    Unnamed,
    /// A commit to a layer, or a service account.
    Commit,
    /// A layer's drift check or retry, or an unknown trigger.
    Schedule,
}

/// The set of runs that a bound applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Everything that this controller reconciles.
    Whole,
    Namespace(Box<str>),
    /// Namespace and name of a repository.
    Repository(Box<str>, Box<str>),
}

/// A place in the queue. The derived order decides between runs of one rank and of namespaces with equally many open attempts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub class: Class,
    pub rank: Rank,
    /// Time of the approval, or of the run's creation.
    pub since: Timestamp,
    pub namespace: Box<str>,
    pub name: Box<str>,
}

/// The waiting runs, with the scopes that their attempts would count in.
pub type Line = BTreeMap<Place, Box<[Scope]>>;

/// The most open attempts of each class, by scope; `None` or absent: unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub whole: Option<u32>,
    pub per_namespace: Option<u32>,
    /// By namespace and name.
    pub repositories: BTreeMap<(Box<str>, Box<str>), u32>,
}

impl Bounds {
    pub fn of(&self, scope: &Scope) -> Option<u32> {
        match scope {
            Scope::Whole => self.whole,
            Scope::Namespace(_) => self.per_namespace,
            Scope::Repository(namespace, name) => self
                .repositories
                .get(&(namespace.clone(), name.clone()))
                .copied(),
        }
    }
}

/// Number of ranks.
const RANKS: usize = 4;

/// Number of open attempts by scope, class and rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open(BTreeMap<Scope, [[u32; RANKS]; 2]>);

impl Open {
    /// Number of open attempts of a class in a scope.
    pub fn count(&self, class: Class, scope: &Scope) -> u32 {
        self.ranks(class, scope).iter().sum()
    }

    fn ranks(&self, class: Class, scope: &Scope) -> [u32; RANKS] {
        self.0
            .get(scope)
            .map_or([0; RANKS], |of| of[class as usize])
    }

    pub fn add(&mut self, class: Class, rank: Rank, scopes: &[Scope]) {
        for scope in scopes {
            self.0.entry(scope.clone()).or_default()[class as usize][rank as usize] += 1;
        }
    }

    pub fn remove(&mut self, class: Class, rank: Rank, scopes: &[Scope]) {
        for scope in scopes {
            let Some(of) = self.0.get_mut(scope) else {
                continue;
            };
            let count = &mut of[class as usize][rank as usize];
            *count = count.saturating_sub(1);
            if *of == [[0; RANKS]; 2] {
                self.0.remove(scope);
            }
        }
    }

    /// For each of its scopes, the widest first, whether its rank has an attempt there, or needs none: there is no bound, or none has.
    fn has_share(&self, place: &Place, scopes: &[Scope], bounds: &Bounds) -> [bool; 3] {
        let mut shares = [true; 3];
        for (share, scope) in shares.iter_mut().zip(scopes) {
            let ranks = self.ranks(place.class, scope);
            *share = bounds.of(scope).is_none()
                || ranks[place.rank as usize] > 0
                || ranks.iter().all(|open| *open == 0);
        }
        shares
    }

    /// The first of these scopes that is full, and its bound.
    pub fn full<'a>(
        &self,
        class: Class,
        scopes: &'a [Scope],
        bounds: &Bounds,
    ) -> Option<(&'a Scope, u32)> {
        scopes.iter().find_map(|scope| {
            bounds
                .of(scope)
                .filter(|bound| self.count(class, scope) >= *bound)
                .map(|bound| (scope, bound))
        })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The state of the slot that a run needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Slot {
    /// No bound applies to it.
    #[default]
    Free,
    /// It has to ask for one.
    Unasked,
    /// One is reserved for it.
    Taken(Class),
    /// It has to wait.
    Full(Full),
}

/// Why a run has to wait for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full {
    pub class: Class,
    /// The scope that is full.
    pub scope: Scope,
    /// Number of open attempts there.
    pub open: u32,
    pub bound: u32,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            class,
            scope,
            open,
            bound,
        } = self;
        let what = match class {
            Class::Plan => "attempts",
            Class::Apply => "approved applies",
        };
        // Written once, when the run begins to wait, so without a place, which changes with the queue.
        write!(f, "waits for a slot: {open} of {bound} {what}")?;
        match scope {
            Scope::Whole => {}
            Scope::Namespace(namespace) => write!(f, " in namespace {namespace}")?,
            Scope::Repository(namespace, name) => write!(f, " of repository {namespace}/{name}")?,
        }
        f.write_str(" are open")
    }
}

/// The runs of a queue that may take a slot now, in order, and the open attempts with theirs.
pub fn admitted<'a>(
    line: impl Iterator<Item = (&'a Place, &'a Box<[Scope]>)>,
    open: &Open,
    bounds: &Bounds,
) -> (Vec<&'a Place>, Open) {
    let (mut open, mut all) = (open.clone(), Vec::new());
    let mut waiting: Vec<_> = line.collect();
    loop {
        // A bound that is full stays full.
        waiting.retain(|(place, scopes)| open.full(place.class, scopes, bounds).is_none());
        let turn = |at: usize| {
            let (place, scopes) = waiting[at];
            let namespace = scopes.iter().find(|of| matches!(of, Scope::Namespace(_)));
            let shares = open.has_share(place, scopes, bounds);
            let open = namespace.map(|namespace| open.count(place.class, namespace));
            (place.class, shares, place.rank, open, place)
        };
        let first = (0..waiting.len()).min_by_key(|at| turn(*at));
        let Some((place, scopes)) = first.map(|at| waiting.swap_remove(at)) else {
            return (all, open);
        };
        open.add(place.class, place.rank, scopes);
        all.push(place);
    }
}

/// Whether a run at that place of the queue may take a slot. The place need not be in the queue yet.
///
/// # Errors
/// Why it has to wait.
pub fn ask(
    me: &Place,
    scopes: &[Scope],
    line: &Line,
    open: &Open,
    bounds: &Bounds,
) -> Result<(), Full> {
    let full = |scope: &Scope, bound| Full {
        class: me.class,
        scope: scope.clone(),
        open: open.count(me.class, scope),
        bound,
    };
    if let Some((scope, bound)) = open.full(me.class, scopes, bounds) {
        return Err(full(scope, bound));
    }
    // Runs before it that may take a slot, but have not yet, count as open.
    let own: Box<[Scope]> = scopes.into();
    let others = line
        .iter()
        .filter(|(place, _)| place.class == me.class && *place != me);
    let (served, after) = admitted(others.chain(iter::once((me, &own))), open, bounds);
    match after.full(me.class, scopes, bounds) {
        Some((scope, bound)) if !served.contains(&me) => Err(full(scope, bound)),
        _ => Ok(()),
    }
}

/// Whether a run waits for a slot of this class in one of these scopes that is full.
pub fn wanted(class: Class, scopes: &[Scope], line: &Line, open: &Open, bounds: &Bounds) -> bool {
    let full: BTreeSet<_> = scopes
        .iter()
        .filter(|scope| {
            open.full(class, std::slice::from_ref(*scope), bounds)
                .is_some()
        })
        .collect();
    !full.is_empty()
        && line
            .iter()
            .any(|(place, of)| place.class == class && of.iter().any(|scope| full.contains(scope)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(class: Class, rank: Rank, second: i64, namespace: &str, name: &str) -> Place {
        let since = Timestamp::from_second(second).unwrap();
        Place {
            class,
            rank,
            since,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn scopes(namespace: &str, repository: Option<&str>) -> Box<[Scope]> {
        let repository = repository.map(|name| Scope::Repository(namespace.into(), name.into()));
        [Scope::Whole, Scope::Namespace(namespace.into())]
            .into_iter()
            .chain(repository)
            .collect()
    }

    fn bounds(whole: u32, per_namespace: u32, repository: u32) -> Bounds {
        let repositories = BTreeMap::from([((Box::from("a"), Box::from("r")), repository)]);
        Bounds {
            whole: Some(whole),
            per_namespace: Some(per_namespace),
            repositories,
        }
    }

    fn names(places: &[&Place]) -> Vec<String> {
        places.iter().map(|place| place.name.to_string()).collect()
    }

    #[test]
    fn line_is_ordered_by_rank_then_share_then_age() {
        use Rank::{Commit, Person, Schedule};
        let line: Line = [
            (
                place(Class::Plan, Schedule, 1, "a", "drift"),
                scopes("a", None),
            ),
            (
                place(Class::Plan, Commit, 3, "a", "late"),
                scopes("a", None),
            ),
            (
                place(Class::Plan, Commit, 2, "b", "early"),
                scopes("b", None),
            ),
            (
                place(Class::Plan, Person, 9, "b", "alice"),
                scopes("b", None),
            ),
        ]
        .into();
        for (whole, wanted) in [
            (0, &[][..]),
            (1, &["alice"][..]),
            (2, &["alice", "early"]),
            (3, &["alice", "early", "drift"]),
            (9, &["alice", "early", "drift", "late"]),
        ] {
            assert_eq!(
                names(&admitted(line.iter(), &Open::default(), &bounds(whole, 9, 9)).0),
                wanted,
                "{whole}"
            );
        }
    }

    #[test]
    fn own_bound_blocks_no_other_scope() {
        let rank = Rank::Commit;
        let line: Line = [
            (
                place(Class::Plan, rank, 1, "a", "one"),
                scopes("a", Some("r")),
            ),
            (place(Class::Plan, rank, 2, "a", "two"), scopes("a", None)),
            (place(Class::Plan, rank, 3, "a", "three"), scopes("a", None)),
            (place(Class::Plan, rank, 4, "b", "four"), scopes("b", None)),
        ]
        .into();
        let of = |bounds: &Bounds, open: &Open| names(&admitted(line.iter(), open, bounds).0);
        assert_eq!(
            of(&bounds(9, 2, 0), &Open::default()),
            ["two", "four", "three"],
            "the repository's"
        );
        assert_eq!(
            of(&bounds(9, 1, 9), &Open::default()),
            ["one", "four"],
            "the namespace's"
        );
        let mut open = Open::default();
        open.add(Class::Plan, Rank::Commit, &scopes("a", None));
        assert_eq!(of(&bounds(2, 1, 9), &open), ["four"], "what is open counts");
        open.remove(Class::Plan, Rank::Commit, &scopes("a", None));
        assert!(open.is_empty());
        open.add(Class::Apply, Rank::Commit, &scopes("a", None));
        assert_eq!(
            of(&bounds(1, 1, 9), &open),
            ["one"],
            "an apply takes nothing from plans"
        );
    }

    #[test]
    fn waiting_run_reports_its_full_scope() {
        let rank = Rank::Commit;
        let mut line: Line = (1..=2)
            .map(|n| (place(Class::Plan, rank, n, "a", "x"), scopes("a", None)))
            .collect();
        line.insert(
            place(Class::Plan, Rank::Schedule, 0, "b", "y"),
            scopes("b", None),
        );
        line.insert(place(Class::Apply, rank, 0, "a", "z"), scopes("a", None));
        let mut open = Open::default();
        open.add(Class::Plan, Rank::Commit, &scopes("b", None));
        let ask = |me: &Place, of: &str, open: &Open, bounds: &Bounds| {
            super::ask(me, &scopes(of, None), &line, open, bounds)
        };
        let me = place(Class::Plan, rank, 3, "a", "me");
        let full = ask(&me, "a", &open, &bounds(1, 9, 9)).unwrap_err();
        assert_eq!(
            full.to_string(),
            "waits for a slot: 1 of 1 attempts are open"
        );
        let full = ask(&me, "a", &open, &bounds(9, 2, 9)).unwrap_err();
        let text = "waits for a slot: 0 of 2 attempts in namespace a are open";
        assert_eq!(full.to_string(), text, "two are about to");
        assert_eq!(ask(&me, "a", &open, &bounds(5, 3, 9)), Ok(()));
        assert_eq!(
            ask(
                &place(Class::Apply, rank, 9, "a", "me"),
                "a",
                &open,
                &bounds(2, 2, 9)
            ),
            Ok(())
        );
        assert_eq!(
            ask(
                &place(Class::Plan, Rank::Person, 9, "b", "me"),
                "b",
                &open,
                &bounds(2, 2, 9)
            ),
            Ok(()),
            "a person"
        );
        assert!(wanted(
            Class::Plan,
            &scopes("b", None),
            &line,
            &open,
            &bounds(1, 9, 9)
        ));
        assert!(
            !wanted(
                Class::Plan,
                &scopes("b", None),
                &line,
                &open,
                &bounds(2, 9, 9)
            ),
            "not full"
        );
        assert!(
            !wanted(
                Class::Plan,
                &scopes("c", None),
                &line,
                &open,
                &bounds(9, 1, 9)
            ),
            "another namespace's"
        );
    }

    /// Runs of these ranks and namespaces wait, always, and each attempt ends after one turn: who got how many of `turns` slots.
    fn shares(all: &[(Rank, &str)], bounds: &Bounds, turns: i64) -> Vec<usize> {
        let mut open = Open::default();
        let mut running = std::collections::VecDeque::new();
        let mut got = vec![0; all.len()];
        for turn in 0..turns {
            // Hundreds of the first come before the first of the last.
            let line: Line = all
                .iter()
                .zip(0..)
                .map(|((rank, namespace), n)| {
                    let second = turn + if n == 0 { -1_000 } else { 0 };
                    let place = place(Class::Plan, *rank, second, namespace, &n.to_string());
                    (place, scopes(namespace, None))
                })
                .collect();
            let (served, after) = admitted(line.iter(), &open, bounds);
            open = after;
            for place in served {
                got[place.name.parse::<usize>().unwrap()] += 1;
                running.push_back((place.rank, place.namespace.to_string()));
            }
            if let Some((rank, namespace)) = running.pop_front() {
                open.remove(Class::Plan, rank, &scopes(&namespace, None));
            }
        }
        got
    }

    #[test]
    fn namespaces_share_and_no_rank_starves() {
        use Rank::{Commit, Person, Schedule, Unnamed};
        let whole = |bound| Bounds {
            whole: Some(bound),
            ..Bounds::default()
        };
        for rank in [Person, Unnamed, Commit, Schedule] {
            let got = shares(&[(rank, "busy"), (rank, "quiet")], &whole(4), 400);
            assert!(got.iter().all(|got| *got > 150), "{rank:?}: {got:?}");
        }
        let got = shares(
            &[(Person, "a"), (Commit, "a"), (Schedule, "b")],
            &whole(4),
            400,
        );
        assert!(got[0] > 150 && got[1] > 50 && got[2] > 50, "{got:?}");
        let got = shares(&[(Unnamed, "a"), (Person, "a")], &whole(4), 400);
        assert!(
            got[0] > 50 && got[1] > 250,
            "hundreds of a program: {got:?}"
        );
        let own = Bounds {
            per_namespace: Some(2),
            ..Bounds::default()
        };
        let got = shares(&[(Commit, "a"), (Schedule, "a")], &own, 400);
        assert!(got.iter().all(|got| *got > 100), "{got:?}");
    }

    /// splitmix64.
    fn next(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// For random queues: no bound is exceeded, no run waits unless one of its own bounds is full, and `ask` agrees with `admitted`.
    #[test]
    fn random_lines_keep_bounds_and_order() {
        for seed in 0..2_000 {
            let mut chance = seed;
            let mut below = |limit: u64| next(&mut chance) % limit;
            let of = |n: u64| ["a", "b", "c"][usize::try_from(n).unwrap()];
            let bounds = bounds(
                u32::try_from(below(7)).unwrap(),
                u32::try_from(below(5)).unwrap(),
                u32::try_from(below(3)).unwrap(),
            );
            let (mut line, mut open) = (Line::new(), Open::default());
            for n in 0..below(12) {
                let class = if below(3) == 0 {
                    Class::Apply
                } else {
                    Class::Plan
                };
                let rank = [Rank::Person, Rank::Unnamed, Rank::Commit, Rank::Schedule]
                    [usize::try_from(below(4)).unwrap()];
                let namespace = of(below(3));
                let repository = (below(2) == 0).then_some("r");
                let name = format!("n{n}");
                let second = i64::try_from(below(4)).unwrap();
                line.insert(
                    place(class, rank, second, namespace, &name),
                    scopes(namespace, repository),
                );
            }
            for _ in 0..below(5) {
                open.add(
                    Class::Plan,
                    Rank::Person,
                    &scopes(of(below(3)), (below(2) == 0).then_some("r")),
                );
            }
            let (served, after) = admitted(line.iter(), &open, &bounds);
            let mut filled = open.clone();
            for place in &served {
                let of = &line[*place];
                assert!(
                    filled.full(place.class, of, &bounds).is_none(),
                    "{seed}: a bound is passed by {place:?}"
                );
                filled.add(place.class, place.rank, of);
            }
            assert_eq!(filled, after, "{seed}");
            for (place, of) in &line {
                let has = served.contains(&place);
                let asked = ask(place, of, &line, &open, &bounds);
                assert_eq!(asked.is_ok(), has, "{seed}: {place:?}");
                assert!(
                    has || after.full(place.class, of, &bounds).is_some(),
                    "{seed}: {place:?} is passed over"
                );
            }
        }
    }
}
