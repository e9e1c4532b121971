//! Opening a log: after an orderly stop in a time that does not grow with it, after anything else by scanning what may not be durable.
//!
//! What is decided here is written down in docs/format.md, "Start". In short: below the recovery point nothing is looked at;
//! beyond it every entry is checked; a bad end of the last segment is put aside in a `.torn` file and cut off; damage anywhere
//! else stays where it is and is named; and the next offset never goes back over anything that was durable.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::api::CrcMode;
use crate::fs::{DirEntry, File, Fs, OpenMode, move_directory_aside};

use super::LogConfig;
use super::active::{Active, Extent};
use super::append_times::AppendTimes;
use super::cleaned::Cleaned;
use super::context::LogContext;
use super::floor_map::{FloorMap, Sealed};
use super::lent::Lent;
use super::log::{Log, Mark};
use super::names::{FileKind, entry_kind, file_kind, segment_file};
use super::rebuild::SCAN_CHUNK_BYTES;
use super::scan::{Scan, Scanned};
use super::sealed::{SealedFiles, SealedName};
use super::torn::PendingCut;
use super::walk::{Bounds, Step, Walk};
use super::window::Window;
use super::{Error, OpenReport, StartFrom, replace};

/// What a partition's directory holds.
#[derive(Debug, Default)]
struct Listing {
    /// Base offset and bytes of each `.log`.
    logs: BTreeMap<i64, u64>,
    torn: BTreeSet<i64>,
}

/// A last segment, opened, and what is to be done with it.
struct Last<F: Fs> {
    active: Active<F>,
    /// One past the last good offset.
    end: i64,
    /// What must be cut off from there on.
    cut: Option<PendingCut>,
    /// One past the highest good offset in what is cut; 0 where there is none.
    cut_end: i64,
}

/// An opening in progress.
struct Opening<'o, F: Fs> {
    context: &'o LogContext<F>,
    topic: &'o str,
    partition: u32,
    dir: PathBuf,
    config: LogConfig,
    recovery_point: i64,
    now_ms: i64,
    report: OpenReport,
    is_read_only: bool,
}

impl<F: Fs> Log<F> {
    /// Opens the partition whose directory `<data_dir>/<topic>-<partition>` exists, recovering it where the stop was not clean. A
    /// directory without segments becomes a log with one empty segment.
    ///
    /// # Errors
    /// Where the system refuses; never because of what the files hold.
    pub fn open(
        context: &Rc<LogContext<F>>,
        data_dir: &Path,
        topic: &str,
        partition: u32,
        config: LogConfig,
        start: StartFrom,
        now_ms: i64,
    ) -> Result<(Self, OpenReport), Error> {
        let dir = data_dir.join(format!("{topic}-{partition}"));
        let recovery_point = context
            .checkpoints
            .recovery_point(topic, partition)
            .unwrap_or(0);
        let log_start = context.checkpoints.log_start(topic, partition);
        let mut opening = Opening {
            context,
            topic,
            partition,
            dir,
            config,
            recovery_point,
            now_ms,
            report: OpenReport::default(),
            is_read_only: false,
        };
        let listing = opening.list().map_err(Error::io("read", &opening.dir))?;
        let floor = recovery_point.max(log_start);
        let last = opening.open_segments(&listing, floor, start.is_clean)?;
        opening.finish(context, listing, last, floor, log_start)
    }
}

impl<F: Fs> Opening<'_, F> {
    fn name(&self, base: i64, upper: i64, size: u64) -> SealedName<'_> {
        SealedName {
            dir: &self.dir,
            base,
            upper,
            size,
            interval: self.config.index_interval_bytes,
        }
    }

    /// Lists the directory, removes what a crash left over, and names strangers in the log.
    fn list(&self) -> io::Result<Listing> {
        let fs = &self.context.fs;
        let mut listing = Listing::default();
        let mut indexes = Vec::new();
        let mut entries = fs.read_dir(&self.dir)?;
        if self.move_directories_aside(&entries)? {
            entries = fs.read_dir(&self.dir)?;
        }
        let is_manifest = |entry: &DirEntry| matches!(entry_kind(entry), FileKind::Replace(_));
        if entries.iter().any(is_manifest) {
            replace::finish_all(fs, &self.dir)
                .map_err(|error| io::Error::other(error.to_string()))?;
            entries = fs.read_dir(&self.dir)?;
        }
        let has_manifest = entries.iter().any(is_manifest);
        for entry in entries {
            let name = entry.name.to_string_lossy().into_owned();
            match entry_kind(&entry) {
                FileKind::Log(base) => {
                    listing.logs.insert(base, entry.len);
                }
                FileKind::Index(base) | FileKind::TimeIndex(base) => indexes.push((base, name)),
                FileKind::Torn(base) => {
                    listing.torn.insert(base);
                }
                FileKind::AppendTimes
                | FileKind::Cleaned
                | FileKind::Damaged(_)
                | FileKind::Replace(_) => {}
                // Beside a manifest that nobody understands they may be the only copy.
                FileKind::Leftover if has_manifest => {
                    log::warn!("{} is left alone", self.dir.join(&name).display());
                }
                FileKind::Leftover => {
                    log::info!(
                        "removing {}, left by an interrupted clean-up",
                        self.dir.join(&name).display()
                    );
                    fs.remove_file(&self.dir.join(name))?;
                }
                FileKind::Unknown => {
                    log::warn!(
                        "{} is not the broker's; left alone",
                        self.dir.join(name).display()
                    );
                }
            }
        }
        for (base, name) in indexes {
            if !listing.logs.contains_key(&base) {
                log::warn!(
                    "removing {}, an index without its log",
                    self.dir.join(&name).display()
                );
                fs.remove_file(&self.dir.join(name))?;
            }
        }
        Ok(listing)
    }

    /// Takes directories away that have the names of indexes and of other files that are made anew; returns whether there were some.
    fn move_directories_aside(&self, entries: &[DirEntry]) -> io::Result<bool> {
        let mut were_some = false;
        for entry in entries.iter().filter(|entry| entry.is_dir) {
            match file_kind(&entry.name.to_string_lossy()) {
                FileKind::Index(_)
                | FileKind::TimeIndex(_)
                | FileKind::AppendTimes
                | FileKind::Cleaned
                | FileKind::Replace(_)
                | FileKind::Leftover => {
                    move_directory_aside(&self.context.fs, &self.dir.join(&entry.name))?;
                    were_some = true;
                }
                FileKind::Log(_) | FileKind::Torn(_) | FileKind::Damaged(_) | FileKind::Unknown => {
                }
            }
        }
        Ok(were_some)
    }

    fn open_segments(
        &mut self,
        listing: &Listing,
        floor: i64,
        is_clean: bool,
    ) -> Result<Last<F>, Error> {
        let Some((&base, &size)) = listing.logs.last_key_value() else {
            return self.create_first(floor);
        };
        if is_clean
            && let Some(last) = self
                .open_clean(base, size)
                .map_err(Error::io("open", &segment_file(&self.dir, base, "log")))?
        {
            return Ok(last);
        }
        let uppers = listing.logs.keys().copied().skip(1);
        for ((&base, &size), upper) in listing.logs.iter().zip(uppers) {
            // One that ends just there may have been sealed since, and its indexes cut and not yet synced.
            if upper >= self.recovery_point {
                let path = segment_file(&self.dir, base, "log");
                self.recover_sealed(base, upper, size)
                    .map_err(Error::io("recover", &path))?;
            }
        }
        let path = segment_file(&self.dir, base, "log");
        let last = self
            .recover_last(base, size, floor)
            .map_err(Error::io("recover", &path))?;
        self.settle_names();
        Ok(last)
    }

    /// Makes the names of the segments durable: a process that was killed may have created one and not synced its directory.
    fn settle_names(&mut self) {
        if let Err(error) = self.context.fs.sync_dir(&self.dir) {
            log::error!(
                "{}/{} is read-only until a restart: fsync of {} failed: {error}",
                self.topic,
                self.partition,
                self.dir.display()
            );
            self.is_read_only = true;
        }
    }

    fn create_first(&self, floor: i64) -> Result<Last<F>, Error> {
        if floor > 0 {
            log::error!(
                "{}/{} has no segment, though it held records up to offset {floor}; it goes on there",
                self.topic,
                self.partition
            );
        }
        let path = segment_file(&self.dir, floor, "log");
        let fs = &self.context.fs;
        let active = Active::create(fs, &self.dir, floor, &self.config, self.now_ms)
            .map_err(Error::io("create", &path))?;
        fs.sync_dir(&self.dir)
            .map_err(Error::io("fsync", &self.dir))?;
        Ok(Last {
            active,
            end: floor,
            cut: None,
            cut_end: 0,
        })
    }

    /// Opens the last segment after an orderly stop; `None` where anything is not as such a stop leaves it.
    fn open_clean(&mut self, base: i64, size: u64) -> io::Result<Option<Last<F>>> {
        let name = self.name(base, i64::MAX, size);
        let Some(files) = SealedFiles::open_checked(&self.context.fs, &name)? else {
            return Ok(None);
        };
        let layout = if size == 0 {
            self.config.record_version
        } else {
            files.layout
        };
        let bounds = Bounds {
            base,
            upper: i64::MAX,
            layout,
        };
        let mut window = Window::new(&*files.log, size, SCAN_CHUNK_BYTES.min(8192), Vec::new());
        let start = files.index.last().map_or(0, |row| u64::from(row.position));
        let mut walk = Walk::new(bounds, start, base);
        loop {
            match walk.step(&mut window, &files.index)? {
                Step::Entry { .. } => {}
                Step::Damage { .. } => return Ok(None),
                Step::End => break,
            }
        }
        if walk.expected() != self.recovery_point {
            return Ok(None);
        }
        let first = window.head(layout, 0)?.ok().map(|head| head.max_timestamp);
        let extent = Extent {
            bytes: size,
            first_timestamp: first,
            max_timestamp: files.time.last(),
            offset_rows: files.index.len(),
            time_rows: files.time.len(),
        };
        self.report.scanned_bytes += window.read_bytes();
        drop(window);
        drop(files);
        let active = self.activate(base, extent, layout)?;
        Ok(Some(Last {
            active,
            end: self.recovery_point,
            cut: None,
            cut_end: 0,
        }))
    }

    fn activate(
        &self,
        base: i64,
        extent: Extent,
        layout: crate::format::Layout,
    ) -> io::Result<Active<F>> {
        let fs = &self.context.fs;
        let log = Rc::new(fs.open(&segment_file(&self.dir, base, "log"), OpenMode::Write)?);
        // When it was last appended to is not stored for an active segment: its newest record tells, or the clock.
        let newest = extent
            .max_timestamp
            .map_or(self.now_ms, |row| row.timestamp);
        let last_append_ms = newest.min(self.now_ms);
        Active::open(
            fs,
            &self.dir,
            base,
            log,
            &self.config,
            extent,
            layout,
            last_append_ms,
        )
    }

    /// Makes what the disk holds the truth: what a failed fsync left in memory must not look durable.
    fn settle(&mut self, file: &F::File, path: &Path) {
        match file.sync_data() {
            Ok(()) => file.drop_cache(),
            Err(error) => {
                log::error!(
                    "{}/{} is read-only until a restart: fdatasync of {} failed: {error}",
                    self.topic,
                    self.partition,
                    path.display()
                );
                self.is_read_only = true;
            }
        }
    }

    fn scan(&mut self, base: i64, upper: i64, size: u64) -> io::Result<Scanned> {
        let path = segment_file(&self.dir, base, "log");
        let file = self.context.fs.open(&path, OpenMode::Write)?;
        self.settle(&file, &path);
        let scan = Scan {
            fs: &self.context.fs,
            name: self.name(base, upper, size),
            recovery_point: self.recovery_point,
            is_last: upper == i64::MAX,
            new_layout: self.config.record_version,
        };
        let scanned = scan.run(&file)?;
        self.report.scanned_bytes += scanned.read_bytes;
        for damage in &scanned.damaged {
            self.report.damaged += 1;
            log::error!(
                "{}/{} is damaged: offset={} position={} of {base:020}.log ({}), reading goes on at offset {}",
                self.topic,
                self.partition,
                damage.offset,
                damage.position,
                damage.what,
                damage.next
            );
        }
        Ok(scanned)
    }

    fn recover_sealed(&mut self, base: i64, upper: i64, size: u64) -> io::Result<()> {
        let scanned = self.scan(base, upper, size)?;
        let fs = &self.context.fs;
        match scanned.write_rows(fs, &self.name(base, upper, size)) {
            Ok(is_changed) => self.report.rebuilt_indexes += u64::from(is_changed),
            Err(error) => {
                log::warn!(
                    "{}/{}: indexes of {base:020}.log: {error}; they are rebuilt when they are asked for",
                    self.topic,
                    self.partition
                );
                for suffix in ["index", "timeindex"] {
                    match fs.remove_file(&segment_file(&self.dir, base, suffix)) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn recover_last(&mut self, base: i64, size: u64, floor: i64) -> io::Result<Last<F>> {
        let scanned = self.scan(base, i64::MAX, size)?;
        let is_lost = scanned.end < floor;
        // Behind damage that a good entry follows nothing is cut, and nothing may be appended.
        let keeps_all = scanned.has_damage_to_keep && !is_lost;
        let cut_at = scanned.torn_from.filter(|_| !keeps_all);
        let bytes = cut_at.unwrap_or(size);
        let cut = (cut_at.is_some() || is_lost).then_some(PendingCut::at(bytes));
        self.report.torn_bytes += size - bytes;
        let mut rows = (scanned.offset_rows(), scanned.time_rows());
        match scanned.write_rows(&self.context.fs, &self.name(base, i64::MAX, size)) {
            Ok(is_changed) => self.report.rebuilt_indexes += u64::from(is_changed),
            Err(error) => {
                log::warn!(
                    "{}/{}: {error}; lookups scan for now",
                    self.topic,
                    self.partition
                );
                rows = scanned.kept_rows();
            }
        }
        let extent = Extent {
            bytes,
            first_timestamp: scanned.first_timestamp,
            max_timestamp: scanned.max_timestamp,
            offset_rows: rows.0,
            time_rows: rows.1,
        };
        let mut active = self.activate(base, extent, scanned.layout)?;
        active.must_roll = is_lost || scanned.has_damage_to_keep;
        Ok(Last {
            active,
            end: scanned.end,
            cut,
            cut_end: scanned.cut_end,
        })
    }

    fn finish(
        self,
        context: &Rc<LogContext<F>>,
        listing: Listing,
        last: Last<F>,
        floor: i64,
        log_start: i64,
    ) -> Result<(Log<F>, OpenReport), Error> {
        let next_offset = last.end.max(floor).max(last.cut_end);
        let mut sealed: FloorMap = listing
            .logs
            .into_iter()
            .map(|(base, bytes)| (base, Sealed::new(bytes)))
            .collect();
        sealed.remove(last.active.base);
        let first_base = sealed
            .first_key_value()
            .map_or(last.active.base, |(base, _)| *base);
        let mark = Mark {
            offset: next_offset,
            base: last.active.base,
            position: last.active.written.bytes,
        };
        let mut torn = listing.torn;
        if last.cut.is_some() {
            torn.insert(last.active.base);
        }
        let durable = if self.is_read_only {
            Mark {
                offset: self.recovery_point,
                ..mark
            }
        } else {
            mark
        };
        let mut log = Log {
            context: Rc::clone(context),
            id: context.new_log_id(),
            topic: self.topic.to_owned(),
            partition: self.partition,
            append_times: AppendTimes::read(&context.fs, &self.dir),
            cleaned: Cleaned::read(&context.fs, &self.dir),
            dir: self.dir,
            config: self.config,
            sealed,
            active: last.active,
            earliest: log_start.max(first_base),
            next_offset,
            written: mark,
            durable,
            published: mark,
            buffer: Vec::new(),
            scratch: Vec::new(),
            unsynced: VecDeque::new(),
            torn,
            lent: Lent::default(),
            mended: BTreeSet::new(),
            pending_cut: last.cut,
            is_read_only: self.is_read_only,
            is_uncleanable: false,
            is_damaged: self.report.damaged > 0 || last.end < floor,
        };
        log.active.must_roll |= next_offset > last.end;
        log.settle_end(self.now_ms)?;
        Ok((log, self.report))
    }
}

impl<F: Fs> Log<F> {
    /// After a start whose fsync failed, readers see what was durable before, and no more.
    fn hide_unsynced(&mut self) {
        let durable = self.durable.offset;
        if let Ok(Some((base, found))) = self.locate(durable, CrcMode::Skip)
            && found.head.first_offset == durable
        {
            let mark = Mark {
                offset: durable,
                base,
                position: found.position,
            };
            self.durable = mark;
            self.published = mark;
        }
    }

    /// Does what the end of a log that was just opened needs, as far as there is room.
    fn settle_end(&mut self, now_ms: i64) -> Result<(), Error> {
        if self.is_read_only {
            self.hide_unsynced();
            return Ok(());
        }
        let is_behind = self.next_offset > self.active.base && self.active.now.bytes == 0;
        let done = if self.pending_cut.is_some() {
            self.cut_pending(now_ms)
        } else if is_behind && self.active.must_roll {
            self.roll(now_ms, true)
        } else {
            Ok(())
        };
        match done {
            Err(error) if error.is_disk_full() => {
                log::warn!(
                    "{}/{}: {error}; appends wait for room",
                    self.topic,
                    self.partition
                );
            }
            other => other?,
        }
        self.published = self.written;
        let checkpoints = &self.context.checkpoints;
        checkpoints.set_recovery_point(&self.topic, self.partition, self.durable.offset);
        Ok(())
    }
}
