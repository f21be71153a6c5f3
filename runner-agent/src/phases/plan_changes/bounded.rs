//! Bounds on the memory that values of a plan take.

use std::{
    cell::Cell,
    fmt,
    hash::{BuildHasher as _, DefaultHasher, Hasher as _, RandomState},
    io::{self, Read},
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// The longest string, in bytes of JSON.
pub(super) const LONGEST: usize = 256 << 10;
/// The most bytes of one value, its structure included.
pub(super) const MOST: usize = 4 << 20;
/// The size of a node beside its text, in bytes.
const NODE: usize = 32;

/// A value, or as much of it as fits.
pub(super) struct Limited {
    pub(super) value: Value,
    pub(super) is_whole: bool,
}

impl Default for Limited {
    fn default() -> Self {
        Self {
            value: Value::Null,
            is_whole: true,
        }
    }
}

impl<'de> Deserialize<'de> for Limited {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(Some(MOST));
        let value = Within(&left).deserialize(deserializer)?;
        Ok(Self {
            value,
            is_whole: left.get().is_some(),
        })
    }
}

/// Builds a value while bytes are left.
#[derive(Clone, Copy)]
struct Within<'a>(&'a Cell<Option<usize>>);

impl Within<'_> {
    fn takes(self, text: usize) -> bool {
        self.0
            .set(self.0.get().and_then(|left| left.checked_sub(text + NODE)));
        self.0.get().is_some()
    }

    fn leaf(self, value: Value) -> Value {
        if self.takes(0) { value } else { Value::Null }
    }
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(self.leaf(value.into()))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(self.leaf(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(self.leaf(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(self.leaf(value.into()))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(if self.takes(value.len()) {
            value.into()
        } else {
            Value::Null
        })
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while self.takes(0) {
            match list.next_element_seed(self)? {
                Some(value) => all.push(value),
                None => return Ok(all.into()),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while self.takes(0) {
            let Some(key) = map.next_key::<String>()? else {
                return Ok(all.into());
            };
            self.takes(key.len());
            let value = map.next_value_seed(self)?;
            all.insert(key, value);
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }
}

/// JSON whose long strings are cut: `…`, and the length and a hash of the whole string, so that strings which differ behind the cut still
/// differ. The hash has a random key.
pub(super) struct Cut<R> {
    from: R,
    raw: Vec<u8>,
    out: Vec<u8>,
    at: usize,
    keys: RandomState,
    string: Option<InString>,
}

struct InString {
    length: usize,
    /// Bytes left of an escape.
    escape: u8,
    cut: bool,
    hash: DefaultHasher,
}

impl<R> Cut<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            raw: vec![0; 64 << 10],
            out: Vec::new(),
            at: 0,
            keys: RandomState::new(),
            string: None,
        }
    }

    fn byte(&mut self, byte: u8) -> io::Result<()> {
        let Some(string) = &mut self.string else {
            if byte == b'"' {
                self.string = Some(InString {
                    length: 0,
                    escape: 0,
                    cut: false,
                    hash: self.keys.build_hasher(),
                });
            }
            self.out.push(byte);
            return Ok(());
        };
        let is_inside = string.escape > 0;
        if is_inside {
            // `u` and four digits, or one letter.
            let is_letter = string.escape == 5 && byte != b'u';
            string.escape = if is_letter { 0 } else { string.escape - 1 };
        } else if byte == b'\\' {
            string.escape = 5;
        } else if byte == b'"' {
            if string.cut {
                let end = format!("… ({} bytes, {:x})", string.length, string.hash.finish());
                self.out.extend_from_slice(end.as_bytes());
            }
            self.out.push(byte);
            self.string = None;
            return Ok(());
        } else if string.length >= LONGEST && !matches!(byte, 0x80..0xc0) {
            // A character begins here, and no surrogate is left alone.
            string.cut = true;
        }
        string.length += 1;
        string.hash.write_u8(byte);
        if !string.cut {
            if string.length > 16 * LONGEST {
                return Err(io::Error::other("a string of escapes is too long"));
            }
            self.out.push(byte);
        }
        Ok(())
    }
}

impl<R: Read> Read for Cut<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.out.len() {
            (self.at, self.out) = (0, std::mem::take(&mut self.out));
            self.out.clear();
            let mut raw = std::mem::take(&mut self.raw);
            let count = self.from.read(&mut raw)?;
            for byte in &raw[..count] {
                self.byte(*byte)?;
            }
            self.raw = raw;
            if count == 0 {
                return Ok(0);
            }
        }
        let count = into.len().min(self.out.len() - self.at);
        into[..count].copy_from_slice(&self.out[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
