//! `conductor serve`: build bottom-up, wait, drain top-down.

mod checkpoints;
mod files;
mod loading;
mod premises;
mod record;

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::{
    files::Files,
    loading::{Prepared, load, reload, remark, warn_of_roots},
    record::{open_journal, open_ledger, open_store, start_feed},
};
use crate::{
    admin::{self, Admin, Sources},
    agent::strays,
    approvals::{self, Approvals},
    banner::Banner,
    catalogue::{Catalogue, probe::Probe},
    cli::{Global, ServeArgs},
    config::Config,
    connection::Hub,
    feed::Feed,
    grpc,
    identity::{door::Door, oidc::Keys},
    journal::Recording,
    ledger::history::History,
    notify::Manager,
    policy::Live,
    pool::Pool,
    state::{ServiceState, StateDir, kept::Kept},
    store::{Books, catalogue::Unsaved},
    tasks::Tasks,
    telemetry::{self, Telemetry},
    tether::Tethers,
    tls::listener::{self, Listener, Served},
};

/// Exit code for a configuration that is refused.
const BAD_CONFIG: u8 = 2;

/// How long everything may take to end once turns have: the stop ladder of
/// every process runs at the same time.
const STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(8);

/// How far the ledger's threads step back for all others: a tenth of their
/// share, where somebody wants the rest.
const STEP_BACK: i32 = 10;

/// Connections that may wait to be accepted. After a restart all editors come
/// back at once, and whom the usual 128 leave out is reset by some kernels.
const BACKLOG: u32 = 4096;

/// Runs the service until a signal.
#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
pub fn run(global: &Global, args: &ServeArgs) -> ExitCode {
    let prepared = match load(args) {
        Ok(prepared) => prepared,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.worker_threads(workers()).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("conductor serve: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Projecting and copying frames is work for a processor; it must not delay
    // the relay of those that come meanwhile. Hence a thread of its own, which
    // steps back for others, as do the threads that it starts; except where
    // effects wait for the ledger.
    let steps_back = prepared.loaded.config.journal.recording != Recording::Strict;
    let shipping = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("ledger")
        .on_thread_start(move || {
            // If the system does not allow it, it is only less polite.
            let _ = steps_back.then(|| rustix::process::nice(STEP_BACK));
        })
        .enable_all()
        .build();
    let shipping = match shipping {
        Ok(shipping) => shipping,
        Err(error) => {
            eprintln!("conductor serve: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let settings =
        telemetry::Settings::new(&prepared.loaded.config.telemetry, |name| std::env::var(name).ok());
    let telemetry =
        settings.and_then(|settings| Telemetry::start(args.log.as_deref(), settings, shipping.handle()));
    let telemetry = match telemetry {
        Ok(telemetry) => telemetry,
        Err(message) => {
            eprintln!("conductor serve: {message}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let served = runtime.block_on(serve(global, args, prepared, shipping.handle(), &telemetry));
    // Last, so that what the end itself has to tell is told.
    runtime.block_on(telemetry.finish());
    let code = match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("conductor serve: {message}");
            ExitCode::FAILURE
        }
    };
    runtime.shutdown_background();
    shipping.shutdown_background();
    code
}

/// How many threads relay: half of the cores, since agents and editors work at
/// the same time. One more thread than is needed costs more than it gives: it
/// is woken with every message, and memory that one thread allocates and
/// another frees goes back to the kernel and comes again as page faults.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

async fn serve(
    global: &Global,
    args: &ServeArgs,
    prepared: Prepared,
    shipping: &Handle,
    telemetry: &Telemetry,
) -> Result<(), String> {
    let Prepared { loaded, policy, served, read } = prepared;
    let mut signals = Signals::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
    let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os);
    let state = state.and_then(|dir| dir.open_for_service()).map_err(|error| error.to_string())?;
    let config = Arc::new(loaded.config);
    let listener = bind(args.listen.unwrap_or(config.service.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let endpoint = endpoint(address, served.is_some());

    let metrics = telemetry.metrics();
    strays::adopt(&metrics);
    let tasks = Tasks::counted(metrics.clone());
    let (publish, configured) = watch::channel(config.clone());
    tasks.start("remarks", remark(policy.file().map(Path::to_path_buf)));
    tasks.start("roots", warn_of_roots(config.clone()));
    let (rule, policy) = Live::new(policy);
    let journal = open_journal(&state, &config)?;
    let ledger = open_ledger(args, &config, state.path(), &journal, shipping, &metrics).await?;
    let (mut store, router, grants, tokens) = open_store(&state, &journal, &config).await?;
    let shares = store.shares().await.map_err(|error| format!("the shares cannot be read: {error}"))?;
    router.shared_before(shares);
    let kept = Kept::new(state.path());
    kept.sweep(|session| router.row(session).is_some());
    let (offers, stamps) =
        store.catalogue().await.map_err(|error| format!("what the agents offer cannot be read: {error}"))?;
    let catalogue = Catalogue::new(offers, stamps);
    let unsaved = Unsaved::of(&catalogue);
    let before = store.approvals().await.map_err(|error| format!("the approvals cannot be read: {error}"))?;
    let (approvals, news) = Approvals::new(before);
    let books = Books { grants: grants.clone(), approvals: approvals.clone(), catalogue: unsaved };
    let saving = Saving::default();
    let keep = store.keep(router.clone(), tokens.clone(), books, metrics.clone(), saving.stop.clone());
    saving.tasks.start("store", keep);
    let premises = premises::take(state.path(), &journal);
    let pool = Pool::start(&config, premises.clone(), journal.clone(), metrics.clone(), &tasks);
    let hub = Hub {
        pool: pool.clone(),
        router,
        history: History::new(ledger.settings().clone(), Some(journal.clone())),
        journal,
        kept,
        ledger,
        tasks: tasks.clone(),
        config: configured,
        policy,
        grants,
        catalogue: catalogue.clone(),
        approvals,
        metrics: metrics.clone(),
        draining: CancellationToken::new(),
        closing: CancellationToken::new(),
    };
    let feed = start_feed(&hub, state.path(), shipping).await?;
    let sending = start_sending(&hub, news);
    let stop = CancellationToken::new();
    let most = config.service.max_connections;
    let spools = state.path().to_path_buf();
    let tethers = Tethers::start(most, spools, hub.closing.clone(), metrics, &tasks);
    let tls = serve_tls(served, &state, &hub)?;
    let (keys, keeper) = Keys::new();
    tasks.start("keys", keeper.run(hub.config.clone(), hub.draining.clone()));
    let door = Door::new(tokens, keys, hub.config.clone());
    let server = grpc::serve(listener, tls, hub.clone(), tethers, door, stop.clone());
    let unserved = start_server(&tasks, server);
    let sources = sources(&hub);
    telemetry.report({
        let sources = sources.clone();
        move || sources.families()
    });
    start_admin(&hub, sources, config.service.admin)?;
    announce(&hub, &state, address, &endpoint, loaded.file.as_deref())?;
    let probe = Probe {
        catalogue,
        config: hub.config.clone(),
        processes: pool.status(),
        premises,
        journal: hub.journal.clone(),
        tasks: tasks.clone(),
        stop: hub.draining.clone(),
    };
    tasks.start("probe", probe.run());

    let manager = Manager::new(|name| std::env::var_os(name));
    manager.ready();
    let mut files = Files::new(read);
    let outcome = loop {
        let wake = tokio::select! {
            wake = signals.next() => wake,
            () = files.changed() => Wake::Reload,
            () = manager.feed_watchdog(&hub.journal) => continue,
            // Nobody would be served, and nobody would know.
            () = unserved.cancelled() => {
                break Err("the server has ended, so nobody is served; the log says why".to_owned());
            }
        };
        if wake == Wake::Stop {
            break Ok(());
        }
        manager.reloading();
        let started = (loaded.file.as_deref(), &*config);
        files.were_read(reload(args, started, &publish, &rule, &hub).await);
        manager.ready();
    };
    manager.stopping();
    tokio::select! {
        () = drain(&hub, &stop, &mut signals) => {}
        () = manager.feed_watchdog(&hub.journal) => {}
    }
    end_record(&hub, &saving, &feed, &sending).await;
    drop(state);
    outcome
}

/// What saves the store, until it is stopped.
#[derive(Debug, Default)]
struct Saving {
    tasks: Tasks,
    stop: CancellationToken,
}

/// Begins to tell people of what waits for them, and others of checkpoints. What is given back
/// ends after the ledger, which has a last checkpoint to make.
fn start_sending(hub: &Hub, news: approvals::News) -> Tasks {
    let (config, metrics) = (hub.config.clone(), hub.metrics.clone());
    let notifier = approvals::notify::run(
        hub.approvals.clone(),
        news,
        config.clone(),
        metrics.clone(),
        hub.closing.clone(),
    );
    hub.tasks.start("notify", notifier);
    let sending = Tasks::counted(metrics.clone());
    let log = hub.ledger.settings().evidence.log.clone();
    sending.start("checkpoints", checkpoints::run(log, hub.ledger.signed(), config, metrics));
    sending
}

/// Says to clients on this host, to people and in the log that everything is there.
fn announce(
    hub: &Hub,
    state: &ServiceState,
    address: SocketAddr,
    endpoint: &str,
    file: Option<&Path>,
) -> Result<(), String> {
    state.write_endpoint(endpoint).map_err(|error| error.to_string())?;
    let agents = hub.pool.status().borrow().clone();
    let aside = hub.config.borrow().feed.is_stdout();
    let usual = Config::usual_files(std::env::vars_os());
    let banner = Banner {
        endpoint,
        everywhere: Some(address).filter(|address| address.ip().is_unspecified()),
        state: state.path(),
        config: file,
        usual: usual.first().map(PathBuf::as_path),
        agents: &agents,
    };
    banner.print(aside);
    info!(%endpoint, policy = hub.policy.current().revision(), "ready");
    Ok(())
}

/// Brings to disk and to others what there is to say, once all others have ended.
async fn end_record(hub: &Hub, saving: &Saving, feed: &Feed, sending: &Tasks) {
    saving.stop.cancel();
    if timeout(STOP_TIMEOUT, saving.tasks.ended()).await.is_err() {
        warn!("the sessions were not saved in time; the next start finds them in the journal");
    }
    // The last words are synced first, so that the ledger gets them, too.
    hub.journal.close();
    tokio::join!(hub.ledger.stop(), feed.stop());
    let is_sent = !hub.config.borrow().ledger.checkpoint_command.is_empty();
    if is_sent && timeout(STOP_TIMEOUT, sending.ended()).await.is_err() {
        warn!("the last checkpoint was not sent in time; the next start sends it");
    }
}

/// Starts the server. What is given back is cancelled once it has ended, in whatever way.
fn start_server<E: std::fmt::Display>(
    tasks: &Tasks,
    server: impl Future<Output = Result<(), E>> + Send + 'static,
) -> CancellationToken {
    let ended = CancellationToken::new();
    let ending = ended.clone().drop_guard();
    tasks.start("server", async move {
        if let Err(error) = server.await {
            error!(%error, "the server ended");
        }
        drop(ending);
    });
    ended
}

/// Where clients on this host find the service. One that listens on every
/// address does so on loopback, too.
fn endpoint(mut address: SocketAddr, is_tls: bool) -> String {
    if address.ip().is_unspecified() {
        let loopback =
            if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    format!("{}://{address}", if is_tls { "https" } else { "http" })
}

/// Begins to greet with a certificate, if there is one, and to renew it.
fn serve_tls(served: Option<Served>, state: &ServiceState, hub: &Hub) -> Result<Option<Listener>, String> {
    let Some(served) = served else { return Ok(None) };
    listener::say(&served);
    let dir = state.dir().clone();
    dir.write_fingerprint(&served.fingerprint).map_err(|error| error.to_string())?;
    let tell = move |served: &Served| {
        if let Err(error) = dir.write_fingerprint(&served.fingerprint) {
            warn!(%error, "clients on this host do not learn of the new certificate");
        }
    };
    let (tls, renewal) = Listener::new(served);
    hub.tasks.start("certificate", renewal.run(hub.config.clone(), tell, hub.draining.clone()));
    Ok(Some(tls))
}

fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "{address} is taken; is another conductor running? Choose another address with --listen, \
             or any free port with --listen 127.0.0.1:0"
        ),
        std::io::ErrorKind::PermissionDenied if address.port() < 1024 => format!(
            "cannot listen on {address}: {error}; choose a port from 1024 on, or give the program the right to those \
             below (CAP_NET_BIND_SERVICE; in a unit, AmbientCapabilities=)"
        ),
        _ => format!("cannot listen on {address}: {error}"),
    })
}

/// Where the numbers come from.
fn sources(hub: &Hub) -> Sources {
    Sources {
        metrics: hub.metrics.clone(),
        pool: hub.pool.clone(),
        router: hub.router.clone(),
        journal: hub.journal.clone(),
        ledger: hub.ledger.clone(),
    }
}

/// Serves metrics and health, if that is wanted.
fn start_admin(hub: &Hub, sources: Sources, address: Option<SocketAddr>) -> Result<(), String> {
    let Some(address) = address else { return Ok(()) };
    let listener = bind(address).map_err(|why| format!("service.admin: {why}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    info!(%address, "metrics and health are served");
    if let Some(caution) = admin::caution(address) {
        warn!(%address, "{caution}");
    }
    let admin = Admin { sources, draining: hub.draining.clone() };
    // Probes are answered for as long as there is something to say: while turns end.
    hub.tasks.start("admin", admin.serve(listener, hub.closing.clone(), hub.tasks.clone()));
    Ok(())
}

/// Stops accepting, lets turns end, ends everything. A second signal skips the
/// waiting.
async fn drain(hub: &Hub, stop: &CancellationToken, signals: &mut Signals) {
    let grace = hub.config.borrow().service.drain_timeout;
    info!(
        turns = hub.router.turns(),
        grace_ms = grace.as_millis() as u64,
        "stopping; a second signal stops at once"
    );
    hub.draining.cancel();
    stop.cancel();
    let ending = async {
        if timeout(grace, hub.router.last_turns()).await.is_err() {
            warn!(turns = hub.router.turns(), "turns still run; they are ended");
        }
        hub.closing.cancel();
        let ended = async {
            hub.pool.stop().await;
            hub.tasks.ended().await;
        };
        if timeout(STOP_TIMEOUT, ended).await.is_err() {
            warn!(tasks = hub.tasks.running(), "some tasks did not end in time");
        }
    };
    tokio::select! {
        () = ending => info!("stopped"),
        // The guards see our end and kill what is beneath them.
        () = signals.stop_again() => warn!("stopped at once"),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Wake {
    Reload,
    Stop,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Wake {
        tokio::select! {
            _ = self.terminate.recv() => Wake::Stop,
            _ = self.interrupt.recv() => Wake::Stop,
            _ = self.hangup.recv() => Wake::Reload,
        }
    }

    async fn stop_again(&mut self) {
        while self.next().await != Wake::Stop {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_known_when_the_server_ends_however_it_does() {
        let tasks = Tasks::default();
        let refused = start_server(&tasks, async { Err::<(), _>("refused") });
        let panicked = start_server(&tasks, async {
            assert!(std::hint::black_box(false), "on purpose");
            Ok::<_, String>(())
        });
        let serving = start_server(&tasks, std::future::pending::<Result<(), String>>());
        refused.cancelled().await;
        panicked.cancelled().await;
        assert!(!serving.is_cancelled());
    }
}
