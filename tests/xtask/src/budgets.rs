//! Compares measurements with `design/budgets.toml`: lines, fields of the API, bytes and processor time.
//!
//! Lines and fields are the same on every machine, so a count above its budget is an error. Bytes and times only cause warnings.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{
    cache::{self, Cache},
    command::{self, run},
    lines,
    processor::{self, Meter},
    root,
};

/// Figures by section and name. The sections are the constants below.
type Figures = BTreeMap<String, BTreeMap<String, u64>>;

const FILE: &str = "design/budgets.toml";
const CODE: &str = "code";
const COMMENTS: &str = "comments";
const FIELDS: &str = "fields";
const BYTES: &str = "bytes";
const SECONDS: &str = "processor-seconds";
/// Sections whose figures are the same on every machine.
const EXACT: [&str; 3] = [CODE, COMMENTS, FIELDS];

/// Measured programs, which are parts of images, and measured images.
const PROGRAMS: [&str; 2] = ["controller", "runner-agent"];
const IMAGES: [&str; 3] = ["pawl-controller", "pawl-sources", "pawl-runner"];

/// The measurements to make, and whether to write the budgets.
#[derive(Debug, Args)]
pub struct Options {
    /// Write the measured figures into the file. Other figures stay.
    #[arg(long)]
    write: bool,
    /// Run `cargo demo --yes` first, and measure its processor time.
    #[arg(long)]
    demo: bool,
}

/// Measures, and compares with the budgets or replaces them.
///
/// # Errors
/// When a count is above its budget or has no budget, or a measurement fails.
pub fn check(options: &Options) -> Result<()> {
    let cache = Cache::open()?;
    if options.demo {
        record(&cache, [("demo".to_owned(), demo()?)])?;
    }
    let path = root().join(FILE);
    let text = cache::read(&path)?;
    let mut budgets = parse(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    let measured = measure(&cache)?;
    if options.write {
        replace(&mut budgets, measured);
        return cache::write(&path, format!("{}\n{}", head(&text), render(&budgets)));
    }
    let Compared { table, errors } = compare(&budgets, &measured);
    print!("{table}");
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}

/// Budgets of processor time.
pub(crate) struct Times(BTreeMap<String, u64>);

impl Times {
    /// Row of the sum of all stages.
    pub(crate) const ALL: &str = "cargo ci";

    /// Empty if the file cannot be read; the stage `budgets` reports the reason.
    pub(crate) fn read() -> Self {
        Self(seconds_in(&root().join(FILE)))
    }

    /// The time of a stage and its budget, in minutes, with a mark if the time is above the budget.
    pub(crate) fn beside(&self, stage: &str, taken: Duration) -> String {
        let minutes = |time: Duration| time.as_secs_f64() / 60.0;
        let budget = self
            .0
            .get(stage)
            .map(|seconds| minutes(Duration::from_secs(*seconds)));
        let (taken, of) = (
            minutes(taken),
            budget.map(|budget| format!("of {budget:.1}")),
        );
        let mark = if budget.is_some_and(|budget| taken > budget) {
            '!'
        } else {
            ' '
        };
        format!("{taken:>6.1} min {:<8}{mark}", of.unwrap_or_default())
    }
}

/// Stores the processor time of completed stages for [`check`].
pub(crate) fn remember(taken: impl IntoIterator<Item = (String, Duration)>) -> Result<()> {
    record(&Cache::open()?, taken)
}

fn measure(cache: &Cache) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut put = |section: &str, name: &str, value| {
        let rows: &mut BTreeMap<_, _> = figures.entry(section.to_owned()).or_default();
        rows.insert(name.to_owned(), value);
    };
    for (package, lines) in lines::count(root(), &cache.path("budgets"))? {
        put(CODE, &package, lines.code);
        put(COMMENTS, &package, lines.comments);
    }
    // A field is a row of the page that is generated from the definitions.
    let page = cache::read(&root().join("design/guide/fields.md"))?;
    let fields = page.lines().filter(|line| line.starts_with("| `"));
    put(FIELDS, "api", fields.count() as u64);
    let built = std::env::var_os("PAWL_PROGRAMS").map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.parent()?.to_owned());
    let programs = built.or_else(beside).unwrap_or_default();
    let scratch = cache.path(format!("budgets/stripped-{}", std::process::id()));
    for name in PROGRAMS {
        if let Some(bytes) = stripped(&programs.join(name), &scratch) {
            put(BYTES, name, bytes);
        }
    }
    for name in IMAGES {
        if let Some(bytes) = archive(&cache.path("images"), name) {
            put(BYTES, &format!("image {name}"), bytes);
        }
    }
    for (name, seconds) in recorded(cache) {
        put(SECONDS, &name, seconds);
    }
    Ok(figures)
}

/// The size of a program without line tables, as in an image. `None` if it is not built or `strip` is missing.
fn stripped(program: &Path, scratch: &Path) -> Option<u64> {
    let mut strip = Command::new("strip");
    run(strip
        .args(["--strip-debug", "-o"])
        .arg(scratch)
        .arg(program))
    .ok()?;
    let bytes = fs::metadata(scratch).ok()?.len();
    cache::remove(scratch).ok()?;
    Some(bytes)
}

/// The size of the smallest archive of an image: a second archive of the runner contains the test tools.
fn archive(directory: &Path, image: &str) -> Option<u64> {
    let start = format!("{image}-");
    let is_archive = |name: &str| {
        name.strip_suffix(".tar")
            .is_some_and(|stem| stem.starts_with(&start))
    };
    let entries = fs::read_dir(directory).ok()?.flatten();
    let archives = entries.filter(|entry| is_archive(&entry.file_name().to_string_lossy()));
    archives
        .filter_map(|entry| Some(entry.metadata().ok()?.len()))
        .min()
}

/// The processor time of `cargo demo --yes` with its pods. It depends on the present state of the cache and the cluster.
fn demo() -> Result<Duration> {
    let before = processor::live_pods();
    let mut meter = Meter::new("demo");
    let mut demo = command::this_program();
    demo.args(["demo", "--yes"]);
    let mut child = meter.measured(demo).spawn()?;
    ensure!(meter.wait(&mut child)?.success(), "the demo failed");
    Ok(meter.taken() + processor::live_pods().saturating_sub(before))
}

/// The times of stages when they last completed on this machine.
fn recorded(cache: &Cache) -> BTreeMap<String, u64> {
    seconds_in(&cache.path(RECORD))
}

/// The times in a file. Empty if it cannot be read.
fn seconds_in(file: &Path) -> BTreeMap<String, u64> {
    let figures = cache::read(file).and_then(|text| parse(&text));
    figures
        .ok()
        .and_then(|mut figures| figures.remove(SECONDS))
        .unwrap_or_default()
}

const RECORD: &str = "budgets/processor.toml";

fn record(cache: &Cache, taken: impl IntoIterator<Item = (String, Duration)>) -> Result<()> {
    let mut seconds = recorded(cache);
    // Rounded up, so that a stage that was measured has a figure.
    let taken = taken
        .into_iter()
        .map(|(name, taken)| (name, taken.as_secs() + 1));
    seconds.extend(taken);
    let figures = Figures::from([(SECONDS.to_owned(), seconds)]);
    cache::write(&cache.path(RECORD), render(&figures))
}

struct Compared {
    /// A line for each figure and each budget.
    table: String,
    errors: Vec<String>,
}

fn compare(budgets: &Figures, measured: &Figures) -> Compared {
    let (mut table, mut errors) = (String::new(), Vec::new());
    let of = |figures: &Figures, section: &str| figures.get(section).cloned().unwrap_or_default();
    let number = |figure: Option<&u64>| figure.map_or("-".to_owned(), u64::to_string);
    for section in [CODE, COMMENTS, FIELDS, BYTES, SECONDS] {
        let (budgets, measured) = (of(budgets, section), of(measured, section));
        let is_exact = EXACT.contains(&section);
        let mark = if is_exact { "" } else { "warning: " };
        let names: BTreeSet<&String> = budgets.keys().chain(measured.keys()).collect();
        for name in names {
            let (budget, found) = (budgets.get(name), measured.get(name));
            let remark = match (budget, found) {
                (Some(budget), Some(found)) if found > budget => {
                    Some(format!("{} above its budget", found - budget))
                }
                (None, Some(_)) if is_exact => Some("has no budget".to_owned()),
                _ => None,
            };
            let (found, budget) = (number(found), number(budget));
            let shown = remark
                .as_ref()
                .map(|remark| format!("  {mark}{remark}"))
                .unwrap_or_default();
            let _ = writeln!(
                table,
                "budget {section:<17} {name:<31} {found:>10} of {budget:>10}{shown}"
            );
            if let Some(remark) = remark.filter(|_| is_exact) {
                let advice = "write less, or set the row of design/budgets.toml in a commit that says what it carries";
                errors.push(format!("{section} of {name}: {found} {remark}; {advice}"));
            }
        }
    }
    Compared { table, errors }
}

/// Replaces budgets by measurements. In exact sections, removes rows that were not measured.
fn replace(budgets: &mut Figures, measured: Figures) {
    for (section, rows) in measured {
        let section_rows = budgets.entry(section.clone()).or_default();
        if EXACT.contains(&section.as_str()) {
            section_rows.clear();
        }
        section_rows.extend(rows);
    }
}

fn parse(text: &str) -> Result<Figures> {
    let figures: Figures = toml::from_str(text)?;
    let known = [CODE, COMMENTS, FIELDS, BYTES, SECONDS];
    let unknown = figures
        .keys()
        .find(|section| !known.contains(&section.as_str()));
    ensure!(unknown.is_none(), "there is no section {unknown:?}");
    Ok(figures)
}

fn render(figures: &Figures) -> String {
    let mut text = String::new();
    for (section, rows) in figures {
        let _ = writeln!(text, "[{section}]");
        for (name, value) in rows {
            // Names of packages, stages and images need no escapes.
            let _ = writeln!(text, "\"{name}\" = {value}");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The comment at the beginning of the file.
fn head(text: &str) -> String {
    text.split_inclusive('\n')
        .take_while(|line| line.starts_with('#'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rows: &[(&str, &str, u64)]) -> Figures {
        let mut figures = Figures::new();
        for (section, name, value) in rows {
            let rows: &mut BTreeMap<_, _> = figures.entry((*section).to_owned()).or_default();
            rows.insert((*name).to_owned(), *value);
        }
        figures
    }

    #[test]
    fn counts_above_or_without_budget_fail_bytes_and_times_do_not() {
        let budgets = figures(&[
            (CODE, "a", 10),
            (CODE, "gone", 5),
            (FIELDS, "api", 3),
            (BYTES, "x", 1),
            (SECONDS, "sim", 1),
        ]);
        let cases = [
            (CODE, "a", 10, ""),
            (CODE, "a", 11, "code of a: 11 1 above its budget; "),
            (CODE, "new", 1, "code of new: 1 has no budget; "),
            (FIELDS, "api", 5, "fields of api: 5 2 above its budget; "),
            (BYTES, "x", 9, ""),
            (BYTES, "y", 9, ""),
            (SECONDS, "sim", 9, ""),
        ];
        for (section, name, value, error) in cases {
            let Compared { table, errors } = compare(&budgets, &figures(&[(section, name, value)]));
            assert_eq!(errors.len(), usize::from(!error.is_empty()), "{errors:?}");
            assert!(errors.concat().starts_with(error), "{errors:?}");
            assert!(table.lines().all(|line| line.starts_with("budget ")));
        }
        // A developer's machine has no figures for images and times.
        assert!(compare(&budgets, &Figures::new()).errors.is_empty());
        let table = compare(&budgets, &figures(&[(BYTES, "x", 9)])).table;
        assert!(
            table.contains("9 of          1  warning: 8 above its budget\n"),
            "{table}"
        );
    }

    #[test]
    fn written_budgets_are_parsed_again_and_keep_unmeasured_rows() {
        let mut budgets = figures(&[
            (CODE, "a/b", 10),
            (CODE, "gone", 5),
            (BYTES, "image x", 7),
            (SECONDS, "pods alone", 9),
        ]);
        replace(
            &mut budgets,
            figures(&[(CODE, "a/b", 8), (SECONDS, "sim", 3)]),
        );
        let expected = figures(&[
            (CODE, "a/b", 8),
            (BYTES, "image x", 7),
            (SECONDS, "pods alone", 9),
            (SECONDS, "sim", 3),
        ]);
        assert_eq!(budgets, expected);
        assert_eq!(parse(&render(&budgets)).unwrap(), expected);
        assert_eq!(head("# one\n# two\n\n[code]\n"), "# one\n# two\n");
        assert!(parse("[codes]\n\"a\" = 1\n").is_err() && parse("[code]\n\"a\" = -1\n").is_err());
    }
}
