//! Parsers of what others write: they end, and they do not panic.

use proptest::prelude::*;
use tool_versions::releases::{
    http::{address, redirect, waiting},
    lists::{page, read},
    mirror::{ListKind, Location},
};

use super::lists::{KINDS, corpus};

fn all(bytes: &[u8]) {
    for kind in KINDS {
        if let Ok(versions) = read(kind, "it", bytes) {
            assert!(!versions.is_empty() && versions.is_sorted_by(|one, other| one > other));
        }
    }
    let _ = page("it", bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_no_trouble(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        all(&bytes);
    }

    #[test]
    fn random_text_is_no_trouble(text in "[\\[\\]{}\",:<>a-z=/.0-9 v'\\-]{0,300}|.{0,100}") {
        all(text.as_bytes());
    }

    #[test]
    fn spoilt_lists_are_no_trouble(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let mut bytes = which.get(&corpus()).1.clone();
        for (place, byte, how) in changes {
            if bytes.is_empty() {
                break;
            }
            let place = place.index(bytes.len());
            match how {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                2 => drop(bytes.remove(place)),
                _ => bytes.truncate(place),
            }
        }
        all(&bytes);
    }

    #[test]
    fn a_list_that_is_written_is_read(numbers in prop::collection::btree_set((0..50_u64, 0..50_u64, 0..50_u64), 1..40)) {
        let names: Vec<_> = numbers.iter().map(|(a, b, c)| format!("{a}.{b}.{c}")).collect();
        let join = |one: &dyn Fn(&String) -> String, with: &str| names.iter().map(one).collect::<Vec<_>>().join(with);
        let lists = [
            (ListKind::HashiCorp, format!("{{\"versions\":{{{}}}}}", join(&|name| format!("\"{name}\":{{}}"), ","))),
            (ListKind::OpenTofu, format!("{{\"versions\":[{}]}}", join(&|name| format!("{{\"id\":\"{name}\"}}"), ","))),
            (ListKind::GitHub, format!("[{}]", join(&|name| format!("{{\"tag_name\":\"v{name}\",\"draft\":false}}"), ","))),
            (ListKind::Html, join(&|name| format!("<a href=\"v{name}/\">"), "\n")),
            (ListKind::Directory, join(&|name| format!("v{name}"), "\n")),
        ];
        let wanted: Vec<_> = names.iter().rev().cloned().collect();
        for (kind, list) in lists {
            let got: Vec<_> = read(kind, "it", list.as_bytes()).unwrap().iter().map(ToString::to_string).collect();
            prop_assert_eq!(&got, &wanted);
        }
    }

    #[test]
    fn addresses_are_no_trouble(text in "(https?|file|ftp)?:?/{0,3}[a-z0-9:@?#%\\[\\]./ -]{0,40}|.{0,40}") {
        if let Ok(location) = Location::read("it", &text) {
            let _ = (location.to_string(), location.join("x/y"));
        }
        let _ = address::shown_text(&text);
        for first in ["https://a.example.org/x", "http://a.example.org/x"] {
            let first = first.parse::<reqwest::Url>().unwrap();
            if let Ok(to) = redirect::next(std::slice::from_ref(&first), text.as_bytes()) {
                let same = to.scheme() == "http" && first.scheme() == "http" && to.host_str() == first.host_str();
                prop_assert!(to.scheme() == "https" || same);
                prop_assert!(to.username().is_empty() && to.password().is_none());
            }
        }
    }

    #[test]
    fn waits_are_no_trouble(value in prop::collection::vec(any::<u8>(), 0..40), text in "[0-9A-Za-z, :+-]{0,40}") {
        for bytes in [&value[..], text.as_bytes()] {
            let Ok(value) = reqwest::header::HeaderValue::from_bytes(bytes) else { continue };
            for name in ["retry-after", "x-ratelimit-reset"] {
                let mut headers = reqwest::header::HeaderMap::new();
                headers.insert(name, value.clone());
                headers.insert("x-ratelimit-remaining", "0".parse().unwrap());
                let _ = waiting::asked_for(&headers, std::time::SystemTime::now());
            }
        }
    }
}
