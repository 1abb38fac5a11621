//! A TCP proxy inside the test: it passes everything on, until it is told to
//! delay answers, to lose one, to flip a bit, to cut or swallow connections, or
//! to let nobody through.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, watch},
    task::JoinSet,
};

/// A running proxy. It ends with this value.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    rules: Arc<Rules>,
    _tasks: JoinSet<()>,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A bit that changes on its way, in what stands before the first frame of a
/// message: the framing of HTTP/2, of gRPC and of protobuf.
#[derive(Debug, Clone, Copy)]
pub struct Flip {
    /// Which way the message goes.
    pub side: Side,
    /// A text in it.
    pub within: &'static str,
    /// So many bytes before the first frame.
    pub before: usize,
    /// Which bit of that byte.
    pub bit: u32,
}

/// How frames begin.
const FRAME: &[u8] = b"{\"jsonrpc\"";

#[derive(Debug)]
struct Rules {
    delay_ms: AtomicU64,
    closed: AtomicBool,
    connections: AtomicUsize,
    lose_after: Mutex<Option<Vec<u8>>>,
    lost: Notify,
    /// Bytes in one write; 0 for as many as there are.
    segment: AtomicUsize,
    /// Bytes that passed, up and down.
    passed: [AtomicU64; 2],
    /// After so many more bytes that way the connection is cut, once.
    cut_after: Mutex<Option<(Side, u64)>>,
    flip: Mutex<Option<Flip>>,
    /// Every connection is cut after so many bytes down; 0 for never.
    cut_each: AtomicU64,
    cuts: AtomicUsize,
    /// Counts orders to cut what is connected, and to swallow it.
    cut: watch::Sender<u64>,
    swallow: watch::Sender<u64>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            delay_ms: AtomicU64::default(),
            closed: AtomicBool::default(),
            connections: AtomicUsize::default(),
            lose_after: Mutex::default(),
            lost: Notify::default(),
            segment: AtomicUsize::default(),
            passed: Default::default(),
            cut_after: Mutex::default(),
            flip: Mutex::default(),
            cut_each: AtomicU64::default(),
            cuts: AtomicUsize::default(),
            cut: watch::channel(0).0,
            swallow: watch::channel(0).0,
        }
    }
}

impl Rules {
    /// How many of these bytes may pass before the connection is cut.
    fn allow(&self, side: Side, bytes: usize, connection: &AtomicU64) -> Option<usize> {
        let mut armed = self.cut_after.lock().unwrap();
        if let Some((_, left)) = armed.as_mut().filter(|(at, _)| *at == side) {
            if *left <= bytes as u64 {
                let left = usize::try_from(*left).unwrap();
                *armed = None;
                self.cuts.fetch_add(1, Ordering::SeqCst);
                return Some(left);
            }
            *left -= bytes as u64;
        }
        let each = self.cut_each.load(Ordering::SeqCst);
        if each > 0 && side == Side::Down {
            let before = connection.fetch_add(bytes as u64, Ordering::SeqCst);
            if before + bytes as u64 >= each {
                self.cuts.fetch_add(1, Ordering::SeqCst);
                return Some(usize::try_from(each.saturating_sub(before)).unwrap());
            }
        }
        None
    }
}

impl Rules {
    /// Flips the bit that is to be flipped, if it is among these bytes.
    fn corrupt(&self, side: Side, bytes: &mut [u8]) {
        let find = |text: &[u8]| bytes.windows(text.len()).position(|part| part == text);
        let mut armed = self.flip.lock().unwrap();
        let Some(flip) = armed.filter(|flip| flip.side == side && find(flip.within.as_bytes()).is_some())
        else {
            return;
        };
        if let Some(at) = find(FRAME).and_then(|start| start.checked_sub(flip.before)) {
            bytes[at] ^= 1 << flip.bit;
            *armed = None;
        }
    }
}

impl Proxy {
    /// Begins to listen for what is meant for a port of this host.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let rules = Arc::new(Rules::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, SocketAddr::from(([127, 0, 0, 1], port)), rules.clone()));
        Self { port: own, rules, _tasks: tasks }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Every piece of an answer is held back so long.
    pub fn delay_answers(&self, delay: Duration) {
        self.rules.delay_ms.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Bytes pass in writes of this size, in both directions.
    pub fn segment(&self, bytes: usize) {
        self.rules.segment.store(bytes, Ordering::SeqCst);
    }

    /// Bytes that passed so far in a direction.
    pub fn passed(&self, side: Side) -> u64 {
        self.rules.passed[side as usize].load(Ordering::SeqCst)
    }

    /// The connection is cut once exactly so many more bytes have passed that
    /// way. This happens once; `None` calls it off.
    pub fn cut_after(&self, cut: Option<(Side, u64)>) {
        *self.rules.cut_after.lock().unwrap() = cut;
    }

    /// One bit of the next such message is flipped; this happens once.
    pub fn flip(&self, flip: Flip) {
        *self.rules.flip.lock().unwrap() = Some(flip);
    }

    /// Whether no bit is left to be flipped.
    pub fn has_flipped(&self) -> bool {
        self.rules.flip.lock().unwrap().is_none()
    }

    /// Every connection is cut once so many bytes have come down it; 0 for
    /// never.
    pub fn cut_each(&self, bytes: u64) {
        self.rules.cut_each.store(bytes, Ordering::SeqCst);
    }

    /// How often such rules have cut a connection.
    pub fn cuts(&self) -> usize {
        self.rules.cuts.load(Ordering::SeqCst)
    }

    /// Cuts whatever is connected now.
    pub fn cut(&self) {
        self.rules.cut.send_modify(|orders| *orders += 1);
    }

    /// Whatever is connected now stays so, but nothing passes any more.
    pub fn swallow(&self) {
        self.rules.swallow.send_modify(|orders| *orders += 1);
    }

    /// Once a client has sent these bytes, the server gets them and acts on
    /// them, but its answer is lost and the connection cut. This happens once.
    pub fn lose_answer_to(&self, bytes: &[u8]) {
        *self.rules.lose_after.lock().unwrap() = Some(bytes.to_vec());
    }

    /// Waits until an answer was lost.
    pub async fn lost(&self) {
        self.rules.lost.notified().await;
    }

    /// New connections are ended at once, or let through again.
    pub fn close(&self, closed: bool) {
        self.rules.closed.store(closed, Ordering::SeqCst);
    }

    /// How many connections were let through.
    pub fn connections(&self) -> usize {
        self.rules.connections.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, rules: Arc<Rules>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        if rules.closed.load(Ordering::SeqCst) {
            continue;
        }
        rules.connections.fetch_add(1, Ordering::SeqCst);
        connections.spawn(pass(client, upstream, rules.clone()));
    }
}

async fn pass(client: TcpStream, upstream: SocketAddr, rules: Arc<Rules>) {
    let (mut cut, mut swallow) = (rules.cut.subscribe(), rules.swallow.subscribe());
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let way = Way { rules: &rules, losing: AtomicBool::new(false), down: AtomicU64::new(0) };
    // Held here, so that a swallowed connection stays open.
    let (mut from_client, mut to_server) = (from_client, to_server);
    let (mut from_server, mut to_client) = (from_server, to_client);
    // Whichever side ends, the other one does, too.
    tokio::select! {
        () = way.questions(&mut from_client, &mut to_server) => return,
        () = way.answers(&mut from_server, &mut to_client) => return,
        _ = cut.changed() => return,
        _ = swallow.changed() => {}
    }
    cut.changed().await.ok();
}

/// One connection.
struct Way<'a> {
    rules: &'a Rules,
    losing: AtomicBool,
    /// Bytes that came down.
    down: AtomicU64,
}

impl Way<'_> {
    async fn questions(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read) = from.read(&mut buffer).await
            && read > 0
        {
            let taken = {
                let mut lose = self.rules.lose_after.lock().unwrap();
                let found = lose
                    .as_ref()
                    .is_some_and(|bytes| buffer[..read].windows(bytes.len()).any(|part| part == bytes));
                if found { lose.take() } else { None }
            };
            if taken.is_some() {
                self.losing.store(true, Ordering::SeqCst);
            }
            self.rules.corrupt(Side::Up, &mut buffer[..read]);
            if !self.write(Side::Up, &buffer[..read], to).await {
                return;
            }
        }
    }

    async fn answers(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read) = from.read(&mut buffer).await
            && read > 0
        {
            if self.losing.load(Ordering::SeqCst) {
                self.rules.lost.notify_one();
                return;
            }
            let delay = self.rules.delay_ms.load(Ordering::SeqCst);
            if delay > 0 {
                tokio::time::sleep(Duration::from_millis(delay)).await;
            }
            self.rules.corrupt(Side::Down, &mut buffer[..read]);
            if !self.write(Side::Down, &buffer[..read], to).await {
                return;
            }
        }
    }

    /// Passes bytes on; `false` if the connection is to end.
    async fn write(&self, side: Side, bytes: &[u8], to: &mut OwnedWriteHalf) -> bool {
        let segment = match self.rules.segment.load(Ordering::SeqCst) {
            0 => bytes.len(),
            segment => segment,
        };
        for piece in bytes.chunks(segment) {
            let cut = self.rules.allow(side, piece.len(), &self.down);
            let piece = &piece[..cut.unwrap_or(piece.len())];
            if to.write_all(piece).await.is_err() {
                return false;
            }
            self.rules.passed[side as usize].fetch_add(piece.len() as u64, Ordering::SeqCst);
            if cut.is_some() {
                return false;
            }
        }
        true
    }
}
