//! Tests which data is stored, in which order, and how dropped data is reported.

use super::*;

#[test]
fn phases_are_sent_in_their_order_and_ended_once() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::create(dir.path().join("log")).unwrap();
    let mut writer = SpoolWriter(spool.clone());
    writer.write_all(b"before any phase").unwrap();
    spool.enter("setup");
    writer.write_all(b"hello ").unwrap();
    writer.write_all(b"world").unwrap();
    spool.enter("init");
    writer.write_all(b"init").unwrap();
    let piece = spool.next(8).unwrap();
    assert_eq!(
        (piece.phase, piece.offset, piece.bytes.as_slice(), piece.end),
        ("setup", 0, &b"hello wo"[..], false)
    );
    spool.acked("setup", 8, false);
    let piece = spool.next(8).unwrap();
    assert_eq!(
        (piece.offset, piece.bytes.as_slice(), piece.end),
        (8, &b"rld"[..], true)
    );
    spool.acked("setup", 11, true);
    let piece = spool.next(8).unwrap();
    assert_eq!(
        (piece.phase, piece.bytes.as_slice(), piece.end),
        ("init", &b"init"[..], false)
    );
    spool.acked("init", 4, false);
    assert!(spool.next(8).is_none() && spool.waiting() == (0, false));
    spool.seal();
    let piece = spool.next(8).unwrap();
    assert!(piece.end && piece.bytes.is_empty() && spool.waiting() == (0, true));
    spool.acked("init", 4, true);
    assert!(spool.next(8).is_none());
    // Data that the datastore has uses no disk space, and no file ever had a name.
    assert!(
        spool
            .inner()
            .phases
            .iter()
            .all(|phase| phase.file.size().unwrap() == 0)
    );
    assert!(
        fs::read_dir(dir.path().join("log"))
            .unwrap()
            .next()
            .is_none()
    );
}

#[test]
fn dropped_bytes_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::create(dir.path().join("log")).unwrap();
    spool.enter("apply");
    spool.inner().phases[0].cut = 77;
    SpoolWriter(spool.clone()).write_all(b"next").unwrap();
    let piece = spool.next(1000).unwrap();
    assert_eq!(
        piece.bytes,
        b"[77 bytes are missing here: the log could not be kept]\nnext"
    );
}

/// Writes lines of 100 bytes, and uploads the waiting data at intervals. Returns the received lines in order, and the number of
/// bytes reported as missing.
fn sent(waiting: u64, log: u64, lines: usize, send_every: usize) -> (Vec<String>, u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = Spool::create(dir.path().join("log")).unwrap();
    Arc::get_mut(&mut spool).unwrap().most = (waiting, log);
    spool.enter("apply");
    let (mut all, mut most) = (Vec::new(), 0);
    let mut send = |spool: &Spool| {
        while let Some(piece) = spool.next(1000).filter(|piece| !piece.bytes.is_empty()) {
            all.extend_from_slice(&piece.bytes);
            spool.acked(piece.phase, piece.offset + piece.bytes.len() as u64, false);
        }
    };
    for n in 0..lines {
        SpoolWriter(spool.clone())
            .write_all(format!("{n:099}\n").as_bytes())
            .unwrap();
        most = most.max(spool.waiting().0);
        if n % send_every == send_every - 1 {
            send(&spool);
        }
    }
    spool.seal();
    send(&spool);
    assert!(
        most <= waiting && all.len() as u64 <= log,
        "{most} bytes wait, {} are kept",
        all.len()
    );
    let mark = |line: &str| {
        line.strip_prefix('[')?
            .strip_suffix(" bytes are missing here: the log could not be kept]")?
            .parse::<u64>()
            .ok()
    };
    let text = String::from_utf8(all).unwrap();
    (
        text.lines()
            .filter(|line| mark(line).is_none())
            .map(str::to_owned)
            .collect(),
        text.lines().filter_map(mark).sum::<u64>(),
    )
}

#[test]
fn data_that_fits_is_sent_and_the_rest_is_counted() {
    // Columns: limit of waiting bytes, limit of a phase, upload interval, and the minimum number of received lines (of 1000).
    for (waiting, log, send_every, least) in [
        (1 << 20, 1 << 20, 1000, 1000),
        (4096, 1 << 20, 10, 1000),
        (4096, 1 << 20, 200, 150),
        (1 << 20, 20_000, 10, 190),
        (4096, 20_000, 100, 150),
    ] {
        let (kept, missing) = sent(waiting, log, 1000, send_every);
        assert!(
            kept.len() >= least,
            "{} lines with {waiting} and {log}",
            kept.len()
        );
        assert_eq!(
            kept.len() as u64 * 100 + missing,
            100_000,
            "with {waiting} and {log}"
        );
        assert!(
            kept.iter().all(|line| line.len() == 99) && kept.is_sorted(),
            "lines are cut or out of order"
        );
    }
}
