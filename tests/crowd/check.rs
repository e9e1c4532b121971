//! What the model says to what the broker does.

use mini_broker::api::{ConnectionId, ErrorCode, Request, Response, TailEvent, Target};
use mini_broker::broker::{Outcome, Resumed};

use crate::{AUTO, GROUPS, Stint, TOPIC, World};

impl World {
    /// Gives one connection what there is for it, and judges that.
    pub(crate) fn resume(&mut self, id: ConnectionId) {
        loop {
            let found = self.consumers.iter().position(|consumer| consumer.id == id);
            let Some(at) = found else { return };
            if self.consumers[at].is_stalled && !self.broker.has_notice(id) {
                self.consumers[at].is_held = true;
                return;
            }
            match self.broker.resume(id, self.now()) {
                Resumed::Waiting => return,
                Resumed::Event(event) => self.event(at, event),
                Resumed::Ended(Response::Error(error)) => {
                    assert_eq!(error.code, ErrorCode::NotAssigned, "{error}");
                    assert!(self.consumers[at].has_ack_wait);
                    self.counts.lost_places += 1;
                    let consumer = self.consumers.remove(at);
                    self.release(&consumer);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn event(&mut self, at: usize, event: TailEvent) {
        match event {
            TailEvent::Assigned(partitions) => self.assigned(at, &partitions),
            TailEvent::Records { partition, records } => {
                let offsets: Vec<i64> = records.iter().map(|record| record.offset).collect();
                self.records(at, partition, &offsets);
            }
            TailEvent::Reset {
                partition,
                from,
                to,
            } => {
                self.counts.resets += 1;
                assert_eq!(to, self.starts[partition as usize]);
                assert!(from < to);
                let consumer = &mut self.consumers[at];
                let stint = consumer.stints.get_mut(&partition).unwrap();
                stint.acked.get_or_insert(to);
                assert!(stint.next.is_none_or(|next| next == from));
                stint.next = Some(to);
            }
            TailEvent::Inflight(count) => {
                let consumer = &self.consumers[at];
                assert_eq!(count, consumer.max_inflight);
            }
            TailEvent::Corrupt { .. } => panic!("nothing is damaged"),
        }
    }

    fn assigned(&mut self, at: usize, partitions: &[u32]) {
        assert!(partitions.is_sorted());
        let group = self.consumers[at].group;
        let before = std::mem::take(&mut self.consumers[at].stints);
        for &partition in partitions {
            let stint = if let Some(stint) = before.get(&partition) {
                stint.clone()
            } else {
                self.counts.moves += 1;
                Stint {
                    since: self.place(group, partition).committed.len() - 1,
                    ..Stint::default()
                }
            };
            self.consumers[at].stints.insert(partition, stint);
        }
        for &partition in before.keys().filter(|old| !partitions.contains(old)) {
            self.released.insert((group, partition), self.turns);
        }
    }

    fn records(&mut self, at: usize, partition: u32, offsets: &[i64]) {
        let (id, group) = (self.consumers[at].id, self.consumers[at].group);
        for other in &self.consumers {
            assert!(
                other.id == id || other.group != group || !other.stints.contains_key(&partition),
                "{id:?} is given records of {partition}, which {:?} has",
                other.id
            );
        }
        let start = self.starts[partition as usize];
        let place = self.place(group, partition).clone();
        let released = self.released.get(&(group, partition)).copied();
        let turns = self.turns;
        let consumer = &mut self.consumers[at];
        let stint = consumer
            .stints
            .get_mut(&partition)
            .expect("records of a partition that it was told of");
        if let Some(next) = stint.next {
            assert_eq!(offsets[0], next, "in order");
        } else if released.is_some_and(|turn| turn >= turns) {
            panic!("the news that {partition} is gone is not on its way yet");
        } else if group != AUTO {
            let is_committed = |committed: &Option<i64>| committed.unwrap_or(start) == offsets[0];
            assert!(
                place.committed[stint.since..].iter().any(is_committed),
                "partition {partition} begins at {} and not at one of {:?}",
                offsets[0],
                &place.committed[stint.since..]
            );
        }
        stint.acked.get_or_insert(offsets[0]);
        assert!(offsets.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        stint.next = offsets.last().map(|last| last + 1);
        if group == AUTO {
            consumer.unwritten.push((partition, offsets.to_vec()));
            return;
        }
        stint.out.extend(offsets);
        let out: usize = consumer.stints.values().map(|stint| stint.out.len()).sum();
        assert!(out as u64 <= consumer.max_inflight, "{out} are out");
        for &offset in offsets {
            self.counts.delivered += 1;
            if !self.place(group, partition).delivered.insert(offset) {
                self.counts.again += 1;
            }
        }
    }

    /// Records of an automatic consumer reach it.
    pub(crate) fn written(&mut self, partition: u32, offsets: &[i64]) {
        let place = self.place(AUTO, partition);
        for &offset in offsets {
            assert!(
                place.written.insert(offset),
                "{partition}/{offset} comes twice"
            );
            place.delivered.insert(offset);
        }
    }

    /// What COMMITTED says is what the model knows.
    pub(crate) fn check_committed(&mut self) {
        for (group, name) in GROUPS.into_iter().enumerate().take(AUTO) {
            let target = Target {
                topic: TOPIC,
                partition: None,
            };
            let request = Request::Committed {
                group: name,
                target,
            };
            let rows = match self.ask(0, &request) {
                Outcome::Reply(Response::Committed(rows)) => rows,
                Outcome::Reply(Response::Error(error)) => {
                    assert_eq!(error.code, ErrorCode::UnknownGroup);
                    Vec::new()
                }
                other => panic!("{other:?}"),
            };
            for row in rows {
                let place = self.place(group, row.partition);
                assert_eq!(Some(&row.committed), place.committed.last());
            }
        }
    }

    /// Whether a group got every record that is still there.
    pub(crate) fn is_complete(&mut self, group: usize) -> bool {
        (0..self.partitions()).all(|partition| {
            let (start, end) = (
                self.starts[partition as usize],
                self.ends[partition as usize],
            );
            let place = self.place(group, partition);
            group == AUTO || (start..end).all(|offset| place.delivered.contains(&offset))
        })
    }
}
