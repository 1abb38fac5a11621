//! A TCP proxy inside the test: it passes everything on, until it is told to
//! delay answers, to lose one, or to let nobody through.
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
    sync::Notify,
    task::JoinSet,
};

/// A running proxy. It ends with this value.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    rules: Arc<Rules>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Rules {
    delay_ms: AtomicU64,
    closed: AtomicBool,
    connections: AtomicUsize,
    lose_after: Mutex<Option<Vec<u8>>>,
    lost: Notify,
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
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let losing = Arc::new(AtomicBool::new(false));
    // Whichever side ends, the other one does, too.
    tokio::select! {
        () = questions(from_client, to_server, &rules, &losing) => {}
        () = answers(from_server, to_client, &rules, &losing) => {}
    }
}

async fn questions(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, rules: &Rules, losing: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
    {
        let taken = {
            let mut lose = rules.lose_after.lock().unwrap();
            let found = lose
                .as_ref()
                .is_some_and(|bytes| buffer[..read].windows(bytes.len()).any(|part| part == bytes));
            if found { lose.take() } else { None }
        };
        if taken.is_some() {
            losing.store(true, Ordering::SeqCst);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, rules: &Rules, losing: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
    {
        if losing.load(Ordering::SeqCst) {
            rules.lost.notify_one();
            return;
        }
        let delay = rules.delay_ms.load(Ordering::SeqCst);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
