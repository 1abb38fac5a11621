//! What happens, told to others as it happens: to whoever follows (`conductor ledger tail`,
//! `History.Tail`), and to a SIEM (`[feed]`).
//!
//! The source is the journal in its own order, and not the database: it is complete, it has
//! places to go on from, and it works while the database is down. `reader` reads it from any
//! place on, `telling` makes events of frames, `line` and `ocsf` put them into words, and
//! `carrier` brings them to a `target`.

pub mod cursor; // a place to go on from
pub mod event; // what happened
mod rows; // the rows that events are changes of
mod telling; // frames → events
pub mod reader; // the journal, in order
pub mod line; // an event as a line
pub mod ocsf; // the same for a SIEM
mod target; // stdout, a file, an address
pub mod carrier; // to wherever the configuration says

pub use self::{
    carrier::{Feed, Sources},
    cursor::Cursor,
    event::{Event, Kind},
    line::Format,
    reader::{FeedError, Reader, Start, Thing, Told, What},
};
