//! The places of open streams: a number for all, and a share for each person.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::http::StatusCode;

use crate::{Console, person::Person, problem::Problem};

/// Most open streams, and of one person.
const STREAMS: usize = 1000;
const OF_ONE: usize = 50;

/// The number of open streams of each person, by name.
#[derive(Default)]
pub struct Streams(Mutex<HashMap<String, usize>>);

/// The place of an open stream.
pub(super) struct Place(Arc<Console>, String);

impl Streams {
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// # Errors
    /// All places are taken, or all that one person gets.
    pub(super) fn take(console: &Arc<Console>, person: &Person) -> Result<Self, Problem> {
        let mut open = console.streams.lock();
        let own = open.get(person.name()).copied().unwrap_or_default();
        let (status, reason, number) = if own >= OF_ONE {
            (StatusCode::TOO_MANY_REQUESTS, "TooManyOwnStreams", OF_ONE)
        } else if open.values().sum::<usize>() >= STREAMS {
            (StatusCode::SERVICE_UNAVAILABLE, "TooManyStreams", STREAMS)
        } else {
            open.insert(person.name().to_owned(), own + 1);
            return Ok(Self(console.clone(), person.name().to_owned()));
        };
        let whose = if own >= OF_ONE { " of yours" } else { "" };
        let detail = format!(
            "{number} streams{whose} are open; this page is not live until one of them is closed, all else works"
        );
        Err(Problem::new(status, reason, detail))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.0.streams.lock();
        let own = open.remove(&self.1).unwrap_or_default();
        if own > 1 {
            open.insert(std::mem::take(&mut self.1), own - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_person_cannot_take_all_streams() {
        let console = crate::testing::console("http://127.0.0.1:8444");
        let person = async |name: &str| {
            let token = crate::testing::token(name);
            Person::of_token(&console.api_server, token).await.unwrap()
        };
        let (eve, again) = (person("eve").await, person("eve.2").await);
        let mut held: Vec<_> = (0..OF_ONE)
            .map(|_| Place::take(&console, &eve).unwrap())
            .collect();
        let refused = Place::take(&console, &again).err().unwrap();
        assert_eq!(
            (refused.status.as_u16(), &*refused.reason),
            (429, "TooManyOwnStreams")
        );
        for number in 1..STREAMS / OF_ONE {
            let other = person(&format!("p{number}")).await;
            held.extend((0..OF_ONE).map(|_| Place::take(&console, &other).unwrap()));
        }
        let ada = person("ada").await;
        let full = Place::take(&console, &ada).err().unwrap();
        assert_eq!(
            (full.status.as_u16(), &*full.reason),
            (503, "TooManyStreams")
        );
        held.pop();
        assert!(Place::take(&console, &ada).is_ok());
        held.clear();
        assert!(console.streams.lock().is_empty());
    }
}
