//! One file of the file system in memory: its pages as a process sees them, and as the disk is certain to hold them.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What a disk keeps or loses as one.
pub(super) const PAGE_BYTES: u64 = 4096;

const PAGE: usize = 4096;

type Page = [u8; PAGE];

/// Pages by number; one that is missing is a hole and reads as zeros.
type Pages = BTreeMap<u64, Rc<Page>>;

/// How many lengths are remembered between two syncs; enough that any of them may be what a crash leaves.
const LENGTHS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct FileNode {
    live: Pages,
    len: u64,
    durable: Pages,
    durable_len: u64,
    /// Pages changed since the last sync.
    dirty: BTreeSet<u64>,
    /// Pages that a failed sync left clean in memory though the disk has the old ones.
    lost: BTreeSet<u64>,
    /// Lengths that the file had since the last sync.
    lengths: Vec<u64>,
    /// Lengths of the mappings that are alive.
    maps: Vec<u64>,
}

impl FileNode {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn pages(&self) -> u64 {
        self.live.len() as u64
    }

    /// The same file without the mappings, for another process to find.
    pub(super) fn copy(&self) -> Self {
        Self {
            live: self.live.clone(),
            len: self.len,
            durable: self.durable.clone(),
            durable_len: self.durable_len,
            dirty: self.dirty.clone(),
            lost: self.lost.clone(),
            lengths: self.lengths.clone(),
            maps: Vec::new(),
        }
    }

    pub(super) fn read(&self, buf: &mut [u8], position: u64) -> usize {
        let left = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..n).filter(|rest| !rest.is_empty()) {
            let (page, within) = place(position + done as u64);
            let take = rest.len().min(PAGE - within);
            let from = self
                .live
                .get(&page)
                .and_then(|page| page.get(within..within + take));
            for (i, byte) in rest.iter_mut().take(take).enumerate() {
                *byte = from.and_then(|from| from.get(i)).copied().unwrap_or(0);
            }
            done += take;
        }
        n
    }

    /// Writes as much as fits into what is there and `room` more pages; returns how much.
    pub(super) fn write(&mut self, bytes: &[u8], position: u64, mut room: u64) -> usize {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let (number, within) = place(position + done as u64);
            if !self.live.contains_key(&number) {
                if room == 0 {
                    break;
                }
                room -= 1;
            }
            let take = rest.len().min(PAGE - within);
            let page = self.page_mut(number);
            if let (Some(to), Some(from)) = (page.get_mut(within..within + take), rest.get(..take))
            {
                to.copy_from_slice(from);
            }
            done += take;
        }
        if done > 0 {
            self.grow(position + done as u64);
        }
        done
    }

    pub(super) fn allocate(&mut self, len: u64, room: u64) -> bool {
        let missing: Vec<u64> = (0..len.div_ceil(PAGE_BYTES))
            .filter(|page| !self.live.contains_key(page))
            .collect();
        if missing.len() as u64 > room {
            return false;
        }
        for number in missing {
            self.page_mut(number);
        }
        self.grow(len);
        true
    }

    /// # Panics
    /// Where a mapping lies over what goes: reading a row there would be a SIGBUS.
    pub(super) fn set_len(&mut self, len: u64) {
        assert!(
            len >= self.len || self.maps.iter().all(|&map| map <= len),
            "a file of {} bytes is cut to {len} under mappings of {:?} bytes",
            self.len,
            self.maps
        );
        if len < self.len {
            for number in cut(&mut self.live, len) {
                self.dirty.insert(number);
                self.lost.remove(&number);
            }
        }
        self.set_length(len);
    }

    pub(super) fn sync(&mut self) {
        for number in std::mem::take(&mut self.dirty) {
            self.put_durable(number);
        }
        self.durable_len = self.len;
        self.lengths.clear();
    }

    /// What a failed fsync does: what it was to write counts as written.
    pub(super) fn lose_dirty(&mut self) {
        self.lost.append(&mut self.dirty);
    }

    /// Clean pages are read from the disk again.
    pub(super) fn drop_cache(&mut self) {
        for number in std::mem::take(&mut self.lost) {
            match self.durable.get(&number) {
                Some(page) => self.live.insert(number, Rc::clone(page)),
                None => self.live.remove(&number),
            };
        }
        // A page that lies behind the end in part was cut there.
        cut(&mut self.live, self.len);
    }

    pub(super) fn write_back(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        for number in std::mem::take(&mut self.dirty) {
            if choose(2) == 0 {
                self.put_durable(number);
            } else {
                self.dirty.insert(number);
            }
        }
        if choose(2) == 0 {
            self.durable_len = self.len;
            self.lengths.clear();
        }
    }

    /// What a disk may hold after a power cut; each thing not synced is there in `keep_of` of `of` cases.
    pub(super) fn crash(&self, keep_of: u64, of: u64, choose: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut pages = self.durable.clone();
        for number in &self.dirty {
            if choose(of) < keep_of {
                match self.live.get(number) {
                    Some(page) => pages.insert(*number, Rc::clone(page)),
                    None => pages.remove(number),
                };
            }
        }
        let mut len = self.durable_len;
        if !self.lengths.is_empty() && choose(of) < keep_of {
            // The last one is what most disks would hold.
            let last = self.lengths.len() - 1;
            let any = usize::try_from(choose(self.lengths.len() as u64)).unwrap_or(last);
            let index = if choose(2) == 0 { last } else { any };
            len = self.lengths.get(index).copied().unwrap_or(len);
        }
        cut(&mut pages, len);
        Self {
            live: pages.clone(),
            len,
            durable: pages,
            durable_len: len,
            ..Self::default()
        }
    }

    pub(super) fn add_map(&mut self, len: u64) {
        self.maps.push(len);
    }

    pub(super) fn remove_map(&mut self, len: u64) {
        if let Some(index) = self.maps.iter().position(|&map| map == len) {
            self.maps.swap_remove(index);
        }
    }

    fn page_mut(&mut self, number: u64) -> &mut Page {
        self.dirty.insert(number);
        self.lost.remove(&number);
        Rc::make_mut(
            self.live
                .entry(number)
                .or_insert_with(|| Rc::new([0; PAGE])),
        )
    }

    fn grow(&mut self, end: u64) {
        if end > self.len {
            self.set_length(end);
        }
    }

    fn set_length(&mut self, len: u64) {
        if len == self.len {
            return;
        }
        self.len = len;
        if self.lengths.len() == LENGTHS_MAX {
            self.lengths.remove(LENGTHS_MAX / 2);
        }
        self.lengths.push(len);
    }

    fn put_durable(&mut self, number: u64) {
        match self.live.get(&number) {
            Some(page) => self.durable.insert(number, Rc::clone(page)),
            None => self.durable.remove(&number),
        };
    }
}

/// The number of the page at a position, and the place within it.
fn place(position: u64) -> (u64, usize) {
    let within = usize::try_from(position % PAGE_BYTES).unwrap_or(0);
    (position / PAGE_BYTES, within)
}

/// Drops what lies behind `len`; returns the pages that changed.
fn cut(pages: &mut Pages, len: u64) -> Vec<u64> {
    let gone = pages.split_off(&len.div_ceil(PAGE_BYTES));
    let mut changed: Vec<u64> = gone.into_keys().collect();
    let (last, within) = place(len);
    if within > 0
        && let Some(page) = pages.get_mut(&last)
        && let Some(tail) = Rc::make_mut(page).get_mut(within..)
        && tail.iter().any(|&byte| byte != 0)
    {
        tail.fill(0);
        changed.push(last);
    }
    changed
}
