//! Tables on stdout.
#![forbid(unsafe_code)]

/// Rows of text, printed as a Markdown table whose columns line up, so that it can be read in a terminal and pasted into a
/// document.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; columns are right-aligned from the second on.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|&h| h.to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table's lines.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &[String], i: usize| row.get(i).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|i| {
                self.rows
                    .iter()
                    .map(|r| cell(r, i).chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        for (n, row) in self.rows.iter().enumerate() {
            for (i, &width) in widths.iter().enumerate() {
                let text = cell(row, i);
                let padding = " ".repeat(width - text.chars().count());
                let (left, right) = if i == 0 {
                    ("", padding.as_str())
                } else {
                    (padding.as_str(), "")
                };
                out.extend(["| ", left, &text, right, " "]);
            }
            out += "|\n";
            if n == 0 {
                for (i, &width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(width + 1);
                    out.extend(["|", &dashes, if i == 0 { "-" } else { ":" }]);
                }
                out += "|\n";
            }
        }
        out
    }
}
