//! The client end of every measurement: blocking pipes and raw bytes, so that it costs next to nothing itself.

use std::{
    io::{Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use memchr::{memchr, memchr_iter, memmem, memrchr};
use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;

/// How much one read takes at most.
const READ: usize = 256 << 10;

/// Whoever was told to end has so long to do it.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// An editor with its agent: the agent itself, or a bridge to one.
pub struct Editor {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    buffer: Vec<u8>,
    held: usize,
    last_id: u64,
}

impl Editor {
    /// Starts the agent. No handshake yet.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().context("no stdout")?);
        Ok(Self { child, stdin, stdout, buffer: vec![0; READ], held: 0, last_id: 0 })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn initialize(&mut self) -> Result<()> {
        let params = r#"{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true},"clientInfo":{"name":"bench","version":"1"}}"#;
        let answer = self.ask("initialize", params)?;
        ensure!(memmem::find(&answer, b"\"protocolVersion\"").is_some(), "no handshake: {}", show(&answer));
        Ok(())
    }

    pub fn new_session(&mut self, cwd: &Path) -> Result<String> {
        let cwd = serde_json::to_string(&cwd.to_string_lossy())?;
        let answer = self.ask("session/new", &format!(r#"{{"cwd":{cwd},"mcpServers":[]}}"#))?;
        let id =
            text(&answer, b"\"sessionId\":\"").with_context(|| format!("no session: {}", show(&answer)))?;
        Ok(String::from_utf8(id.to_vec())?)
    }

    pub fn close_session(&mut self, session: &str) -> Result<()> {
        self.ask("session/close", &format!(r#"{{"sessionId":"{session}"}}"#)).map(drop)
    }

    /// Sends a prompt and takes what comes as fast as it comes. Gives the time and checks that it was `frames`
    /// frames, the answer included.
    pub fn turn(&mut self, session: &str, prompt: &str, frames: usize) -> Result<Duration> {
        self.turn_slowly(session, prompt, frames, |_| {})
    }

    /// The same with a pause before each read, told how many bytes have been read.
    pub fn turn_slowly(
        &mut self,
        session: &str,
        prompt: &str,
        frames: usize,
        mut pause: impl FnMut(usize),
    ) -> Result<Duration> {
        let started = Instant::now();
        let id = self.prompt(session, prompt)?;
        self.until_answered(id, frames, &mut pause)?;
        Ok(started.elapsed())
    }

    /// The same with a prompt that names its agent; how much else comes with it is not looked at.
    pub fn turn_with(&mut self, session: &str, agent: &str) -> Result<Duration> {
        let meta = format!(r#","_meta":{{"conductor":{{"agent":"{agent}"}}}}"#);
        let params =
            format!(r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":"n=1 size=64"}}]{meta}}}"#);
        let started = Instant::now();
        let id = self.send("session/prompt", &params)?;
        let mut answer = None;
        while answer.is_none() {
            self.lines(|line| {
                if answers(line, id) {
                    answer = Some(line.to_vec());
                }
            })?;
        }
        let answer = answer.unwrap_or_default();
        ensure!(memmem::find(&answer, b"\"result\":").is_some(), "the prompt failed: {}", show(&answer));
        Ok(started.elapsed())
    }

    /// Reads until a request is answered, and checks that it was so many frames, the answer included.
    fn until_answered(&mut self, id: u64, frames: usize, pause: &mut dyn FnMut(usize)) -> Result<()> {
        let (mut seen, mut bytes) = (0, 0);
        loop {
            pause(bytes);
            let n = self.read()?;
            bytes += n;
            let fresh = &self.buffer[self.held..self.held + n];
            seen += memchr_iter(b'\n', fresh).count();
            let block = &self.buffer[..self.held + n];
            let Some(end) = memrchr(b'\n', block) else {
                self.keep(0, n)?;
                continue;
            };
            let start = memrchr(b'\n', &block[..end]).map_or(0, |at| at + 1);
            let ended = answers(&block[start..end], id);
            if ended && memmem::find(&block[start..end], b"\"result\":").is_none() {
                bail!("the request failed: {}", show(&block[start..end]));
            }
            self.keep(end + 1, n)?;
            if ended {
                ensure!(seen == frames, "{seen} frames came instead of {frames}");
                return Ok(());
            }
        }
    }

    /// Opens a session again, all of whose frames are told. Gives the time and checks that it was so many, the
    /// answer included.
    pub fn load_session(&mut self, session: &str, cwd: &Path, frames: usize) -> Result<Duration> {
        let cwd = serde_json::to_string(&cwd.to_string_lossy())?;
        let started = Instant::now();
        let params = format!(r#"{{"sessionId":"{session}","cwd":{cwd},"mcpServers":[]}}"#);
        let id = self.send("session/load", &params)?;
        self.until_answered(id, frames, &mut |_| {})?;
        Ok(started.elapsed())
    }

    /// Sends a prompt and waits for its first update. Gives its id.
    pub fn begin(&mut self, session: &str, prompt: &str) -> Result<u64> {
        let id = self.prompt(session, prompt)?;
        let mut begun = false;
        while !begun {
            self.lines(|line| begun |= memmem::find(line, b"\"session/update\"").is_some())?;
        }
        Ok(id)
    }

    /// Takes the rest of a turn, so many frames with the answer. Gives when the first one came, and the last.
    pub fn finish(&mut self, id: u64, frames: usize) -> Result<(Instant, Instant)> {
        let mut first = None;
        self.until_answered(id, frames, &mut |bytes| {
            if bytes > 0 {
                first.get_or_insert_with(Instant::now);
            }
        })?;
        let last = Instant::now();
        Ok((first.unwrap_or(last), last))
    }

    /// Sends a prompt and reads nothing.
    pub fn ask_turn(&mut self, session: &str) -> Result<u64> {
        self.prompt(session, "n=1 size=64")
    }

    /// The same by an editor that decodes every frame and checks its number, as the least of editors must.
    pub fn decoded_turn(&mut self, session: &str, prompt: &str, frames: usize) -> Result<Duration> {
        let started = Instant::now();
        let id = self.prompt(session, prompt)?;
        let (mut seen, mut ended) = (0, Ok(false));
        while !ended? {
            ended = Ok(false);
            self.lines(|line| {
                let number = match serde_json::from_slice::<Message<'_>>(line) {
                    Ok(Message { id: Some(answered), .. }) if answered == id => return ended = Ok(true),
                    Ok(Message { params: Some(params), .. }) => params.update.content.text.get(..8),
                    _ => None,
                };
                if number.and_then(|digits| digits.parse().ok()) == Some(seen) {
                    seen += 1;
                } else {
                    ended = Err(anyhow!("frame {seen} was awaited, but this came: {}", show(line)));
                }
            })?;
        }
        ensure!(seen + 1 == frames, "{} frames came instead of {frames}", seen + 1);
        Ok(started.elapsed())
    }

    /// A prompt whose agent asks permission, which is given at once where this editor is asked. Gives the time the
    /// agent waited, and whether the editor was asked.
    pub fn permission(&mut self, session: &str, asks: Asks) -> Result<(Duration, bool)> {
        let id = self.prompt(session, asks.prompt())?;
        let (mut waited, mut was_asked) = (None, false);
        while waited.is_none() {
            let mut answer = None;
            self.lines(|line| {
                if memmem::find(line, b"session/request_permission").is_some() {
                    answer = raw_id(line).map(|id| String::from_utf8_lossy(id).into_owned());
                } else if answers(line, id) {
                    waited = Some(number(line, b"\"ns\":").with_context(|| show(line)));
                }
            })?;
            if let Some(id) = answer {
                was_asked = true;
                let outcome = r#"{"outcome":{"outcome":"selected","optionId":"yes"}}"#;
                self.write(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{outcome}}}\n"))?;
            }
        }
        let waited = waited.unwrap_or_else(|| bail!("no answer"))?;
        Ok((Duration::from_nanos(waited), was_asked))
    }

    /// A prompt whose updates say when they were written. Gives how long each was under way.
    pub fn paced(&mut self, session: &str, rate: usize, count: usize) -> Result<Vec<Duration>> {
        let id = self.prompt(session, &format!("paced={rate} n={count}"))?;
        let mut delays = Vec::with_capacity(count);
        let mut ended = false;
        while !ended {
            self.lines(|line| {
                let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
                match number(line, b"\"text\":\"") {
                    Some(sent) => delays.push(now.saturating_sub(Duration::from_nanos(sent))),
                    None => ended |= answers(line, id),
                }
            })?;
        }
        ensure!(delays.len() == count, "{} of {count} frames came", delays.len());
        Ok(delays)
    }

    fn prompt(&mut self, session: &str, prompt: &str) -> Result<u64> {
        self.send(
            "session/prompt",
            &format!(r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":"{prompt}"}}]}}"#),
        )
    }

    fn ask(&mut self, method: &str, params: &str) -> Result<Vec<u8>> {
        let id = self.send(method, params)?;
        let mut answer = None;
        while answer.is_none() {
            self.lines(|line| {
                if answers(line, id) {
                    answer = Some(line.to_vec());
                }
            })?;
        }
        answer.context("no answer")
    }

    fn send(&mut self, method: &str, params: &str) -> Result<u64> {
        self.last_id += 1;
        let id = self.last_id;
        self.write(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n"
        ))?;
        Ok(id)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the agent's input is closed")?;
        stdin.write_all(text.as_bytes()).context("cannot write to the agent")
    }

    /// Reads once and shows each complete line.
    fn lines(&mut self, mut each: impl FnMut(&[u8])) -> Result<()> {
        let n = self.read()?;
        let block = &self.buffer[..self.held + n];
        let mut start = 0;
        while let Some(at) = memchr(b'\n', &block[start..]) {
            each(&block[start..start + at]);
            start += at + 1;
        }
        self.keep(start, n)
    }

    fn read(&mut self) -> Result<usize> {
        match self.stdout.read(&mut self.buffer[self.held..])? {
            0 => bail!("the agent closed its output"),
            n => Ok(n),
        }
    }

    /// After a read of `n` bytes: holds what comes from `start` on for the next one.
    fn keep(&mut self, start: usize, n: usize) -> Result<()> {
        let end = self.held + n;
        self.buffer.copy_within(start..end, 0);
        self.held = end - start;
        ensure!(self.held < self.buffer.len(), "a line is longer than {READ} bytes");
        Ok(())
    }

    /// Ends the agent as editors do, and waits until it is gone.
    pub fn end(mut self) -> Result<()> {
        drop(self.stdin.take());
        let due = Instant::now() + END_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < due, "the agent did not end when its input did");
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        // Both fail harmlessly if it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What an agent asks permission for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// What no rule speaks of, so that the editor is asked.
    Person,
    /// What the default policy allows.
    Policy,
}

impl Asks {
    fn prompt(self) -> &'static str {
        match self {
            Self::Person => "permission",
            Self::Policy => "permission=policy",
        }
    }
}

/// As much of a message as a decoding editor looks at.
#[derive(Deserialize)]
struct Message<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    update: Update<'a>,
}

#[derive(Deserialize)]
struct Update<'a> {
    #[serde(borrow)]
    content: Content<'a>,
}

#[derive(Deserialize)]
struct Content<'a> {
    text: &'a str,
}

/// Whether a frame is the answer to a request of this editor's. Where in it the id stands is up to who wrote it last.
fn answers(line: &[u8], id: u64) -> bool {
    number(line, b"\"id\":") == Some(id) && memmem::find(line, b"\"method\":").is_none()
}

/// The id of a frame as it stands there, which may be a text.
fn raw_id(line: &[u8]) -> Option<&[u8]> {
    let key = b"\"id\":";
    let rest = &line[memmem::find(line, key)? + key.len()..];
    Some(&rest[..rest.iter().position(|byte| matches!(byte, b',' | b'}'))?])
}

fn text<'a>(line: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let rest = &line[memmem::find(line, key)? + key.len()..];
    Some(&rest[..memchr(b'"', rest)?])
}

fn number(line: &[u8], key: &[u8]) -> Option<u64> {
    let rest = &line[memmem::find(line, key)? + key.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

fn show(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(500)]).into_owned()
}
