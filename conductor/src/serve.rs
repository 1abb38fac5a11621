//! `conductor serve`: build bottom-up, wait, drain top-down.

use std::{collections::HashMap, net::SocketAddr, path::Path, process::ExitCode, sync::Arc, time::Instant};

use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    agent::strays,
    banner,
    cli::{Global, ServeArgs},
    config::{Config, Loaded, check_listen},
    connection::Hub,
    grpc,
    identity::tokens::Tokens,
    journal::{Journal, Recording},
    ledger::{self, Ledger, history::History},
    policy::{Live, Policy, PolicyError, Publisher},
    pool::Pool,
    router::Router,
    state::StateDir,
    store::{Store, behind},
    tasks::Tasks,
    telemetry,
    tether::Tethers,
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
    telemetry::start(args.log.as_deref());
    let (loaded, policy) = match load(args) {
        Ok(loaded) => loaded,
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
    let steps_back = loaded.config.journal.recording != Recording::Strict;
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
    let code = match runtime.block_on(serve(global, args, loaded, policy, shipping.handle())) {
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

fn load(args: &ServeArgs) -> Result<(Loaded, Policy), String> {
    if let Some(listen) = args.listen {
        check_listen(listen).map_err(|refused| format!("--listen: {refused}"))?;
    }
    let loaded =
        Config::load(args.config.as_deref(), std::env::vars_os()).map_err(|error| error.to_string())?;
    let policy = load_policy(args, &loaded.config).map_err(|error| error.to_string())?;
    Ok((loaded, policy))
}

/// The rules that hold: of the file that was named, or the built-in ones.
fn load_policy(args: &ServeArgs, config: &Config) -> Result<Policy, PolicyError> {
    Policy::load(args.policy.as_deref().or(config.policy.file.as_deref()))
}

async fn serve(
    global: &Global,
    args: &ServeArgs,
    loaded: Loaded,
    policy: Policy,
    shipping: &Handle,
) -> Result<(), String> {
    let mut signals = Signals::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
    let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os);
    let state = state.and_then(|dir| dir.open_for_service()).map_err(|error| error.to_string())?;
    let config = Arc::new(loaded.config);
    let listener = bind(args.listen.unwrap_or(config.service.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let endpoint = format!("http://{address}");

    strays::adopt();
    let tasks = Tasks::default();
    let (publish, configured) = watch::channel(config.clone());
    let (rule, policy) = Live::new(policy);
    let (journal, recovered) = Journal::open(&state.path().join("journal"), (&config.journal).into())
        .map_err(|error| format!("the journal cannot be opened: {error}"))?;
    info!(
        segments = recovered.segments,
        frames = recovered.frames,
        bytes = recovered.bytes,
        took_ms = recovered.took.as_millis() as u64,
        "the journal is open"
    );
    let ledger = open_ledger(args, &config, state.path(), &journal, shipping).await?;
    let (mut store, router) = open_store(state.path(), &journal).await?;
    let shares = store.shares().await.map_err(|error| format!("the shares cannot be read: {error}"))?;
    router.shared_before(shares);
    let issued = store.tokens().await.map_err(|error| format!("the tokens cannot be read: {error}"))?;
    let tokens = Tokens::new(state.token().clone(), issued);
    let (saving, stop_saving) = (Tasks::default(), CancellationToken::new());
    saving.start("store", store.keep(router.clone(), tokens.clone(), stop_saving.clone()));
    let pool = Pool::start(&config, state.path().join("homes"), journal.clone(), &tasks);
    let hub = Hub {
        pool: pool.clone(),
        router,
        history: History::new(ledger.settings().clone(), Some(journal.clone())),
        journal,
        ledger,
        tasks: tasks.clone(),
        config: configured,
        policy,
        draining: CancellationToken::new(),
        closing: CancellationToken::new(),
    };
    let stop = CancellationToken::new();
    let most = config.service.max_connections;
    let tethers = Tethers::start(most, state.path().to_path_buf(), hub.closing.clone(), &tasks);
    let server = grpc::serve(listener, hub.clone(), tethers, tokens, stop.clone());
    tasks.start("server", async move {
        if let Err(error) = server.await {
            error!(%error, "the server ended");
        }
    });
    state.write_endpoint(&endpoint).map_err(|error| error.to_string())?;
    let agents = pool.status().borrow().clone();
    banner::print(&endpoint, state.path(), loaded.file.as_deref(), &agents);
    info!(%endpoint, policy = hub.policy.current().revision(), "ready");

    while signals.next().await == Wake::Reload {
        reload(args, loaded.file.as_deref(), &publish, &rule, &pool).await;
    }
    drain(&hub, &stop, &mut signals).await;
    stop_saving.cancel();
    if timeout(STOP_TIMEOUT, saving.ended()).await.is_err() {
        warn!("the sessions were not saved in time; the next start finds them in the journal");
    }
    // The last words are synced first, so that the ledger gets them, too.
    hub.journal.close();
    hub.ledger.stop().await;
    drop(state);
    Ok(())
}

/// Begins to carry the journal into the ledger. A database that does not
/// answer is waited for; one that cannot be ours is a reason not to start.
async fn open_ledger(
    args: &ServeArgs,
    config: &Config,
    state: &Path,
    journal: &Journal,
    shipping: &Handle,
) -> Result<Ledger, String> {
    let mut settings = ledger::Settings::new(&config.ledger, state);
    if let Some(given) = &args.database_url {
        settings.url = given.check().map_err(|why| format!("--database-url: {why}"))?;
    }
    // Its task ends after all others, so it is none of theirs.
    let (journal, tasks) = (journal.clone(), Tasks::default());
    let opened = shipping.spawn(async move { Ledger::open(settings, journal, &tasks).await });
    match opened.await {
        Ok(Ok(ledger)) => Ok(ledger),
        Ok(Err(error)) => Err(format!("the ledger cannot be used: {error}")),
        Err(failure) => Err(format!("the ledger cannot be opened: {failure}")),
    }
}

/// Opens what is known of sessions, and brings it up to date from the journal.
async fn open_store(state: &Path, journal: &Journal) -> Result<(Store, Router), String> {
    let began = Instant::now();
    let file = state.join("store.sqlite");
    let failed = |error| format!("{} cannot be used: {error}", file.display());
    let mut store = Store::open(&file).await.map_err(failed)?;
    let mut rows: HashMap<_, _> = store.sessions().await.map_err(failed)?.into_iter().collect();
    let changed = behind::catch_up(journal, &mut rows)
        .map_err(|error| format!("the journal cannot be read for the sessions in it: {error}"))?;
    info!(
        sessions = rows.len(),
        from_journal = changed.len(),
        took_ms = began.elapsed().as_millis() as u64,
        "the sessions are known"
    );
    Ok((store, Router::new(rows, changed)))
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
        _ => format!("cannot listen on {address}: {error}"),
    })
}

/// A bad file changes nothing; a good one applies to new processes and
/// sessions.
async fn reload(
    args: &ServeArgs,
    file: Option<&std::path::Path>,
    publish: &watch::Sender<Arc<Config>>,
    rule: &Publisher,
    pool: &Pool,
) {
    let explicit = args.config.as_deref().or(file);
    let loaded = Config::load(explicit, std::env::vars_os());
    // The rules are read anew even if the rest cannot be used.
    let config =
        loaded.as_ref().map_or_else(|_| publish.borrow().clone(), |loaded| Arc::new(loaded.config.clone()));
    let policy = load_policy(args, &config);
    match &policy {
        Ok(policy) => info!(revision = policy.revision(), "the policy was reloaded"),
        Err(refused) => error!(%refused, "the policy was not reloaded; the old one stays in force"),
    }
    rule.publish(policy);
    match loaded {
        Ok(loaded) => {
            let config = Arc::new(loaded.config);
            if config.service.listen != publish.borrow().service.listen {
                warn!("a new listen address takes effect at the next start");
            }
            publish.send_replace(config.clone());
            pool.reload(config).await;
            info!("the configuration was reloaded");
        }
        Err(refused) => error!(%refused, "the configuration was not reloaded; the old one stays in force"),
    }
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
        hub.pool.stop().await;
        if timeout(STOP_TIMEOUT, hub.tasks.ended()).await.is_err() {
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
