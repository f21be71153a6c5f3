//! Downloads to a file: whole, cut, resumed, restarted.

use std::path::Path;

use tokio::fs::File;
use tool_versions::{
    Kind, Result,
    releases::http::{Auth, Client, Rules},
};

use super::{
    SILENCE, ask, client, fails, rules,
    server::{Act, Request, Server, answer, ok},
};

const LENGTH: u64 = 200_000;

/// The published bytes, which differ from place to place.
fn release() -> Vec<u8> {
    (0..LENGTH).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

type Told = Vec<(u64, Option<u64>)>;

/// Downloads to a file that has other content. Returns the result, the new content, and each report of progress.
async fn download(directory: &Path, url: &str) -> (Result<u64>, Vec<u8>, Told) {
    let path = directory.join("archive");
    std::fs::write(&path, vec![b'!'; 300_000]).unwrap();
    let mut file = File::options().read(true).write(true).open(&path).await.unwrap();
    let mut told = Vec::new();
    let client = Client::new(Rules { silence: SILENCE, ..rules() }, None).unwrap();
    let result = client.download(ask(url, &Auth::None), &mut file, &mut |got, whole| told.push((got, whole))).await;
    drop(file);
    (result, std::fs::read(&path).unwrap(), told)
}

/// The first `count` bytes of an answer that announces all of them.
fn cut(etag: &str, count: usize) -> Vec<Act> {
    let all = release();
    answer(&format!("200 OK\nContent-Length: {}\n{etag}", all.len()), &all[..count])
}

/// A partial answer with this head.
fn part(head: &str, body: &[u8]) -> Vec<Act> {
    answer(&format!("206 Partial Content\n{head}"), body)
}

/// A correct answer to `Range` with `If-Range`.
fn rest(request: &Request, etag: &str) -> Vec<Act> {
    let all = release();
    let from = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        Some(from) if request.header("if-range") == Some(etag) => {
            let (left, last) = (all.len() - from, all.len() - 1);
            let range = format!("Content-Length: {left}\nContent-Range: bytes {from}-{last}/{}\nETag: {etag}", all.len());
            part(&range, &all[from..])
        }
        _ => ok(&format!("ETag: {etag}"), &all),
    }
}

/// The first answers, the expected ranges, and whether the reported progress never goes back.
type Row<'a> = (Vec<Vec<Act>>, &'a [&'a str], bool);

/// Columns: the first answers of a server, whose later ones are correct; the requested ranges; whether the progress went back.
#[tokio::test]
async fn downloads_end_whole() {
    const A: &str = "ETag: \"a\"";
    let half = &release()[70_000..130_000];
    let old = || answer("200 OK\nContent-Length: 9000\nETag: \"old\"", &[b'o'; 5000]);
    let new = part("Content-Length: 2\nContent-Range: bytes 5000-5001/5002\nETag: \"new\"", b"xx");
    let shorter = answer("416 Range Not Satisfiable\nContent-Length: 0", b"");
    // RFC 9110, 15.3.7: a server may send less than was requested.
    let less = part("Content-Length: 60000\nContent-Range: bytes 70000-129999/200000\nETag: \"a\"", half);
    let less_and_cut = part("Content-Length: 60000\nContent-Range: bytes 70000-129999/200000\nETag: \"a\"", &half[..9]);
    let rows: [Row<'_>; 11] = [
        (vec![], &["-"], true),
        (vec![cut(A, 70_000)], &["-", "bytes=70000-"], true),
        (vec![[cut(A, 10), vec![Act::Hang]].concat()], &["-", "bytes=10-"], true),
        (vec![cut(A, 70_000), less_and_cut], &["-", "bytes=70000-", "bytes=70009-"], true),
        (vec![cut(A, 70_000), less], &["-", "bytes=70000-", "bytes=130000-"], true),
        // The entity changed: the server sends all of it, a part of it, or has become shorter.
        (vec![old()], &["-", "bytes=5000-"], false),
        (vec![old(), new], &["-", "bytes=5000-", "-"], false),
        (vec![old(), shorter], &["-", "bytes=5000-", "-"], false),
        // Without a strong tag.
        (vec![cut("", 70_000)], &["-", "-"], false),
        (vec![cut("ETag: W/\"a\"", 70_000)], &["-", "-"], false),
        (vec![cut("ETag: bare", 70_000)], &["-", "-"], false),
    ];
    for (number, (first, ranges, grows)) in rows.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let server =
            Server::start(move |request, count| first.get(count).cloned().unwrap_or_else(|| rest(request, "\"a\""))).await;
        let (result, bytes, told) = download(directory.path(), &server.url("/")).await;
        assert_eq!((result.unwrap(), bytes == release()), (LENGTH, true), "row {number}");
        let seen = server.seen();
        assert_eq!(seen.iter().map(|request| request.header("range").unwrap_or("-")).collect::<Vec<_>>(), ranges, "row {number}");
        assert!(seen.iter().all(|request| request.header("range").is_some() == request.header("if-range").is_some()));
        assert_eq!(told.last(), Some(&(LENGTH, Some(LENGTH))), "row {number}");
        assert!(!grows || told.is_sorted(), "row {number}");
    }
}

#[tokio::test]
async fn false_ranges_are_refused() {
    let body = vec![b'x'; 130_000];
    let range = |range: &str| part(&format!("Content-Length: 130000\nETag: \"a\"\n{range}"), &body);
    let chunked = "Transfer-Encoding: chunked\nETag: \"a\"\nContent-Range: bytes 70000-199999/200000";
    let long = [b"1fbd2\r\n", vec![b'x'; 130_002].as_slice(), b"\r\n0\r\n\r\n"].concat();
    let rows = [
        (range("Content-Range: bytes 60000-199999/200000"), "from byte 60000, not 70000"),
        (range("Content-Range: bytes 70000-199999/300000"), "of 300000 bytes, not 200000"),
        (range("Content-Range: bytes 70000-70009/200000"), "others by its Content-Length"),
        (range("Content-Range: bytes 70000-60000/200000"), "cannot be read"),
        (range("Content-Range: bytes 70000-99999999999999999999999/200000"), "cannot be read"),
        (range("Content-Range: octets 1-2/3"), "cannot be read"),
        (range("X: y"), "cannot be read"),
        (part(chunked, &long), "more than the 200000 bytes"),
    ];
    for (lie, says) in rows {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(move |_, count| if count == 0 { cut("ETag: \"a\"", 70_000) } else { lie.clone() }).await;
        fails(download(directory.path(), &server.url("/")).await.0, Kind::Integrity, says);
        assert_eq!(server.seen().len(), 2);
    }
}

#[tokio::test]
async fn download_failures_are_classified() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(|_, _| cut("", 1000)).await;
    fails(download(directory.path(), &server.url("/")).await.0, Kind::Unavailable, "after 1000 bytes of 200000");
    assert_eq!(server.seen().len(), 3);
    // A file that is open for reading only.
    let server = Server::start(|request, _| rest(request, "\"a\"")).await;
    let mut file = File::open(directory.path().join("archive")).await.unwrap();
    let result = client().download(ask(&server.url("/"), &Auth::None), &mut file, &mut |_, _| {}).await;
    fails(result, Kind::Storage, "the file for OpenTofu 1.99.0");
}
