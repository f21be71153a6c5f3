//! The table of `design/guide/operate.md` has the metrics that the programs register, and no others.

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    /// The files with the registries of the programs.
    const REGISTRIES: [&str; 4] = [
        "controller/src/metrics.rs",
        "controller/src/server/metrics.rs",
        "controller/datastore/src/metrics.rs",
        "controller/sources/src/metrics.rs",
    ];

    /// The texts in quotes that follow directly on each `call(`.
    fn arguments<'a>(code: &'a str, call: &str) -> Vec<&'a str> {
        let after = code.split(call).skip(1);
        let text = after.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
        text.collect()
    }

    #[test]
    fn guide_lists_every_metric() {
        let read = |path: &str| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            fs::read_to_string(root.join(path)).unwrap()
        };
        let mut registered = BTreeSet::new();
        for path in REGISTRIES {
            let code = read(path);
            let prefix = arguments(&code, "with_prefix(")[0];
            let names = arguments(&code, ".register(");
            assert_eq!(names.len(), code.matches(".register(").count(), "{path}");
            registered.extend(names.iter().map(|name| format!("{prefix}_{name}")));
        }
        let guide = read("design/guide/operate.md");
        let rows = guide.lines().filter(|line| line.starts_with("| `pawl_"));
        let cells = rows.filter_map(|row| row.split(" | ").next());
        // Counters end in `_total` in the output alone.
        let listed: BTreeSet<String> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(|name| name.strip_suffix("_total").unwrap_or(name).to_owned())
            .collect();
        assert_eq!(listed, registered);
    }
}
