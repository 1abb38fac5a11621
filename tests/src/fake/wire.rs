//! The fake agent's pipes: unbuffered output, a gate on the input, and the
//! requests it waits for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::HashMap,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use nix::errno::Errno;

use crate::ledger::{Kind, Ledger};

/// Both pipes and the table of requests under way.
#[derive(Debug)]
pub struct Wire {
    /// Record of everything.
    pub ledger: Ledger,
    /// Whether SIGTERM is ignored.
    pub ignore_sigterm: AtomicBool,
    output: Mutex<()>,
    reading: Mutex<bool>,
    reading_changed: Condvar,
    waiting: Mutex<HashMap<String, SyncSender<String>>>,
    next_id: AtomicU64,
    uuid_ids: bool,
}

impl Wire {
    /// Pipes that are open and read.
    pub fn new(ledger: Ledger, ignore_sigterm: bool, uuid_ids: bool) -> Self {
        Self {
            ledger,
            ignore_sigterm: AtomicBool::new(ignore_sigterm),
            output: Mutex::default(),
            reading: Mutex::new(true),
            reading_changed: Condvar::new(),
            waiting: Mutex::default(),
            next_id: AtomicU64::new(0),
            uuid_ids,
        }
    }

    /// Records something that is not a line.
    pub fn event(&self, text: &str) {
        self.ledger.write(Kind::Event, text.as_bytes());
    }

    /// Writes one line.
    pub fn line(&self, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(b'\n');
        self.pieces(text.as_bytes(), &bytes, usize::MAX);
    }

    /// Writes bytes as they are.
    pub fn bytes(&self, bytes: &[u8]) {
        self.pieces(bytes, bytes, usize::MAX);
    }

    /// Writes bytes in pieces of at most `piece`, recorded as `entry`.
    pub fn pieces(&self, entry: &[u8], bytes: &[u8], piece: usize) {
        let _output = self.output.lock().unwrap();
        self.ledger.write(Kind::Out, entry);
        for mut piece in bytes.chunks(piece.clamp(1, bytes.len().max(1))) {
            while !piece.is_empty() {
                match nix::unistd::write(std::io::stdout(), piece) {
                    Ok(count) => piece = &piece[count..],
                    Err(Errno::EINTR) => {}
                    // Nobody reads any more; the end of input will follow.
                    Err(_) => return,
                }
            }
        }
    }

    /// Points stdout elsewhere, so that the reader sees its end.
    pub fn close_stdout(&self) {
        let _output = self.output.lock().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        nix::unistd::dup2_stdout(null).expect("stdout can be replaced");
    }

    /// Opens or shuts the gate before stdin.
    pub fn set_reading(&self, on: bool) {
        *self.reading.lock().unwrap() = on;
        self.reading_changed.notify_all();
    }

    /// Returns once the gate before stdin is open.
    pub fn wait_until_reading(&self) {
        let reading = self.reading.lock().unwrap();
        drop(self.reading_changed.wait_while(reading, |on| !*on).unwrap());
    }

    /// The next id for a request of our own.
    pub fn mint_id(&self) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        if self.uuid_ids { format!("\"{}\"", uuid::Uuid::now_v7()) } else { number.to_string() }
    }

    /// Announces that the answer with this id will be waited for.
    pub fn expect(&self, id: &str) -> Receiver<String> {
        let (sender, receiver) = sync_channel(4);
        self.waiting.lock().unwrap().insert(id.to_owned(), sender);
        receiver
    }

    /// Hands an answer to whoever waits for it.
    pub fn deliver(&self, id: &str, line: &str) {
        if let Some(waiting) = self.waiting.lock().unwrap().remove(id) {
            // It may have stopped waiting.
            let _ = waiting.try_send(line.to_owned());
        }
    }
}
