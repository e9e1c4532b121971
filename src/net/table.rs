//! The connections, and which of them have something to do.
//!
//! Nothing is scanned: whoever touched a connection calls [`Table::attend`], which puts it where its state belongs. The
//! readiness of sockets is edge-triggered, so a connection that is put nowhere is never heard of again until its peer acts.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use slab::Slab;

use crate::api::ConnectionId;

use super::connection::{Connection, Stage};
use super::session::Session;
use super::socket::{Peer, Socket};

/// The connections, and which of them have something to do.
#[derive(Debug)]
pub(super) struct Table {
    slots: Slab<Connection>,
    /// Connections that there ever were: what makes an id unique.
    tenants: u64,
    /// Connections that count against the limit.
    served: usize,
    /// Those to take input from.
    ready: VecDeque<usize>,
    /// Those to send to.
    owing: Vec<usize>,
    /// Those to remove; a slot may stand here twice.
    dead: Vec<usize>,
}

/// An id's low bits are the slot, so that it is found at once; its high bits tell the slot's tenants apart.
const SLOT_BITS: u32 = 32;

impl Table {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            tenants: 0,
            served: 0,
            ready: VecDeque::new(),
            owing: Vec::new(),
            dead: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many connections are served: those on their way out do not count.
    pub(super) fn served(&self) -> usize {
        self.served
    }

    /// Takes a connection in; returns its slot. `session` makes its session for the id that it gets.
    pub(super) fn insert(
        &mut self,
        socket: Socket,
        peer: Peer,
        session: impl FnOnce(ConnectionId) -> Session,
    ) -> usize {
        let slot = self.slots.vacant_key();
        let id = ConnectionId(self.tenants << SLOT_BITS | slot as u64);
        self.tenants += 1;
        self.served += 1;
        self.slots
            .insert(Connection::new(socket, peer, session(id)))
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots.get_mut(slot)
    }

    /// The connection of that id and its slot, if it is still there.
    pub(super) fn find(&mut self, id: ConnectionId) -> Option<(usize, &mut Connection)> {
        let slot = usize::try_from(id.0 & ((1 << SLOT_BITS) - 1)).ok()?;
        let connection = self.slots.get_mut(slot)?;
        (connection.session.id() == id).then_some((slot, connection))
    }

    /// Every slot that is taken.
    pub(super) fn slots(&self) -> Vec<usize> {
        self.slots.iter().map(|(slot, _)| slot).collect()
    }

    /// Puts a connection that something happened to where its state belongs.
    pub(super) fn attend(&mut self, slot: usize) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.is_counted && !connection.is_served() {
            connection.is_counted = false;
            self.served -= 1;
        }
        if connection.stage == Stage::Dead {
            self.dead.push(slot);
            return;
        }
        if !connection.is_queued && connection.wants_input() {
            connection.is_queued = true;
            self.ready.push_back(slot);
        }
        if !connection.is_listed && connection.wants_output() {
            connection.is_listed = true;
            self.owing.push(slot);
        }
    }

    /// Whether some connection has something to do without a further event.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.owing.is_empty() || !self.dead.is_empty()
    }

    /// How many stand in the queue of those to take input from.
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// The next to take input from.
    pub(super) fn next_ready(&mut self) -> Option<(usize, &mut Connection)> {
        let slot = self.ready.pop_front()?;
        let connection = self.slots.get_mut(slot)?;
        connection.is_queued = false;
        Some((slot, connection))
    }

    /// Those to send to; attending one puts it into the next list.
    pub(super) fn take_owing(&mut self) -> Vec<usize> {
        let owing = std::mem::take(&mut self.owing);
        for &slot in &owing {
            if let Some(connection) = self.slots.get_mut(slot) {
                connection.is_listed = false;
            }
        }
        owing
    }

    /// Gives the memory of a list back that [`Table::take_owing`] gave.
    pub(super) fn recycle_owing(&mut self, mut list: Vec<usize>) {
        list.clear();
        list.append(&mut self.owing);
        self.owing = list;
    }

    /// Removes the dead; from here on their slots are used again.
    pub(super) fn bury(&mut self, mut each: impl FnMut(Connection)) {
        for slot in self.dead.drain(..) {
            if self
                .slots
                .get(slot)
                .is_some_and(|connection| connection.stage == Stage::Dead)
            {
                each(self.slots.remove(slot));
            }
        }
    }
}
