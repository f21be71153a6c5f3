//! Order, grammar and choice of versions, by table. Each row names its source: `GoVersion` (HashiCorp's library), `Tenv`, `Terraform`,
//! `OpenTofu` (the behaviour of these tools for the same text), or `Ours`, a difference that `design/0017-tool-versions.md` justifies.

mod choice;
mod constraints;
mod order;
mod properties;
mod requests;
mod required;
mod tree;
mod versions;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    GoVersion,
    Tenv,
    Terraform,
    OpenTofu,
    Ours,
}

#[test]
fn tables_have_at_least_250_rows() {
    let rows = [choice::ROWS.len(), constraints::ROWS.len(), order::rows().len(), requests::ROWS.len(), required::rows().len()];
    let rows = rows.iter().sum::<usize>() + versions::ORDER.len() + versions::READ.len();
    println!("tool-versions: {rows} rows");
    assert!(rows >= 250, "{rows} rows");
}
