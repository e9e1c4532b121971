//! Fields, options and plain numbers of a line.
//!
//! Nothing here allocates while the line is right: a field is a slice of it. Fields are separated by runs of spaces; a field that
//! holds `=` where an option may stand is an option.
#![forbid(unsafe_code)]

use crate::api::{ApiError, ErrorCode, Target, quoted};

use super::verbs::Verb;

/// A [`ErrorCode::BadArgument`] with those words.
#[cold]
pub(super) fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadArgument, message)
}

/// Takes the next field off the front of `rest`; `None` where only spaces are left.
#[inline]
pub(super) fn next_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = rest.iter().position(|&byte| byte != b' ')?;
    let from = rest.get(start..)?;
    let len = from
        .iter()
        .position(|&byte| byte == b' ')
        .unwrap_or(from.len());
    let (field, tail) = from.split_at_checked(len)?;
    *rest = tail;
    Some(field)
}

/// Whether no control character (below space, or DEL) is in the field.
#[inline]
pub(super) fn is_clean(field: &[u8]) -> bool {
    field.iter().all(|&byte| byte >= b' ' && byte != 0x7f)
}

/// Refuses a field that holds a control character.
///
/// # Errors
/// `BAD_ARGUMENT` with the field.
pub(super) fn check_clean(field: &[u8]) -> Result<(), ApiError> {
    if is_clean(field) {
        return Ok(());
    }
    Err(bad(format!(
        "the field '{}' holds a control character; fields are separated by spaces alone",
        quoted(field)
    )))
}

/// A plain number: decimal digits and nothing else, at most `u64::MAX`.
#[inline]
pub(super) fn plain(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    let mut number: u64 = 0;
    for &byte in field {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(number)
}

/// A plain number that fits `T` and is at least `min`.
///
/// # Errors
/// `BAD_ARGUMENT` with the field, what it is for and what would be right.
pub(super) fn number<T: TryFrom<u64>>(what: &str, field: &[u8], min: u64) -> Result<T, ApiError> {
    plain(field)
        .filter(|&number| number >= min)
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| {
            check_clean(field).err().unwrap_or_else(|| {
                bad(format!(
                    "{what} '{}' is not a plain number of {min} or more (or is too large)",
                    quoted(field)
                ))
            })
        })
}

/// `topic` or `topic/partition`; the topic's name is the broker's to judge.
///
/// # Errors
/// `BAD_ARGUMENT` for a control character, an empty topic or a partition that is no plain number of 31 bits.
#[inline]
pub(super) fn target(field: &[u8]) -> Result<Target<'_>, ApiError> {
    let mut slash = None;
    for (at, &byte) in field.iter().enumerate() {
        if byte < b' ' || byte == 0x7f {
            check_clean(field)?;
        }
        if byte == b'/' {
            slash = Some(at);
            break;
        }
    }
    let Some((topic, partition)) = slash.and_then(|at| field.split_at_checked(at)) else {
        return Ok(Target {
            topic: field,
            partition: None,
        });
    };
    let digits = partition.get(1..).unwrap_or_default();
    match plain(digits).and_then(|number| i32::try_from(number).ok()) {
        Some(number) if !topic.is_empty() => Ok(Target {
            topic,
            partition: Some(number.unsigned_abs()),
        }),
        _ => Err(bad_target(field)),
    }
}

#[cold]
fn bad_target(field: &[u8]) -> ApiError {
    check_clean(field).err().unwrap_or_else(|| {
        bad(format!(
            "'{}' is not <topic> or <topic>/<partition> with a plain partition number",
            quoted(field)
        ))
    })
}

/// `name` and `value`.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// The fields of a line after its verb, taken in the order that the verb's entry in the table names.
#[derive(Debug)]
pub(super) struct Args<'a> {
    verb: &'static Verb,
    rest: &'a [u8],
    /// A bit for each of the verb's options that came.
    seen: u32,
}

impl<'a> Args<'a> {
    /// The fields in `rest`.
    pub(super) fn new(verb: &'static Verb, rest: &'a [u8]) -> Self {
        Self {
            verb,
            rest,
            seen: 0,
        }
    }

    /// The next field, which must be there.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` where it is missing or holds a control character.
    pub(super) fn required(&mut self, what: &str) -> Result<&'a [u8], ApiError> {
        let field = next_field(&mut self.rest)
            .ok_or_else(|| bad(format!("{what} is missing; usage: {}", self.verb.usage)))?;
        check_clean(field)?;
        Ok(field)
    }

    /// The next field, where one is there that is not an option.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` where it holds a control character.
    pub(super) fn optional(&mut self) -> Result<Option<&'a [u8]>, ApiError> {
        let mut rest = self.rest;
        match next_field(&mut rest) {
            Some(field) if !field.contains(&b'=') => {
                check_clean(field)?;
                self.rest = rest;
                Ok(Some(field))
            }
            _ => Ok(None),
        }
    }

    /// The next `name=value` of the verb's options.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a field too many, an option that the verb does not have, or one that came before.
    pub(super) fn option(&mut self) -> Result<Option<(&'static str, &'a [u8])>, ApiError> {
        let Some((name, value)) = self.pair()? else {
            return Ok(None);
        };
        let known = self
            .verb
            .options
            .iter()
            .zip(0_u32..)
            .find(|(known, _)| known.as_bytes() == name);
        let Some((&known, at)) = known else {
            return Err(self.unknown_option(name));
        };
        let bit = 1_u32.checked_shl(at).unwrap_or(0);
        if self.seen & bit != 0 {
            return Err(bad(format!(
                "option '{known}' came twice; once would be right"
            )));
        }
        self.seen |= bit;
        Ok(Some((known, value)))
    }

    /// The next `name=value`, whatever its name.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a field without `=`.
    pub(super) fn pair(&mut self) -> Result<Option<Pair<'a>>, ApiError> {
        let Some(field) = next_field(&mut self.rest) else {
            return Ok(None);
        };
        check_clean(field)?;
        let Some(equals) = memchr::memchr(b'=', field) else {
            return Err(bad(format!(
                "'{}' is a field too many; usage: {}",
                quoted(field),
                self.verb.usage
            )));
        };
        let (name, value) = field.split_at_checked(equals).unwrap_or((field, &[]));
        Ok(Some((name, value.get(1..).unwrap_or_default())))
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a field too many.
    pub(super) fn end(mut self) -> Result<(), ApiError> {
        match next_field(&mut self.rest) {
            None => Ok(()),
            Some(field) => Err(check_clean(field).err().unwrap_or_else(|| {
                bad(format!(
                    "'{}' is a field too many; usage: {}",
                    quoted(field),
                    self.verb.usage
                ))
            })),
        }
    }

    #[cold]
    fn unknown_option(&self, name: &[u8]) -> ApiError {
        let name = quoted(name);
        let verb = self.verb.name;
        if self.verb.options.is_empty() {
            return bad(format!("{verb} has no option '{name}', nor any other"));
        }
        bad(format!(
            "{verb} has no option '{name}'; it has: {}",
            self.verb.options.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_spaces_separates_once() {
        let mut rest: &[u8] = b"  a  bc   d  ";
        let mut fields = Vec::new();
        while let Some(field) = next_field(&mut rest) {
            fields.push(field);
        }
        assert_eq!(fields, [&b"a"[..], b"bc", b"d"]);
        assert_eq!(next_field(&mut &b""[..]), None);
    }

    #[test]
    fn plain_numbers_have_digits_only_and_do_not_overflow() {
        assert_eq!(plain(b"0"), Some(0));
        assert_eq!(plain(b"0012"), Some(12));
        assert_eq!(plain(b"18446744073709551615"), Some(u64::MAX));
        for wrong in [
            &b""[..],
            b"-1",
            b"+1",
            b"1x",
            b" 1",
            b"1.0",
            b"18446744073709551616",
            b"\xd9\xa1",
        ] {
            assert_eq!(plain(wrong), None, "{}", quoted(wrong));
        }
    }

    #[test]
    fn targets_split_at_the_slash() {
        let target = |field| super::target(field).map(|t| (t.topic, t.partition));
        assert_eq!(target(b"orders"), Ok((&b"orders"[..], None)));
        assert_eq!(target(b"orders/0"), Ok((&b"orders"[..], Some(0))));
        assert_eq!(
            target(b"orders/2147483647"),
            Ok((&b"orders"[..], Some(2_147_483_647)))
        );
        for wrong in [
            &b"orders/"[..],
            b"orders/x",
            b"orders/-1",
            b"/0",
            b"a/0/1",
            b"a/2147483648",
            b"a\t/0",
            b"a/\x01",
        ] {
            assert!(target(wrong).is_err(), "{}", quoted(wrong));
        }
    }
}
