//! Calls without a valid token, counted by the address that they come from.
//!
//! Nobody finds a token by trying, but whoever tries very often costs work and
//! fills the log. An address that has had its share is answered with as little
//! as can be said until it has waited; a good token from the same address is
//! let in all the same, since it is looked up first.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// Addresses that are remembered. When all are in use, the one that has waited
/// the longest is forgotten.
const MOST_ADDRESSES: usize = 4096;

/// What a share is for.
const MINUTE: Duration = Duration::from_secs(60);

/// What each address has left.
#[derive(Debug, Clone, Default)]
pub(super) struct Strangers {
    // Not for its receivers: many calls look at it, each for a moment.
    left: Arc<watch::Sender<HashMap<IpAddr, Left>>>,
}

#[derive(Debug, Clone, Copy)]
struct Left {
    /// Calls that are answered in full.
    calls: f64,
    /// As of then.
    at: Instant,
    /// The last one was turned away.
    is_away: bool,
}

/// What becomes of a call without a valid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turned {
    /// It is told what is wrong.
    Answered,
    /// It is one too many; the first of them.
    AwayNow,
    /// It is one more of these.
    Away,
}

impl Strangers {
    /// Counts one more call from an address that may make so many in a minute.
    pub(super) fn turn(&self, address: IpAddr, per_minute: u32) -> Turned {
        self.turn_at(address, per_minute, Instant::now())
    }

    fn turn_at(&self, address: IpAddr, per_minute: u32, now: Instant) -> Turned {
        let (address, most) = (network(address), f64::from(per_minute));
        let mut turned = Turned::Answered;
        self.left.send_if_modified(|all| {
            if all.len() >= MOST_ADDRESSES && !all.contains_key(&address) {
                make_room(all, most, now);
            }
            let left = all.entry(address).or_insert(Left { calls: most, at: now, is_away: false });
            (left.calls, left.at) = (left.now(most, now), now);
            if left.calls >= 1.0 {
                left.calls -= 1.0;
                // What it gets back bit by bit is no reason to tell of it again.
                left.is_away &= left.calls < most / 2.0;
            } else {
                turned = if left.is_away { Turned::Away } else { Turned::AwayNow };
                left.is_away = true;
            }
            false
        });
        turned
    }
}

impl Left {
    fn now(&self, most: f64, now: Instant) -> f64 {
        let waited = now.saturating_duration_since(self.at).as_secs_f64() / MINUTE.as_secs_f64();
        (self.calls + waited * most).min(most)
    }
}

fn make_room(all: &mut HashMap<IpAddr, Left>, most: f64, now: Instant) {
    all.retain(|_, left| left.now(most, now) < most);
    if all.len() >= MOST_ADDRESSES {
        let waited = all.iter().min_by_key(|(_, left)| left.at).map(|(address, _)| *address);
        waited.map(|address| all.remove(&address));
    }
}

/// Whom an address belongs to: one host may have a whole network of the newer
/// kind.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        older => older,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_share_and_gets_it_back() {
        let (strangers, now) = (Strangers::default(), Instant::now());
        let [ann, bob] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let turn = |address, after| strangers.turn_at(address, 3, now + Duration::from_secs(after));
        assert_eq!([(); 5].map(|()| turn(ann, 0)), {
            use Turned::{Answered, Away, AwayNow};
            [Answered, Answered, Answered, AwayNow, Away]
        });
        assert_eq!(turn(bob, 0), Turned::Answered, "others do not notice");
        assert_eq!(turn(ann, 21), Turned::Answered, "one in twenty seconds");
        assert_ne!(turn(ann, 21), Turned::Answered);
    }

    #[test]
    fn a_network_is_one_address_and_memory_is_bounded() {
        let (strangers, now) = (Strangers::default(), Instant::now());
        for host in 0..10_u128 {
            let address = Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + host).into();
            strangers.turn_at(address, 100, now);
        }
        assert_eq!(strangers.left.borrow().len(), 1);
        for host in 0..20_000_u32 {
            strangers.turn_at(std::net::Ipv4Addr::from_bits(host).into(), 1, now);
        }
        assert!(strangers.left.borrow().len() <= MOST_ADDRESSES);
    }
}
