//! What the run is made of: the service with its agents, its database, the proxies
//! before it, and the editors.

use std::{
    fs,
    net::TcpListener,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use conductor::ledger::Settings;
use conductor_tests::{
    dice::Dice,
    harness::{Service, service},
    postgres::{Database, Postgres},
    proxy::Proxy,
};
use serde_json::json;
use tokio::{runtime::Runtime, sync::watch, task::JoinSet, time::timeout};

use crate::{
    Plan,
    findings::{Kind, Trouble},
    seat::Seat,
    shared::{Launch, Phase, Shared, Way},
    sight::Asked,
    work,
};

/// Proxies between editors and the service.
const PROXIES: usize = 3;

/// How long all sessions together may take to show at the end that they work.
const SETTLING: Duration = Duration::from_secs(240);

/// Waits, while editors work.
pub fn wait_until(time: Instant) {
    thread::sleep(time.saturating_duration_since(Instant::now()));
}

/// Everything.
pub struct World {
    pub service: Service,
    pub database: Option<Database>,
    pub proxies: Vec<Proxy>,
    pub shared: Arc<Shared>,
    pub runtime: Runtime,
    editors: JoinSet<Vec<Asked>>,
}

impl World {
    pub fn start(plan: &Plan, dice: &mut Dice) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let database =
            Postgres::start_private_if_installed().map(|server| runtime.block_on(server.database()));
        let port = free_port(dice);
        let mut service = configured(port, database.as_ref()).start();
        service.keep(true);
        (0..4).for_each(|number| {
            fs::create_dir_all(service.work().join(number.to_string())).expect("a directory for sessions");
        });
        let proxies: Vec<_> = (0..PROXIES).map(|_| runtime.block_on(Proxy::to(port))).collect();
        let launch = Launch::new(&service, port, proxies.iter().map(Proxy::port).collect());
        let sessions = plan.editors * plan.sessions;
        let shared = Arc::new(Shared {
            phase: watch::channel(Phase::Storm).0,
            findings: Default::default(),
            gauges: Default::default(),
            counts: Default::default(),
            launch,
            service: service.pid().into(),
            bridges: Default::default(),
            // All of them together ask at about the same rate, however many they are.
            pause_ms: 45 * sessions as u64,
        });
        let mut editors = JoinSet::new();
        for number in 0..plan.editors {
            // Bridges and tunnels, near and far, with a process each or many to one.
            let agent = if number % 3 == 2 { "shared" } else { "fake" };
            let proxy = (number % 4 != 0).then_some((number + number / 4) % PROXIES);
            let way = Way { agent, proxy };
            let seat = Seat::new(&shared, number, plan.sessions, way, number % 4 >= 2, dice.fork());
            editors.spawn_on(seat.run(), runtime.handle());
        }
        Self { service, database, proxies, shared, runtime, editors }
    }

    /// Where the ledger is.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::embedded(&self.service.state());
        if let Some(database) = &self.database {
            settings.url = database.url().parse().expect("the address of a database");
        }
        settings
    }

    /// Starts the service again after its end.
    pub fn start_again(&mut self) {
        self.service.start_again();
        self.shared.service.store(self.service.pid(), Ordering::Relaxed);
    }

    /// Lets everybody finish, and gives what they have asked.
    pub fn settle(&mut self) -> Vec<Asked> {
        self.shared.phase.send_replace(Phase::Settle);
        let (editors, shared) = (&mut self.editors, &self.shared);
        self.runtime.block_on(async {
            let mut asked = Vec::new();
            let all = async {
                while let Some(ended) = editors.join_next().await {
                    match ended {
                        Ok(theirs) => asked.extend(theirs),
                        Err(panic) => {
                            shared.findings.add(Trouble::one(Kind::Failed, format!("an editor: {panic}")));
                        }
                    }
                }
            };
            if timeout(SETTLING, all).await.is_err() {
                let words = format!("{} editors do not come to their end", editors.len());
                shared.findings.add(Trouble::one(Kind::Unanswered, words));
                editors.shutdown().await;
            }
            asked
        })
    }

    /// What the service has left behind a second after its end.
    pub fn look_for_orphans(&self, after: &str) {
        let is_clean = || self.service.supervised().is_empty();
        if conductor_tests::harness::poll_until(Duration::from_secs(1), is_clean) {
            return;
        }
        for running in self.service.supervised() {
            let words = format!("process {} after {after}: {}", running.pid, running.command);
            self.shared.findings.add(Trouble::one(Kind::Orphan, words));
        }
    }
}

/// A service that is asked more, and broken more often, than any other.
fn configured(port: u16, database: Option<&Database>) -> conductor_tests::harness::Builder {
    let mut builder = service(&json!({}))
        .agent("shared", &json!({}))
        .rules(work::RULES)
        .listen(&format!("127.0.0.1:{port}"))
        .set("service.drain_timeout", "5s")
        .set("service.cancel_grace", "20s")
        .set("service.stall_timeout", "60s")
        .set("service.detached_ttl", "60s")
        .set("approvals.per_minute", 1_000_000)
        .set("ledger.checkpoint_every", "1s")
        .set("agents.shared.sessions_per_process", 4);
    for agent in ["fake", "shared"] {
        let set = |builder: conductor_tests::harness::Builder, key: &str, value: serde_json::Value| {
            builder.set(&format!("agents.{agent}.{key}"), value)
        };
        builder = set(builder, "max", json!(1024));
        builder = set(builder, "max_per_user", json!(1024));
        builder = set(builder, "start_timeout", json!("60s"));
        builder = set(builder, "warm", json!(1));
        // They are killed all the time, and that is no crash of theirs.
        builder = set(builder, "restart", json!({ "intensity": 1_000_000 }));
    }
    match database {
        Some(database) => builder.set("ledger.url", database.url()),
        None => builder,
    }
}

/// A port that stays the service's over its restarts: none that the kernel gives to others.
fn free_port(dice: &mut Dice) -> u16 {
    loop {
        let port = dice.between(20_000, 30_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
