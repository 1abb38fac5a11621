//! Lines from a pipe, whose reads are cut anywhere.

use std::{
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use conductor::agent::stdio::{Block, LineReader};
use tokio::io::{AsyncRead, ReadBuf};

/// Most cuts of one input.
const MOST_CUTS: usize = 16;

/// The first byte says how long lines may be, the second how many of the next are sizes
/// of reads; the rest is what is read. However it is cut, the same lines come.
pub fn lines(data: &[u8]) {
    let [limit, cuts, rest @ ..] = data else { return };
    let limit = 1 + usize::from(*limit);
    let (cuts, content) = rest.split_at(usize::from(*cuts).min(MOST_CUTS).min(rest.len()));
    for cuts in [cuts, &[], &[1], &[0, 2]] {
        read(content, limit, cuts);
    }
}

/// A pipe that yields so many bytes at a time, again and again; at 0 it has nothing yet.
struct Pipe<'a> {
    rest: &'a [u8],
    cuts: &'a [u8],
    reads: usize,
}

impl AsyncRead for Pipe<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let cut = match self.cuts {
            [] => usize::MAX,
            cuts => usize::from(cuts[self.reads % cuts.len()]),
        };
        self.reads += 1;
        // One that never has anything is not what this is about.
        let is_idle = self.cuts.iter().all(|cut| *cut == 0) && !self.cuts.is_empty();
        if cut == 0 && !is_idle {
            return Poll::Pending;
        }
        let (now, rest) = self.rest.split_at(cut.max(1).min(into.remaining()).min(self.rest.len()));
        into.put_slice(now);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// What comes, where the future is dropped whenever it would have to wait.
fn ready<T>(mut next: impl AsyncFnMut() -> io::Result<T>) -> T {
    loop {
        let once = pin!(next());
        if let Poll::Ready(done) = once.poll(&mut Context::from_waker(Waker::noop())) {
            return done.unwrap();
        }
    }
}

fn read(content: &[u8], limit: usize, cuts: &[u8]) {
    let mut reader = LineReader::new(Pipe { rest: content, cuts, reads: 0 }, limit);
    let mut rest = content;
    loop {
        let block = ready(async || reader.next().await);
        let end = memchr::memchr(b'\n', rest);
        match block {
            Block::Lines(lines) => {
                assert!(lines.ends_with(b"\n") && rest.starts_with(&lines), "other lines than were sent");
                rest = &rest[lines.len()..];
                assert!(rest.starts_with(reader.partial()), "a part of a line that was not sent");
            }
            Block::TooLong => {
                let length = end.map_or(rest.len(), |end| end + 1);
                assert!(length > limit || end.is_none() && length == limit, "{length} is not too long");
                let has_more = ready(async || reader.skip_line().await);
                assert_eq!(has_more, end.is_some());
                rest = end.map_or(&[], |end| &rest[end + 1..]);
            }
            Block::End(tail) => {
                assert_eq!((&*tail, end), (rest, None), "the end is not what was sent");
                return;
            }
        }
    }
}
