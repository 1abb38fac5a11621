//! The fastest agent we can write, so that the benchmark sees what the conductor adds and not what an agent
//! costs: blocking reads, no JSON library, frames built once and written in big blocks.
//!
//! The text of a prompt says what to do:
//!
//! - `n=100000 size=64`: so many numbered `agent_message_chunk` updates with a text of so many bytes;
//! - `after=500`, with the above: one update more at once, the others after so many milliseconds;
//! - `paced=500 n=200`: so many updates, 500 a second, the text of each being the time it was written at;
//! - `permission`: asks permission once and reports how long the answer took; `permission=policy` asks for something
//!   that a policy can read and the default one allows;
//! - `terminal=67108864`: has a terminal print so many bytes and waits for its end.
//!
//! `--start-delay-ms MS` makes it start as slowly as agents do that need a runtime and its modules first.
//! `--ready FILE` appends one byte to the file after each handshake. `--resume yes` makes it say that it can resume
//! sessions, all of which look the same to it.

use std::{
    fs::OpenOptions,
    io::{self, Read as _, StdinLock, StdoutLock, Write as _, stdin, stdout},
    ops::Range,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use memchr::{memchr, memmem};
use nix::time::{ClockId, clock_gettime};

/// How much one write of a stream carries.
const BLOCK: usize = 256 << 10;

/// The text of a streamed frame begins with its number, in so many digits.
const NUMBER: usize = 8;

/// A tool call that only reads the workspace, as a widespread agent writes it.
const READ: &str = r#","title":"cat README.md","kind":"execute","rawInput":{"command":"cat README.md"},"_meta":{"claudeCode":{"toolName":"Bash"}}"#;

fn main() -> anyhow::Result<()> {
    let (mut ready, mut resumes) = (None, false);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--start-delay-ms" => sleep(Duration::from_millis(value.parse()?)),
            "--ready" => ready = Some(PathBuf::from(value)),
            "--resume" => resumes = value == "yes",
            _ => bail!("unknown flag {flag}; there are --start-delay-ms, --ready and --resume"),
        }
    }
    let input = Lines { from: stdin().lock(), buffer: vec![0; 64 << 10], start: 0, end: 0 };
    // The lock is of a `LineWriter`: what is written ends in a newline and is larger than its buffer or alone,
    // so that every write of ours is one write to the pipe.
    Agent { input, output: stdout().lock(), ready, resumes, sessions: 0 }.run()
}

struct Agent {
    input: Lines,
    output: StdoutLock<'static>,
    ready: Option<PathBuf>,
    resumes: bool,
    sessions: u64,
}

impl Agent {
    fn run(&mut self) -> anyhow::Result<()> {
        while let Some(line) = self.input.next()? {
            let line = self.input.buffer[line].to_vec();
            let Some(id) = raw_id(&line) else { continue };
            let id = String::from_utf8_lossy(id);
            match text(&line, b"\"method\":\"") {
                Some(b"initialize") => {
                    let resume = if self.resumes { r#","resume":{}"# } else { "" };
                    let hello = format!(
                        r#"{{"protocolVersion":1,"agentCapabilities":{{"sessionCapabilities":{{"close":{{}}{resume}}}}},"agentInfo":{{"name":"stub","version":"1"}}}}"#
                    );
                    self.answer(&id, &hello)?;
                    self.tell_ready()?;
                }
                Some(b"session/new") => {
                    self.sessions += 1;
                    self.answer(&id, &format!(r#"{{"sessionId":"s-{}"}}"#, self.sessions))?;
                }
                Some(b"session/prompt") => {
                    let result = self.prompt(&line)?;
                    self.answer(&id, &result)?;
                }
                Some(_) => self.answer(&id, "{}")?,
                None => {}
            }
        }
        Ok(())
    }

    fn tell_ready(&self) -> io::Result<()> {
        match &self.ready {
            Some(path) => OpenOptions::new().create(true).append(true).open(path)?.write_all(b"."),
            None => Ok(()),
        }
    }

    fn answer(&mut self, id: &str, result: &str) -> io::Result<()> {
        self.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n").as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)?;
        self.output.flush()
    }

    /// Does what the prompt says and gives the result of the turn.
    fn prompt(&mut self, line: &[u8]) -> anyhow::Result<String> {
        let session =
            String::from_utf8_lossy(text(line, b"\"sessionId\":\"").unwrap_or_default()).into_owned();
        let wish = String::from_utf8_lossy(text(line, b"\"text\":\"").unwrap_or_default()).into_owned();
        let value = |key: &str| {
            let pairs = wish.split(' ').filter_map(|word| word.split_once('='));
            pairs
                .into_iter()
                .find(|(name, _)| *name == key)
                .and_then(|(_, value)| value.parse::<usize>().ok())
        };
        if wish.starts_with("permission") {
            let call = if wish == "permission=policy" { READ } else { "" };
            let asked = self.permission(&session, call)?;
            return Ok(format!(r#"{{"stopReason":"end_turn","_meta":{{"ns":{}}}}}"#, asked.as_nanos()));
        }
        if let Some(bytes) = value("terminal") {
            self.terminal(&session, bytes)?;
            return Ok(r#"{"stopReason":"end_turn"}"#.into());
        }
        if let Some(pause) = value("after") {
            self.write(chunk(&session, "soon").as_bytes())?;
            sleep(Duration::from_millis(pause as u64));
        }
        let count = value("n").unwrap_or(1);
        match value("paced") {
            Some(rate) => self.paced(&session, count, Duration::from_secs(1) / rate.max(1) as u32)?,
            None => self.stream(&session, count, value("size").unwrap_or(64))?,
        }
        Ok(r#"{"stopReason":"end_turn"}"#.into())
    }

    /// Every frame is made for itself and numbered, as those of a real agent are made, so that what passes is
    /// never the same block twice and the editor can see that nothing was lost or turned around.
    fn stream(&mut self, session: &str, count: usize, size: usize) -> io::Result<()> {
        let frame = chunk(session, &"x".repeat(size.max(NUMBER)));
        let place = frame.find("xxxxxxxx").unwrap_or(0);
        let mut block = Vec::with_capacity(BLOCK + frame.len());
        for number in 0..count {
            let start = block.len() + place;
            block.extend_from_slice(frame.as_bytes());
            digits(number, &mut block[start..start + NUMBER]);
            if block.len() >= BLOCK || number + 1 == count {
                self.write(&block)?;
                block.clear();
            }
        }
        Ok(())
    }

    fn paced(&mut self, session: &str, count: usize, every: Duration) -> anyhow::Result<()> {
        for _ in 0..count {
            sleep(every);
            // Not an `Instant`, which means nothing to another process.
            let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos();
            self.write(chunk(session, &now.to_string()).as_bytes())?;
        }
        Ok(())
    }

    /// Runs a command in a terminal until it has printed all it has to print.
    fn terminal(&mut self, session: &str, bytes: usize) -> anyhow::Result<()> {
        let command = format!(r#""command":"head","args":["-c","{bytes}","/dev/zero"]"#);
        let created = self.ask(session, "terminal/create", &command)?;
        let id = text(&created, b"\"terminalId\":\"").context("no terminal")?;
        let id = format!(r#""terminalId":"{}""#, String::from_utf8_lossy(id));
        let ended = self.ask(session, "terminal/wait_for_exit", &id)?;
        if number(&ended, b"\"exitCode\":") != Some(0) {
            bail!("the command failed: {}", String::from_utf8_lossy(&ended));
        }
        self.ask(session, "terminal/release", &id)?;
        Ok(())
    }

    fn ask(&mut self, session: &str, method: &str, params: &str) -> anyhow::Result<Vec<u8>> {
        self.write(
            format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"{method}\",\"params\":{{\"sessionId\":\"{session}\",{params}}}}}\n"
            )
            .as_bytes(),
        )?;
        let answer = self.input.next()?.context("the client went away instead of answering")?;
        Ok(self.input.buffer[answer].to_vec())
    }

    /// Asks permission for a tool call of which more may be said than its id.
    fn permission(&mut self, session: &str, call: &str) -> anyhow::Result<Duration> {
        let request = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/request_permission\",\"params\":{{\"sessionId\":\"{session}\",\"toolCall\":{{\"toolCallId\":\"t\"{call}}},\"options\":[{{\"optionId\":\"yes\",\"name\":\"Yes\",\"kind\":\"allow_once\"}}]}}}}\n"
        );
        let started = Instant::now();
        self.write(request.as_bytes())?;
        let answer = self.input.next()?.context("the client went away instead of deciding")?;
        let took = started.elapsed();
        if memmem::find(&self.input.buffer[answer], b"\"yes\"").is_none() {
            bail!("permission was not given");
        }
        Ok(took)
    }
}

/// Writes a number with leading zeros.
fn digits(mut number: usize, place: &mut [u8]) {
    for byte in place.iter_mut().rev() {
        *byte = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn chunk(session: &str, text: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"{session}\",\"update\":{{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{{\"type\":\"text\",\"text\":\"{text}\"}}}}}}}}\n"
    )
}

/// The text between `key` and the next quote.
fn text<'a>(line: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let rest = &line[memmem::find(line, key)? + key.len()..];
    Some(&rest[..memchr(b'"', rest)?])
}

/// The id of a frame as it stands there: whoever relays may have replaced it by a text.
fn raw_id(line: &[u8]) -> Option<&[u8]> {
    let key = b"\"id\":";
    let rest = &line[memmem::find(line, key)? + key.len()..];
    Some(&rest[..rest.iter().position(|byte| matches!(byte, b',' | b'}'))?])
}

/// The number after `key`.
fn number(line: &[u8], key: &[u8]) -> Option<u64> {
    let rest = &line[memmem::find(line, key)? + key.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Lines of stdin as ranges of one buffer.
struct Lines {
    from: StdinLock<'static>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Lines {
    fn next(&mut self) -> io::Result<Option<Range<usize>>> {
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[self.start..self.end]) {
                let line = self.start..self.start + at;
                self.start = line.end + 1;
                return Ok(Some(line));
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.end == self.buffer.len() {
                self.buffer.resize(2 * self.end, 0);
            }
            match self.from.read(&mut self.buffer[self.end..])? {
                0 => return Ok(None),
                n => self.end += n,
            }
        }
    }
}
