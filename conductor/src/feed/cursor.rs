//! A place in the feed: just behind one event of one frame of one record of one journal.
//!
//! People and machines keep it as text and hand it back. It is not to be taken apart, but it
//! can be read: a version, the journal, segment, offset, frames and events.

use std::fmt;

use uuid::Uuid;

use crate::journal::Position;

/// What a cursor begins with; another form would begin with another number.
const VERSION: &str = "1";

/// A place in the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The journal.
    pub journal: Uuid,
    /// The record behind this has been told in part, or not at all.
    pub at: Position,
    /// So many of its frames have been told.
    pub frames: u32,
    /// And so many events of the frame behind these.
    pub events: u32,
}

impl Cursor {
    /// Just in front of a record.
    pub fn before(journal: Uuid, at: Position) -> Self {
        Self { journal, at, frames: 0, events: 0 }
    }

    /// The cursor that a text is; nothing if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        if parts.next() != Some(VERSION) {
            return None;
        }
        let journal = Uuid::try_parse(parts.next()?).ok()?;
        let mut number = || parts.next()?.parse::<u64>().ok();
        let at = Position { segment: number()?, offset: number()? };
        let (frames, events) = (u32::try_from(number()?).ok()?, u32::try_from(number()?).ok()?);
        parts.next().is_none().then_some(Self { journal, at, frames, events })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { journal, at, frames, events } = self;
        write!(f, "{VERSION}.{}.{}.{}.{frames}.{events}", journal.simple(), at.segment, at.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_nothing_else_is_one() {
        let at = Position { segment: 3, offset: 4096 };
        let cursor = Cursor { journal: Uuid::from_u128(7), at, frames: 2, events: 1 };
        let text = cursor.to_string();
        assert_eq!(Cursor::parse(&text), Some(cursor));
        for wrong in
            ["", "1", "now", &text[2..], &format!("2{}", &text[1..]), &format!("{text}.0"), "1.x.1.1.0.0"]
        {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
