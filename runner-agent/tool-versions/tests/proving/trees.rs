//! Unpacking all files of an archive below one directory.

use std::{
    collections::BTreeMap,
    fs,
    io::Cursor,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use tar::EntryType;
use tool_versions::{Error, Kind, Limits, archive};
use zip::CompressionMethod;

use super::{
    archives::{
        In::{Directory, File, Link},
        binary, gzip, zip,
    },
    failed,
};

const LIMITS: Limits = Limits { size: 4 << 20, ratio: 200, entries: 40 };

/// A tar entry with any content.
#[derive(Clone)]
struct Raw<'a> {
    name: &'a [u8],
    kind: EntryType,
    mode: u32,
    link: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Raw<'a> {
    fn new(name: &'a str, kind: EntryType) -> Self {
        Self { name: name.as_bytes(), kind, mode: 0o644, link: b"", bytes: b"" }
    }

    fn file(name: &'a str, bytes: &'a [u8]) -> Self {
        Self { bytes, ..Self::new(name, EntryType::Regular) }
    }

    fn link(name: &'a str, kind: EntryType, to: &'a str) -> Self {
        Self { link: to.as_bytes(), ..Self::new(name, kind) }
    }

    fn block(&self) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        let raw = header.as_mut_bytes();
        raw[..self.name.len()].copy_from_slice(self.name);
        raw[157..157 + self.link.len()].copy_from_slice(self.link);
        header.set_entry_type(self.kind);
        header.set_mode(self.mode);
        header.set_size(self.bytes.len() as u64);
        header.set_cksum();
        let padding = vec![0; self.bytes.len().next_multiple_of(512) - self.bytes.len()];
        [header.as_bytes().as_slice(), self.bytes, &padding].concat()
    }
}

fn tar_of(all: &[Raw<'_>]) -> Vec<u8> {
    let blocks: Vec<_> = all.iter().map(Raw::block).collect();
    [blocks.concat(), vec![0; 1024]].concat()
}

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

    fn unpack(&self, bytes: &[u8], limits: &Limits, within: Duration) -> Result<archive::Unpacked, Error> {
        archive::unpack("x", Cursor::new(bytes), limits, Instant::now() + within, &self.root())
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

    /// Asserts that nothing beside the root changed.
    #[track_caller]
    fn is_unchanged_outside(&self) {
        let names: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(fs::read_to_string(self.0.path().join("beside")).unwrap(), "as it was");
        assert!(!Path::new("/tmp/pawl-hostile").exists());
    }
}

#[track_caller]
fn good(bytes: &[u8], wanted: &[(&str, &str)]) {
    let place = Place::new();
    place.unpack(bytes, &LIMITS, Duration::from_secs(600)).unwrap();
    let found = place.found();
    let found: Vec<_> = found.iter().map(|(name, what)| (name.as_str(), what.as_str())).collect();
    assert_eq!(found, wanted);
}

#[track_caller]
fn bad(bytes: &[u8], says: &[&str]) {
    let place = Place::new();
    failed(place.unpack(bytes, &LIMITS, Duration::from_secs(600)), Kind::Integrity, says);
    place.is_unchanged_outside();
    // Links are made last.
    assert!(place.found().values().all(|what| !what.starts_with("->")), "{:?}", place.found());
}

#[test]
fn all_files_of_each_format_are_unpacked() {
    let program = Raw { mode: 0o755, ..Raw::file("bin/run.sh", b"go") };
    let all = [
        Raw { kind: EntryType::XGlobalHeader, ..Raw::file("pax_global_header", b"19 comment=0123456\n") },
        Raw::new("./", EntryType::Directory),
        Raw::new("modules/", EntryType::Directory),
        Raw::file("./main.tf", b"a"),
        Raw::file("modules/net/main.tf", b"b"),
        program,
        Raw::link("link.tf", EntryType::Symlink, "modules/../main.tf"),
    ];
    let wanted = [
        ("bin", "dir"),
        ("bin/run.sh", "755 go"),
        ("link.tf", "-> modules/../main.tf"),
        ("main.tf", "644 a"),
        ("modules", "dir"),
        ("modules/net", "dir"),
        ("modules/net/main.tf", "644 b"),
    ];
    let plain = tar_of(&all);
    good(&plain, &wanted);
    good(&gzip(&plain), &wanted);
    for method in [CompressionMethod::Deflated, CompressionMethod::Stored] {
        let all = [Directory("a/"), File("a/main.tf", b"a"), File("b/c/x", b""), Link("l", "a/main.tf")];
        let wanted =
            [("a", "dir"), ("a/main.tf", "755 a"), ("b", "dir"), ("b/c", "dir"), ("b/c/x", "755 "), ("l", "-> a/main.tf")];
        good(&zip(&all, method), &wanted);
    }
}

/// Git, Go and GNU tar write extended headers for names that are too long.
#[test]
fn long_names_come_from_extended_headers() {
    let long = format!("{}/main.tf", "d".repeat(150));
    let record = format!("{} path={long}\n", long.len() + 10);
    let pax = Raw { kind: EntryType::XHeader, ..Raw::file("x", record.as_bytes()) };
    let gnu = format!("{long}\0");
    let gnu = Raw { kind: EntryType::GNULongName, ..Raw::file("x", gnu.as_bytes()) };
    let directory = "d".repeat(150);
    for description in [pax, gnu] {
        good(&tar_of(&[description, Raw::file("short", b"a")]), &[(&directory, "dir"), (&long, "644 a")]);
    }
    let out = "18 path=../../out\n";
    let description = Raw { kind: EntryType::XHeader, ..Raw::file("x", out.as_bytes()) };
    bad(&tar_of(&[description, Raw::file("short", b"a")]), &["leads out of a directory"]);
    let linked = "30 linkpath=/tmp/pawl-hostile\n";
    let description = Raw { kind: EntryType::XHeader, ..Raw::file("x", linked.as_bytes()) };
    bad(&tar_of(&[description, Raw::link("l", EntryType::Symlink, "main.tf")]), &["a link to an absolute path"]);
    let size = Raw { kind: EntryType::XHeader, ..Raw::file("x", b"11 size=99\n") };
    bad(&tar_of(&[size, Raw::file("a", b"a")]), &["changes its size"]);
}

#[test]
fn escaping_names_are_refused() {
    for (name, says) in [
        ("/tmp/pawl-hostile", "absolute"),
        ("../beside", "leads out"),
        ("a/../../beside", "leads out"),
        ("a\\..\\b", "absolute"),
        ("C:/x", "absolute"),
        ("a\nb", "cannot be seen"),
        (".git/config", "git's own"),
        ("modules/.GIT/hooks/x", "git's own"),
    ] {
        bad(&tar_of(&[Raw::file("main.tf", b"a"), Raw::file(name, b"x")]), &[says]);
        bad(&zip(&[File("main.tf", b"a"), File(name, b"x")], CompressionMethod::Stored), &[]);
    }
    bad(&tar_of(&[Raw { name: b"caf\xe9.tf", ..Raw::file("", b"x") }]), &["no UTF-8"]);
    bad(&tar_of(&[Raw::file("a//./", b"")]), &["no files"]);
    let long = "l".repeat(1100);
    let description = Raw { kind: EntryType::GNULongName, ..Raw::file("x", long.as_bytes()) };
    bad(&tar_of(&[description, Raw::file("short", b"a")]), &["too long"]);
}

#[test]
fn escaping_links_and_writes_through_links_are_refused() {
    for to in ["/tmp", "/etc/passwd", "..", "../beside", "a/../../beside", "./../beside"] {
        bad(&tar_of(&[Raw::file("main.tf", b"a"), Raw::link("l", EntryType::Symlink, to)]), &["a link"]);
        bad(&zip(&[File("main.tf", b"a"), Link("l", to)], CompressionMethod::Stored), &["a link"]);
    }
    bad(&tar_of(&[Raw::link("d/l", EntryType::Symlink, "../../beside")]), &["leads out of the archive"]);
    bad(&tar_of(&[Raw::link("l", EntryType::Symlink, "")]), &["no path"]);
    bad(&tar_of(&[Raw { link: b"\xff", ..Raw::link("l", EntryType::Symlink, "") }]), &["no UTF-8"]);
    // A link and a file through it, in both orders and by the same name.
    let link = Raw::link("d", EntryType::Symlink, "e");
    bad(&tar_of(&[Raw::file("e/x", b""), link.clone(), Raw::file("d/x", b"x")]), &["below a file or a link"]);
    bad(&tar_of(&[link.clone(), Raw::file("d", b"x")]), &["there twice"]);
    bad(&tar_of(&[Raw::file("d/x", b"x"), link.clone()]), &["there twice"]);
    bad(&tar_of(&[link.clone(), Raw::new("d/", EntryType::Directory)]), &["there twice"]);
    bad(&zip(&[Link("d", "e"), File("d/x", b"x")], CompressionMethod::Stored), &["below a file or a link"]);
    for to in ["main.tf", "/etc/passwd", "../beside"] {
        bad(&tar_of(&[Raw::file("main.tf", b"a"), Raw::link("h", EntryType::Link, to)]), &["a hard link"]);
    }
}

#[test]
fn special_files_are_refused() {
    for (kind, says) in [
        (EntryType::Fifo, "named pipe"),
        (EntryType::Char, "device"),
        (EntryType::Block, "device"),
        (EntryType::Continuous, "not unpacked"),
        (EntryType::GNUSparse, "not unpacked"),
        (EntryType::new(b'Z'), "not unpacked"),
    ] {
        bad(&tar_of(&[Raw::file("main.tf", b"a"), Raw::new("x", kind)]), &[says]);
    }
    for mode in [0o4755, 0o2755, 0o6711] {
        bad(&tar_of(&[Raw { mode, ..Raw::file("x", b"a") }]), &["set-user-id"]);
    }
    for bytes in [b"".as_slice(), b"x", b"<!DOCTYPE html><html></html>", &binary(4096), &gzip(b"x"), &[0; 2048]] {
        bad(bytes, &[]);
    }
}

#[test]
fn duplicate_names_are_refused() {
    bad(&tar_of(&[Raw::file("a", b"a"), Raw::file("a", b"b")]), &["there twice"]);
    bad(&tar_of(&[Raw::file("a/b", b"a"), Raw::file("./a//b", b"b")]), &["there twice"]);
    bad(&tar_of(&[Raw::file("a", b"a"), Raw::file("a/b", b"b")]), &["below a file"]);
    bad(&tar_of(&[Raw::new("a/", EntryType::Directory), Raw::file("a", b"b")]), &["there twice"]);
}

#[test]
fn bombs_are_refused() {
    let zeros = vec![0; 3 << 20];
    let says = "times as many";
    bad(&gzip(&tar_of(&[Raw::file("a", &zeros)])), &[says]);
    bad(&zip(&[File("a", &zeros)], CompressionMethod::Deflated), &[says]);
    // Many small files, none of which is a bomb by itself.
    let part = &zeros[..600 << 10];
    let names: Vec<String> = (0..6).map(|n| n.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| Raw::file(name, part)).collect();
    bad(&gzip(&tar_of(&many)), &[says]);
    // Too large without compression.
    let large = binary(3 << 20);
    bad(&tar_of(&[Raw::file("a", &large), Raw::file("b", &large)]), &["more than"]);
    bad(&zip(&[File("a", &large), File("b", &large)], CompressionMethod::Stored), &["more than"]);
    // Too many, counting the directories of a name.
    let deep = format!("{}x", "d/".repeat(45));
    bad(&tar_of(&[Raw::file(&deep, b"a")]), &["more than 40 files and directories"]);
    let names: Vec<String> = (0..41).map(|n| n.to_string()).collect();
    bad(&tar_of(&names.iter().map(|name| Raw::file(name, b"")).collect::<Vec<_>>()), &["more than 40"]);
    bad(&zip(&names.iter().map(|name| File(name, b"")).collect::<Vec<_>>(), CompressionMethod::Stored), &["40"]);
    // An endless extended header.
    let long = vec![b'x'; 70 << 10];
    bad(&tar_of(&[Raw { kind: EntryType::GNULongName, ..Raw::file("x", &long) }]), &["description"]);
    // Past the deadline.
    let place = Place::new();
    let unpacked = archive::unpack("x", Cursor::new(tar_of(&[Raw::file("a", b"a")])), &LIMITS, past(), &place.root());
    failed(unpacked, Kind::Integrity, &["takes too long"]);
}

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_millis(1)).unwrap_or(now)
}

#[test]
fn truncated_and_extended_archives_are_refused() {
    let content = binary(40_000);
    let plain = tar_of(&[Raw::file("a", &content)]);
    for cut in [511, 600, 20_000] {
        bad(&plain[..cut], &[]);
        bad(&gzip(&plain[..cut]), &[]);
    }
    let packed = gzip(&plain);
    bad(&packed[..packed.len() - 1], &["cut off"]);
    bad(&[plain.as_slice(), b"more"].concat(), &["bytes after its end"]);
    let whole = zip(&[File("a", &content)], CompressionMethod::Stored);
    bad(&whole[..whole.len() - 1], &[]);
    bad(&[whole.as_slice(), b"more"].concat(), &["bytes after its end"]);
}

#[test]
fn disk_errors_of_unpacking_are_storage_errors() {
    let place = Place::new();
    fs::write(place.root().join("main.tf"), "of somebody else").unwrap();
    let unpacked = place.unpack(&tar_of(&[Raw::file("main.tf", b"a")]), &LIMITS, Duration::from_secs(600));
    failed(unpacked, Kind::Storage, &["main.tf"]);
    assert_eq!(fs::read_to_string(place.root().join("main.tf")).unwrap(), "of somebody else");
}
