//! The order, the grammar and the choice, row by row. Each row cites what it pins: `go-version` (HashiCorp's library), `tenv`,
//! `terraform` and `opentofu` (what these tools do with the same text), or `ours`, a difference on purpose that stands in
//! `design/0017-tool-versions.md`.

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
fn there_are_as_many_rows_as_are_wanted() {
    let rows = [choice::ROWS.len(), constraints::ROWS.len(), order::rows().len(), requests::ROWS.len(), required::rows().len()];
    let rows = rows.iter().sum::<usize>() + versions::ORDER.len() + versions::READ.len();
    println!("tool-versions: {rows} rows");
    assert!(rows >= 250, "{rows} rows");
}
