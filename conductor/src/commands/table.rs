//! Aligned tables for people.

/// Rows of cells, each column as wide as its widest cell.
#[derive(Debug, Default)]
pub(super) struct Table {
    indent: usize,
    rows: Vec<Vec<String>>,
}

/// Space between two columns.
const GAP: usize = 2;

/// A size as people say it.
pub(super) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        0.0..1e3 => format!("{bytes} B"),
        1e3..1e6 => format!("{:.1} kB", bytes / 1e3),
        1e6..1e9 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.1} GB", bytes / 1e9),
    }
}

impl Table {
    /// A table whose rows begin so many columns to the right.
    pub(super) fn new(indent: usize) -> Self {
        Self { indent, rows: Vec::new() }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, one for each row, without newlines. Widths are counted in
    /// characters, so cells hold plain text; colours go around whole lines.
    pub(super) fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let mut line = " ".repeat(self.indent);
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}{:GAP$}", ""));
            }
            line.truncate(line.trim_end().len());
            line
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_do_not_end_in_blanks() {
        let mut table = Table::new(1);
        table.row(["NAME", "N", "LAST"]);
        table.row(["é", "1000", ""]);
        table.row(["longest", "2"]);
        assert_eq!(table.lines(), [" NAME     N     LAST", " é        1000", " longest  2"]);
    }
}
