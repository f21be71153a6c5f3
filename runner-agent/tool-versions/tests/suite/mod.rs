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
