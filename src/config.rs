//! What the flags of `serve` mean: durability, sizes, limits; their names, ranges and defaults.
//!
//! Plain functions from text to values, so that the command line, the tests and the documents share one table. Config
//! names (`--config name=value`) have theirs in [`crate::broker::configs`].

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::str::FromStr;

use crate::broker::Settings;
use crate::broker::configs::{InForce, Overrides};
use crate::storage::FsyncPolicy;

/// Where the broker listens where nothing is said.
pub const LISTEN: &str = "127.0.0.1:9092";

/// Where the data is where nothing is said.
pub const DATA_DIR: &str = "./data";

/// The longest interval of `--fsync <n>ms`: an hour.
const FSYNC_MS_MAX: u32 = 3_600_000;

impl FromStr for FsyncPolicy {
    type Err = String;

    /// `always`, `never`, or a number of milliseconds from 1 to 3,600,000 as `<n>ms`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => text
                .strip_suffix("ms")
                .and_then(plain_number)
                .and_then(|ms| u32::try_from(ms).ok())
                .filter(|ms| (1..=FSYNC_MS_MAX).contains(ms))
                .map(Self::EveryMs)
                .ok_or_else(|| {
                    format!(
                        "{text:?} is not a policy: always, never, or an interval of 1ms to {FSYNC_MS_MAX}ms, as in 100ms"
                    )
                }),
        }
    }
}

/// A limit with the flag that sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The flag, dashes included.
    pub flag: &'static str,
    /// The value where nothing is said.
    pub default: u64,
    /// The least value.
    pub min: u64,
    /// The greatest value.
    pub max: u64,
    /// Whether it counts bytes, so that `KiB`, `MiB` and `GiB` are understood.
    pub is_bytes: bool,
    /// What it bounds, for `--help`.
    pub help: &'static str,
}

/// Connections at a time.
pub const MAX_CONNECTIONS: Limit = Limit {
    flag: "--max-connections",
    default: 20_000,
    min: 1,
    max: 1_000_000,
    is_bytes: false,
    help: "Connections at a time; one more is told so and closed",
};

/// Bytes of replies owed to one connection before it is no longer read from.
pub const MAX_BACKLOG_BYTES: Limit = Limit {
    flag: "--max-backlog-bytes",
    default: 4 << 20,
    min: 4096,
    max: 1 << 30,
    is_bytes: true,
    help: "Bytes of replies owed to one connection; above them it is not read from",
};

/// Payload bytes of one READ, stored bytes of one FETCH.
pub const MAX_FETCH_BYTES: Limit = Limit {
    flag: "--max-fetch-bytes",
    default: 16 << 20,
    min: 1,
    max: 1 << 30,
    is_bytes: true,
    help: "Bytes of one READ or FETCH; one record always comes, however large",
};

/// Bytes of the payload of one BATCH.
pub const MAX_BATCH_BYTES: Limit = Limit {
    flag: "--max-batch-bytes",
    default: 16 << 20,
    min: 8,
    max: 1 << 30,
    is_bytes: true,
    help: "Bytes of the payload of one BATCH",
};

/// Topics of the broker.
pub const MAX_TOPICS: Limit = Limit {
    flag: "--max-topics",
    default: 10_000,
    min: 1,
    max: 1_000_000,
    is_bytes: false,
    help: "Topics; CREATE of one more is refused",
};

/// Partitions of all topics together.
pub const MAX_PARTITIONS: Limit = Limit {
    flag: "--max-partitions",
    default: 20_000,
    min: 1,
    max: 1_000_000,
    is_bytes: false,
    help: "Partitions of all topics together; CREATE that needs more is refused",
};

/// Bytes of all topics together.
pub const RETENTION_TOTAL_BYTES: Limit = Limit {
    flag: "--retention-total-bytes",
    default: 0,
    min: 0,
    max: 1 << 60,
    is_bytes: true,
    help: "Bytes of all topics together, above which the oldest sealed segments go; 0 for no limit",
};

/// Bytes of free space below which no append is taken.
pub const MIN_FREE_BYTES: Limit = Limit {
    flag: "--min-free-bytes",
    default: 0,
    min: 0,
    max: 1 << 60,
    is_bytes: true,
    help: "Bytes of free space below which appends are refused (DISK_FULL); 0 for no limit",
};

impl Limit {
    /// The value that the text means.
    ///
    /// # Errors
    /// Words that name the range, where it is not a plain number in it.
    pub fn parse(&self, text: &str) -> Result<u64, String> {
        let value = if self.is_bytes {
            byte_size(text)
        } else {
            plain_number(text)
        };
        value
            .filter(|value| (self.min..=self.max).contains(value))
            .ok_or_else(|| {
                let units = if self.is_bytes {
                    ", or one with KiB, MiB or GiB behind it"
                } else {
                    ""
                };
                format!(
                    "{text:?} is not a plain number from {} to {}{units}",
                    self.min, self.max
                )
            })
    }

    /// As [`Limit::parse`], for a limit that counts things.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn parse_count(&self, text: &str) -> Result<u32, String> {
        self.parse(text)
            .map(|value| u32::try_from(value).unwrap_or(u32::MAX))
    }

    /// The default, for a limit that counts things.
    #[must_use]
    pub fn default_count(&self) -> u32 {
        u32::try_from(self.default).unwrap_or(u32::MAX)
    }
}

/// Digits only: no sign, no space, no separator.
fn plain_number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

/// A plain number of bytes, or of the unit behind it.
fn byte_size(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    for (suffix, factor) in units {
        if let Some(number) = text.strip_suffix(suffix) {
            return plain_number(number)?.checked_mul(factor);
        }
    }
    plain_number(text)
}

/// Splits and checks one `--config name=value`.
///
/// # Errors
/// Words that name what is allowed.
pub fn parse_config(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not of the form name=value"))?;
    Overrides::of_broker([(name, value)]).map_err(|error| error.message)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Checks what all `--config` say together, and beside `--max-partitions`.
///
/// # Errors
/// Words that name what does not go together.
pub fn check_configs(configs: &[(String, String)], max_partitions: u32) -> Result<(), String> {
    let configs = configs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let broker = Overrides::of_broker(configs).map_err(|error| error.message)?;
    let in_force = InForce {
        broker: &broker,
        topic: None,
    };
    in_force.check().map_err(|error| error.message)?;
    let partitions = in_force.partitions();
    if partitions > max_partitions {
        return Err(format!(
            "num.partitions={partitions} is more than {}={max_partitions}, so no topic could be created; lower the one or raise the other",
            MAX_PARTITIONS.flag
        ));
    }
    Ok(())
}

impl Settings {
    /// The defaults of every flag, for a data directory.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            fsync: FsyncPolicy::Always,
            configs: Vec::new(),
            max_topics: MAX_TOPICS.default_count(),
            max_partitions: MAX_PARTITIONS.default_count(),
            max_fetch_bytes: MAX_FETCH_BYTES.default,
            max_batch_bytes: MAX_BATCH_BYTES.default,
            min_free_bytes: MIN_FREE_BYTES.default,
            retention_total_bytes: RETENTION_TOTAL_BYTES.default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsync_is_always_never_or_an_interval() {
        assert_eq!("always".parse(), Ok(FsyncPolicy::Always));
        assert_eq!("never".parse(), Ok(FsyncPolicy::Never));
        assert_eq!("1ms".parse(), Ok(FsyncPolicy::EveryMs(1)));
        assert_eq!("3600000ms".parse(), Ok(FsyncPolicy::EveryMs(3_600_000)));
        for bad in [
            "",
            "ms",
            "0ms",
            "3600001ms",
            "+5ms",
            "-5ms",
            "5",
            "5 ms",
            "5s",
            "Always",
            "99999999999999999999ms",
        ] {
            let error = bad.parse::<FsyncPolicy>().expect_err(bad);
            assert!(error.contains("always, never"), "{error}");
        }
    }

    #[test]
    fn limits_are_taken_at_their_ends_and_refused_beyond_them() {
        for limit in [
            MAX_CONNECTIONS,
            MAX_BACKLOG_BYTES,
            MAX_FETCH_BYTES,
            MAX_BATCH_BYTES,
            MAX_TOPICS,
            MAX_PARTITIONS,
            RETENTION_TOTAL_BYTES,
            MIN_FREE_BYTES,
        ] {
            assert_eq!(
                limit.parse(&limit.min.to_string()),
                Ok(limit.min),
                "{}",
                limit.flag
            );
            assert_eq!(
                limit.parse(&limit.max.to_string()),
                Ok(limit.max),
                "{}",
                limit.flag
            );
            assert_eq!(
                limit.parse(&limit.default.to_string()),
                Ok(limit.default),
                "{}",
                limit.flag
            );
            let below = limit.min.checked_sub(1);
            for bad in below.into_iter().chain([limit.max + 1]) {
                let error = limit.parse(&bad.to_string()).expect_err("out of range");
                assert!(
                    error.contains(&format!("from {} to {}", limit.min, limit.max)),
                    "{error}"
                );
            }
            for bad in ["", "-1", "+5", "1e3", "abc", "99999999999999999999", " 5"] {
                assert!(limit.parse(bad).is_err(), "{} {bad}", limit.flag);
            }
        }
    }

    #[test]
    fn sizes_take_a_unit_and_counts_do_not() {
        assert_eq!(MAX_FETCH_BYTES.parse("64KiB"), Ok(65_536));
        assert_eq!(MAX_FETCH_BYTES.parse("1GiB"), Ok(1 << 30));
        assert!(MAX_FETCH_BYTES.parse("2GiB").is_err());
        assert!(MAX_FETCH_BYTES.parse("KiB").is_err());
        assert!(MAX_FETCH_BYTES.parse("99999999999999999GiB").is_err());
        assert!(MAX_TOPICS.parse("1KiB").is_err());
    }

    #[test]
    fn configs_are_checked_together() {
        let check = |configs: &[(&str, &str)], max_partitions| {
            let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
            check_configs(
                &configs.iter().map(owned).collect::<Vec<_>>(),
                max_partitions,
            )
        };
        assert_eq!(check(&[("num.partitions", "5")], 5), Ok(()));
        let error = check(&[("num.partitions", "6")], 5).expect_err("one too many");
        assert!(
            error.contains("num.partitions=6") && error.contains("--max-partitions=5"),
            "{error}"
        );
        assert!(check(&[("flush.ms", "1"), ("flush.ms", "1")], 5).is_err());
        assert!(
            check(
                &[
                    ("min.compaction.lag.ms", "5"),
                    ("max.compaction.lag.ms", "4")
                ],
                5
            )
            .is_err()
        );
    }

    #[test]
    fn a_config_is_checked_where_it_is_read() {
        assert_eq!(
            parse_config("flush.ms=5"),
            Ok(("flush.ms".into(), "5".into()))
        );
        for bad in [
            "flush.ms",
            "=5",
            "flush.ms=",
            "flush.ms=x",
            "flush.seconds=1",
            "offsets.retention.minutes=0",
        ] {
            assert!(parse_config(bad).is_err(), "{bad}");
        }
    }
}
