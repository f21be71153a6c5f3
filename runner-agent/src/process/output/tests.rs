//! Splits arbitrary output into lines within bounded memory.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::*;

fn cut(chunks: &[&[u8]]) -> Vec<String> {
    let (mut lines, mut seen) = (Lines::default(), Vec::new());
    let mut take = |line: &str, cut: u64| {
        seen.push(if cut > 0 {
            format!("{line}{}", cut_marker(cut))
        } else {
            line.to_owned()
        });
    };
    for chunk in chunks {
        lines.feed(chunk, &mut take);
    }
    lines.finish(&mut take);
    seen
}

/// A fixed pseudo-random sequence.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn lines_are_joined_across_chunks() {
    assert_eq!(cut(&[b"a\nb", b"c\r\n\n", b"d"]), ["a", "bc", "", "d"]);
    assert_eq!(cut(&[b"\xff\n"]), ["\u{fffd}"]);
    assert!(cut(&[]).is_empty());
}

#[test]
fn long_line_is_truncated_and_the_next_is_whole() {
    let long = vec![b'x'; MAX_LINE + 10];
    for chunk in [1 << 12, 1 << 16, long.len() + 8] {
        let text = [&long[..], b"\nnext\n"].concat();
        let seen = cut(&text.chunks(chunk).collect::<Vec<_>>());
        assert_eq!(seen.len(), 2, "chunks of {chunk}");
        assert!(
            seen[0].ends_with("[10 more bytes of this line were cut]"),
            "{}",
            &seen[0][seen[0].len() - 60..]
        );
        assert_eq!(seen[1], "next");
    }
    // A line of exactly the maximum length is whole.
    assert_eq!(
        cut(&[vec![b'x'; MAX_LINE].as_slice(), b"\n"])[0].len(),
        MAX_LINE
    );
}

#[test]
fn line_is_not_truncated_within_a_character() {
    for last in ["ä", "日", "👩"] {
        for fits in 1..last.len() {
            let mut text = vec![b'x'; MAX_LINE - fits];
            text.extend_from_slice(last.as_bytes());
            text.extend_from_slice(b"\n");
            let seen = cut(&[&text]);
            assert!(
                !seen[0].contains('\u{fffd}'),
                "{last} after {fits} of its bytes"
            );
            assert!(
                seen[0].ends_with(&cut_marker(last.len() as u64)),
                "{}",
                &seen[0][seen[0].len() - 60..]
            );
        }
    }
    assert_eq!(
        [
            unfinished(b"a\xff"),
            unfinished(b"\x80\x80"),
            unfinished("ä".as_bytes()),
            unfinished(b"")
        ],
        [0; 4]
    );
}

#[test]
fn invalid_utf8_yields_the_same_lines_for_any_chunks() {
    let bytes = noise(200_000);
    let whole = cut(&[&bytes]);
    assert!(
        whole.len() > 500 && whole.iter().any(|line| line.contains('\u{fffd}')),
        "{} lines",
        whole.len()
    );
    for size in [1, 7, 4096] {
        assert_eq!(
            cut(&bytes.chunks(size).collect::<Vec<_>>()),
            whole,
            "chunks of {size}"
        );
    }
}

/// A log that accepts nothing until allowed.
#[derive(Clone, Default)]
struct Slow {
    may: Arc<AtomicBool>,
    taken: Arc<AtomicUsize>,
}
impl LogSink for Slow {}
impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        while !self.may.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.taken.fetch_add(bytes.len(), Ordering::SeqCst);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn unread_log_buffers_little_and_loses_nothing() {
    const LINES: usize = 24;
    let slow = Slow::default();
    let log = Log::to(slow.clone());
    let given = Arc::new(AtomicUsize::new(0));
    let (writer, count) = (log.clone(), given.clone());
    let writing = tokio::spawn(async move {
        for _ in 0..LINES {
            writer.write(vec![b'z'; MAX_LINE]).await;
            count.fetch_add(MAX_LINE, Ordering::SeqCst);
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waiting = given.load(Ordering::SeqCst);
    assert!(
        waiting <= (MAX_CHUNKS + 1) * MAX_CHUNK,
        "{waiting} bytes wait in memory"
    );
    slow.may.store(true, Ordering::SeqCst);
    writing.await.unwrap();
    log.flush(Duration::from_secs(10)).await;
    assert_eq!(slow.taken.load(Ordering::SeqCst), LINES * MAX_LINE);
}
