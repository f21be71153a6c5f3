use super::*;

#[test]
fn only_a_path_of_ours_survives_the_login() {
    for next in ["/", "/runs/a/b?q=a%20b", "/a//b"] {
        assert!(is_path(next), "{next}");
    }
    for next in [
        "",
        "runs",
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/a\r\nSet-Cookie: a",
        "/ü",
        "javascript:alert(1)",
        "@evil.example",
    ] {
        assert!(!is_path(next), "{next}");
    }
    assert!(!is_path(&format!("/{}", "a".repeat(1000))));
}
