//! Answers of the ledger as a table, as JSON and as CSV, written while they
//! come.

use std::io::{self, Write};

use serde_json::{Value, value::RawValue};

use crate::{
    commands::terminal::{clean, harmless},
    frame::escape,
    ledger::{
        cell::Cell,
        sql::{Answer, Stop},
    },
};

/// Columns of a table are as wide as in these many first rows; later ones may
/// be wider.
const MEASURED: usize = 1000;

/// Space between two columns.
const GAP: usize = 2;

/// On a terminal, no column is made narrower than this.
const NARROWEST: usize = 8;

fn put(out: &mut impl Write, text: &str) -> Result<(), Stop> {
    written(out.write_all(text.as_bytes()))
}

fn written(done: io::Result<()>) -> Result<(), Stop> {
    done.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Stop::Enough,
        _ => Stop::Output(error),
    })
}

/// An aligned table for people.
pub(super) struct TableOutput<W> {
    out: W,
    /// Columns of the terminal; without one, nothing is cut.
    width: Option<usize>,
    names: Vec<String>,
    /// Rows that wait for the widths to be known.
    waiting: Vec<Vec<Shown>>,
    columns: Option<Vec<Column>>,
    rows: u64,
}

struct Shown {
    text: String,
    is_number: bool,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    width: usize,
    to_the_right: bool,
}

impl<W: Write> TableOutput<W> {
    pub(super) fn new(out: W, width: Option<usize>) -> Self {
        Self { out, width, names: Vec::new(), waiting: Vec::new(), columns: None, rows: 0 }
    }

    /// Writes what waits, and how many rows there were.
    pub(super) fn finish(&mut self) -> Result<(), Stop> {
        self.show_waiting()?;
        if self.width.is_some() && !self.names.is_empty() {
            let rows = if self.rows == 1 { "1 row".to_owned() } else { format!("{} rows", self.rows) };
            put(&mut self.out, &format!("({rows})\n"))?;
        }
        written(self.out.flush())
    }

    fn show_waiting(&mut self) -> Result<(), Stop> {
        if self.names.is_empty() {
            return Ok(());
        }
        if self.columns.is_none() {
            let columns = self.measure();
            let header = self.names.iter().map(|name| Shown { text: name.clone(), is_number: false });
            let line = line(&header.collect::<Vec<_>>(), &columns);
            put(&mut self.out, &line)?;
            let rule: Vec<_> = columns
                .iter()
                .map(|column| Shown { text: "─".repeat(column.width), is_number: false })
                .collect();
            put(&mut self.out, &self::line(&rule, &columns))?;
            self.columns = Some(columns);
        }
        let columns = self.columns.as_deref().unwrap_or_default();
        for row in self.waiting.drain(..) {
            put(&mut self.out, &line(&row, columns))?;
        }
        Ok(())
    }

    fn measure(&self) -> Vec<Column> {
        let length = |text: &str| text.chars().count();
        let mut columns: Vec<_> = (0..self.names.len())
            .map(|at| {
                let cells = || self.waiting.iter().filter_map(|row| row.get(at));
                let widest = cells().map(|cell| length(&cell.text)).max().unwrap_or(0);
                let to_the_right = cells().all(|cell| cell.is_number || cell.text == NULL)
                    && cells().any(|cell| cell.is_number);
                Column { width: widest.max(length(&self.names[at])), to_the_right }
            })
            .collect();
        if let Some(width) = self.width {
            narrow(&mut columns, width);
        }
        columns
    }
}

/// Takes from the widest until all fit, or nothing more can be taken.
fn narrow(columns: &mut [Column], width: usize) {
    loop {
        let total: usize = columns.iter().map(|column| column.width + GAP).sum();
        let surplus = (total.saturating_sub(GAP)).saturating_sub(width);
        let Some(widest) = columns.iter_mut().max_by_key(|column| column.width) else { return };
        if surplus == 0 || widest.width <= NARROWEST {
            return;
        }
        // Little by little, so that two wide ones end up alike.
        widest.width -= surplus.min(widest.width - NARROWEST).min(widest.width / 8 + 1);
    }
}

/// What stands for nothing.
const NULL: &str = "NULL";

fn line(row: &[Shown], columns: &[Column]) -> String {
    let mut line = String::new();
    for (cell, Column { width, to_the_right }) in row.iter().zip(columns) {
        let text = cut(&cell.text, *width);
        line.push_str(&if *to_the_right {
            format!("{text:>width$}{:GAP$}", "")
        } else {
            format!("{text:width$}{:GAP$}", "")
        });
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

fn cut(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

impl<W: Write> Answer for TableOutput<W> {
    fn columns(&mut self, names: &[String]) -> Result<(), Stop> {
        self.names = names.iter().map(|name| escape(name.as_bytes(), usize::MAX)).collect();
        Ok(())
    }

    fn row(&mut self, row: Vec<Cell>) -> Result<(), Stop> {
        self.rows += 1;
        let shown = |cell: &Cell| Shown {
            // Whoever wrote it, it stays in its line.
            text: escape(plain(cell).as_deref().unwrap_or(NULL).as_bytes(), usize::MAX),
            is_number: matches!(cell, Cell::Int(_) | Cell::Real(_) | Cell::Number(_)),
        };
        self.waiting.push(row.iter().map(shown).collect());
        if self.columns.is_some() || self.waiting.len() >= MEASURED {
            // Without a terminal nothing is cut: what is wider stands out.
            if self.width.is_none()
                && let (Some(columns), Some(row)) = (&mut self.columns, self.waiting.last())
            {
                for (column, cell) in columns.iter_mut().zip(row) {
                    column.width = column.width.max(cell.text.chars().count());
                }
            }
            self.show_waiting()?;
        }
        Ok(())
    }
}

/// A cell as text; `None` for nothing.
fn plain(cell: &Cell) -> Option<String> {
    Some(match cell {
        Cell::Null => return None,
        Cell::Bool(yes) => yes.to_string(),
        Cell::Int(number) => number.to_string(),
        Cell::Real(number) => number.to_string(),
        Cell::Number(text) | Cell::Text(text) | Cell::Json(text) => text.clone(),
        Cell::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            // As Postgres writes it.
            Err(_) => bytes.iter().fold("\\x".to_owned(), |text, byte| text + &format!("{byte:02x}")),
        },
    })
}

/// One JSON object per row.
pub(super) struct JsonLines<W> {
    out: W,
    names: Vec<String>,
}

impl<W: Write> JsonLines<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, names: Vec::new() }
    }

    pub(super) fn finish(&mut self) -> Result<(), Stop> {
        written(self.out.flush())
    }
}

impl<W: Write> Answer for JsonLines<W> {
    fn columns(&mut self, names: &[String]) -> Result<(), Stop> {
        // Two columns may have one name, but not two members of an object.
        for name in names {
            let mut unique = name.clone();
            for number in 2.. {
                if !self.names.contains(&unique) {
                    break;
                }
                unique = format!("{name}_{number}");
            }
            self.names.push(unique);
        }
        Ok(())
    }

    fn row(&mut self, row: Vec<Cell>) -> Result<(), Stop> {
        let members = self.names.iter().zip(&row);
        let members = members.map(|(name, cell)| format!("{}:{}", Value::from(name.as_str()), json(cell)));
        let object = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
        put(&mut self.out, &(harmless(object) + "\n"))
    }
}

fn json(cell: &Cell) -> String {
    let raw = |text: &str| serde_json::from_str::<&RawValue>(text).is_ok();
    match cell {
        Cell::Null => "null".to_owned(),
        Cell::Bool(yes) => yes.to_string(),
        Cell::Int(number) => number.to_string(),
        Cell::Real(number) if number.is_finite() => Value::from(*number).to_string(),
        // NaN and Infinity are no numbers in JSON.
        Cell::Number(text) | Cell::Json(text) if raw(text) => text.clone(),
        other => Value::from(plain(other)).to_string(),
    }
}

/// CSV as RFC 4180 has it.
pub(super) struct Csv<W> {
    out: W,
    is_terminal: bool,
}

impl<W: Write> Csv<W> {
    pub(super) fn new(out: W, is_terminal: bool) -> Self {
        Self { out, is_terminal }
    }

    pub(super) fn finish(&mut self) -> Result<(), Stop> {
        written(self.out.flush())
    }

    fn line(&mut self, fields: impl Iterator<Item = Option<String>>) -> Result<(), Stop> {
        let fields: Vec<_> = fields.map(field).collect();
        let line = fields.join(",");
        let line = if self.is_terminal { clean(&line) } else { line.into() };
        put(&mut self.out, &format!("{line}\r\n"))
    }
}

impl<W: Write> Answer for Csv<W> {
    fn columns(&mut self, names: &[String]) -> Result<(), Stop> {
        if names.is_empty() { Ok(()) } else { self.line(names.iter().cloned().map(Some)) }
    }

    fn row(&mut self, row: Vec<Cell>) -> Result<(), Stop> {
        self.line(row.iter().map(plain))
    }
}

/// NULL is an empty field, an empty text is `""`.
fn field(text: Option<String>) -> String {
    match text {
        None => String::new(),
        Some(text) if text.is_empty() || text.contains([',', '"', '\r', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Some(text) => text,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn rows() -> Vec<Vec<Cell>> {
        vec![
            vec![Cell::Int(7), Cell::Text("a\u{1b}[2J,\"b\"\n".into()), Cell::Null],
            vec![Cell::Null, Cell::Text(String::new()), Cell::Bytes(vec![0, 255])],
            vec![Cell::Number("1e400".into()), Cell::Json(r#"{"a": 1}"#.into()), Cell::Real(f64::NAN)],
        ]
    }

    fn answer(output: &mut impl Answer) {
        output.columns(&["n".to_owned(), "text".to_owned(), "n".to_owned()]).unwrap();
        for row in rows() {
            output.row(row).unwrap();
        }
    }

    #[test]
    fn a_table_is_aligned_and_harmless() {
        let mut output = TableOutput::new(Vec::new(), None);
        answer(&mut output);
        output.finish().unwrap();
        let expected = [
            "    n  text              n",
            "─────  ────────────────  ──────",
            r#"    7  a\u{1b}[2J,"b"\n  NULL"#,
            r" NULL                    \x00ff",
            r#"1e400  {"a": 1}          NaN"#,
            "",
        ]
        .join("\n");
        assert_eq!(String::from_utf8(output.out).unwrap(), expected);
    }

    #[test]
    fn a_terminal_gets_what_fits() {
        let mut output = TableOutput::new(Vec::new(), Some(24));
        output.columns(&["a".to_owned(), "b".to_owned()]).unwrap();
        output.row(vec![Cell::Text("x".repeat(100)), Cell::Text("short".into())]).unwrap();
        output.finish().unwrap();
        let text = String::from_utf8(output.out).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 24), "{text}");
        assert!(text.contains("…  short\n(1 row)\n"), "{text}");
    }

    #[test]
    fn rows_behind_the_measured_ones_are_not_cut_in_a_pipe() {
        let mut output = TableOutput::new(Vec::new(), None);
        output.columns(&["a".to_owned()]).unwrap();
        for _ in 0..MEASURED {
            output.row(vec![Cell::Int(1)]).unwrap();
        }
        output.row(vec![Cell::Text("much longer".into())]).unwrap();
        output.finish().unwrap();
        assert!(String::from_utf8(output.out).unwrap().ends_with("much longer\n"));
    }

    #[test]
    fn json_keeps_numbers_and_tells_columns_apart() {
        let mut output = JsonLines::new(Vec::new());
        answer(&mut output);
        let text = String::from_utf8(output.out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], r#"{"n":7,"text":"a\u001b[2J,\"b\"\n","n_2":null}"#);
        assert_eq!(lines[1], r#"{"n":null,"text":"","n_2":"\\x00ff"}"#);
        assert_eq!(lines[2], r#"{"n":1e400,"text":{"a": 1},"n_2":"NaN"}"#);
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let mut output = Csv::new(Vec::new(), false);
        answer(&mut output);
        let text = String::from_utf8(output.out).unwrap();
        let expected =
            "n,text,n\r\n7,\"a\u{1b}[2J,\"\"b\"\"\n\",\r\n,\"\",\\x00ff\r\n1e400,\"{\"\"a\"\": 1}\",NaN\r\n";
        assert_eq!(text, expected);
    }
}
