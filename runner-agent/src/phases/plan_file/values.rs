//! Values of resources, in `MessagePack` as the tools write it: <https://github.com/msgpack/msgpack/blob/master/spec.md>. Read for drift
//! only, to name the attributes that differ.

use serde_json::{Map, Value};

/// Maximum depth of a value.
const DEPTH: u8 = 64;

/// Reads a value; `None` if it is not one value.
pub(super) fn value(mut bytes: &[u8]) -> Option<Value> {
    let value = next(&mut bytes, DEPTH)?;
    bytes.is_empty().then_some(value)
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(taken)
}

/// A big-endian number of 1, 2, 4 or 8 bytes.
fn number(from: &mut &[u8], length: usize) -> Option<u64> {
    let bytes = take(from, length)?;
    let number = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    Some(bytes.iter().fold(0, number))
}

fn next(from: &mut &[u8], depth: u8) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let mark = take(from, 1)?[0];
    let length = |from: &mut &[u8], first: u8| {
        let length = number(from, 1 << (mark - first))?;
        usize::try_from(length).ok()
    };
    Some(match mark {
        0..=0x7f | 0xe0..=0xff => Value::from(mark.cast_signed()),
        0x80..=0x8f => map(from, usize::from(mark & 0xf), depth)?,
        0x90..=0x9f => list(from, usize::from(mark & 0xf), depth)?,
        0xa0..=0xbf => text(take(from, usize::from(mark & 0x1f))?),
        0xc0 => Value::Null,
        0xc2 | 0xc3 => Value::from(mark == 0xc3),
        0xc4..=0xc6 => {
            let length = length(from, 0xc4)?;
            Value::from(take(from, length)?)
        }
        // A value that is not known yet, with what is known about it.
        0xc7..=0xc9 => {
            let length = length(from, 0xc7)?;
            Value::from(take(from, length.checked_add(1)?)?)
        }
        0xca => Value::from(f32::from_be_bytes(take(from, 4)?.try_into().ok()?)),
        0xcb => Value::from(f64::from_be_bytes(take(from, 8)?.try_into().ok()?)),
        0xcc..=0xcf => Value::from(number(from, 1 << (mark - 0xcc))?),
        0xd0..=0xd3 => Value::from(take(from, 1 << (mark - 0xd0))?),
        0xd4..=0xd8 => Value::from(take(from, 1 + (1 << (mark - 0xd4)))?),
        0xd9..=0xdb => {
            let length = length(from, 0xd9)?;
            text(take(from, length)?)
        }
        0xdc | 0xdd => {
            let length = number(from, if mark == 0xdc { 2 } else { 4 })?;
            list(from, usize::try_from(length).ok()?, depth)?
        }
        0xde | 0xdf => {
            let length = number(from, if mark == 0xde { 2 } else { 4 })?;
            map(from, usize::try_from(length).ok()?, depth)?
        }
        0xc1 => return None,
    })
}

fn text(bytes: &[u8]) -> Value {
    Value::from(String::from_utf8_lossy(bytes))
}

/// A list. A value whose type the schema leaves open is a list of its type, in binary, and of itself.
fn list(from: &mut &[u8], length: usize, depth: u8) -> Option<Value> {
    let is_open = length == 2 && matches!(from.first(), Some(0xc4..=0xc6));
    let mut values = Vec::new();
    for _ in 0..length {
        values.push(next(from, depth)?);
    }
    if is_open {
        return values.pop();
    }
    Some(Value::Array(values))
}

fn map(from: &mut &[u8], length: usize, depth: u8) -> Option<Value> {
    let mut values = Map::new();
    for _ in 0..length {
        let Value::String(name) = next(from, depth)? else {
            return None;
        };
        values.insert(name, next(from, depth)?);
    }
    Some(Value::Object(values))
}
