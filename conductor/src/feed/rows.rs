//! The rows that a stream's frames have told of lately: an event is what changes one of
//! them, and says all that is known of it by then. No I/O.

use std::collections::{HashMap, VecDeque, hash_map::Entry};

use super::event::is_words;
use crate::ledger::table::{Fact, TABLES, Value};

/// Most bytes of rows that are kept for one stream. What is forgotten makes events say less.
const MOST_BYTES: usize = 1 << 20;

/// Longest text and longest JSON of one column. What is longer stands in the ledger.
const LONGEST_TEXT: usize = 4 << 10;
const LONGEST_JSON: usize = 16 << 10;

/// A row counts as so many bytes, besides its texts.
const ROW: usize = 512;

/// A row's key: its table, and the key as text.
type Key = (usize, String);

/// Rows of one stream.
#[derive(Debug, Default)]
pub struct Rows {
    /// What people, models and files say is kept, too.
    with_words: bool,
    rows: HashMap<Key, Row>,
    order: VecDeque<Key>,
    bytes: usize,
}

#[derive(Debug)]
struct Row {
    fact: Fact,
    bytes: usize,
    is_cut: bool,
}

/// What one frame has done to a row.
#[derive(Debug)]
pub struct Change<'a> {
    /// As it was; nothing if it is new, or forgotten.
    pub before: Option<Fact>,
    /// As it is.
    pub now: &'a Fact,
    /// Something in it was too long.
    pub is_cut: bool,
}

impl Change<'_> {
    /// Whether a column has a value that it did not have before.
    pub fn sets(&self, column: &str) -> bool {
        let value = |fact| super::event::value(fact, column);
        value(self.now) != &Value::Null
            && self.before.as_ref().is_none_or(|before| value(before) == &Value::Null)
    }

    /// Whether a column that had a value has another.
    pub fn alters(&self, column: &str) -> bool {
        let value = |fact| super::event::value(fact, column);
        let before = self.before.as_ref().map(value);
        before.is_some_and(|before| before != &Value::Null && before != value(self.now))
    }
}

impl Rows {
    /// None yet.
    pub fn new(with_words: bool) -> Self {
        Self { with_words, ..Self::default() }
    }

    /// Merges what a frame says of a row.
    pub fn change(&mut self, mut fact: Fact) -> Change<'_> {
        let cut = self.shorten(&mut fact);
        let key: Key = (fact.table, format!("{:?}", fact.key()));
        if !self.rows.contains_key(&key) {
            self.make_room();
        }
        let (before, row) = match self.rows.entry(key) {
            Entry::Occupied(known) => {
                let row = known.into_mut();
                let before = row.fact.clone();
                row.fact.merge(&fact);
                (Some(before), row)
            }
            Entry::Vacant(new) => {
                self.order.push_back(new.key().clone());
                (None, new.insert(Row { fact, bytes: 0, is_cut: false }))
            }
        };
        row.is_cut |= cut;
        let bytes = ROW + row.fact.values.iter().map(length).sum::<usize>();
        self.bytes = (self.bytes + bytes).saturating_sub(row.bytes);
        row.bytes = bytes;
        Change { before, now: &row.fact, is_cut: row.is_cut }
    }

    fn shorten(&self, fact: &mut Fact) -> bool {
        let mut is_cut = false;
        for (column, value) in TABLES[fact.table].columns.iter().zip(&mut fact.values) {
            if !self.with_words && is_words(fact.table, column.name) {
                *value = Value::Null;
                continue;
            }
            match value {
                Value::Text(text) if text.len() > LONGEST_TEXT => {
                    text.truncate(text.floor_char_boundary(LONGEST_TEXT));
                    is_cut = true;
                }
                Value::Json(json) if json.len() > LONGEST_JSON => {
                    *value = Value::Null;
                    is_cut = true;
                }
                _ => {}
            }
        }
        is_cut
    }

    fn make_room(&mut self) {
        while self.bytes > MOST_BYTES
            && let Some(key) = self.order.pop_front()
        {
            self.bytes -= self.rows.remove(&key).map_or(0, |row| row.bytes);
        }
    }
}

fn length(value: &Value) -> usize {
    match value {
        Value::Text(text) | Value::Json(text) => text.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ledger::table::{COMMANDS, TURNS};

    fn command(seq: i64) -> Fact {
        Fact::new(COMMANDS, [Uuid::nil().into(), seq.into()])
    }

    #[test]
    fn a_row_is_merged_and_a_change_is_seen_once() {
        let mut rows = Rows::default();
        assert!(rows.change(command(1).set("line", "ls")).sets("line"));
        let change = rows.change(command(1).set("exit_code", 0i64).set("line", "ls -l"));
        assert!(change.sets("exit_code") && !change.sets("line") && change.alters("line"));
        assert!(!rows.change(command(1).set("exit_code", 1i64)).sets("exit_code"));
    }

    #[test]
    fn what_is_long_is_cut_and_what_people_say_is_left_out() {
        let mut rows = Rows::default();
        let change = rows.change(command(1).set("line", "ä".repeat(LONGEST_TEXT)));
        assert!(change.is_cut && length(super::super::event::value(change.now, "line")) == LONGEST_TEXT);
        let prompt = || Fact::new(TURNS, [Uuid::nil().into(), 1i64.into()]).set("prompt", "hello");
        assert!(!rows.change(prompt()).sets("prompt"));
        assert!(Rows::new(true).change(prompt()).sets("prompt"));
    }

    #[test]
    fn a_stream_without_end_keeps_little() {
        let mut rows = Rows::default();
        for seq in 0..5000 {
            rows.change(command(seq).set("line", "x".repeat(2000)));
        }
        assert!(rows.bytes < 2 * MOST_BYTES && rows.rows.len() == rows.order.len() && rows.rows.len() < 1000);
    }
}
