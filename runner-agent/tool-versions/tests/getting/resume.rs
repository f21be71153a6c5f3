//! Downloads into files: whole, cut, gone on with, begun again.

use std::path::{Path, PathBuf};

use tokio::fs::File;
use tool_versions::{
    Kind, Result,
    releases::http::{Auth, Client, Rules},
};

use super::{
    SILENCE, ask, client, fails, rules,
    server::{Act, Request, Server, answer, ok},
};

/// What is published: bytes that differ from place to place.
fn release() -> Vec<u8> {
    (0..200_000_u32).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

/// Downloads to a file that had something else in it; what is in it then, and every number that was told.
async fn download(directory: &Path, url: &str) -> (Result<u64>, Vec<u8>, Vec<(u64, Option<u64>)>) {
    download_by(rules(), directory, url).await
}

async fn download_by(rules: Rules, directory: &Path, url: &str) -> (Result<u64>, Vec<u8>, Vec<(u64, Option<u64>)>) {
    let path: PathBuf = directory.join("archive");
    std::fs::write(&path, vec![b'!'; 300_000]).unwrap();
    let mut file = File::options().read(true).write(true).open(&path).await.unwrap();
    let mut told = Vec::new();
    let client = Client::new(rules, None).unwrap();
    let result = client.download(ask(url, &Auth::None), &mut file, &mut |got, whole| told.push((got, whole))).await;
    drop(file);
    (result, std::fs::read(&path).unwrap(), told)
}

/// The first `count` bytes of an answer that announces all of them, and then the end.
fn cut(etag: &str, count: usize) -> Vec<Act> {
    let all = release();
    answer(&format!("200 OK\nContent-Length: {}\n{etag}", all.len()), &all[..count])
}

/// An honest answer to `Range` with `If-Range`.
fn rest(request: &Request, etag: &str) -> Vec<Act> {
    let all = release();
    let from = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        Some(from) if request.header("if-range") == Some(etag) => {
            let (last, whole) = (all.len() - 1, all.len());
            let head = format!(
                "206 Partial Content\nContent-Length: {}\nContent-Range: bytes {from}-{last}/{whole}\nETag: {etag}",
                whole - from
            );
            answer(&head, &all[from..])
        }
        _ => ok(&format!("ETag: {etag}"), &all),
    }
}

#[tokio::test]
async fn a_file_has_what_came_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(|request, _| rest(request, "\"a\"")).await;
    let (result, bytes, told) = download(directory.path(), &server.url("/")).await;
    assert_eq!((result.unwrap(), bytes == release()), (200_000, true));
    assert_eq!(told.last(), Some(&(200_000, Some(200_000))));
    assert!(told.is_sorted());
}

#[tokio::test]
async fn a_cut_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let server =
        Server::start(|request, count| if count == 0 { cut("ETag: \"a\"", 70_000) } else { rest(request, "\"a\"") }).await;
    let (result, bytes, told) = download(directory.path(), &server.url("/")).await;
    assert_eq!((result.unwrap(), bytes == release()), (200_000, true));
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!((seen[0].header("range"), seen[0].header("if-range")), (None, None));
    assert_eq!((seen[1].header("range"), seen[1].header("if-range")), (Some("bytes=70000-"), Some("\"a\"")));
    assert!(told.is_sorted());
}

#[tokio::test]
async fn two_cuts_and_a_silence_are_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(|request, count| match count {
        0 => [cut("ETag: \"a\"", 10), vec![Act::Hang]].concat(),
        1 => {
            let Act::Send(bytes) = rest(request, "\"a\"").remove(0) else { panic!() };
            vec![Act::Send(bytes[..bytes.len() / 2].to_vec())]
        }
        _ => rest(request, "\"a\""),
    })
    .await;
    let (result, bytes, _) = download_by(Rules { silence: SILENCE, ..rules() }, directory.path(), &server.url("/")).await;
    assert_eq!((result.unwrap(), bytes == release()), (200_000, true));
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn a_changed_entity_is_begun_again() {
    // The server keeps to `If-Range` and sends all of the new one.
    let directory = tempfile::tempdir().unwrap();
    let old = || answer("200 OK\nContent-Length: 9000\nETag: \"old\"", &[b'o'; 5000]);
    let server = Server::start(move |request, count| if count == 0 { old() } else { rest(request, "\"new\"") }).await;
    let (result, bytes, told) = download(directory.path(), &server.url("/")).await;
    assert_eq!((result.unwrap(), bytes == release()), (200_000, true));
    assert!(!told.is_sorted());
    // It ignores `If-Range`, and sends the rest of another.
    let server = Server::start(move |request, count| match count {
        0 => old(),
        1 => answer("206 Partial Content\nContent-Length: 2\nContent-Range: bytes 5000-5001/5002\nETag: \"new\"", b"xx"),
        _ => rest(request, "\"new\""),
    })
    .await;
    let (result, bytes, _) = download(directory.path(), &server.url("/")).await;
    assert_eq!((result.unwrap(), bytes == release()), (200_000, true));
    assert_eq!(server.seen()[2].header("range"), None);
    // It has become shorter.
    let server = Server::start(move |request, count| match count {
        0 => old(),
        1 => answer("416 Range Not Satisfiable\nContent-Length: 0", b""),
        _ => rest(request, "\"new\""),
    })
    .await;
    let (result, bytes, _) = download(directory.path(), &server.url("/")).await;
    assert_eq!((result.unwrap(), bytes == release()), (200_000, true));
}

#[tokio::test]
async fn without_a_strong_tag_it_is_begun_again() {
    for etag in ["", "ETag: W/\"a\"", "ETag: bare"] {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(move |request, count| if count == 0 { cut(etag, 70_000) } else { rest(request, "\"a\"") });
        let server = server.await;
        let (result, bytes, _) = download(directory.path(), &server.url("/")).await;
        assert_eq!((result.unwrap(), bytes == release()), (200_000, true), "{etag}");
        assert_eq!(server.seen()[1].header("range"), None, "{etag}");
    }
}

/// RFC 9110, section 15.3.7: a server may send less than was asked for.
#[tokio::test]
async fn a_part_of_what_was_asked_for_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(|request, count| match count {
        0 => cut("ETag: \"a\"", 70_000),
        1 => answer(
            "206 Partial Content\nContent-Length: 60000\nContent-Range: bytes 70000-129999/200000\nETag: \"a\"",
            &release()[70_000..130_000],
        ),
        _ => rest(request, "\"a\""),
    })
    .await;
    let (result, bytes, _) = download(directory.path(), &server.url("/")).await;
    assert_eq!((result.unwrap(), bytes == release()), (200_000, true));
    assert_eq!(server.seen()[2].header("range"), Some("bytes=130000-"));
}

#[tokio::test]
async fn lies_about_parts_are_found() {
    let rows = [
        ("Content-Range: bytes 60000-199999/200000", "from byte 60000, not 70000"),
        ("Content-Range: bytes 70000-199999/300000", "of 300000 bytes, not 200000"),
        ("Content-Range: bytes 70000-70009/200000", "others by its Content-Length"),
        ("Content-Range: bytes 70000-60000/200000", "cannot be read"),
        ("Content-Range: bytes 70000-99999999999999999999999/200000", "cannot be read"),
        ("Content-Range: octets 1-2/3", "cannot be read"),
        ("X: y", "cannot be read"),
    ];
    for (range, says) in rows {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(move |_, count| {
            let part =
                || answer(&format!("206 Partial Content\nContent-Length: 130000\nETag: \"a\"\n{range}"), &vec![b'x'; 130_000]);
            if count == 0 { cut("ETag: \"a\"", 70_000) } else { part() }
        })
        .await;
        let (result, ..) = download(directory.path(), &server.url("/")).await;
        fails(result, Kind::Integrity, says);
        assert_eq!(server.seen().len(), 2);
    }
    // More than the part was to have, in chunks, which announce no length.
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(|_, count| {
        let head = "206 Partial Content\nTransfer-Encoding: chunked\nETag: \"a\"\nContent-Range: bytes 199999-199999/200000";
        if count == 0 { cut("ETag: \"a\"", 199_999) } else { answer(head, b"3\r\nxyz\r\n0\r\n\r\n") }
    })
    .await;
    fails(download(directory.path(), &server.url("/")).await.0, Kind::Integrity, "more than the 200000 bytes");
}

#[tokio::test]
async fn one_that_is_always_cut_is_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(|_, _| cut("", 1000)).await;
    let (result, ..) = download(directory.path(), &server.url("/")).await;
    fails(result, Kind::Unavailable, "after 1000 bytes of 200000");
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_the_disks_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("archive");
    std::fs::write(&path, b"").unwrap();
    let server = Server::start(|request, _| rest(request, "\"a\"")).await;
    // Opened for reading only.
    let mut file = File::open(&path).await.unwrap();
    let result = client().download(ask(&server.url("/"), &Auth::None), &mut file, &mut |_, _| {}).await;
    fails(result, Kind::Storage, "the file for OpenTofu 1.99.0");
}
