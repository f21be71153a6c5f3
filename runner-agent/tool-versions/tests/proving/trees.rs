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
    packing::{Entry, binary, directory, entry, extended, file, gzip, link, record, tar, zip},
};
use crate::table;

const LIMITS: Limits = Limits {
    size: 4 << 20,
    ratio: 200,
    entries: 40,
};
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
                let name = path
                    .strip_prefix(self.root())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                let meta = fs::symlink_metadata(&path).unwrap();
                let what = if meta.is_dir() {
                    dirs.push(path);
                    "dir".to_owned()
                } else if meta.is_symlink() {
                    format!("-> {}", fs::read_link(&path).unwrap().display())
                } else {
                    format!(
                        "{:o} {}",
                        meta.permissions().mode() & 0o7777,
                        String::from_utf8_lossy(&fs::read(&path).unwrap())
                    )
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
    let found: Vec<_> = found
        .iter()
        .map(|(name, what)| (name.as_str(), what.as_str()))
        .collect();
    assert_eq!(found, wanted);
}

#[track_caller]
fn bad(bytes: &[u8], says: &str) {
    let place = Place::new();
    failed(place.unpack(bytes), Kind::Integrity, &[says]);
    // Nothing outside of the root changed.
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 2);
    assert_eq!(
        fs::read_to_string(place.0.path().join("beside")).unwrap(),
        "as it was"
    );
    assert!(!Path::new(ESCAPED).exists());
    // Links are made last.
    assert!(
        place.found().values().all(|what| !what.starts_with("->")),
        "{:?}",
        place.found()
    );
}

#[test]
fn all_files_of_each_format_are_unpacked() {
    let plain = tar(&[
        Entry {
            name: b"pax_global_header",
            ..extended(T::XGlobalHeader, b"19 comment=0123456\n")
        },
        directory("./"),
        directory("modules/"),
        file("./main.tf", b"a"),
        file("modules/net/main.tf", b"b"),
        Entry {
            mode: 0o755,
            ..file("bin/run.sh", b"go")
        },
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
    // Without end blocks, and in two gzip members, as some programs write.
    let parts = &plain[..plain.len() - 1024];
    good(&gzip(parts), &wanted);
    good(
        &[gzip(&parts[..700]), gzip(&parts[700..])].concat(),
        &wanted,
    );
    let all = [
        directory("a/"),
        file("a/main.tf", b"a"),
        file("b/c/x", b""),
        link("l", "a/main.tf"),
    ];
    let wanted = [
        ("a", "dir"),
        ("a/main.tf", "755 a"),
        ("b", "dir"),
        ("b/c", "dir"),
        ("b/c/x", "755 "),
        ("l", "-> a/main.tf"),
    ];
    good(&zip(&all, Deflated), &wanted);
    good(&zip(&all, Stored), &wanted);
}

/// Git, Go and GNU tar write extended headers for names that are too long.
#[test]
fn long_names_come_from_extended_headers() {
    let directory = "d".repeat(150);
    let long = format!("{directory}/main.tf");
    let (pax, gnu) = (record("path", &long), format!("{long}\0"));
    for header in [
        extended(T::XHeader, &pax),
        extended(T::GNULongName, gnu.as_bytes()),
    ] {
        good(
            &tar(&[header, file("short", b"a")]),
            &[(&directory, "dir"), (&long, "644 a")],
        );
    }
    let linked = record("linkpath", ESCAPED);
    bad(
        &tar(&[extended(T::XHeader, &linked), link("l", "main.tf")]),
        "a link to an absolute path",
    );
    let (too_long, endless) = ("l".repeat(1100).into_bytes(), vec![b'x'; 70 << 10]);
    for (kind, bytes, says) in [
        (
            T::XHeader,
            record("path", "../../out"),
            "leads out of a directory",
        ),
        (T::XHeader, record("size", "99"), "changes its size"),
        (
            T::XHeader,
            record("GNU.sparse.realsize", "1"),
            "changes its size",
        ),
        (T::XHeader, b"5 a\n\n".to_vec(), "description"),
        (T::XHeader, endless.clone(), "description"),
        (T::GNULongName, too_long, "too long"),
        (T::GNULongName, endless, "description"),
    ] {
        bad(&tar(&[extended(kind, &bytes), file("short", b"a")]), says);
    }
}

/// An entry, and a part of the error.
const HOSTILE: &str = "
    /tmp/pawl-hostile | absolute
    ../beside | leads out
    a/../../beside | leads out
    a\\..\\b | absolute
    C:/x | absolute
    a\u{7}b | invisible characters
    .git/config | git's own
    modules/.GIT/hooks/x | git's own
    l -> /tmp | a link
    l -> /etc/passwd | a link
    l -> .. | a link
    l -> ../beside | a link
    l -> a/../../beside | a link
    l -> ./../beside | a link
    d/l -> ../../beside | leads out of the archive
    # What a zip cannot have.
    l -> | an invalid path
    h => main.tf | a hard link
    h => /etc/passwd | a hard link
    h => ../beside | a hard link
    fifo x | named pipe
    char x | device
    block x | device
    continuous x | not unpacked
    sparse x | not unpacked
    unknown x | not unpacked
    4755 x | set-user-id
    2755 x | set-user-id
    6711 x | set-user-id
";

#[test]
fn hostile_entries_are_refused() {
    let main = file("main.tf", b"a");
    let mut in_zip = true;
    for [text, says] in table(HOSTILE) {
        let hostile = entry(text);
        bad(&tar(&[main.clone(), hostile.clone()]), says);
        in_zip &= !hostile.link.is_empty() || hostile.kind == T::Regular;
        if in_zip {
            bad(&zip(&[main.clone(), hostile], Stored), "");
        }
    }
    for (hostile, says) in [
        (file("a\nb", b"x"), "invisible characters"),
        (
            Entry {
                name: b"caf\xe9.tf",
                ..main.clone()
            },
            "not UTF-8",
        ),
        (
            Entry {
                link: b"\xff",
                ..link("l", "")
            },
            "not UTF-8",
        ),
    ] {
        bad(&tar(&[main.clone(), hostile]), says);
    }
    bad(&tar(&[file("a//./", b"")]), "no files");
}

/// The entries of an archive, and a part of the error.
const OVERLAPPING: &str = "
    e/x, d -> e, d/x | below a file or a link
    d -> e, d | there twice
    d/x, d -> e | there twice
    d -> e, dir d/ | there twice
    a, a | there twice
    a/b, ./a//b | there twice
    a, a/b | below a file
    dir a/, a | there twice
";

/// The same name twice, and writes through links and files, in each order.
#[test]
fn overlapping_entries_are_refused() {
    for [all, says] in table(OVERLAPPING) {
        bad(&tar(&all.split(", ").map(entry).collect::<Vec<_>>()), says);
    }
    bad(
        &zip(&[link("d", "e"), file("d/x", b"x")], Stored),
        "below a file or a link",
    );
}

#[test]
fn bombs_are_refused() {
    let (zeros, large) = (vec![0; 3 << 20], binary(3 << 20));
    let names: Vec<String> = (0..41).map(|n| n.to_string()).collect();
    let many = |count: usize, bytes| {
        names[..count]
            .iter()
            .map(|name| file(name, bytes))
            .collect::<Vec<_>>()
    };
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
        (
            tar(&[file(&deep, b"a")]),
            "more than 40 files and directories",
        ),
        (tar(&many(41, b"")), "more than 40"),
        (zip(&many(41, b""), Stored), "40"),
    ] {
        bad(&bytes, says);
    }
    // Past the deadline.
    let (now, place) = (Instant::now(), Place::new());
    let past = now.checked_sub(Duration::from_millis(1)).unwrap_or(now);
    let unpacked = archive::unpack(
        "x",
        Cursor::new(tar(&[file("a", b"a")])),
        &LIMITS,
        past,
        &place.root(),
    );
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
    bad(
        &gzip(&[plain.as_slice(), &plain].concat()),
        "bytes after its end",
    );
    bad(
        &[packed.as_slice(), &gzip(b"more")].concat(),
        "bytes after its end",
    );
    bad(
        &[packed.as_slice(), b"more"].concat(),
        "what follows its last entry",
    );
    let changed = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 1;
        bytes
    };
    bad(&changed(packed.clone(), packed.len() - 8), "checksum");
    bad(&gzip(&changed(plain.clone(), 100)), "header");
    let whole = zip(&[file("a", &content)], Stored);
    bad(&whole[..whole.len() - 1], "");
    bad(&[whole.as_slice(), b"more"].concat(), "bytes after its end");
    for bytes in [
        b"".as_slice(),
        b"x",
        b"<!DOCTYPE html><html></html>",
        &binary(4096),
        &gzip(b"x"),
        &[0; 2048],
    ] {
        bad(bytes, "");
    }
}

#[test]
fn disk_errors_of_unpacking_are_storage_errors() {
    let place = Place::new();
    fs::write(place.root().join("main.tf"), "of another program").unwrap();
    failed(
        place.unpack(&tar(&[file("main.tf", b"a")])),
        Kind::Storage,
        &["main.tf"],
    );
    assert_eq!(
        fs::read_to_string(place.root().join("main.tf")).unwrap(),
        "of another program"
    );
}
