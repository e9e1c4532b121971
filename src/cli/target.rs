//! `TOPIC` and `TOPIC/PARTITION` on the command line.

#![forbid(unsafe_code)]

use crate::storage::data_dir::is_topic_name;

use super::Failure;

/// The topic, and the partition where one is named.
///
/// # Errors
/// What would be right instead.
pub(super) fn parse_target(target: &str) -> Result<(&str, Option<u32>), Failure> {
    let (topic, partition) = match target.split_once('/') {
        None => (target, None),
        Some((topic, digits)) => {
            let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits.parse().ok().filter(|_| is_plain);
            (
                topic,
                Some(number.ok_or_else(|| {
                    Failure::Usage(format!(
                        "'{digits}' is not the number of a partition: TOPIC/0 would be right"
                    ))
                })?),
            )
        }
    };
    if !is_topic_name(topic) {
        return Err(Failure::Usage(format!(
            "'{topic}' is not the name of a topic: 1 to 249 of A-Z a-z 0-9 . _ -"
        )));
    }
    Ok((topic, partition))
}
