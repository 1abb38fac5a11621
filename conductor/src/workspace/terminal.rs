//! Commands that an agent has us run, each under a guard of its own.
//!
//! One task per terminal owns the pipe, what is kept of the output and the
//! guard. It reads all the time, so that a command never waits for anybody to
//! look, and keeps only the end of what was written.

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use nix::{
    sys::signal::Signal,
    unistd::{AccessFlags, access},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    io::AsyncReadExt as _,
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use super::{Outcome, paths::Roots, read_params};
use crate::{
    acp::{Refusal, code},
    agent::{
        process::{Environment, Errand, Errors, Guarded, Running},
        strays,
    },
    contain::Container,
    frame::{Frame, MAX_FRAME},
};

/// What is kept of the output if the agent names no limit.
pub const DEFAULT_OUTPUT: usize = 1 << 20;

/// The most that is kept, whatever the agent says.
pub const MOST_OUTPUT: usize = 16 << 20;

/// Read at once: as much as a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// Questions that may wait for a terminal; it answers them before it reads on.
const ASKS: usize = 16;

/// After the end of a command, how long what it wrote may take to read.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// Who runs a line that is not a program.
const SHELL: &str = "/bin/sh";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateParams {
    command: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    output_byte_limit: Option<u64>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// What `terminal/create` asks for: the command, and how much of its output is
/// to be kept.
pub fn order(
    roots: &Roots,
    frame: &Frame,
    env: &Environment,
    container: Arc<Container>,
) -> Result<(Errand, usize), Refusal> {
    let params: CreateParams = read_params(frame)?;
    let invalid = |text: String| Err(Refusal::new(code::INVALID_PARAMS, text));
    let args = params.args.unwrap_or_default();
    let variables = params.env.unwrap_or_default();
    if params.command.trim().is_empty() {
        return invalid("terminal/create needs a command, and this one is empty".into());
    }
    let bad_name = |name: &str| name.is_empty() || name.contains(['=', '\0']);
    if let Some(Variable { name, .. }) = variables.iter().find(|variable| bad_name(&variable.name)) {
        return invalid(format!("`{}` cannot be the name of a variable", name.escape_default()));
    }
    let nul = |text: &String| text.contains('\0');
    if nul(&params.command) || args.iter().any(nul) || variables.iter().any(|v| nul(&v.value)) {
        return invalid("commands, arguments and variables cannot have NUL characters in them".into());
    }
    let directory = match &params.cwd {
        Some(path) => roots.directory(path)?,
        None => roots.first().map_err(|error| Refusal::new(code::INTERNAL, error.to_string()))?,
    };
    let mut env = env.clone();
    env.extend(variables.into_iter().map(|v| (OsString::from(v.name), OsString::from(v.value))));
    let search = env.get(OsStr::new("PATH")).cloned().unwrap_or_default();
    let (program, args) = match (find(&params.command, &search), args.is_empty()) {
        (Some(program), _) => (program, args),
        (None, true) => (SHELL.into(), vec!["-c".into(), params.command]),
        (None, false) if params.command.contains('/') => (params.command.into(), args),
        (None, false) => {
            return invalid(format!(
                "command not found: `{}` is in no directory of PATH ({}); install it on the conductor's host, \
                 or give its full path",
                params.command.escape_default(),
                search.display()
            ));
        }
    };
    let limit = params
        .output_byte_limit
        .map_or(DEFAULT_OUTPUT, |limit| usize::try_from(limit).unwrap_or(MOST_OUTPUT).min(MOST_OUTPUT));
    let args = args.into_iter().map(OsString::from).collect();
    let container = Some(container);
    Ok((Errand { program, args, env, directory, errors: Errors::Together, container }, limit))
}

/// The executable file that a command names: by its full path, or on `PATH`.
fn find(command: &str, search: &OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    if command.contains('/') {
        let path = Path::new(command);
        return (path.is_absolute() && runs(path)).then(|| path.into());
    }
    let directories = std::env::split_paths(search).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(command)).find(|path| runs(path))
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    exit_code: Option<i32>,
    signal: Option<String>,
}

impl From<Option<ExitStatus>> for Ended {
    fn from(status: Option<ExitStatus>) -> Self {
        let signal = status.and_then(|status| status.signal()).map(|number| match Signal::try_from(number) {
            Ok(signal) => signal.as_str().to_string(),
            Err(_) => format!("SIG{number}"),
        });
        Self { exit_code: status.and_then(|status| status.code()), signal }
    }
}

/// The handle. Dropping it ends the command and all that it started.
#[derive(Debug)]
pub struct Terminal {
    asks: mpsc::Sender<Ask>,
    ended: watch::Receiver<Option<Ended>>,
}

#[derive(Debug)]
enum Ask {
    Output(oneshot::Sender<Output>),
    Kill(oneshot::Sender<()>),
}

/// What a terminal shows.
#[derive(Debug)]
struct Output {
    bytes: Bytes,
    truncated: bool,
    limit: usize,
    ended: Option<Ended>,
}

/// A terminal's task, to be started.
#[derive(Debug)]
pub struct Life {
    running: Running,
    screen: Screen,
    asks: mpsc::Receiver<Ask>,
    ended: watch::Sender<Option<Ended>>,
    /// Its place among the session's terminals, and the memory of its output.
    _held: [OwnedSemaphorePermit; 2],
}

/// A terminal for a command that runs.
pub fn terminal(running: Running, limit: usize, held: [OwnedSemaphorePermit; 2]) -> (Terminal, Life) {
    let (asks, asked) = mpsc::channel(ASKS);
    let (tell, ended) = watch::channel(None);
    let life = Life { running, screen: Screen::new(limit), asks: asked, ended: tell, _held: held };
    (Terminal { asks, ended }, life)
}

impl Terminal {
    /// `terminal/output`.
    pub fn output(&self) -> impl Future<Output = Outcome> + use<> {
        let asks = self.asks.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            asks.send(Ask::Output(reply)).await.map_err(|_| gone())?;
            Ok(answer.await.map_err(|_| gone())?.encode())
        }
    }

    /// `terminal/wait_for_exit`.
    pub fn wait(&self) -> impl Future<Output = Outcome> + use<> {
        let mut ended = self.ended.clone();
        async move {
            let ended = ended.wait_for(Option::is_some).await.map_err(|_| gone())?;
            Ok(json!(*ended).to_string().into())
        }
    }

    /// `terminal/kill`; answered when nothing of the command is left.
    pub fn kill(&self) -> impl Future<Output = Outcome> + use<> {
        let asks = self.asks.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            asks.send(Ask::Kill(reply)).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?;
            Ok(Bytes::from_static(b"{}"))
        }
    }
}

/// The task has ended early, which only a panic can bring about.
fn gone() -> Refusal {
    Refusal::new(code::INTERNAL, "this terminal is gone; create another one")
}

impl Life {
    /// Serves the terminal until its handle is dropped; then nothing of the
    /// command is left.
    pub async fn run(self) {
        let Self { running, mut screen, mut asks, ended, _held } = self;
        let Running { pid, mut output, mut guarded } = running;
        let mut buffer = vec![0; READ_BYTES];
        let mut open = true;
        let mut status: Option<Option<ExitStatus>> = None;
        let mut drained_by = Instant::now();
        loop {
            if let Some(status) = status
                && !open
                && ended.borrow().is_none()
            {
                ended.send_replace(Some(status.into()));
            }
            tokio::select! {
                biased;
                ask = asks.recv() => match ask {
                    None => break,
                    Some(Ask::Output(reply)) => {
                        reply.send(screen.show(ended.borrow().clone())).ok();
                    }
                    Some(Ask::Kill(reply)) => {
                        if status.is_none() {
                            status = Some(kill(&mut guarded, pid).await);
                            drained_by = Instant::now() + DRAIN_GRACE;
                        }
                        reply.send(()).ok();
                    }
                },
                read = output.read(&mut buffer), if open => match read {
                    Ok(0) | Err(_) => open = false,
                    Ok(count) => screen.push(&buffer[..count]),
                },
                done = guarded.wait(), if status.is_none() => {
                    let done = done.ok();
                    if done.is_some_and(|done| done.signal() == Some(Signal::SIGKILL as i32)) {
                        // It may have been the guard that was killed.
                        strays::end(pid).await;
                    }
                    status = Some(done);
                    drained_by = Instant::now() + DRAIN_GRACE;
                }
                () = sleep_until(drained_by), if status.is_some() && open => open = false,
            }
        }
        let status = match status {
            Some(status) => status,
            None => kill(&mut guarded, pid).await,
        };
        // Whoever waits is told, even if some output was still to be read.
        if ended.borrow().is_none() {
            ended.send_replace(Some(status.into()));
        }
    }
}

async fn kill(guarded: &mut Guarded, pid: u32) -> Option<ExitStatus> {
    let status = guarded.kill().await;
    strays::end(pid).await;
    status
}

/// The end of what was written, at most so many bytes.
#[derive(Debug)]
struct Screen {
    kept: BytesMut,
    limit: usize,
    truncated: bool,
}

impl Screen {
    fn new(limit: usize) -> Self {
        Self { kept: BytesMut::new(), limit, truncated: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() > self.limit {
            self.kept.advance(self.kept.len() - self.limit);
            self.truncated = true;
        }
    }

    fn show(&self, ended: Option<Ended>) -> Output {
        let bytes = Bytes::copy_from_slice(&self.kept);
        Output { bytes, truncated: self.truncated, limit: self.limit, ended }
    }
}

impl Output {
    /// The answer to `terminal/output`.
    fn encode(self) -> Bytes {
        let (mut text, mut truncated) = self.text();
        loop {
            let mut answer = json!({ "output": text, "truncated": truncated });
            if let Some(ended) = &self.ended {
                answer["exitStatus"] = json!(ended);
            }
            let answer = answer.to_string();
            if answer.len() + 1024 <= MAX_FRAME {
                return answer.into();
            }
            // Escapes can make six bytes of one.
            text = last(&text, text.len() / 2).to_string();
            truncated = true;
        }
    }

    /// What is kept as text: whole characters only, at both ends.
    fn text(&self) -> (String, bool) {
        let mut kept = &self.bytes[..];
        if self.truncated {
            let cut = kept.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
            kept = &kept[cut..];
        }
        if self.ended.is_none() {
            kept = &kept[..whole(kept)];
        }
        let text = String::from_utf8_lossy(kept);
        // Bytes that are no text become characters of three bytes.
        let fits = last(&text, self.limit);
        (fits.to_string(), self.truncated || fits.len() < text.len())
    }
}

/// The last characters of a text, at most so many bytes.
fn last(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    &text[text.ceil_char_boundary(from)..]
}

/// How much of it there is without a character whose rest is yet to come.
fn whole(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let needs = match bytes[bytes.len() - back] {
            byte if is_continuation(byte) => continue,
            0xf0..=0xf7 => 4,
            0xe0..=0xef => 3,
            0xc0..=0xdf => 2,
            _ => 1,
        };
        return if needs > back { bytes.len() - back } else { bytes.len() };
    }
    bytes.len()
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(limit: usize, written: &[&[u8]], ended: bool) -> (String, bool) {
        let mut screen = Screen::new(limit);
        written.iter().for_each(|bytes| screen.push(bytes));
        screen.show(ended.then_some(Ended { exit_code: Some(0), signal: None })).text()
    }

    #[test]
    fn the_end_of_the_output_is_kept_in_whole_characters() {
        assert_eq!(shown(10, &[b"hello"], true), ("hello".into(), false));
        assert_eq!(shown(5, &[b"hello"], true), ("hello".into(), false));
        assert_eq!(shown(4, &[b"hel", b"lo"], true), ("ello".into(), true));
        assert_eq!(shown(0, &[b"x"], true), (String::new(), true));
        assert_eq!(shown(0, &[], true), (String::new(), false));
        // A limit inside a character of two, three or four bytes.
        assert_eq!(shown(4, &["aéé".as_bytes()], true), ("éé".into(), true));
        assert_eq!(shown(3, &["aéé".as_bytes()], true), ("é".into(), true));
        assert_eq!(shown(5, &["€€".as_bytes()], true), ("€".into(), true));
        for limit in 4..8 {
            assert_eq!(shown(limit, &["😀😀".as_bytes()], true), ("😀".into(), true), "{limit}");
        }
        assert_eq!(shown(3, &["😀😀".as_bytes()], true), (String::new(), true));
    }

    #[test]
    fn a_character_that_is_not_complete_yet_waits() {
        let euro = "€".as_bytes();
        assert_eq!(shown(10, &[b"a", &euro[..2]], false), ("a".into(), false));
        assert_eq!(shown(10, &[b"a", &euro[..2], &euro[2..]], false), ("a€".into(), false));
        assert_eq!(shown(10, &[b"a", &euro[..2]], true), ("a\u{fffd}".into(), false));
        assert_eq!(shown(10, &[b"\xff\x80"], false), ("\u{fffd}\u{fffd}".into(), false));
        assert_eq!(shown(5, &[b"\xff\xff\xff"], true), ("\u{fffd}".into(), true));
    }

    #[test]
    fn the_answer_fits_into_a_frame() {
        let mut screen = Screen::new(MOST_OUTPUT);
        screen.push(&vec![0x1b; MOST_OUTPUT / 4]);
        let answer = screen.show(None).encode();
        assert!(answer.len() <= MAX_FRAME);
        assert!(answer.len() > MAX_FRAME / 4);
    }
}
