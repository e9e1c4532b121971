//! `hex` blocks: a record or an index row, its fields in the block's first line, and what stands behind a `#` is a comment.

use mini_broker::format::{Layout, headers};
use mini_broker::record::Record;

use crate::markdown::Block;

/// The bytes that hex digits name; spaces do not count.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(pair).collect()
}

/// Checks that the block's bytes are what its fields say, in both directions.
pub(crate) fn check(block: &Block) {
    let digits: String = block
        .text
        .lines()
        .map(|line| line.split('#').next().unwrap())
        .collect();
    let stored = bytes(&digits);
    let fields = Fields(
        block
            .info
            .split(' ')
            .skip(1)
            .filter_map(|f| f.split_once('='))
            .collect(),
    );
    match (fields.get("version"), fields.get("row")) {
        (Some("1"), None) => record(block, Layout::V1, &fields, &stored),
        (Some("2"), None) => record(block, Layout::V2, &fields, &stored),
        (None, Some("index")) => {
            let (offset, position) = (fields.number("relative_offset"), fields.number("position"));
            let row = [be32(offset), be32(position)].concat();
            assert_eq!(stored, row, "{}", block.place);
        }
        (None, Some("timeindex")) => {
            let timestamp = fields.number("timestamp").to_be_bytes();
            let row = [timestamp.to_vec(), be32(fields.number("relative_offset"))].concat();
            assert_eq!(stored, row, "{}", block.place);
        }
        other => panic!("{}: {other:?} is no kind of hex block", block.place),
    }
}

fn record(block: &Block, layout: Layout, fields: &Fields<'_>, stored: &[u8]) {
    let header = fields
        .0
        .iter()
        .find_map(|(n, value)| Some((n.strip_prefix("header.")?, *value)));
    let header_block = header.map_or_else(Vec::new, |(name, value)| {
        [
            &1_u16.to_be_bytes()[..],
            &be32(i64::try_from(name.len()).unwrap()),
            name.as_bytes(),
            &be32(i64::try_from(value.len()).unwrap()),
            value.as_bytes(),
        ]
        .concat()
    });
    let expected = Record {
        timestamp: fields.number("timestamp"),
        key: fields.get("key").map(str::as_bytes),
        value: fields.get("value").map(str::as_bytes),
        headers: &header_block,
    };
    let (head, found) = layout.decode(stored).unwrap();
    assert_eq!(found.record, expected, "{}", block.place);
    assert_eq!(found.offset, fields.number("offset"), "{}", block.place);
    assert_eq!(head.length as usize, stored.len(), "{}", block.place);
    assert_eq!(
        headers(found.record.headers).count(),
        usize::from(header.is_some())
    );
    let mut encoded = Vec::new();
    layout
        .encode(found.offset, &expected, &mut encoded)
        .unwrap();
    assert_eq!(encoded, stored, "{}", block.place);
}

fn be32(number: i64) -> Vec<u8> {
    u32::try_from(number).unwrap().to_be_bytes().to_vec()
}

/// `name=value` words.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0
            .iter()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| *value)
    }

    fn number(&self, name: &str) -> i64 {
        self.get(name).unwrap().parse().unwrap()
    }
}
