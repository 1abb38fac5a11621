//! Lines in and out of a pipe, in runs: whatever complete lines one read
//! yields travel on together, at once, without waiting for more.

use std::{collections::VecDeque, io, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{frame, queue};

/// How much one read may yield: the capacity of the pipes we make.
pub const READ_BYTES: usize = 256 << 10;

/// Less room than this in a buffer is not worth a read. What is left of it otherwise serves the next
/// lines, too: a buffer for each would cost more than most lines do, and be held as long as they are.
const LEAST_ROOM: usize = READ_BYTES / 4;

/// How long what was queued before the close may take to go out.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How much of an agent's stderr is kept for its exit record.
const STDERR_TAIL: usize = 256 << 10;

/// How much of one line is looked at for the log.
const LONGEST_LINE: usize = 16 << 10;

/// How many stderr lines a second reach the log.
const STDERR_LINES_PER_SECOND: u32 = 50;

/// What the next read yielded.
#[derive(Debug)]
pub enum Block {
    /// One or more complete lines.
    Lines(Bytes),
    /// A line longer than a frame may be.
    TooLong,
    /// The end, with what came after the last newline.
    End(Bytes),
}

/// Reads runs of lines.
#[derive(Debug)]
pub struct LineReader<R> {
    from: R,
    buffer: BytesMut,
    scanned: usize,
    limit: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Lines may be `limit` bytes long, newline included.
    pub fn new(from: R, limit: usize) -> Self {
        Self { from, buffer: BytesMut::new(), scanned: 0, limit }
    }

    /// The next block. Safe to drop at any time: nothing read is lost.
    pub async fn next(&mut self) -> io::Result<Block> {
        loop {
            if let Some(block) = self.read().await? {
                return Ok(block);
            }
        }
    }

    /// What the next read yields; `None` if that is part of a line only. Equally
    /// safe to drop.
    pub async fn read(&mut self) -> io::Result<Option<Block>> {
        if self.buffer.len() == self.scanned {
            if self.buffer.len() >= self.limit {
                return Ok(Some(Block::TooLong));
            }
            if self.buffer.capacity() - self.buffer.len() < LEAST_ROOM {
                self.buffer.reserve(READ_BYTES);
            }
            // No more than that, so that a block has a known largest size.
            if self.from.read_buf(&mut (&mut self.buffer).limit(READ_BYTES)).await? == 0 {
                self.scanned = 0;
                return Ok(Some(Block::End(self.buffer.split().freeze())));
            }
        }
        let Some(at) = memchr::memrchr(b'\n', &self.buffer[self.scanned..]) else {
            self.scanned = self.buffer.len();
            return Ok(None);
        };
        let block = self.buffer.split_to(self.scanned + at + 1).freeze();
        self.scanned = self.buffer.len();
        Ok(Some(Block::Lines(block)))
    }

    /// Whether part of a line has come and its end has not.
    pub fn is_inside_line(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// That part.
    pub fn partial(&self) -> &[u8] {
        &self.buffer
    }

    /// After [`Block::TooLong`]: passes over the rest of that line; false if the end comes first.
    pub async fn skip_line(&mut self) -> io::Result<bool> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer) {
                drop(self.buffer.split_to(at + 1));
                self.scanned = 0;
                return Ok(true);
            }
            self.buffer.clear();
            self.scanned = 0;
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Ok(false);
            }
        }
    }
}

/// Why writing ended.
#[derive(Debug)]
pub enum WriteEnd {
    /// It was told to.
    Closed,
    /// The reader took nothing for so long.
    Stalled,
    /// The pipe is broken.
    Broken,
}

/// Writes what comes through the queue until told to close. Dropping `to`
/// then is the peer's end of file.
pub async fn write_lines(
    mut to: impl AsyncWrite + Unpin,
    mut from: queue::Receiver<Bytes>,
    closing: CancellationToken,
    stall: Duration,
) -> WriteEnd {
    loop {
        let next = tokio::select! {
            // What was queued before the close still goes out.
            biased;
            next = from.recv() => next,
            () = closing.cancelled() => None,
        };
        let Some(mut bytes) = next else { return WriteEnd::Closed };
        while !bytes.is_empty() {
            let written = tokio::select! {
                written = timeout(stall, to.write(&bytes)) => written,
                () = closed_for(&closing, LAST_WORDS) => return WriteEnd::Closed,
            };
            match written {
                Ok(Ok(n)) if n > 0 => drop(bytes.split_to(n)),
                Ok(_) => return WriteEnd::Broken,
                Err(_) => return WriteEnd::Stalled,
            }
        }
    }
}

async fn closed_for(closing: &CancellationToken, grace: Duration) {
    closing.cancelled().await;
    sleep(grace).await;
}

/// Drains a child's stderr to its end and gives its last lines, escaped. Must
/// always run, or a chatty child blocks on a full pipe. What is logged and given
/// is what `clean` makes of it.
pub async fn drain_stderr(
    mut from: impl AsyncRead + Unpin,
    agent: &str,
    pid: u32,
    clean: impl Fn(&str) -> String,
) -> String {
    let mut is_cut = false;
    let mut is_key = false;
    let mut tail: VecDeque<u8> = VecDeque::new();
    let mut chunk = vec![0; 16 << 10];
    let mut line = Vec::new();
    let mut second = tokio::time::Instant::now();
    let mut logged = 0;
    while let Ok(n) = from.read(&mut chunk).await {
        if n == 0 {
            break;
        }
        tail.extend(&chunk[..n]);
        let excess = tail.len().saturating_sub(STDERR_TAIL);
        tail.drain(..excess);
        is_cut |= excess > 0;
        if !tracing::enabled!(tracing::Level::DEBUG) {
            continue;
        }
        for byte in &chunk[..n] {
            if *byte != b'\n' {
                if line.len() < LONGEST_LINE {
                    line.push(*byte);
                }
                continue;
            }
            if second.elapsed() >= Duration::from_secs(1) {
                second = tokio::time::Instant::now();
                logged = 0;
            }
            logged += 1;
            let text = String::from_utf8_lossy(&line);
            // A private key has many lines, and only the first and the last are known as its.
            is_key |= text.contains("-----BEGIN ") && text.contains("PRIVATE KEY");
            if logged <= STDERR_LINES_PER_SECOND && !is_key {
                debug!(
                    agent,
                    pid,
                    stderr = frame::escape(clean(&text).as_bytes(), 1024),
                    "agent wrote to stderr"
                );
            }
            is_key &= !text.contains("-----END ");
            line.clear();
        }
    }
    let mut tail: &[u8] = tail.make_contiguous();
    if is_cut {
        // What is left of its first line is not known for what it was.
        tail = memchr::memchr(b'\n', tail).map_or(&tail[tail.len() / 2..], |end| &tail[end + 1..]);
    }
    last_lines(clean(&String::from_utf8_lossy(tail)).as_bytes())
}

/// The last few lines of an agent's stderr for an error message.
fn last_lines(bytes: &[u8]) -> String {
    const LINES: usize = 8;
    const BYTES: usize = 2048;
    let cut = &bytes[bytes.len().saturating_sub(BYTES)..];
    let lines: Vec<String> = cut
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.iter().all(u8::is_ascii_whitespace))
        .map(|line| frame::escape(line, BYTES))
        .collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    async fn blocks(input: &[u8], limit: usize) -> Vec<String> {
        let mut reader = LineReader::new(input, limit);
        let mut out = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                Block::Lines(block) => out.push(String::from_utf8(block.to_vec()).unwrap()),
                Block::TooLong => {
                    out.push("<long>".into());
                    reader.skip_line().await.unwrap();
                }
                Block::End(rest) => {
                    out.push(format!("<end {}>", rest.len()));
                    return out;
                }
            }
        }
    }

    #[tokio::test]
    async fn yields_complete_lines_and_the_rest() {
        assert_eq!(blocks(b"a\nb\nrest", 100).await, ["a\nb\n", "<end 4>"]);
        assert_eq!(blocks(b"", 100).await, ["<end 0>"]);
        let long = format!("{}\nok\n", "x".repeat(300_000));
        assert_eq!(blocks(long.as_bytes(), 100_000).await, ["<long>", "ok\n", "<end 0>"]);
        let endless = "x".repeat(300_000);
        assert_eq!(blocks(endless.as_bytes(), 100_000).await, ["<long>", "<end 0>"]);
    }

    #[tokio::test]
    async fn stderr_is_drained_and_its_last_lines_are_escaped() {
        let noise = format!("{}last \x1b[31mwords\r\n\n", "noise\n".repeat(100_000));
        let tail = drain_stderr(noise.as_bytes(), "x", 1, str::to_owned).await;
        assert!(tail.ends_with("noise\nlast \\u{1b}[31mwords\\r"), "{tail}");
        assert_eq!(tail.lines().count(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_noticed() {
        let (to, _keep) = tokio::io::duplex(4);
        let (tx, rx) = queue::queue(1, 1000);
        tx.try_send(8, Bytes::from_static(b"too much")).unwrap();
        let end = write_lines(to, rx, CancellationToken::new(), Duration::from_secs(5)).await;
        assert!(matches!(end, WriteEnd::Stalled));
    }
}
