//! An index of watched objects by key, shared by all caches that several watches may fill.
//!
//! Each entry records the watch and listing that last showed it. During a new listing, known entries remain. At its
//! end, entries of the same watch that it did not show are removed.

use std::{borrow::Borrow, collections::BTreeMap, ops::RangeBounds};

use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// A watch and one of its listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    feed: u32,
    listing: u32,
}

#[cfg(test)]
impl Seen {
    pub(crate) const fn of(feed: u32, listing: u32) -> Self {
        Self { feed, listing }
    }
}

/// One watch that fills indexes.
#[derive(Debug, Default)]
pub struct Feed {
    seen: Seen,
    listed: bool,
}

impl Feed {
    /// The current listing, or the last one.
    pub(crate) fn seen(&self) -> Seen {
        self.seen
    }

    /// Records the start of a listing.
    pub(crate) fn hears<K>(&mut self, event: &Event<K>) {
        if matches!(event, Event::Init) {
            self.seen.listing = self.seen.listing.wrapping_add(1);
        }
    }
}

/// The watches of an index, and how many of them have not completed a listing.
#[derive(Debug)]
pub(crate) struct Feeds(watch::Sender<(u32, usize)>);

impl Default for Feeds {
    fn default() -> Self {
        Self(watch::Sender::new((0, 0)))
    }
}

impl Feeds {
    pub(crate) fn add(&self) -> Feed {
        let mut feed = 0;
        self.0.send_modify(|(feeds, unlisted)| {
            (*feeds, *unlisted) = (*feeds + 1, *unlisted + 1);
            feed = *feeds;
        });
        Feed { seen: Seen { feed, listing: 0 }, listed: false }
    }

    /// Records the end of a listing. Returns whether it was the watch's first.
    pub(crate) fn listed(&self, feed: &mut Feed) -> bool {
        let first = !std::mem::replace(&mut feed.listed, true);
        if first {
            self.0.send_modify(|(_, unlisted)| *unlisted = unlisted.saturating_sub(1));
        }
        first
    }

    /// Whether every watch has listed once.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.borrow().1 == 0
    }

    /// Waits until every watch has listed once.
    pub(crate) async fn ready(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|(_, unlisted)| *unlisted == 0).await;
    }
}

#[derive(Debug)]
pub(crate) struct Index<K, V>(BTreeMap<K, (Seen, V)>);

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone, V> Index<K, V> {
    /// Stores an entry shown by a watch. Returns the previous value.
    pub(crate) fn put(&mut self, seen: Seen, key: K, value: V) -> Option<V> {
        self.0.insert(key, (seen, value)).map(|(_, value)| value)
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.remove(key).map(|(_, value)| value)
    }

    /// Removes an entry and returns it with its key.
    pub(crate) fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.0.remove_entry(key).map(|(key, (_, value))| (key, value))
    }

    /// An entry with its key.
    pub(crate) fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.0.get_key_value(key).map(|(key, (_, value))| (key, value))
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.0.get_mut(key).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, (_, value))| (key, value))
    }

    /// The entries of a range of keys, in order.
    pub(crate) fn range(&self, keys: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.range(keys).map(|(key, (_, value))| (key, value))
    }

    /// Ends a listing: removes and returns the entries that it did not show.
    pub(crate) fn end_listing(&mut self, ended: Seen) -> Vec<(K, V)> {
        let gone = |seen: &Seen| seen.feed == ended.feed && seen.listing != ended.listing;
        let gone: Vec<K> = self.0.iter().filter(|(_, (seen, _))| gone(seen)).map(|(key, _)| key.clone()).collect();
        gone.into_iter().filter_map(|key| self.0.remove_entry(&key)).map(|(key, (_, value))| (key, value)).collect()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Maps the object of an event.
pub fn mapped<A, B>(event: Event<A>, made: impl FnOnce(A) -> B) -> Event<B> {
    match event {
        Event::Apply(object) => Event::Apply(made(object)),
        Event::Delete(object) => Event::Delete(made(object)),
        Event::InitApply(object) => Event::InitApply(made(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn end_of_listing_removes_unseen_entries_of_its_watch() {
        let (feeds, mut index) = (Feeds::default(), Index::default());
        let (mut one, other) = (feeds.add(), feeds.add());
        one.hears(&Event::<()>::Init);
        for (seen, key) in [(one.seen(), "a"), (one.seen(), "b"), (other.seen(), "c")] {
            assert_eq!(index.put(seen, key, 1), None);
        }
        assert!(index.end_listing(one.seen()).is_empty());
        one.hears(&Event::<()>::Init);
        assert_eq!(index.put(one.seen(), "b", 2), Some(1));
        assert_eq!(index.get("a"), Some(&1), "known until the listing has ended");
        assert_eq!(index.end_listing(one.seen()), [("a", 1)]);
        assert_eq!(index.iter().collect::<Vec<_>>(), [(&"b", &2), (&"c", &1)]);
        assert_eq!(index.range("b".."c").next_back(), Some((&"b", &2)));
        assert_eq!((index.remove("b"), index.remove("b")), (Some(2), None));
    }

    #[test]
    fn index_is_ready_when_every_watch_has_listed() {
        let feeds = Feeds::default();
        assert!(feeds.ready().now_or_never().is_some(), "without a watch");
        let (mut one, mut other) = (feeds.add(), feeds.add());
        assert!(feeds.listed(&mut one) && !feeds.listed(&mut one));
        assert!(feeds.ready().now_or_never().is_none());
        assert!(feeds.listed(&mut other));
        assert!(feeds.ready().now_or_never().is_some());
    }
}
