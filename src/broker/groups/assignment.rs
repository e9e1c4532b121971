//! Who gets which partition: balanced, and no partition moves that need not.
//!
//! A partition moves only where its owner is gone or has more than its share. Shares differ by one at most, and the larger
//! ones go to those who have most already, which is what makes the moves as few as they can be.

#![forbid(unsafe_code)]

use std::cmp::Reverse;

/// Gives every partition an owner, as a place in the list of members.
///
/// `owners` has the owner of each partition so far; `None` where there is none, or one that has left. The result has `None` only where
/// there are no members.
pub(super) fn assign(owners: &[Option<usize>], members: usize) -> Vec<Option<usize>> {
    let mut counts = vec![0; members];
    for &owner in owners.iter().flatten() {
        if let Some(count) = counts.get_mut(owner) {
            *count += 1;
        }
    }
    let mut left = shares(&counts, owners.len());
    let mut assigned = vec![None; owners.len()];
    for (partition, owner) in assigned.iter_mut().zip(owners) {
        *partition = owner.filter(|&owner| take(&mut left, owner));
    }
    let mut next = 0;
    for partition in assigned.iter_mut().filter(|partition| partition.is_none()) {
        while next < members && left.get(next) == Some(&0) {
            next += 1;
        }
        *partition = Some(next).filter(|&member| take(&mut left, member));
    }
    assigned
}

/// How many partitions each member is to have, by how many it has.
fn shares(counts: &[usize], partitions: usize) -> Vec<usize> {
    let members = counts.len();
    let Some(least) = partitions.checked_div(members) else {
        return Vec::new();
    };
    let mut shares = vec![least; members];
    let mut order: Vec<usize> = (0..members).collect();
    order.sort_by_key(|&member| Reverse(counts.get(member).copied()));
    for member in order.into_iter().take(partitions % members) {
        if let Some(share) = shares.get_mut(member) {
            *share += 1;
        }
    }
    shares
}

/// Takes one of what a member may still have.
fn take(left: &mut [usize], member: usize) -> bool {
    match left.get_mut(member) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    fn plain(assigned: &[Option<usize>]) -> Vec<usize> {
        assigned.iter().map(|owner| owner.unwrap_or(99)).collect()
    }

    #[test]
    fn three_partitions_are_shared_as_members_come_and_go() {
        let one = assign(&[None; 3], 1);
        assert_eq!(plain(&one), [0, 0, 0]);
        let two = assign(&one, 2);
        assert_eq!(plain(&two), [0, 0, 1]);
        let three = assign(&two, 3);
        assert_eq!(plain(&three), [0, 2, 1]);
        let four = assign(&three, 4);
        assert_eq!(four, three, "nothing is left for a fourth");
        let first_left: Vec<_> = three
            .iter()
            .map(|owner| owner.and_then(|owner| owner.checked_sub(1)))
            .collect();
        assert_eq!(plain(&assign(&first_left, 2)), [0, 1, 0]);
        assert_eq!(assign(&three, 0), [None; 3]);
        assert_eq!(assign(&[], 2), []);
    }

    /// xorshift64: any sequence will do that a seed gives again.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 >> 33).unwrap_or(0) % end
        }
    }

    /// The fewest partitions that have to change owners: what is above the largest allowed shares, over all ways to hand out those.
    fn fewest_moves(counts: &[usize], partitions: usize) -> usize {
        let members = counts.len();
        let (least, more) = (partitions / members, partitions % members);
        let over = |larger: u32| -> usize {
            let share = |m: usize| least + usize::from(larger & (1 << m) != 0);
            (0..members)
                .map(|m| counts[m].saturating_sub(share(m)))
                .sum()
        };
        (0..1_u32 << members)
            .filter(|larger| larger.count_ones() as usize == more)
            .map(over)
            .min()
            .unwrap_or(0)
    }

    #[test]
    fn every_assignment_is_whole_balanced_and_moves_the_fewest() {
        let seed = std::env::var("SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(20_260_117);
        println!("SEED={seed}");
        let mut random = Random(seed);
        for _ in 0..20_000 {
            let members = 1 + random.below(7);
            let owners: Vec<Option<usize>> = (0..random.below(20))
                .map(|_| Some(random.below(members + 1)).filter(|&owner| owner < members))
                .collect();
            let assigned = assign(&owners, members);
            let mut counts = vec![0; members];
            for owner in &assigned {
                counts[owner.expect("every partition has an owner")] += 1;
            }
            let (most, least) = (counts.iter().max(), counts.iter().min());
            assert!(
                most.zip(least)
                    .is_some_and(|(most, least)| most - least <= 1)
            );
            let mut before = vec![0; members];
            for owner in owners.iter().flatten() {
                before[*owner] += 1;
            }
            let moved = owners
                .iter()
                .zip(&assigned)
                .filter(|(before, after)| before.is_some() && before != after)
                .count();
            assert_eq!(
                moved,
                fewest_moves(&before, owners.len()),
                "{owners:?} -> {assigned:?}"
            );
            assert_eq!(
                assign(&assigned, members),
                assigned,
                "a second time changes nothing"
            );
        }
    }
}
