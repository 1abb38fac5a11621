//! Whose turn it is when processes are scarce. No I/O and no clock.
//!
//! Everyone waits in the row of their user. The next is the first in the row of
//! the user who has the fewest processes; among equals, of the user whose turn
//! was longest ago. A user who comes is last among equals, and so is one who was
//! served: however many requests somebody has waiting, another's waits for one
//! of them at most.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Those who wait, by user.
#[derive(Debug)]
pub(super) struct Line<T> {
    rows: BTreeMap<Arc<str>, Row<T>>,
    /// Turns given out so far.
    turns: u64,
}

#[derive(Debug)]
struct Row<T> {
    /// When the user came, or was served last.
    turn: u64,
    waiting: VecDeque<T>,
}

/// Where somebody stands: in whose row, and behind how many there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) user: Arc<str>,
    pub(super) index: usize,
}

impl<T> Line<T> {
    pub(super) fn new() -> Self {
        Self { rows: BTreeMap::new(), turns: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.values().map(|row| row.waiting.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn push(&mut self, user: &Arc<str>, one: T) {
        self.turns += 1;
        let fresh = || Row { turn: self.turns, waiting: VecDeque::new() };
        self.rows.entry(user.clone()).or_insert_with(fresh).waiting.push_back(one);
    }

    /// Everyone in the order in which they would be served if places became free
    /// one by one and nobody gave one back: `has` tells how many processes a user
    /// has. Those who would have more than `limit` come last.
    pub(super) fn order(&self, limit: usize, has: impl Fn(&str) -> usize) -> Vec<Spot> {
        let mut order = Vec::with_capacity(self.len());
        for (user, row) in &self.rows {
            let has = has(user);
            for index in 0..row.waiting.len() {
                // Once served, a user is last among those who have as many: that
                // is behind all who have taken fewer steps to get there.
                let rank = (has + index >= limit, has + index, index, row.turn);
                order.push((rank, Spot { user: user.clone(), index }));
            }
        }
        order.sort_unstable_by_key(|(rank, _)| *rank);
        order.into_iter().map(|(_, spot)| spot).collect()
    }

    pub(super) fn get(&self, spot: &Spot) -> Option<&T> {
        self.rows.get(&spot.user)?.waiting.get(spot.index)
    }

    pub(super) fn get_mut(&mut self, spot: &Spot) -> Option<&mut T> {
        self.rows.get_mut(&spot.user)?.waiting.get_mut(spot.index)
    }

    /// Takes out who is served.
    pub(super) fn serve(&mut self, spot: &Spot) -> Option<T> {
        let row = self.rows.get_mut(&spot.user)?;
        let one = row.waiting.remove(spot.index)?;
        self.turns += 1;
        row.turn = self.turns;
        self.forget_empty();
        Some(one)
    }

    /// Takes out those who wait no longer.
    pub(super) fn take_if(&mut self, mut is_done: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for row in self.rows.values_mut() {
            let (done, rest) = row.waiting.drain(..).partition::<VecDeque<T>, _>(&mut is_done);
            row.waiting = rest;
            taken.extend(done);
        }
        self.forget_empty();
        taken
    }

    /// Takes out whoever is too many: the last in the longest row, so that
    /// nobody can fill the line for others.
    pub(super) fn take_surplus(&mut self, room: usize) -> Option<T> {
        if self.len() <= room {
            return None;
        }
        let longest = self.rows.values_mut().max_by_key(|row| (row.waiting.len(), row.turn))?;
        let one = longest.waiting.pop_back();
        self.forget_empty();
        one
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.values().flat_map(|row| &row.waiting)
    }

    fn forget_empty(&mut self) {
        self.rows.retain(|_, row| !row.waiting.is_empty());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line before a number of places, as the pool has it.
    struct Counter {
        line: Line<u32>,
        has: BTreeMap<Arc<str>, usize>,
        max: usize,
        limit: usize,
        next: u32,
    }

    impl Counter {
        fn new(max: usize, limit: usize) -> Self {
            Self { line: Line::new(), has: BTreeMap::new(), max, limit, next: 0 }
        }

        fn has(&self, user: &str) -> usize {
            self.has.get(user).copied().unwrap_or_default()
        }

        fn ask(&mut self, user: &str) -> u32 {
            self.next += 1;
            self.line.push(&user.into(), self.next);
            self.next
        }

        fn release(&mut self, user: &str) {
            if let Some(has) = self.has.get_mut(user) {
                *has = has.saturating_sub(1);
            }
        }

        fn order(&self) -> Vec<Spot> {
            self.line.order(self.limit, |user| self.has(user))
        }

        fn numbers(&self) -> Vec<u32> {
            self.order().iter().filter_map(|spot| self.line.get(spot)).copied().collect()
        }

        fn serve(&mut self) -> Option<(Arc<str>, u32)> {
            let is_full = self.has.values().sum::<usize>() >= self.max;
            let spot = self
                .order()
                .into_iter()
                .next()
                .filter(|spot| !is_full && self.has(&spot.user) < self.limit)?;
            *self.has.entry(spot.user.clone()).or_default() += 1;
            Some((spot.user.clone(), self.line.serve(&spot)?))
        }

        fn serve_all(&mut self) -> Vec<u32> {
            std::iter::from_fn(|| self.serve()).map(|(_, number)| number).collect()
        }
    }

    #[test]
    fn one_user_is_served_in_order() {
        let mut counter = Counter::new(2, 9);
        let asked = [counter.ask("ann"), counter.ask("ann"), counter.ask("ann")];
        assert_eq!(counter.serve_all(), asked[..2]);
        assert_eq!(counter.numbers(), asked[2..]);
        counter.release("ann");
        assert_eq!(counter.serve_all(), asked[2..]);
        assert!(counter.line.is_empty());
    }

    #[test]
    fn who_has_fewer_comes_first() {
        let mut counter = Counter::new(2, 9);
        counter.ask("ann");
        counter.ask("ann");
        counter.serve_all();
        let (ann, bob) = (counter.ask("ann"), counter.ask("bob"));
        assert_eq!(counter.numbers(), [bob, ann]);
        counter.release("ann");
        assert_eq!(counter.serve_all(), [bob]);
    }

    #[test]
    fn a_crowd_of_one_user_does_not_keep_another_waiting() {
        let mut counter = Counter::new(1, 9);
        let crowd: Vec<u32> = (0..50).map(|_| counter.ask("ann")).collect();
        let bob = counter.ask("bob");
        assert_eq!(counter.numbers()[..3], [crowd[0], bob, crowd[1]]);
        // Whenever the place is free again, both have none.
        let served: Vec<u32> = (0..4)
            .map(|_| {
                let (user, number) = counter.serve().unwrap();
                counter.release(&user);
                number
            })
            .collect();
        assert_eq!(served, [crowd[0], bob, crowd[1], crowd[2]]);
    }

    #[test]
    fn who_has_all_that_one_user_may_have_comes_last() {
        let mut counter = Counter::new(9, 1);
        let (first, second) = (counter.ask("ann"), counter.ask("ann"));
        let bob = counter.ask("bob");
        assert_eq!(counter.numbers(), [first, bob, second]);
        assert_eq!(counter.serve_all(), [first, bob]);
        let cy = counter.ask("cy");
        assert_eq!(counter.numbers(), [cy, second]);
        counter.release("ann");
        assert_eq!(counter.serve_all(), [second, cy]);
    }

    #[test]
    fn a_line_that_is_too_long_loses_the_last_of_the_longest_row() {
        let mut counter = Counter::new(0, 9);
        let ann = [counter.ask("ann"), counter.ask("ann"), counter.ask("ann")];
        assert_eq!(counter.line.take_surplus(3), None);
        let bob = counter.ask("bob");
        assert_eq!(counter.line.take_surplus(3), Some(ann[2]));
        assert_eq!(counter.numbers(), [ann[0], bob, ann[1]]);
        counter.ask("bob");
        let last = counter.ask("bob");
        assert_eq!(counter.line.take_surplus(4), Some(last));
    }

    #[test]
    fn who_goes_leaves_the_others_as_they_stand() {
        let mut counter = Counter::new(0, 9);
        let (ann, bob, second) = (counter.ask("ann"), counter.ask("bob"), counter.ask("ann"));
        assert_eq!(counter.line.take_if(|number| *number == ann), [ann]);
        assert_eq!(counter.numbers(), [second, bob]);
        assert_eq!(counter.line.take_if(|_| true).len(), 2);
        assert_eq!((counter.line.is_empty(), counter.line.len()), (true, 0));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Ask(usize),
        Release(usize),
        GiveUp(usize),
    }

    const USERS: [&str; 4] = ["ann", "bob", "cy", "dee"];

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (0..USERS.len()).prop_map(Event::Ask),
            2 => (0..USERS.len()).prop_map(Event::Release),
            1 => any::<usize>().prop_map(Event::GiveUp),
        ]
    }

    proptest! {
        #[test]
        fn it_is_fair(
            max in 1usize..6,
            limit in 1usize..5,
            events in prop::collection::vec(event(), 0..120),
        ) {
            let mut counter = Counter::new(max, limit);
            // How often somebody was passed, since they wait, by whom.
            let mut passed: BTreeMap<(Arc<str>, Arc<str>), usize> = BTreeMap::new();
            let mut last: BTreeMap<Arc<str>, u32> = BTreeMap::new();
            let mut rest = 0..2000;
            let mut events = events.into_iter();
            loop {
                match events.next() {
                    Some(Event::Ask(user)) => drop(counter.ask(USERS[user])),
                    Some(Event::Release(user)) => counter.release(USERS[user]),
                    Some(Event::GiveUp(which)) => {
                        let numbers = counter.numbers();
                        if let Some(gone) = numbers.get(which % numbers.len().max(1)) {
                            counter.line.take_if(|number| number == gone);
                        }
                    }
                    // Nobody comes any more, and everyone who has a place gives it back.
                    None if counter.line.is_empty() => break,
                    None => {
                        prop_assert!(rest.next().is_some(), "somebody waits for ever");
                        counter.release(USERS[rest.start % USERS.len()]);
                    }
                }
                passed.retain(|(user, _), _| counter.line.rows.contains_key(user));
                let expected = counter.numbers();
                let mut served = Vec::new();
                loop {
                    let before = counter.has.clone();
                    let had = |user: &str| before.get(user).copied().unwrap_or_default();
                    let Some((user, number)) = counter.serve() else { break };
                    served.push(number);
                    prop_assert!(last.insert(user.clone(), number).is_none_or(|former| former < number));
                    passed.retain(|(waits, _), _| *waits != user);
                    let waiting: Vec<Arc<str>> = counter.line.rows.keys().cloned().collect();
                    for waits in waiting.into_iter().filter(|waits| *waits != user && had(waits) < limit) {
                        prop_assert!(had(&user) <= had(&waits), "{} had more than {}", user, waits);
                        if had(&user) == had(&waits) {
                            let times = passed.entry((waits, user.clone())).or_default();
                            *times += 1;
                            prop_assert!(*times <= 1, "{} had two turns in one", user);
                        }
                    }
                }
                // The places shown beforehand are the order it then went in.
                prop_assert_eq!(&served[..], &expected[..served.len()]);
                prop_assert!(counter.has.values().sum::<usize>() <= max);
                prop_assert!(counter.has.values().all(|has| *has <= limit));
                let is_full = counter.has.values().sum::<usize>() == max;
                let all_have = counter.line.rows.keys().all(|user| counter.has(user) == limit);
                prop_assert!(is_full || all_have, "a place is free and somebody waits for it");
            }
        }
    }
}
