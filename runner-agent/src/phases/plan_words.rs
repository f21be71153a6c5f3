//! The text of a plan for people: the agent's own list, which it read in the plan file, before the words of the tool.

use crds::Changes;

use super::{plan_facts::PlanFacts, plan_file::Unread};

/// The tool's count of created, changed and destroyed objects, if a line has one: `Plan: 1 to add, 0 to change, 2 to destroy.`
pub(super) fn counts(line: &str) -> Option<[u32; 3]> {
    let rest = line.trim_end().strip_prefix("Plan:")?;
    let count = |word: &str| {
        let part = rest.split(',').find(|part| part.contains(word))?;
        part.split_whitespace().next()?.parse().ok()
    };
    Some([
        count(" to add")?,
        count(" to change")?,
        count(" to destroy")?,
    ])
}

/// The lines before the tool's words.
pub(super) fn heading(tool: &str, own: Result<&PlanFacts, &Unread>) -> Vec<String> {
    let facts = match own {
        Ok(facts) => facts,
        Err(why) => {
            return vec![
                format!("The plan file was not read: {why}. What follows are words of {tool}:"),
                String::new(),
            ];
        }
    };
    let mut text = vec![format!("The plan file has {}:", facts.counts.summary())];
    text.extend(facts.lines().iter().map(|line| format!("  {line}")));
    text.extend([String::new(), format!("In the words of {tool}:")]);
    text
}

/// The line after the tool's words if they count other changes than the plan file has. It does not begin with `pawl: `, since a terminal
/// shows the status in place of such lines.
pub(super) fn contradiction(tool: &str, counts: &Changes, told: &[[u32; 3]]) -> Option<String> {
    let own = [counts.add, counts.change, counts.destroy];
    let said = match told.iter().find(|told| **told != own) {
        Some([add, change, destroy]) => format!("count +{add} ~{change} -{destroy}"),
        None if told.is_empty() && own != [0; 3] => "have no count".to_owned(),
        None => return None,
    };
    let [add, change, destroy] = own;
    Some(format!(
        "Note: the words of {tool} {said}, and the plan file has +{add} ~{change} -{destroy}: an apply carries out the plan file"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_counts_in_the_tools_words_are_named() {
        for (line, count) in [
            (
                "Plan: 1 to add, 2 to change, 30 to destroy.",
                Some([1, 2, 30]),
            ),
            (
                "Plan: 1 to import, 0 to add, 1 to change, 0 to destroy.",
                Some([0, 1, 0]),
            ),
            (
                "Plan: 0 to add, 1 to change, 0 to destroy, 1 to forget.",
                Some([0, 1, 0]),
            ),
            (
                "  + text = \"Plan: 1 to add, 2 to change, 3 to destroy.\"",
                None,
            ),
            ("Plan: nothing", None),
        ] {
            assert_eq!(counts(line), count, "{line}");
        }
        let own = Changes {
            destroy: 1,
            ..Changes::default()
        };
        let said = |told: &[[u32; 3]]| contradiction("OpenTofu", &own, told).unwrap_or_default();
        assert_eq!(said(&[[0, 0, 1]]), "");
        assert!(said(&[]).contains("have no count, and the plan file has +0 ~0 -1"));
        assert!(said(&[[0, 0, 1], [1, 0, 0]]).contains("count +1 ~0 -0"));
    }
}
