//! Compares measurements with `design/budgets.toml`: lines, fields of the API, bytes and processor time.
//!
//! Lines and fields are the same on every machine, so a count above its budget is an error. Bytes and times only cause warnings.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
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
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut budgets = parse(&text).with_context(|| format!("{} is not as it has to be", path.display()))?;
    let measured = measure(&cache)?;
    if options.write {
        replace(&mut budgets, measured);
        return cache::write(&path, format!("{}\n{}", head(&text), render(&budgets)));
    }
    let compared = compare(&budgets, &measured);
    print!("{}", compared.table);
    if compared.errors.is_empty() { Ok(()) } else { bail!("{}", compared.errors.join("\n")) }
}

/// Budgets of processor time.
pub(crate) struct Times(BTreeMap<String, u64>);

impl Times {
    /// Row of the sum of all stages.
    pub(crate) const ALL: &str = "cargo ci";

    /// Empty if the file cannot be read; the stage `budgets` reports the reason.
    pub(crate) fn read() -> Self {
        let figures = fs::read_to_string(root().join(FILE)).ok().and_then(|text| parse(&text).ok());
        Self(figures.and_then(|mut figures| figures.remove(SECONDS)).unwrap_or_default())
    }

    /// The time of a stage and its budget, in minutes, with a mark if the time is above the budget.
    pub(crate) fn beside(&self, stage: &str, taken: Duration) -> String {
        let minutes = |time: Duration| time.as_secs_f64() / 60.0;
        let budget = self.0.get(stage).map(|seconds| Duration::from_secs(*seconds));
        let of = budget.map_or_else(String::new, |budget| format!("of {:.1}", minutes(budget)));
        let mark = if budget.is_some_and(|budget| taken > budget) { '!' } else { ' ' };
        format!("{:>6.1} min {of:<8}{mark}", minutes(taken))
    }
}

/// Stores the processor time of completed stages for [`check`].
pub(crate) fn remember(taken: impl IntoIterator<Item = (String, Duration)>) -> Result<()> {
    record(&Cache::open()?, taken)
}

fn measure(cache: &Cache) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut put =
        |section: &str, name: &str, value| figures.entry(section.to_owned()).or_default().insert(name.to_owned(), value);
    for (package, lines) in lines::count(root(), &cache.path("budgets"))? {
        put(CODE, &package, lines.code);
        put(COMMENTS, &package, lines.comments);
    }
    // A field is a row of the page that is generated from the definitions.
    let page = root().join("design/guide/fields.md");
    let page = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    put(FIELDS, "api", page.lines().filter(|line| line.starts_with("| `")).count() as u64);
    let programs = std::env::var_os("PAWL_PROGRAMS").map(PathBuf::from);
    let programs = programs.or_else(|| Some(std::env::current_exe().ok()?.parent()?.to_owned())).unwrap_or_default();
    for name in PROGRAMS {
        if let Some(bytes) = stripped(&programs.join(name), &cache.path(format!("budgets/stripped-{}", std::process::id()))) {
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
    run(Command::new("strip").args(["--strip-debug", "-o"]).arg(scratch).arg(program)).ok()?;
    let bytes = fs::metadata(scratch).ok()?.len();
    cache::remove(scratch).ok()?;
    Some(bytes)
}

/// The size of the smallest archive of an image: a second archive of the runner contains the test tools.
fn archive(directory: &Path, image: &str) -> Option<u64> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let archives = entries.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.strip_prefix(image).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".tar")).is_some()
    });
    archives.filter_map(|entry| Some(entry.metadata().ok()?.len())).min()
}

/// The processor time of `cargo demo --yes` with its pods. It depends on the present state of the cache and the cluster.
fn demo() -> Result<Duration> {
    let before = processor::live_pods();
    let mut meter = Meter::new("demo");
    let mut demo = command::this_program();
    demo.args(["demo", "--yes"]);
    let mut child = meter.measured(demo).spawn()?;
    ensure!(meter.wait(&mut child)?.success(), "the demo failed, so that it was not measured");
    Ok(meter.taken() + processor::live_pods().saturating_sub(before))
}

/// The times of stages when they last completed on this machine.
fn recorded(cache: &Cache) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(cache.path(RECORD)).unwrap_or_default();
    parse(&text).ok().and_then(|mut figures| figures.remove(SECONDS)).unwrap_or_default()
}

const RECORD: &str = "budgets/processor.toml";

fn record(cache: &Cache, taken: impl IntoIterator<Item = (String, Duration)>) -> Result<()> {
    let mut seconds = recorded(cache);
    // Rounded up, so that a stage that was measured has a figure.
    seconds.extend(taken.into_iter().map(|(name, taken)| (name, taken.as_secs() + 1)));
    cache::write(&cache.path(RECORD), render(&Figures::from([(SECONDS.to_owned(), seconds)])))
}

struct Compared {
    /// A line for each figure and each budget.
    table: String,
    errors: Vec<String>,
}

fn compare(budgets: &Figures, measured: &Figures) -> Compared {
    let mut compared = Compared { table: String::new(), errors: Vec::new() };
    let of = |figures: &Figures, section: &str| figures.get(section).cloned().unwrap_or_default();
    for section in [CODE, COMMENTS, FIELDS, BYTES, SECONDS] {
        let (budgets, measured) = (of(budgets, section), of(measured, section));
        let mut names: Vec<&String> = budgets.keys().chain(measured.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let (budget, found) = (budgets.get(name), measured.get(name));
            let remark = match (budget, found) {
                (Some(budget), Some(found)) if found > budget => Some(format!("{} above its budget", found - budget)),
                (None, Some(_)) if EXACT.contains(&section) => Some("has no budget".to_owned()),
                _ => None,
            };
            let number = |figure: Option<&u64>| figure.map_or_else(|| "-".to_owned(), u64::to_string);
            let mark = if EXACT.contains(&section) { "" } else { "warning: " };
            let shown = remark.as_ref().map_or_else(String::new, |remark| format!("  {mark}{remark}"));
            let _ = writeln!(
                compared.table,
                "budget {section:<17} {name:<31} {:>10} of {:>10}{shown}",
                number(found),
                number(budget)
            );
            if let Some(remark) = remark.filter(|_| EXACT.contains(&section)) {
                let advice = "write less, or set the row of design/budgets.toml in a commit that says what it carries";
                compared.errors.push(format!("{section} of {name}: {} {remark}; {advice}", number(found)));
            }
        }
    }
    compared
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
    let unknown =
        figures.keys().find(|section| !EXACT.contains(&section.as_str()) && ![BYTES, SECONDS].contains(&section.as_str()));
    unknown.map_or(Ok(()), |section| bail!("there is no section {section}"))?;
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
    text.split_inclusive('\n').take_while(|line| line.starts_with('#')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rows: &[(&str, &str, u64)]) -> Figures {
        let mut figures = Figures::new();
        for (section, name, value) in rows {
            figures.entry((*section).to_owned()).or_default().insert((*name).to_owned(), *value);
        }
        figures
    }

    #[test]
    fn counts_above_or_without_budget_fail_bytes_and_times_do_not() {
        let budgets = figures(&[(CODE, "a", 10), (CODE, "gone", 5), (FIELDS, "api", 3), (BYTES, "x", 1), (SECONDS, "sim", 1)]);
        let cases: [(&str, &str, u64, Option<&str>); 7] = [
            (CODE, "a", 10, None),
            (CODE, "a", 11, Some("code of a: 11 1 above its budget; ")),
            (CODE, "new", 1, Some("code of new: 1 has no budget; ")),
            (FIELDS, "api", 5, Some("fields of api: 5 2 above its budget; ")),
            (BYTES, "x", 9, None),
            (BYTES, "y", 9, None),
            (SECONDS, "sim", 9, None),
        ];
        for (section, name, value, error) in cases {
            let compared = compare(&budgets, &figures(&[(section, name, value)]));
            let errors: Vec<&str> = compared.errors.iter().map(String::as_str).collect();
            assert!(errors.len() == usize::from(error.is_some()), "{section} {name} {value}: {errors:?}");
            assert!(errors.iter().zip(error).all(|(found, start)| found.starts_with(start)), "{errors:?}");
            assert!(compared.table.lines().all(|line| line.starts_with("budget ")));
        }
        // A developer's machine has no figures for images and times.
        assert!(compare(&budgets, &Figures::new()).errors.is_empty());
        let table = compare(&budgets, &figures(&[(BYTES, "x", 9)])).table;
        assert!(table.contains("9 of          1  warning: 8 above its budget\n"), "{table}");
    }

    #[test]
    fn what_is_written_is_read_again_and_keeps_what_was_not_measured() {
        let mut budgets = figures(&[(CODE, "a/b", 10), (CODE, "gone", 5), (BYTES, "image x", 7), (SECONDS, "pods alone", 9)]);
        replace(&mut budgets, figures(&[(CODE, "a/b", 8), (SECONDS, "sim", 3)]));
        let expected = figures(&[(CODE, "a/b", 8), (BYTES, "image x", 7), (SECONDS, "pods alone", 9), (SECONDS, "sim", 3)]);
        assert_eq!(budgets, expected);
        assert_eq!(parse(&render(&budgets)).unwrap(), expected);
        assert_eq!(head("# one\n# two\n\n[code]\n"), "# one\n# two\n");
        assert!(parse("[codes]\n\"a\" = 1\n").is_err() && parse("[code]\n\"a\" = -1\n").is_err());
    }
}
