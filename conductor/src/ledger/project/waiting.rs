//! Requests without an answer, and which one an answer answers.

use std::collections::VecDeque;

use super::{FrameView, NAME};
use crate::record::{Destination, Origin};

/// Most requests that wait for their answers; a session has no more than
/// `session::MAX_IN_FLIGHT` in each direction.
pub const MOST_WAITING: usize = 2048;

/// Requests without an answer, each with what has to be known of it then.
#[derive(Debug)]
pub struct Waiting<T> {
    requests: VecDeque<Request<T>>,
}

/// A request without an answer.
#[derive(Debug)]
struct Request<T> {
    from: Origin,
    to: Destination,
    /// The id that it came with.
    own: Box<str>,
    /// The id that it went on with.
    away: Option<u64>,
    what: T,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { requests: VecDeque::new() }
    }
}

impl<T> Waiting<T> {
    /// Remembers a request, which has the id `own`, until its answer.
    pub fn ask(&mut self, frame: &FrameView<'_>, own: Option<&str>, what: T) {
        let Some(own) = own.filter(|own| own.len() <= NAME) else { return };
        if self.requests.len() >= MOST_WAITING {
            self.requests.pop_front();
        }
        let (from, to, away) = (frame.origin, frame.to, frame.outgoing);
        self.requests.push_back(Request { from, to, own: own.into(), away, what });
    }

    /// The request that a frame with this id answers. Whoever was asked knows
    /// it by the id that it went on with; we answer by the id that it came with.
    pub fn answer(&mut self, frame: &FrameView<'_>, id: Option<&str>) -> Option<T> {
        let id = id?;
        let number: Option<u64> = id.parse().ok();
        let (origin, to) = (frame.origin, frame.to);
        let is_it = |request: &Request<T>| match (origin, request.from) {
            (Origin::Conductor, from) => towards(from) == to && *request.own == *id,
            // Our own requests go out with the id that they have.
            (_, Origin::Conductor) => towards(origin) == request.to && *request.own == *id,
            (_, from) => from != origin && request.away.is_some() && request.away == number,
        };
        // Several editors may use the same ids. What was not passed on is
        // answered at once, and by nobody but us.
        let at_once = || self.requests.iter().rposition(|request| is_it(request) && request.away.is_none());
        let at = if origin == Origin::Conductor { at_once() } else { None };
        let at = at.or_else(|| self.requests.iter().position(is_it))?;
        self.requests.remove(at).map(|request| request.what)
    }

    /// Takes those out that will get no answer any more.
    pub fn take(&mut self, mut which: impl FnMut(Origin, &T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for request in std::mem::take(&mut self.requests) {
            if which(request.from, &request.what) {
                taken.push(request.what);
            } else {
                self.requests.push_back(request);
            }
        }
        taken
    }

    /// What is remembered of the requests.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.requests.iter_mut().map(|request| &mut request.what)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// Where frames go that are for `party`.
fn towards(party: Origin) -> Destination {
    match party {
        Origin::Editor => Destination::Editor,
        Origin::Agent => Destination::Agent,
        Origin::Conductor => Destination::Record,
    }
}
