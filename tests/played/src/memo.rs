//! Answers to questions that were asked before: a search makes the same write over and over, and to evaluate its rules is most of the work.

use std::{
    cell::RefCell,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher as _},
};

use super::Refusal;

/// So many answers are kept by a thread; then it begins anew.
const MOST: usize = 100_000;

type Answer = Result<(), Refusal>;

thread_local! {
    static ANSWERS: RefCell<HashMap<u64, Answer>> = RefCell::default();
}

/// The answer to a question that has one and the same always.
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
