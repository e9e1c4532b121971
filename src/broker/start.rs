//! The start and the orderly stop.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::api::Now;
use crate::clock::Clock;
use crate::fs::Fs;
use crate::storage::data_dir::{DataDir, TopicFile};
use crate::storage::{Error, LogContext, StartFrom};

use super::cleaning::Cleaner;
use super::configs::{Config, InForce, Overrides};
use super::delayed_fetch::DelayedFetches;
use super::deletions::Deletions;
use super::groups::Groups;
use super::housekeeping::Retention;
use super::partition::Partitions;
use super::space::Space;
use super::stats::Stats;
use super::sync_rounds::SyncRounds;
use super::sync_together::TogetherSync;
use super::topics::Topics;
use super::{Broker, Settings};

impl<F: Fs> Broker<F> {
    /// Locks the data directory and opens every partition in it. `bind` is called before anything is changed, and where the directory
    /// is not new once the lock is held: where it fails (the port is in use), the start changes nothing.
    ///
    /// # Errors
    /// One line for the operator that says what to do.
    pub fn open(
        fs: F,
        settings: Settings,
        clock: &dyn Clock,
        bind: impl FnOnce() -> Result<(), String>,
    ) -> Result<Self, String> {
        let configs = settings
            .configs
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let defaults = Overrides::of_broker(configs).map_err(|error| error.message)?;
        let in_force = InForce {
            broker: &defaults,
            topic: None,
        };
        in_force.check().map_err(|error| error.message)?;
        let started = clock.now().mono;
        let first_pass = started.saturating_add(in_force.time(Config::InitialTaskDelayMs));
        let words = |error: Error| error.to_string();
        let mut data_dir = claim(&fs, &settings.data_dir, bind)?;
        let is_clean = data_dir.begin().map_err(words)?;
        let loaded = data_dir.load_topics().map_err(words)?;
        if !is_clean && !loaded.topics.is_empty() {
            data_dir.write_out();
        }
        if let Err(error) = data_dir.ensure_spare() {
            log::error!("appends are refused until there is space: {error}");
        }
        let checkpoints = Rc::clone(data_dir.checkpoints());
        let context = LogContext::new(fs.clone(), settings.fsync, checkpoints);
        let mut broker = Self {
            fs,
            space: Space::new(settings.min_free_bytes),
            settings,
            data_dir,
            context: Rc::new(context),
            defaults,
            topics: Topics::default(),
            last: None,
            partitions: Partitions::new(),
            turn: 0,
            last_heard: Duration::ZERO,
            dirty: Vec::new(),
            syncs: BTreeSet::new(),
            sync_rounds: SyncRounds::default(),
            together: TogetherSync::default(),
            failed_sync: None,
            moved: Vec::new(),
            checkpoint_due: None,
            background: VecDeque::new(),
            delayed: DelayedFetches::default(),
            groups: Groups::new(),
            deletions: Deletions::new(),
            retention: Retention::new(first_pass),
            cleaner: Cleaner::new(),
            deleting: VecDeque::new(),
            unfinished_deletions: Vec::new(),
            unfinished_creations: Vec::new(),
            stats: Stats {
                started,
                ..Stats::default()
            },
        };
        broker.stats.corrupt_records += u64::try_from(loaded.lost.len()).unwrap_or(u64::MAX);
        for file in &loaded.topics {
            broker.open_found(file, StartFrom { is_clean }, clock)?;
        }
        broker.after_open(is_clean, clock.now());
        Ok(broker)
    }

    fn open_found(
        &mut self,
        file: &TopicFile,
        start: StartFrom,
        clock: &dyn Clock,
    ) -> Result<(), String> {
        let mut overrides = Overrides::default();
        for (name, value) in &file.configs {
            // One by one, so that a line of a newer version costs only itself.
            match Overrides::of_topic([(name.as_str(), value.as_str())]) {
                Ok(good) => overrides.add(good),
                Err(error) => {
                    log::warn!(
                        "topic={} has a config that is left out: {}",
                        file.name,
                        error.message
                    );
                }
            }
        }
        if let Err(error) = self.in_force(Some(&overrides)).check() {
            log::warn!(
                "topic={} has configs that do not go together: {}",
                file.name,
                error.message
            );
        }
        self.open_topic(&file.name, file.partitions, overrides, start, clock.now())
            .map(|_| ())
            .map_err(|error| format!("topic {} cannot be opened: {error}", file.name))
    }

    fn after_open(&mut self, is_clean: bool, now: Now) {
        let (topics, partitions) = (self.topics.len(), self.partitions.len());
        log::info!("opened topics={topics} partitions={partitions} clean={is_clean}");
        if topics > usize::try_from(self.settings.max_topics).unwrap_or(usize::MAX) {
            log::warn!(
                "topics={topics} are more than --max-topics={}",
                self.settings.max_topics
            );
        }
        if partitions > self.settings.max_partitions {
            log::warn!(
                "partitions={partitions} are more than --max-partitions={}",
                self.settings.max_partitions
            );
        }
        for key in self.partitions.keys() {
            if self
                .partitions
                .get(key)
                .is_some_and(|partition| partition.log.is_read_only())
            {
                self.fail_sync(key, &Error::ReadOnly);
            }
        }
        self.load_commits(now);
    }

    /// Syncs and closes every partition, then writes clean-shutdown.
    ///
    /// # Errors
    /// One line; no marker was written then, and the process exits with 1.
    pub fn close(&mut self, clock: &dyn Clock) -> Result<(), String> {
        self.flush(clock);
        let mut failure = self.failed_sync.as_ref().map(|error| error.message.clone());
        for key in self.partitions.keys() {
            let Some(partition) = self.partitions.get_mut(key) else {
                continue;
            };
            if let Err(error) = partition.log.close() {
                let (topic, number) = self.place(key);
                log::error!("topic={topic} partition={number} could not be closed: {error}");
                failure.get_or_insert_with(|| {
                    format!("{topic}/{number} could not be closed: {error}")
                });
            }
        }
        for id in self.topics.doubtful() {
            if let Err(error) = self.restore_topic(id) {
                failure.get_or_insert(error.message);
            }
        }
        for name in self.unfinished_creations.clone() {
            // A clean start trusts the names it finds to be on the disk.
            if let Err(error) = self.free_name(&name) {
                failure.get_or_insert(error.to_string());
            }
        }
        self.checkpoint(clock.now().mono);
        if let Some(failure) = failure {
            return Err(format!(
                "the stop is not clean, the next start looks at all tails: {failure}"
            ));
        }
        let written = self.context.checkpoints.write_recovery_point();
        written
            .and_then(|()| self.data_dir.write_clean_marker())
            .map_err(|error| {
                format!("the stop is not clean, the next start looks at all tails: {error}")
            })
    }
}

/// Locks the data directory, and binds the listeners.
fn claim<F: Fs>(
    fs: &F,
    root: &Path,
    bind: impl FnOnce() -> Result<(), String>,
) -> Result<DataDir<F>, String> {
    let words = |error: Error| error.to_string();
    let lock = || DataDir::lock(fs.clone(), root).map_err(words);
    if DataDir::is_claimed(fs, root).map_err(words)? {
        // Who owns the directory is the better news where the address is taken as well.
        let data_dir = lock()?;
        bind()?;
        return Ok(data_dir);
    }
    // A start that comes to nothing leaves nothing behind.
    bind()?;
    lock()
}
