use super::*;

#[test]
fn output_of_cat_file_batch_is_parsed() {
    let output = b"aa blob 3\nx\ny\nbb missing\ncc blob 0\n\n";
    let found = batch(output).unwrap();
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [("aa", &b"x\ny"[..]), ("cc", b"")]
    );
    assert!(batch(b"aa blob 30\nx\n").is_none() && batch(b"nonsense").is_none());
}

#[test]
fn server_is_the_part_before_the_path() {
    for (url, expected) in [
        ("https://h:1/a/b", "https://h:1"),
        ("git@h:a/b", "git@h"),
        ("ssh://git@h/a", "ssh://git@h"),
        ("https://h", "https://h"),
    ] {
        assert_eq!(server(url), expected);
    }
}

/// Burrito 11.20: fetched data was never removed, until the volume was full and the pod evicted.
#[test]
fn least_recently_used_mirrors_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("left/behind")).unwrap();
    let mirrors = Arc::new(Mirrors::new(dir.path(), 1000).unwrap());
    assert!(!dir.path().join("left").exists());
    for uid in ["a", "b", "c"] {
        drop(Mirrors::uses(&mirrors, uid));
        fs::create_dir_all(mirrors.dir(uid)).unwrap();
        fs::write(mirrors.dir(uid).join("pack"), [0; 400]).unwrap();
    }
    let busy = Mirrors::uses(&mirrors, "a");
    mirrors.make_room();
    let there = |uid: &str| mirrors.dir(uid).exists();
    assert!(there("a") && !there("b") && there("c"), "one in use stays");
    fs::write(mirrors.dir("a").join("more"), [0; 900]).unwrap();
    mirrors.grows("a");
    drop(busy);
    mirrors.make_room();
    assert!(!there("a"), "alone it is too large");
    drop(Mirrors::uses(&mirrors, "c"));
    fs::create_dir_all(mirrors.dir("c")).unwrap();
    (0..=MAX_COMMITS).for_each(|_| mirrors.grows("c"));
    mirrors.make_room();
    assert!(!there("c"));
}
