//! Plan files as the real tools write them: an archive whose member `tfplan` is a message of protocol buffers. The agent's
//! `phases/plan_file` has the numbers of the fields.

use serde_json::Value;

const ACTIONS: [&[&str]; 11] = [
    &["no-op"],
    &["create"],
    &["read"],
    &["update"],
    &[],
    &["delete"],
    &["delete", "create"],
    &["create", "delete"],
    &["forget"],
    &["create", "forget"],
    &["forget", "create"],
];

/// The version of the format.
pub const VERSION: u64 = 3;

/// The plan file of a plan that `show -json` prints like this, with another member before the plan. `nonce` makes it differ from others.
pub fn of(printed: &Value, version: u64, nonce: &str, member: (&str, &[u8])) -> Vec<u8> {
    let list = |key: &str| printed[key].as_array().cloned().unwrap_or_default();
    let mut plan = flag(1, version);
    for one in list("resource_changes") {
        plan.extend(field(3, &resource(&one)));
    }
    for (name, one) in printed["output_changes"].as_object().into_iter().flatten() {
        let output = [field(1, name.as_bytes()), field(2, &change(one))].concat();
        plan.extend(field(4, &output));
    }
    for one in list("resource_drift") {
        plan.extend(field(18, &resource(&one)));
    }
    for (number, key) in [(20, "errored"), (25, "applyable")] {
        plan.extend(flag(
            number,
            printed[key].as_bool().unwrap_or_default().into(),
        ));
    }
    plan.extend(field(21, nonce.as_bytes()));
    archive(&[member, ("tfplan", &plan)])
}

/// The first member of a plan file of [`of`].
pub fn member(file: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    let begin = 30 + usize::from(u16::from_le_bytes(file.get(26..28)?.try_into().ok()?));
    file.get(begin..begin + usize::try_from(number(18)?).ok()?)
}

fn resource(one: &Value) -> Vec<u8> {
    let mut parts = field(9, &change(&one["change"]));
    for (number, key) in [(7, "deposed"), (13, "address"), (14, "previous_address")] {
        if let Some(text) = one[key].as_str() {
            parts.extend(field(number, text.as_bytes()));
        }
    }
    parts
}

fn change(one: &Value) -> Vec<u8> {
    let actions: Vec<_> = one["actions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let action = ACTIONS.iter().position(|known| *known == actions);
    let mut parts = flag(1, action.unwrap_or_default() as u64);
    if one["importing"].is_object() {
        parts.extend(field(5, &[]));
    }
    parts
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

fn flag(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

fn field(number: u64, value: &[u8]) -> Vec<u8> {
    let length = varint(value.len() as u64);
    [varint(number << 3 | 2), length, value.to_vec()].concat()
}

/// An archive of stored members, without checksums, which the agent does not read.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let short = |length: usize| u16::try_from(length).unwrap_or_default().to_le_bytes();
    let long = |length: usize| u32::try_from(length).unwrap_or_default().to_le_bytes();
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let size = long(bytes.len());
        let shared = [
            &[20, 0, 0, 0, 0, 0][..],
            &[0; 8],
            &size,
            &size,
            &short(name.len()),
            &[0; 2],
        ];
        let (shared, name) = (shared.concat(), name.as_bytes());
        let at = long(file.len());
        file.extend([b"PK\x03\x04", &shared[..], name, bytes].concat());
        directory.extend([b"PK\x01\x02\x14\0", &shared[..], &[0; 10], &at, name].concat());
    }
    let (count, size, at) = (
        short(members.len()),
        long(directory.len()),
        long(file.len()),
    );
    let end = [
        &b"PK\x05\x06\0\0\0\0"[..],
        &count,
        &count,
        &size,
        &at,
        &[0; 2],
    ]
    .concat();
    [file, directory, end].concat()
}
