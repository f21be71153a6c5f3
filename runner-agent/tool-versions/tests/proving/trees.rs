//! Unpacking all files of an archive below one directory.

use std::{
    collections::BTreeMap,
    fs,
    io::Cursor,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use tar::EntryType as T;
use tool_versions::{Error, Kind, Limits, archive};
use zip::CompressionMethod::{Deflated, Stored};

use super::{
    failed,
    packing::{Entry, binary, directory, extended, file, gzip, link, record, special, tar, zip},
};

const LIMITS: Limits = Limits { size: 4 << 20, ratio: 200, entries: 40 };
/// A path outside of the root that no test may create.
const ESCAPED: &str = "/tmp/pawl-hostile";

/// A directory within another one, so that a test sees what escapes.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.root()).unwrap();
        fs::write(place.0.path().join("beside"), "as it was").unwrap();
        place
    }

    fn root(&self) -> std::path::PathBuf {
        self.0.path().join("root")
    }

    fn unpack(&self, bytes: &[u8]) -> Result<archive::Unpacked, Error> {
        let until = Instant::now() + Duration::from_secs(600);
        archive::unpack("x", Cursor::new(bytes), &LIMITS, until, &self.root())
    }

    /// The paths below the root with their content or target.
    fn found(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![self.root()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.root()).unwrap().to_str().unwrap().to_owned();
                let meta = fs::symlink_metadata(&path).unwrap();
                let what = if meta.is_dir() {
                    dirs.push(path);
                    "dir".to_owned()
                } else if meta.is_symlink() {
                    format!("-> {}", fs::read_link(&path).unwrap().display())
                } else {
                    format!("{:o} {}", meta.permissions().mode() & 0o7777, String::from_utf8_lossy(&fs::read(&path).unwrap()))
                };
                found.insert(name, what);
            }
        }
        found
    }
}

#[track_caller]
fn good(bytes: &[u8], wanted: &[(&str, &str)]) {
    let place = Place::new();
    place.unpack(bytes).unwrap();
    let found = place.found();
    let found: Vec<_> = found.iter().map(|(name, what)| (name.as_str(), what.as_str())).collect();
    assert_eq!(found, wanted);
}

#[track_caller]
fn bad(bytes: &[u8], says: &str) {
    let place = Place::new();
    failed(place.unpack(bytes), Kind::Integrity, &[says]);
    // Nothing outside of the root changed.
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 2);
    assert_eq!(fs::read_to_string(place.0.path().join("beside")).unwrap(), "as it was");
    assert!(!Path::new(ESCAPED).exists());
    // Links are made last.
    assert!(place.found().values().all(|what| !what.starts_with("->")), "{:?}", place.found());
}

#[test]
fn all_files_of_each_format_are_unpacked() {
    let plain = tar(&[
        Entry { name: b"pax_global_header", ..extended(T::XGlobalHeader, b"19 comment=0123456\n") },
        directory("./"),
        directory("modules/"),
        file("./main.tf", b"a"),
        file("modules/net/main.tf", b"b"),
        Entry { mode: 0o755, ..file("bin/run.sh", b"go") },
        link("link.tf", "modules/../main.tf"),
    ]);
    let wanted = [
        ("bin", "dir"),
        ("bin/run.sh", "755 go"),
        ("link.tf", "-> modules/../main.tf"),
        ("main.tf", "644 a"),
        ("modules", "dir"),
        ("modules/net", "dir"),
        ("modules/net/main.tf", "644 b"),
    ];
    good(&plain, &wanted);
    good(&gzip(&plain), &wanted);
    let all = [directory("a/"), file("a/main.tf", b"a"), file("b/c/x", b""), link("l", "a/main.tf")];
    let wanted = [("a", "dir"), ("a/main.tf", "755 a"), ("b", "dir"), ("b/c", "dir"), ("b/c/x", "755 "), ("l", "-> a/main.tf")];
    good(&zip(&all, Deflated), &wanted);
    good(&zip(&all, Stored), &wanted);
}

/// Git, Go and GNU tar write extended headers for names that are too long.
#[test]
fn long_names_come_from_extended_headers() {
    let directory = "d".repeat(150);
    let long = format!("{directory}/main.tf");
    let (pax, gnu) = (record("path", &long), format!("{long}\0"));
    for header in [extended(T::XHeader, &pax), extended(T::GNULongName, gnu.as_bytes())] {
        good(&tar(&[header, file("short", b"a")]), &[(&directory, "dir"), (&long, "644 a")]);
    }
    let linked = record("linkpath", ESCAPED);
    bad(&tar(&[extended(T::XHeader, &linked), link("l", "main.tf")]), "a link to an absolute path");
    let (too_long, endless) = ("l".repeat(1100).into_bytes(), vec![b'x'; 70 << 10]);
    for (kind, bytes, says) in [
        (T::XHeader, record("path", "../../out"), "leads out of a directory"),
        (T::XHeader, record("size", "99"), "changes its size"),
        (T::GNULongName, too_long, "too long"),
        (T::GNULongName, endless, "description"),
    ] {
        bad(&tar(&[extended(kind, &bytes), file("short", b"a")]), says);
    }
}

#[test]
fn hostile_entries_are_refused() {
    let main = file("main.tf", b"a");
    for (name, says) in [
        (ESCAPED, "absolute"),
        ("../beside", "leads out"),
        ("a/../../beside", "leads out"),
        ("a\\..\\b", "absolute"),
        ("C:/x", "absolute"),
        ("a\nb", "invisible characters"),
        (".git/config", "git's own"),
        ("modules/.GIT/hooks/x", "git's own"),
    ] {
        bad(&tar(&[main.clone(), file(name, b"x")]), says);
        bad(&zip(&[main.clone(), file(name, b"x")], Stored), "");
    }
    for to in ["/tmp", "/etc/passwd", "..", "../beside", "a/../../beside", "./../beside"] {
        bad(&tar(&[main.clone(), link("l", to)]), "a link");
        bad(&zip(&[main.clone(), link("l", to)], Stored), "a link");
    }
    let hard = |to| Entry { kind: T::Link, ..link("h", to) };
    for (entry, says) in [
        (Entry { name: b"caf\xe9.tf", ..main.clone() }, "no UTF-8"),
        (link("d/l", "../../beside"), "leads out of the archive"),
        (link("l", ""), "an invalid path"),
        (Entry { link: b"\xff", ..link("l", "") }, "not UTF-8"),
        (hard("main.tf"), "a hard link"),
        (hard("/etc/passwd"), "a hard link"),
        (hard("../beside"), "a hard link"),
        (special("x", T::Fifo), "named pipe"),
        (special("x", T::Char), "device"),
        (special("x", T::Block), "device"),
        (special("x", T::Continuous), "not unpacked"),
        (special("x", T::GNUSparse), "not unpacked"),
        (special("x", T::new(b'Z')), "not unpacked"),
        (Entry { mode: 0o4755, ..file("x", b"a") }, "set-user-id"),
        (Entry { mode: 0o2755, ..file("x", b"a") }, "set-user-id"),
        (Entry { mode: 0o6711, ..file("x", b"a") }, "set-user-id"),
    ] {
        bad(&tar(&[main.clone(), entry]), says);
    }
    bad(&tar(&[file("a//./", b"")]), "no files");
}

/// The same name twice, and writes through links and files, in each order.
#[test]
fn overlapping_entries_are_refused() {
    let to = link("d", "e");
    for (all, says) in [
        (vec![file("e/x", b""), to.clone(), file("d/x", b"x")], "below a file or a link"),
        (vec![to.clone(), file("d", b"x")], "there twice"),
        (vec![file("d/x", b"x"), to.clone()], "there twice"),
        (vec![to.clone(), directory("d/")], "there twice"),
        (vec![file("a", b"a"), file("a", b"b")], "there twice"),
        (vec![file("a/b", b"a"), file("./a//b", b"b")], "there twice"),
        (vec![file("a", b"a"), file("a/b", b"b")], "below a file"),
        (vec![directory("a/"), file("a", b"b")], "there twice"),
    ] {
        bad(&tar(&all), says);
    }
    bad(&zip(&[to, file("d/x", b"x")], Stored), "below a file or a link");
}

#[test]
fn bombs_are_refused() {
    let (zeros, large) = (vec![0; 3 << 20], binary(3 << 20));
    let names: Vec<String> = (0..41).map(|n| n.to_string()).collect();
    let many = |count: usize, bytes| names[..count].iter().map(|name| file(name, bytes)).collect::<Vec<_>>();
    let deep = format!("{}x", "d/".repeat(45));
    let two = [file("a", &large), file("b", &large)];
    for (bytes, says) in [
        (gzip(&tar(&[file("a", &zeros)])), "times as many"),
        (zip(&[file("a", &zeros)], Deflated), "times as many"),
        // Many small files, none of which is a bomb by itself.
        (gzip(&tar(&many(6, &zeros[..600 << 10]))), "times as many"),
        (tar(&two), "more than"),
        (zip(&two, Stored), "more than"),
        // Too many, counting the directories of a name.
        (tar(&[file(&deep, b"a")]), "more than 40 files and directories"),
        (tar(&many(41, b"")), "more than 40"),
        (zip(&many(41, b""), Stored), "40"),
    ] {
        bad(&bytes, says);
    }
    // Past the deadline.
    let (now, place) = (Instant::now(), Place::new());
    let past = now.checked_sub(Duration::from_millis(1)).unwrap_or(now);
    let unpacked = archive::unpack("x", Cursor::new(tar(&[file("a", b"a")])), &LIMITS, past, &place.root());
    failed(unpacked, Kind::Integrity, &["takes too long"]);
}

#[test]
fn truncated_extended_and_other_files_are_refused() {
    let content = binary(40_000);
    let plain = tar(&[file("a", &content)]);
    for cut in [511, 600, 20_000] {
        bad(&plain[..cut], "");
        bad(&gzip(&plain[..cut]), "");
    }
    let packed = gzip(&plain);
    bad(&packed[..packed.len() - 1], "cut off");
    bad(&[plain.as_slice(), b"more"].concat(), "bytes after its end");
    let whole = zip(&[file("a", &content)], Stored);
    bad(&whole[..whole.len() - 1], "");
    bad(&[whole.as_slice(), b"more"].concat(), "bytes after its end");
    for bytes in [b"".as_slice(), b"x", b"<!DOCTYPE html><html></html>", &binary(4096), &gzip(b"x"), &[0; 2048]] {
        bad(bytes, "");
    }
}

#[test]
fn disk_errors_of_unpacking_are_storage_errors() {
    let place = Place::new();
    fs::write(place.root().join("main.tf"), "of another program").unwrap();
    failed(place.unpack(&tar(&[file("main.tf", b"a")])), Kind::Storage, &["main.tf"]);
    assert_eq!(fs::read_to_string(place.root().join("main.tf")).unwrap(), "of another program");
}
