//! Consumer groups: who shares which topic, what each was sent, what is committed. State alone: it reads no log and writes none.
//!
//! The connections that consume a topic in one group share its partitions; topics of one group have nothing to do with each other, so
//! the unit is the [`Share`], a group's place in a topic. A partition that moves has a gate: its new owner is given nothing before
//! each one that had it was told so, and then only in a later turn, so that the news is on its way first.
//!
//! In reading order: `assignment` (who gets what), `member` (what one was sent), `offsets` (commits as records), `commits` (what this turn
//! commits).

#![forbid(unsafe_code)]

mod assignment;
mod commits;
mod member;
pub(super) mod offsets;
mod window;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use slab::Slab;

use crate::api::{
    AckMode, ApiError, ConnectionId, Consume, ErrorCode, GroupInfo, PartitionKey, quoted,
};

pub(super) use commits::Pending;
pub use commits::Ticket;
pub(super) use member::{Acknowledged, Held, Member, Next};
pub(super) use offsets::Commit;

/// The longest name of a group, bytes.
const NAME_BYTES_MAX: usize = 249;

/// Pairs of a group and a topic that it uses, at most: each costs memory for as long as the group is remembered.
pub(super) const SHARES_MAX: usize = 100_000;

/// Committed offsets, at most, of all groups together: they are in memory.
pub(super) const COMMITS_MAX: usize = 1_000_000;

/// How far apart looks for forgotten groups are, and how long after a start the first comes, so that consumers can be back.
const EXPIRY_INTERVAL: Duration = Duration::from_mins(1);

/// A [`Share`]'s place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ShareId(usize);

/// A group.
#[derive(Debug, Default)]
struct Group {
    shares: BTreeMap<Rc<str>, ShareId>,
    /// When it was used last, by the wall clock.
    used_ms: i64,
}

/// A group's place in a topic.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) group: Rc<[u8]>,
    pub(super) topic: Rc<str>,
    /// In the order in which they came.
    members: Vec<ConnectionId>,
    parts: Vec<Part>,
    pub(super) commits: BTreeMap<u32, Commit>,
}

/// A partition, as the members of a share have it.
#[derive(Debug, Default)]
struct Part {
    owner: Option<ConnectionId>,
    /// Who had it and was not told yet that it is gone.
    untold: Vec<ConnectionId>,
    /// The owner is given records in a later turn than this.
    after_turn: Option<u64>,
    /// Where these members began, where nothing was committed.
    start: Option<i64>,
}

impl Part {
    fn is_open(&self, turn: u64) -> bool {
        self.untold.is_empty() && self.after_turn.is_none_or(|after| turn > after)
    }
}

/// How a member leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// It said so: what it was sent before that reaches it.
    Stopped,
    /// It is gone, or lost its place.
    Gone,
}

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    by_name: BTreeMap<Rc<[u8]>, Group>,
    shares: Slab<Share>,
    members: HashMap<ConnectionId, Member>,
    /// What connections are called that consume or may begin to.
    names: HashMap<ConnectionId, Box<str>>,
    /// How many offsets are committed.
    commits: usize,
    pending: Vec<Pending>,
    pending_places: HashMap<(ShareId, u32), usize>,
    /// What became of the commits of the last flush.
    decided: Vec<Option<ApiError>>,
    /// Keys of commits that are forgotten here and not yet on the disk.
    forgotten: BTreeSet<Box<[u8]>>,
    /// When those are written.
    forgotten_due: Duration,
    /// Members that can go on from the next turn on.
    opening: Vec<ConnectionId>,
    expiry_due: Option<Duration>,
    /// The wall clock, as last told.
    wall_ms: i64,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            by_name: BTreeMap::new(),
            shares: Slab::new(),
            members: HashMap::new(),
            names: HashMap::new(),
            commits: 0,
            pending: Vec::new(),
            pending_places: HashMap::new(),
            decided: Vec::new(),
            forgotten: BTreeSet::new(),
            forgotten_due: Duration::ZERO,
            opening: Vec::new(),
            expiry_due: None,
            wall_ms: i64::MIN,
        }
    }

    /// How many groups there are.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is a group, or something to be written of one that was.
    pub(super) fn has_any(&self) -> bool {
        !self.by_name.is_empty() || !self.forgotten.is_empty() || !self.pending.is_empty()
    }

    /// All shares.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ShareId, &Share)> {
        self.shares.iter().map(|(id, share)| (ShareId(id), share))
    }

    /// Tells the wall clock.
    pub(super) fn set_time(&mut self, wall_ms: i64) {
        self.wall_ms = wall_ms;
    }

    /// Remembers what a connection is called.
    pub(super) fn introduce(&mut self, connection: ConnectionId, name: &str) {
        self.names.insert(connection, name.into());
    }

    /// The connection is closed.
    pub(super) fn forget_name(&mut self, connection: ConnectionId) {
        if !self.names.is_empty() {
            self.names.remove(&connection);
        }
    }

    /// Whether nobody ever used a group of that name.
    pub(super) fn is_unknown(&self, group: &[u8]) -> bool {
        !self.by_name.contains_key(group)
    }

    pub(super) fn get(&self, share: ShareId) -> Option<&Share> {
        self.shares.get(share.0)
    }

    pub(super) fn find(&self, group: &[u8], topic: &str) -> Option<ShareId> {
        self.by_name.get(group)?.shares.get(topic).copied()
    }

    /// A group's place in a topic, made where it is missing.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` where there are too many.
    pub(super) fn share(
        &mut self,
        group: &[u8],
        topic: &str,
        mono: Duration,
    ) -> Result<ShareId, ApiError> {
        if let Some(id) = self.find(group, topic) {
            return Ok(id);
        }
        if self.shares.len() >= SHARES_MAX {
            self.drop_unused();
        }
        if self.shares.len() >= SHARES_MAX {
            return Err(ApiError::new(
                ErrorCode::BadArgument,
                format!(
                    "group {} in topic {topic} would be one too many: the broker remembers {SHARES_MAX} pairs of a group and a topic",
                    quoted(group)
                ),
            ));
        }
        let name: Rc<[u8]> = match self.by_name.get_key_value(group) {
            Some((name, _)) => Rc::clone(name),
            None => group.into(),
        };
        let topic: Rc<str> = topic.into();
        let id = ShareId(self.shares.insert(Share {
            group: Rc::clone(&name),
            topic: Rc::clone(&topic),
            members: Vec::new(),
            parts: Vec::new(),
            commits: BTreeMap::new(),
        }));
        let group = self.by_name.entry(name).or_default();
        group.shares.insert(topic, id);
        group.used_ms = group.used_ms.max(self.wall_ms);
        self.expiry_due
            .get_or_insert(mono.saturating_add(EXPIRY_INTERVAL));
        Ok(id)
    }

    /// Takes a connection in; [`Groups::rebalance`] gives it something.
    pub(super) fn join(&mut self, connection: ConnectionId, id: ShareId, consume: &Consume<'_>) {
        let Some(share) = self.shares.get_mut(id.0) else {
            return;
        };
        if share.members.is_empty() {
            for part in &mut share.parts {
                part.start = None;
            }
        }
        share.members.push(connection);
        let name = self.names.get(&connection).cloned().unwrap_or_default();
        self.members
            .insert(connection, Member::new(id, name, consume));
    }

    /// Takes a connection out; returns what it had a share in, to be rebalanced.
    pub(super) fn leave(
        &mut self,
        connection: ConnectionId,
        how: Leave,
        turn: u64,
    ) -> Option<ShareId> {
        let member = self.members.remove(&connection)?;
        let id = member.share;
        if member.ack == AckMode::Auto && how == Leave::Stopped {
            for held in &member.held {
                if let Some(sent) = held.sent() {
                    self.commit_sent(id, held.number, sent);
                }
            }
        }
        let share = self.shares.get_mut(id.0)?;
        share.members.retain(|other| *other != connection);
        for part in &mut share.parts {
            let count = part.untold.len();
            part.untold.retain(|other| *other != connection);
            if part.owner == Some(connection) {
                part.owner = None;
                part.after_turn = Some(turn);
            } else if part.untold.len() < count {
                part.after_turn = Some(turn);
                self.opening.extend(part.owner);
            }
        }
        let wall_ms = self.wall_ms;
        if let Some(group) = self.by_name.get_mut(&share.group) {
            group.used_ms = group.used_ms.max(wall_ms);
        }
        Some(id)
    }

    /// Shares the partitions among the members anew; returns those for whom something changes.
    pub(super) fn rebalance(
        &mut self,
        id: ShareId,
        keys: &[PartitionKey],
        turn: u64,
    ) -> Vec<ConnectionId> {
        let Some(share) = self.shares.get_mut(id.0) else {
            return Vec::new();
        };
        share.parts.resize_with(keys.len(), Part::default);
        let places: HashMap<ConnectionId, usize> = share.members.iter().copied().zip(0..).collect();
        let owners: Vec<Option<usize>> = share
            .parts
            .iter()
            .map(|part| part.owner.and_then(|owner| places.get(&owner).copied()))
            .collect();
        let assigned = assignment::assign(&owners, share.members.len());
        let mut changed = BTreeSet::new();
        let mut sent = Vec::new();
        for (((part, number), key), owner) in
            share.parts.iter_mut().zip(0_u32..).zip(keys).zip(assigned)
        {
            let owner = owner.and_then(|place| share.members.get(place).copied());
            if part.owner == owner {
                continue;
            }
            if let Some(before) = part.owner.take()
                && let Some(member) = self.members.get_mut(&before)
            {
                sent.extend(member.release(number).map(|sent| (number, sent)));
                part.untold.push(before);
                changed.insert(before);
            }
            if let Some(owner) = owner
                && let Some(member) = self.members.get_mut(&owner)
            {
                member.hold(number, *key);
                part.untold.retain(|other| *other != owner);
                part.owner = Some(owner);
                changed.insert(owner);
                if part.after_turn.is_some_and(|after| after >= turn) {
                    self.opening.push(owner);
                }
            }
        }
        for (number, sent) in sent {
            self.commit_sent(id, number, sent);
        }
        changed.into_iter().collect()
    }

    /// The partitions of a member, which it is told now; `None` where it knows.
    pub(super) fn tell(&mut self, connection: ConnectionId, turn: u64) -> Option<Vec<u32>> {
        let member = self.members.get_mut(&connection)?;
        let numbers = member.tell()?;
        let share = self.shares.get_mut(member.share.0)?;
        for part in &mut share.parts {
            let count = part.untold.len();
            part.untold.retain(|other| *other != connection);
            if part.untold.len() < count {
                part.after_turn = Some(turn);
                self.opening.extend(part.owner);
            }
        }
        Some(numbers)
    }

    /// Whether a member is to be told of its partitions.
    pub(super) fn is_untold(&self, connection: ConnectionId) -> bool {
        let member = self.members.get(&connection);
        member.is_some_and(|member| member.is_untold)
    }

    /// Members that can go on in the turn that begins.
    pub(super) fn take_opening(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.opening)
    }

    /// Whether a turn should come at once.
    pub(super) fn is_urgent(&self) -> bool {
        !self.opening.is_empty() || !self.pending.is_empty()
    }

    pub(super) fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    pub(super) fn member(&self, connection: ConnectionId) -> Option<&Member> {
        self.members.get(&connection)
    }

    pub(super) fn member_mut(&mut self, connection: ConnectionId) -> Option<&mut Member> {
        self.members.get_mut(&connection)
    }

    /// The next partition, from the one whose turn it is on, that is open and of which `has_more` is true.
    pub(super) fn next(
        &self,
        connection: ConnectionId,
        turn: u64,
        has_more: impl Fn(&Held) -> bool,
    ) -> Option<Next> {
        let member = self.members.get(&connection)?;
        let share = self.shares.get(member.share.0)?;
        let is_open = |number: u32| {
            let place = usize::try_from(number).unwrap_or(usize::MAX);
            share
                .parts
                .get(place)
                .is_some_and(|part| part.is_open(turn))
        };
        member.next(|held| is_open(held.number) && has_more(held))
    }

    /// Where the members of a share began in a partition without a commit; the first of them decides.
    pub(super) fn start_of(&mut self, id: ShareId, partition: u32, first: i64) -> i64 {
        let place = usize::try_from(partition).unwrap_or(usize::MAX);
        let share = self.shares.get_mut(id.0);
        let part = share.and_then(|share| share.parts.get_mut(place));
        part.map_or(first, |part| *part.start.get_or_insert(first))
    }

    /// What the owner of a partition is called.
    pub(super) fn owner_name(&self, id: ShareId, partition: u32) -> Option<&str> {
        let owner = self.owner(id, partition)?;
        self.members.get(&owner).map(|member| &*member.name)
    }

    /// Who has a partition.
    pub(super) fn owner(&self, id: ShareId, partition: u32) -> Option<ConnectionId> {
        let place = usize::try_from(partition).unwrap_or(usize::MAX);
        self.shares.get(id.0)?.parts.get(place)?.owner
    }

    /// The shares of all groups in a topic.
    pub(super) fn of_topic(&self, topic: &str) -> Vec<ShareId> {
        let of_topic = self
            .shares
            .iter()
            .filter(|(_, share)| *share.topic == *topic);
        of_topic.map(|(id, _)| ShareId(id)).collect()
    }

    /// Forgets a share whose topic is deleted: its members, who are returned, and its commits.
    pub(super) fn drop_share(&mut self, id: ShareId) -> Vec<ConnectionId> {
        let Some(share) = self.shares.try_remove(id.0) else {
            return Vec::new();
        };
        for connection in &share.members {
            self.members.remove(connection);
        }
        self.commits -= share.commits.len();
        self.forget_commits(&share, id);
        if let Some(group) = self.by_name.get_mut(&share.group) {
            group.shares.remove(&share.topic);
            if group.shares.is_empty() {
                self.by_name.remove(&share.group);
            }
        }
        share.members
    }

    /// When [`Groups::expire`] wants to be called.
    pub(super) fn expiry_due(&self) -> Option<Duration> {
        self.expiry_due
    }

    /// Forgets the groups that nobody was in and that committed nothing for so long; returns their names.
    pub(super) fn expire(&mut self, retention_ms: i64, mono: Duration) -> Vec<Rc<[u8]>> {
        let mut expired = Vec::new();
        let mut unused = Vec::new();
        for (name, group) in &self.by_name {
            let shares = || group.shares.values().filter_map(|id| self.shares.get(id.0));
            if shares().all(|share| share.members.is_empty()) {
                unused.extend(group.shares.values().copied());
                if self.wall_ms.saturating_sub(group.used_ms) >= retention_ms {
                    expired.push(Rc::clone(name));
                }
            }
        }
        for id in unused {
            if let Some(share) = self.shares.get_mut(id.0) {
                share.parts = Vec::new();
            }
        }
        for name in &expired {
            let ids: Vec<ShareId> = self
                .by_name
                .get(name)
                .map(|group| group.shares.values().copied().collect())
                .unwrap_or_default();
            for id in ids {
                self.drop_share(id);
            }
        }
        let next = mono.saturating_add(EXPIRY_INTERVAL);
        self.expiry_due = (!self.by_name.is_empty()).then_some(next);
        expired
    }

    /// Drops what was used once and holds nothing.
    pub(super) fn drop_unused(&mut self) {
        let is_unused = |share: &Share| share.members.is_empty() && share.commits.is_empty();
        let unused: Vec<ShareId> = self
            .shares
            .iter()
            .filter(|(_, share)| is_unused(share))
            .map(|(id, _)| ShareId(id))
            .collect();
        for id in unused {
            self.drop_share(id);
        }
    }

    /// GROUPS.
    pub(super) fn list(&self) -> Vec<GroupInfo> {
        let small = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let info = |(name, group): (&Rc<[u8]>, &Group)| {
            let shares = group.shares.values();
            let shares: Vec<&Share> = shares.filter_map(|id| self.shares.get(id.0)).collect();
            GroupInfo {
                group: name[..].into(),
                members: shares.iter().map(|share| small(share.members.len())).sum(),
                topics: small(shares.len()),
            }
        };
        self.by_name.iter().map(info).collect()
    }
}

/// Checks the name of a group.
///
/// # Errors
/// `BAD_ARGUMENT` with the name and what is allowed.
pub(super) fn check_name(group: &[u8]) -> Result<(), ApiError> {
    let is_allowed = |byte: u8| byte > b' ' && byte != 0x7f && byte != b'=';
    let words = match group.len() {
        0 => "is empty".to_owned(),
        bytes if bytes > NAME_BYTES_MAX => format!("has {bytes} bytes"),
        _ if group.iter().copied().all(is_allowed) => return Ok(()),
        _ => "has other characters".to_owned(),
    };
    Err(ApiError::new(
        ErrorCode::BadArgument,
        format!(
            "group name '{}' {words}; allowed are 1 to {NAME_BYTES_MAX} bytes without space, control characters and =",
            quoted(group)
        ),
    ))
}
