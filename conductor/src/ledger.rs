//! The ledger: the queryable record. Postgres for a team, SQLite as the
//! embedded default, with the same tables in both.
//!
//! Everything in it comes from the journal's frames: `project` turns a frame
//! into facts (rows of the derived tables), the shipper carries both into the
//! database, and a rebuild makes the derived tables anew from `frames`.

pub mod table; // the tables and how rows of one key are merged
pub mod project; // a frame → what it says of the tables
pub mod row; // a frame with its facts, on its way into the database
pub mod error; // what can go wrong, as far as it makes a difference
pub mod settings; // where the database is
pub mod schema; // migrations
pub mod upsert; // statements made from the tables
pub mod postgres; // the verbs for Postgres
pub mod sqlite; // the verbs for SQLite
pub mod sink; // a batch in one transaction, whichever database it is
