//! `conductor agents login`: the agent's login on the service's host, in the terminal that
//! one sits at.

use std::{
    io::{IsTerminal as _, stdin},
    os::fd::AsFd as _,
};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::{
    io::AsyncReadExt as _,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    cli::{EndpointArgs, Global},
    client::Client,
    commands::terminal::{clean, write},
    frame::escape,
    proto::{
        LoginEnded, LoginRequest, LoginResponse, LoginStart, LoginStarted, WindowSize, login_request,
        login_response,
    },
};

/// Messages that may wait for the service; whoever types faster waits.
const WAITING: usize = 8;

/// Bytes that are read from the keyboard at once.
const TYPED: usize = 4 << 10;

/// Who logs in where, and how.
pub(super) struct Wanted<'a> {
    pub(super) agent: &'a str,
    pub(super) method: &'a str,
    pub(super) user: &'a str,
}

/// Logs in; what to say about it.
pub(super) async fn run(
    global: &Global,
    endpoint: &EndpointArgs,
    wanted: Wanted<'_>,
) -> Result<String, String> {
    let client = Client::connect(global, endpoint).await.map_err(|error| error.message)?;
    let (say, said) = mpsc::channel(WAITING);
    let start = LoginStart {
        agent: wanted.agent.to_owned(),
        method: wanted.method.to_owned(),
        user: wanted.user.to_owned(),
        window: Some(window()),
        term: std::env::var("TERM").unwrap_or_default(),
    };
    say.try_send(request(login_request::Kind::Start(start))).map_err(|_| "the stream closed at once")?;
    let explain = |status: tonic::Status| client.explain(&status).message;
    let mut told = client.agents().login(ReceiverStream::new(said)).await.map_err(explain)?.into_inner();
    let mut resizes = signal(SignalKind::window_change()).map_err(|error| error.to_string())?;
    let mut keyboard = tokio::io::stdin();
    let mut typed = vec![0; TYPED];
    let (mut reads, mut raw, mut user) = (false, None, String::new());
    let ended = loop {
        tokio::select! {
            message = told.message() => match message.map_err(explain)?.and_then(|LoginResponse { kind }| kind) {
                Some(login_response::Kind::Started(started)) => {
                    if started.has_terminal {
                        reads = true;
                        raw = RawMode::enter();
                    } else {
                        waiting(&started);
                    }
                    user = started.user;
                }
                Some(login_response::Kind::Output(bytes)) => show(&bytes)?,
                Some(login_response::Kind::Ended(ended)) => break ended,
                None => return Err(format!("the conductor at {} said no more", client.endpoint)),
            },
            read = keyboard.read(&mut typed), if reads => match read {
                Ok(count @ 1..) => {
                    let input = request(login_request::Kind::Input(typed[..count].to_vec()));
                    say.send(input).await.map_err(|_| "the login is over".to_owned())?;
                }
                // What runs there may go on without.
                _ => reads = false,
            },
            _ = resizes.recv() => {
                say.send(request(login_request::Kind::Resized(window()))).await.ok();
            }
        }
    };
    drop(raw);
    let LoginEnded { is_logged_in, how } = ended;
    let agent = escape(wanted.agent.as_bytes(), 100);
    if is_logged_in {
        return Ok(format!("user `{}` is logged in to agent `{agent}`\n", escape(user.as_bytes(), 100)));
    }
    Err(format!("the login to agent `{agent}` has failed: it {}", clean(&how)))
}

fn request(kind: login_request::Kind) -> LoginRequest {
    LoginRequest { kind: Some(kind) }
}

#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
fn waiting(started: &LoginStarted) {
    eprintln!("conductor agents: waiting for the agent (`{}`)", escape(started.method.as_bytes(), 100));
}

/// What nobody sees nobody can answer.
fn show(bytes: &[u8]) -> Result<(), String> {
    match write(bytes)? {
        true => Ok(()),
        false => Err("nobody reads what the login shows; try again in a terminal".to_owned()),
    }
}

fn window() -> WindowSize {
    let (columns, rows) =
        terminal_size::terminal_size().map_or((80, 24), |(width, height)| (width.0, height.0));
    WindowSize { columns: columns.into(), rows: rows.into() }
}

/// Hands every key on as it is, until it is dropped.
struct RawMode(Termios);

impl RawMode {
    /// `None` without a terminal.
    fn enter() -> Option<Self> {
        let stdin = stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let before = tcgetattr(stdin.as_fd()).ok()?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin.as_fd(), SetArg::TCSADRAIN, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        tcsetattr(stdin().as_fd(), SetArg::TCSADRAIN, &self.0).ok();
    }
}
