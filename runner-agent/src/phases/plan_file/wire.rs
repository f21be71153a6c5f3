//! The wire format of protocol buffers, read as a stream: <https://protobuf.dev/programming-guides/encoding/>.

use std::io::BufRead;

use super::{Read, Unread};

/// Highest number of a field.
const FIELDS: u64 = (1 << 29) - 1;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    /// Bytes, a text or a message, which ends at this position.
    Until(u64),
}

impl Value {
    pub(super) fn number(self) -> Read<u64> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Until(_) => Err(damaged()),
        }
    }

    pub(super) fn end(self) -> Read<u64> {
        match self {
            Self::Until(end) => Ok(end),
            Self::Number(_) => Err(damaged()),
        }
    }
}

fn damaged() -> Unread {
    Unread::of("its content is damaged")
}

/// A reader that knows its position.
pub(super) struct Wire<R> {
    from: R,
    at: u64,
}

impl<R: BufRead> Wire<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, at: 0 }
    }

    /// The number of the next field of a message, and its value. `None` at the end of the message, which the fields must reach exactly.
    pub(super) fn field(&mut self, end: u64) -> Read<Option<(u64, Value)>> {
        if self.at == end {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let length = self.varint()?;
                Value::Until(self.at.checked_add(length).ok_or_else(damaged)?)
            }
            // The tools' messages have no others.
            _ => return Err(damaged()),
        };
        let past = match value {
            Value::Number(_) => self.at,
            Value::Until(past) => past,
        };
        if past > end || tag >> 3 == 0 || tag >> 3 > FIELDS {
            return Err(damaged());
        }
        Ok(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Read<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.from.read_exact(&mut byte)?;
            self.at += 1;
            let bits = u64::from(byte[0] & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte[0] < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged())
    }

    /// Skips a value.
    pub(super) fn skip(&mut self, value: Value) -> Read<()> {
        let Value::Until(end) = value else {
            return Ok(());
        };
        while self.at < end {
            let there = self.from.fill_buf()?.len();
            if there == 0 {
                return Err(damaged());
            }
            let left = usize::try_from(end - self.at).unwrap_or(usize::MAX);
            let count = there.min(left);
            self.from.consume(count);
            self.at += count as u64;
        }
        Ok(())
    }

    /// Reads a value if it has at most `most` bytes; otherwise skips it.
    pub(super) fn bytes(&mut self, value: Value, most: u64) -> Read<Option<Vec<u8>>> {
        let end = value.end()?;
        if end - self.at > most {
            return self.skip(value).map(|()| None);
        }
        let mut bytes = vec![0; usize::try_from(end - self.at).unwrap_or_default()];
        self.from.read_exact(&mut bytes)?;
        self.at = end;
        Ok(Some(bytes))
    }

    /// Fails if there is anything after the message that ended here.
    pub(super) fn ends(&mut self) -> Read<()> {
        if self.from.fill_buf()?.is_empty() {
            Ok(())
        } else {
            Err(damaged())
        }
    }
}
