//! Somebody who takes events over HTTP, unless a test says otherwise.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use serde_json::Value;

use crate::lines;

/// What was taken.
#[derive(Debug, Default)]
struct Taken {
    heads: Vec<String>,
    events: Vec<Value>,
    /// How many came with each request.
    sizes: Vec<usize>,
}

/// A place that events are sent to.
pub struct Hook {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    /// Requests with more events are too large.
    most: Arc<AtomicUsize>,
    /// Answers that everything is wrong.
    refuses: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hook {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut hook = Self {
            address,
            taken: Arc::default(),
            most: Arc::new(AtomicUsize::new(usize::MAX)),
            refuses: Arc::default(),
            ends: Arc::default(),
            thread: None,
        };
        hook.listen(listener);
        hook
    }

    pub fn url(&self) -> String {
        format!("http://{}/in/canary-address", self.address)
    }

    /// Nobody listens any more.
    pub fn down(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the thread, which may have ended already.
        TcpStream::connect(self.address).ok();
        self.thread.take().map(JoinHandle::join);
    }

    /// Somebody listens again, at the same address.
    pub fn up(&mut self) {
        self.listen(TcpListener::bind(self.address).unwrap());
    }

    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    pub fn take_at_most(&self, most: usize) {
        self.most.store(most, Ordering::SeqCst);
    }

    pub fn events(&self) -> Vec<Value> {
        self.taken.lock().unwrap().events.clone()
    }

    pub fn sizes(&self) -> Vec<usize> {
        self.taken.lock().unwrap().sizes.clone()
    }

    pub fn heads(&self) -> Vec<String> {
        self.taken.lock().unwrap().heads.clone()
    }

    fn listen(&mut self, listener: TcpListener) {
        self.ends = Arc::default();
        let (taken, most) = (self.taken.clone(), self.most.clone());
        let (refuses, ends) = (self.refuses.clone(), self.ends.clone());
        self.thread = Some(thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                converse(
                    &stream.unwrap(),
                    &taken,
                    most.load(Ordering::SeqCst),
                    refuses.load(Ordering::SeqCst),
                );
            }
        }));
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.down();
        }
    }
}

/// One request. A connection that breaks is the sender's affair.
fn converse(mut stream: &TcpStream, taken: &Mutex<Taken>, most: usize, refuses: bool) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = number.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let events = lines(&body);
    let answer: &[u8] = match () {
        () if refuses => b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        () if events.len() > most => b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 0\r\n\r\n",
        () => {
            let mut taken = taken.lock().unwrap();
            taken.heads.push(head);
            taken.sizes.push(events.len());
            taken.events.extend(events);
            b"HTTP/1.1 204 No Content\r\n\r\n"
        }
    };
    stream.write_all(answer).ok()
}
