//! The ledger: the queryable record. Postgres for a team, SQLite as the
//! embedded default, with the same tables in both.
//!
//! Everything in it comes from the journal's frames: `project` turns a frame
//! into facts (rows of the derived tables), the shipper carries both into the
//! database, and a rebuild makes the derived tables anew from `frames`.

pub mod project; // what a frame says, as facts
pub mod table; // the tables and how rows of one key are merged
