//! The rows of a sparse index, read as they stand in its file.
#![forbid(unsafe_code)]

use std::io;

use crate::fs::File;
use crate::storage::{OffsetRow, TimeRow};

/// Bytes read at once, about; made a multiple of the row's size.
const CHUNK_BYTES: usize = 64 * 1024;

/// What is wrong with an index file, by itself or against its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFault {
    /// The row, counted from 1; 0 where it is the file as a whole.
    pub row: usize,
    /// What is wrong with it.
    pub what: String,
}

/// The rows that are in use, and what is wrong with the file by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows<R> {
    /// The rows before the unused end.
    pub rows: Vec<R>,
    /// Rows that do not rise, unused ones between others, bytes too many.
    pub faults: Vec<RowFault>,
}

/// The rows of a `.index`.
///
/// # Errors
/// What the system says.
pub fn offset_rows<F: File>(file: &F) -> io::Result<Rows<OffsetRow>> {
    read(
        file,
        OffsetRow::from_bytes,
        &OffsetRow {
            relative: 0,
            position: 0,
        },
        OffsetRow::may_follow,
    )
}

/// The rows of a `.timeindex`.
///
/// # Errors
/// What the system says.
pub fn time_rows<F: File>(file: &F) -> io::Result<Rows<TimeRow>> {
    read(
        file,
        TimeRow::from_bytes,
        &TimeRow {
            timestamp: 0,
            relative: 0,
        },
        TimeRow::may_follow,
    )
}

fn read<F: File, R: Copy + PartialEq, const N: usize>(
    file: &F,
    from_bytes: fn([u8; N]) -> R,
    unused: &R,
    may_follow: fn(&R, &R) -> bool,
) -> io::Result<Rows<R>> {
    let mut found = Rows {
        rows: Vec::new(),
        faults: Vec::new(),
    };
    let mut buffer = vec![0; CHUNK_BYTES / N * N];
    let mut position = 0;
    let mut unused_rows = 0;
    let mut last_used: Option<R> = None;
    loop {
        let filled = file.read_at(&mut buffer, position)?;
        let (rows, rest) = buffer.get(..filled).unwrap_or_default().as_chunks::<N>();
        for row in rows.iter().map(|row| from_bytes(*row)) {
            // The first row may be all zeros and in use; only its log can tell.
            if row == *unused && last_used.is_some() {
                unused_rows += 1;
                continue;
            }
            if unused_rows > 0 {
                found.fault("is unused, with used ones behind it");
                found.rows.extend(std::iter::repeat_n(*unused, unused_rows));
                unused_rows = 0;
            }
            if last_used.is_some_and(|before| !may_follow(&row, &before)) {
                found.fault("does not rise above the one before it");
            }
            found.rows.push(row);
            last_used = Some(row);
        }
        if !rest.is_empty() {
            let what = format!("{} bytes are left over behind the last row", rest.len());
            found.faults.push(RowFault { row: 0, what });
        }
        position += filled as u64;
        if filled < buffer.len() {
            return Ok(found);
        }
    }
}

impl<R> Rows<R> {
    /// Takes note of a fault of the row that comes next.
    fn fault(&mut self, what: &str) {
        self.faults.push(RowFault {
            row: self.rows.len() + 1,
            what: what.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::mem::MemFs;
    use crate::fs::{Fs, OpenMode};
    use std::path::Path;

    fn rows_of(bytes: &[u8]) -> Rows<OffsetRow> {
        let file = MemFs::new()
            .open(Path::new("/i"), OpenMode::CreateNew)
            .expect("create");
        file.write_all_at(bytes, 0).expect("write");
        offset_rows(&file).expect("read")
    }

    fn encode(rows: &[(u32, u32)]) -> Vec<u8> {
        rows.iter()
            .flat_map(|(relative, position)| {
                [relative.to_be_bytes(), position.to_be_bytes()].concat()
            })
            .collect()
    }

    #[test]
    fn an_unused_end_is_no_row_and_a_first_row_of_zeros_is_one() {
        let mut bytes = encode(&[(0, 0), (7, 4096)]);
        bytes.resize(CHUNK_BYTES * 3, 0);
        let found = rows_of(&bytes);
        let expected = [
            OffsetRow {
                relative: 0,
                position: 0,
            },
            OffsetRow {
                relative: 7,
                position: 4096,
            },
        ];
        assert_eq!(
            (found.rows.as_slice(), found.faults.len()),
            (&expected[..], 0)
        );
        assert_eq!(rows_of(&[]).rows, []);
    }

    #[test]
    fn what_is_wrong_is_named_by_row() {
        let found = rows_of(&encode(&[(1, 0), (0, 0), (5, 50), (5, 60), (9, 40)]));
        let faults: Vec<usize> = found.faults.iter().map(|fault| fault.row).collect();
        assert_eq!((found.rows.len(), faults), (5, vec![2, 4, 5]));
        let found = rows_of(&[0; 13]);
        assert_eq!(
            found
                .faults
                .iter()
                .map(|fault| fault.row)
                .collect::<Vec<_>>(),
            [0]
        );
    }
}
