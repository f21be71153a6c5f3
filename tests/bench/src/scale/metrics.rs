//! Reads a process's `/metrics`.

/// The sum of a metric's samples whose labels contain `label`; 0 without samples.
pub(super) fn total(text: &str, metric: &str, label: &str) -> f64 {
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.strip_prefix(metric));
    samples
        .filter_map(|rest| {
            let (labels, value) = rest.rsplit_once(' ')?;
            let whole = labels.is_empty() || (labels.starts_with('{') && labels.ends_with('}'));
            if whole && labels.contains(label) { value.parse::<f64>().ok() } else { None }
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_metric_are_added_up() {
        let text = "# TYPE pawl_layers gauge\npawl_layers{state=\"Idle\"} 7\npawl_layers{state=\"PlanNeeded\"} 2\n\
                    pawl_layers_other 100\npawl_leads 1\n# EOF\n";
        let near = |is: f64, wanted: f64| assert!((is - wanted).abs() < 1e-9, "{is} in place of {wanted}");
        near(total(text, "pawl_layers", ""), 9.0);
        near(total(text, "pawl_layers", "\"Idle\""), 7.0);
        near(total(text, "pawl_leads", ""), 1.0);
        near(total(text, "pawl_none", ""), 0.0);
    }
}
