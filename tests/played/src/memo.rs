//! Caches results of rules: a search repeats the same writes, and evaluating their rules takes most of the time.

use std::{
    cell::RefCell,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher as _},
};

use super::Refusal;

/// Entries per thread before the cache is cleared.
const MOST: usize = 100_000;

type Answer = Result<(), Refusal>;

thread_local! {
    static ANSWERS: RefCell<HashMap<u64, Answer>> = RefCell::default();
}

/// Returns the cached answer, or evaluates it. `evaluate` must depend on `question` only.
pub(super) fn answer(question: &impl Hash, evaluate: impl FnOnce() -> Answer) -> Answer {
    let mut hasher = DefaultHasher::new();
    question.hash(&mut hasher);
    let key = hasher.finish();
    if let Some(answer) = ANSWERS.with_borrow(|answers| answers.get(&key).cloned()) {
        return answer;
    }
    let answer = evaluate();
    ANSWERS.with_borrow_mut(|answers| {
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(key, answer.clone());
    });
    answer
}
