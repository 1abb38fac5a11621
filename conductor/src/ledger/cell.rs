//! A value as a question gets it, whichever database answered.

use sqlx::{
    Column as _, Row as _, TypeInfo as _, ValueRef as _,
    postgres::{PgRow, PgValueFormat, PgValueRef},
    sqlite::SqliteRow,
};

use super::error::LedgerError;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Real(f64),
    /// A number that neither of these holds exactly, as the database writes it.
    Number(String),
    /// Text, and whatever the database writes as text.
    Text(String),
    /// JSON, as the database writes it.
    Json(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Cell {
    /// About how many bytes it holds.
    pub fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Number(text) | Self::Text(text) | Self::Json(text) => text.len(),
                Self::Bytes(bytes) => bytes.len(),
                Self::Null | Self::Bool(_) | Self::Int(_) | Self::Real(_) => 0,
            }
    }
}

/// The values of a row, to be taken one after the other.
#[derive(Debug)]
pub struct Cells(std::vec::IntoIter<Cell>);

impl Cells {
    /// Of a row.
    pub fn new(row: Vec<Cell>) -> Self {
        Self(row.into_iter())
    }

    /// Whether all were taken.
    pub fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    /// The next one as what it must be.
    pub fn take<T: FromCell>(&mut self) -> Result<T, LedgerError> {
        let cell = self.0.next().unwrap_or(Cell::Null);
        T::from_cell(cell).map_err(|cell| {
            let kind = std::any::type_name::<T>();
            LedgerError::Corrupt(format!("a column holds {cell:?}, which is no {kind}"))
        })
    }
}

/// What a cell may be taken as.
pub trait FromCell: Sized {
    /// The value, or the cell if it is something else.
    fn from_cell(cell: Cell) -> Result<Self, Cell>;
}

impl FromCell for String {
    fn from_cell(cell: Cell) -> Result<Self, Cell> {
        match cell {
            Cell::Text(text) | Cell::Json(text) => Ok(text),
            other => Err(other),
        }
    }
}

impl FromCell for i64 {
    fn from_cell(cell: Cell) -> Result<Self, Cell> {
        match cell {
            Cell::Int(number) => Ok(number),
            other => Err(other),
        }
    }
}

impl FromCell for f64 {
    fn from_cell(cell: Cell) -> Result<Self, Cell> {
        match cell {
            Cell::Real(number) => Ok(number),
            Cell::Int(number) => Ok(number as Self),
            other => Err(other),
        }
    }
}

impl FromCell for bool {
    fn from_cell(cell: Cell) -> Result<Self, Cell> {
        match cell {
            Cell::Bool(yes) => Ok(yes),
            Cell::Int(number) => Ok(number != 0),
            other => Err(other),
        }
    }
}

impl FromCell for Vec<u8> {
    fn from_cell(cell: Cell) -> Result<Self, Cell> {
        match cell {
            Cell::Bytes(bytes) => Ok(bytes),
            other => Err(other),
        }
    }
}

impl<T: FromCell> FromCell for Option<T> {
    fn from_cell(cell: Cell) -> Result<Self, Cell> {
        match cell {
            Cell::Null => Ok(None),
            cell => T::from_cell(cell).map(Some),
        }
    }
}

/// The values of a row of Postgres.
pub(super) fn of_postgres(row: &PgRow) -> Result<Vec<Cell>, LedgerError> {
    (0..row.len())
        .map(|at| {
            let value = row.try_get_raw(at)?;
            if value.is_null() {
                return Ok(Cell::Null);
            }
            let kind = value.type_info().name().to_owned();
            let text = value.format() == PgValueFormat::Text;
            let cell = if text { from_text(&kind, &value) } else { from_binary(&kind, row, at) };
            cell.map_err(|error| LedgerError::Unavailable(format!("a column of type {kind}: {error}")))
        })
        .collect()
}

/// What a person asked for: everything comes as text, so that no type is
/// unknown.
fn from_text(kind: &str, value: &PgValueRef<'_>) -> Result<Cell, sqlx::error::BoxDynError> {
    let text = value.as_str()?;
    let number = || Cell::Number(text.to_owned());
    Ok(match kind {
        "BOOL" => Cell::Bool(text == "t"),
        "INT2" | "INT4" | "INT8" | "OID" => text.parse().map_or_else(|_| number(), Cell::Int),
        "NUMERIC" | "FLOAT4" | "FLOAT8" => number(),
        "JSON" | "JSONB" => Cell::Json(text.to_owned()),
        "BYTEA" => Cell::Bytes(unhex(text.strip_prefix("\\x").unwrap_or(text))),
        _ => Cell::Text(text.to_owned()),
    })
}

/// What our own statements ask for: a few types, all known.
fn from_binary(kind: &str, row: &PgRow, at: usize) -> Result<Cell, sqlx::error::BoxDynError> {
    Ok(match kind {
        "BOOL" => Cell::Bool(row.try_get(at)?),
        "INT4" => Cell::Int(row.try_get::<i32, _>(at)?.into()),
        "INT8" => Cell::Int(row.try_get(at)?),
        "FLOAT8" => Cell::Real(row.try_get(at)?),
        "BYTEA" => Cell::Bytes(row.try_get(at)?),
        "UUID" => Cell::Text(row.try_get::<uuid::Uuid, _>(at)?.to_string()),
        _ => Cell::Text(row.try_get(at)?),
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.filter_map(byte).collect()
}

/// The values of a row of SQLite, each by its own type: columns have none.
pub(super) fn of_sqlite(row: &SqliteRow) -> Result<Vec<Cell>, LedgerError> {
    (0..row.len())
        .map(|at| {
            let value = row.try_get_raw(at)?;
            if value.is_null() {
                return Ok(Cell::Null);
            }
            let kind = value.type_info().name().to_owned();
            Ok(match kind.as_str() {
                "INTEGER" | "BOOLEAN" => {
                    let number: i64 = row.try_get_unchecked(at)?;
                    let is_bool = row.column(at).type_info().name() == "BOOLEAN";
                    if is_bool { Cell::Bool(number != 0) } else { Cell::Int(number) }
                }
                "REAL" => Cell::Real(row.try_get_unchecked(at)?),
                "BLOB" => Cell::Bytes(row.try_get_unchecked(at)?),
                // SQLite does not care whether text is text.
                _ => {
                    let bytes: Vec<u8> = row.try_get_unchecked(at)?;
                    Cell::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_taken_as_what_they_are() {
        let mut row = Cells::new(vec![Cell::Int(1), Cell::Null, Cell::Text("a".into()), Cell::Int(1)]);
        assert_eq!(row.take::<i64>().ok(), Some(1));
        assert_eq!(row.take::<Option<String>>().ok(), Some(None));
        assert!(row.take::<i64>().is_err(), "text is no number");
        assert_eq!(row.take::<bool>().ok(), Some(true));
        assert!(row.take::<String>().is_err(), "there is no more");
        assert_eq!(unhex("00ff7"), [0, 255]);
    }
}
