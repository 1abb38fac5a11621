//! A frame: one JSON-RPC message as bytes, with the few positions the relay
//! needs. No I/O.
//!
//! The relay never decodes what it forwards: typed decoding loses unknown
//! fields, big numbers and lone surrogates. It *peeks* (finds the byte spans
//! of ids, method and session id while checking that the line is JSON) and
//! *splices* (copies the bytes with some spans replaced).

mod scan;

use std::ops::Range;

use bytes::{BufMut as _, Bytes, BytesMut};

pub use scan::Fault;

/// Largest frame in bytes, newline included. Screenshots of 5 MB have been
/// seen; the gRPC message limit follows this one.
pub const MAX_FRAME: usize = 16 << 20;

/// A range of bytes within a frame; empty means "not there".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Whether there is anything.
    pub fn is_some(self) -> bool {
        self.end > self.start
    }

    /// Whether there is nothing.
    pub fn is_none(self) -> bool {
        !self.is_some()
    }

    /// The bytes of this span.
    pub fn of(self, frame: &[u8]) -> &[u8] {
        &frame[self.range()]
    }

    /// Where it stands.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// What sort of message a frame is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has an id and a result.
    Result,
    /// Has an id and an error.
    Error,
    /// A JSON object that is none of these.
    #[default]
    Opaque,
}

/// The methods the conductor acts on; every other one is merely relayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum Method {
    Initialize,
    Authenticate,
    Logout,
    SessionNew,
    SessionLoad,
    SessionResume,
    SessionList,
    SessionClose,
    SessionDelete,
    SessionPrompt,
    SessionCancel,
    SessionSetMode,
    SessionSetConfigOption,
    SessionUpdate,
    RequestPermission,
    FsRead,
    FsWrite,
    TerminalCreate,
    Terminal,
    ElicitationCreate,
    CancelRequest,
    Proxy,
    #[default]
    Other,
}

impl Method {
    fn parse(name: &[u8]) -> Self {
        match name {
            b"session/update" => Self::SessionUpdate,
            b"initialize" => Self::Initialize,
            b"authenticate" => Self::Authenticate,
            b"logout" => Self::Logout,
            b"session/new" => Self::SessionNew,
            b"session/load" => Self::SessionLoad,
            b"session/resume" => Self::SessionResume,
            b"session/list" => Self::SessionList,
            b"session/close" => Self::SessionClose,
            b"session/delete" => Self::SessionDelete,
            b"session/prompt" => Self::SessionPrompt,
            b"session/cancel" => Self::SessionCancel,
            b"session/set_mode" => Self::SessionSetMode,
            b"session/set_config_option" => Self::SessionSetConfigOption,
            b"session/request_permission" => Self::RequestPermission,
            b"fs/read_text_file" => Self::FsRead,
            b"fs/write_text_file" => Self::FsWrite,
            b"elicitation/create" => Self::ElicitationCreate,
            b"terminal/create" => Self::TerminalCreate,
            b"$/cancel_request" => Self::CancelRequest,
            name if name.starts_with(b"terminal/") => Self::Terminal,
            name if name.starts_with(b"proxy/") => Self::Proxy,
            _ => Self::Other,
        }
    }

    /// Whether an agent's request of this method is void without a session.
    pub fn needs_session(self) -> bool {
        matches!(
            self,
            Self::RequestPermission | Self::FsRead | Self::FsWrite | Self::TerminalCreate | Self::Terminal
        )
    }
}

/// What a look at the envelope found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peek {
    /// What sort of message it is.
    pub kind: Kind,
    /// Which method, for requests and notifications.
    pub method: Method,
    /// The envelope's `id`: a string, a number or `null`.
    pub id: Span,
    /// The method's name, with quotes.
    pub name: Span,
    /// The `params`, whatever they are.
    pub params: Span,
    /// The `result` or the `error`, whatever it is.
    pub outcome: Span,
    /// `sessionId` in params, result or `error.data`, with quotes.
    pub session: Span,
    /// `result.stopReason`, with quotes.
    pub stop_reason: Span,
    /// `params.requestId`.
    pub request_id: Span,
    /// `params.update.sessionUpdate`, with quotes.
    pub update: Span,
    /// `params.update.content.text`, whatever it is.
    pub text: Span,
    /// Where `params.update.messageId` begins, whatever it is; 0 if there is none.
    pub message: u32,
    /// `params.mcpServers`, for the session methods that take it.
    pub mcp_servers: Span,
}

/// Looks at one line without taking it.
pub fn peek(line: &[u8]) -> Result<Peek, Fault> {
    scan::peek(line)
}

/// A frame that owns its bytes.
#[derive(Debug, Clone)]
pub struct Frame {
    bytes: Bytes,
    peek: Peek,
}

impl Frame {
    /// Looks at one line. The line has no newline.
    pub fn parse(line: Bytes) -> Result<Self, Fault> {
        let peek = scan::peek(&line)?;
        Ok(Self { bytes: line, peek })
    }

    /// One that says nothing.
    pub fn empty() -> Self {
        Self { bytes: Bytes::new(), peek: Peek::default() }
    }

    /// The exact bytes, without a newline.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same frame with bytes of its own, for one that stays: a shared
    /// slice would keep the whole block alive that it came in.
    pub fn detached(&self) -> Self {
        Self { bytes: Bytes::copy_from_slice(&self.bytes), peek: self.peek }
    }

    /// What was found in them.
    pub fn peek(&self) -> &Peek {
        &self.peek
    }

    /// The raw bytes of one span.
    pub fn get(&self, span: Span) -> &[u8] {
        span.of(&self.bytes)
    }

    /// A copy of one span. Ids outlive their frame; a shared slice would keep
    /// the whole block alive that the frame came in.
    pub fn copy(&self, span: Span) -> Bytes {
        Bytes::copy_from_slice(self.get(span))
    }

    /// The method's name for messages and logs.
    pub fn method_name(&self) -> String {
        serde_json::from_slice(self.get(self.peek.name)).unwrap_or_default()
    }

    /// Decodes one span leniently; `None` if it is absent or of another shape.
    pub fn decode<'a, T: serde::Deserialize<'a>>(&'a self, span: Span) -> Option<T> {
        if span.is_none() {
            return None;
        }
        serde_json::from_slice(self.get(span)).ok()
    }
}

/// Room is made ahead for so many frames of a run.
const MOST_EXPECTED: usize = 2048;

/// Complete frames that one read yielded, sharing one buffer.
#[derive(Debug, Clone, Default)]
pub struct Run {
    bytes: Bytes,
    frames: Vec<(u32, u32, Peek)>,
}

impl Run {
    /// Splits a block of lines. `fault` is told of every line that is not a
    /// frame; empty lines are passed over in silence.
    pub fn parse(block: Bytes, mut fault: impl FnMut(&[u8], Fault)) -> Self {
        // One check for the whole block; only a bad block is checked by line.
        let clean = std::str::from_utf8(&block).is_ok();
        let mut frames = Vec::new();
        let mut start = 0;
        while start < block.len() {
            let newline = memchr::memchr(b'\n', &block[start..]).map_or(block.len(), |at| start + at);
            let mut end = newline;
            if end > start && block[end - 1] == b'\r' {
                end -= 1;
            }
            let line = &block[start..end];
            if !line.iter().all(u8::is_ascii_whitespace) {
                match if clean { scan::peek_utf8(line) } else { scan::peek(line) } {
                    Ok(peek) => {
                        if frames.is_empty() {
                            // Those of a run are mostly of one size.
                            frames.reserve((block.len() / line.len()).min(MOST_EXPECTED) + 1);
                        }
                        frames.push((start as u32, end as u32, peek));
                    }
                    Err(what) => fault(line, what),
                }
            }
            start = newline + 1;
        }
        Self { bytes: block, frames }
    }

    /// How many frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes of the buffer behind it.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The buffer behind it, with all its frames and perhaps more.
    pub fn block(&self) -> &[u8] {
        &self.bytes
    }

    /// The frames in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Peek)> {
        (0..self.frames.len()).map(|index| self.at(index))
    }

    /// The frame at `index`.
    pub fn at(&self, index: usize) -> (&[u8], &Peek) {
        let (start, end, peek) = &self.frames[index];
        (&self.bytes[*start as usize..*end as usize], peek)
    }

    /// The frame at `index` with shared ownership of its bytes.
    pub fn frame(&self, index: usize) -> Frame {
        let (start, end, peek) = self.frames[index];
        Frame { bytes: self.bytes.slice(start as usize..end as usize), peek }
    }

    /// The frames that stand together in a range, with no more of the buffer than
    /// theirs. Unless that is most of it, they get bytes of their own: whoever
    /// counts what a part holds must not overlook a whole block behind it.
    pub fn part(&self, range: Range<usize>) -> Self {
        let frames = &self.frames[range];
        let (Some((from, ..)), Some((_, to, _))) = (frames.first(), frames.last()) else {
            return Self::default();
        };
        let span = *from as usize..*to as usize;
        let bytes = match span.len() < self.bytes.len() / 2 {
            true => Bytes::copy_from_slice(&self.bytes[span]),
            false => self.bytes.slice(span),
        };
        let frames = frames.iter().map(|(start, end, peek)| (start - from, end - from, *peek)).collect();
        Self { bytes, frames }
    }

    /// A run of only those frames whose index `keep` accepts.
    pub fn select(&self, mut keep: impl FnMut(usize) -> bool) -> Self {
        let frames = self.frames.iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, f)| *f).collect();
        Self { bytes: self.bytes.clone(), frames }
    }
}

impl From<Frame> for Run {
    fn from(frame: Frame) -> Self {
        let end = frame.bytes.len() as u32;
        Self { bytes: frame.bytes, frames: vec![(0, end, frame.peek)] }
    }
}

/// Copies `frame` and a newline to `out`, with the given spans replaced.
/// Absent spans are passed over; the others must not overlap.
pub fn splice<const N: usize>(out: &mut BytesMut, frame: &[u8], mut edits: [(Span, &[u8]); N]) {
    edits.sort_unstable_by_key(|(span, _)| span.start);
    out.reserve(frame.len() + 1 + edits.iter().map(|(_, with)| with.len()).sum::<usize>());
    let mut at = 0;
    for (span, with) in edits {
        if span.is_some() {
            out.put_slice(&frame[at..span.start as usize]);
            out.put_slice(with);
            at = span.end as usize;
        }
    }
    out.put_slice(&frame[at..]);
    out.put_u8(b'\n');
}

/// Shows hostile bytes in logs and messages: one line, no control characters,
/// at most `limit` bytes of the input.
pub fn escape(bytes: &[u8], limit: usize) -> String {
    let cut = &bytes[..bytes.len().min(limit)];
    let mut text: String = String::from_utf8_lossy(cut)
        .chars()
        .flat_map(|c| {
            let keep = !is_unseen(c);
            let escaped = (!keep).then(|| c.escape_default());
            keep.then_some(c).into_iter().chain(escaped.into_iter().flatten())
        })
        .collect();
    if cut.len() < bytes.len() {
        text.push_str(&format!("… ({} bytes more)", bytes.len() - cut.len()));
    }
    text
}

/// Characters that steer a terminal, turn the direction of what it shows, end lines, or take
/// no room there: what is said with them is not what is seen.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn frame(text: &str) -> Frame {
        Frame::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn splices_ids_and_keeps_every_other_byte() {
        let line = r#"{ "x":1e3,"id" : 007e , "method":"session/prompt","params":{"a":[{"sessionId":"no"}],"sessionId":"s"},"z":"\ud83d" }"#
            .replace("007e", "7");
        let f = frame(&line);
        let mut out = BytesMut::new();
        splice(&mut out, f.bytes(), [(f.peek().session, br#""agent""#), (f.peek().id, b"\"abc\"")]);
        let expected =
            line.replace(": 7 ,", ": \"abc\" ,").replace(r#""sessionId":"s""#, r#""sessionId":"agent""#);
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected + "\n");
    }

    #[test]
    fn a_run_passes_over_bad_lines_and_keeps_the_rest() {
        let block =
            b"{\"method\":\"a\"}\r\n\n  \nnoise\n{\"id\":1,\"result\":null}\n\xff{}\n{\"id\":2,\"error\":{}}";
        let mut bad = Vec::new();
        let run = Run::parse(Bytes::from_static(block), |line, _| bad.push(line.to_vec()));
        assert_eq!(bad, [b"noise".to_vec(), b"\xff{}".to_vec()]);
        let kinds: Vec<_> = run.iter().map(|(_, peek)| peek.kind).collect();
        assert_eq!(kinds, [Kind::Notification, Kind::Result, Kind::Error]);
        assert_eq!(run.iter().next().unwrap().0, b"{\"method\":\"a\"}");
    }

    #[test]
    fn selects_a_part_of_a_run() {
        let run = Run::parse(Bytes::from_static(b"{\"a\":1}\n{\"b\":2}\n"), |_, _| ());
        let part = run.select(|i| i == 1);
        assert_eq!(part.iter().next().unwrap().0, b"{\"b\":2}");
        assert_eq!(part.len(), 1);
    }

    #[test]
    fn a_part_of_a_run_holds_its_own_frames_only() {
        let block = b"{\"id\":1,\"method\":\"a\"}\n\n{\"id\":22,\"method\":\"b\"}\nnoise\n{\"id\":3,\"method\":\"c\"}\n";
        let run = Run::parse(Bytes::from_static(block), |_, _| ());
        for (range, ids) in
            [(0..1, &["1"][..]), (1..2, &["22"]), (1..3, &["22", "3"]), (0..3, &["1", "22", "3"])]
        {
            let part = run.part(range.clone());
            let found: Vec<_> =
                part.iter().map(|(bytes, peek)| std::str::from_utf8(peek.id.of(bytes)).unwrap()).collect();
            assert_eq!(found, ids, "{range:?}");
            assert_eq!(part.frame(0).bytes(), run.frame(range.start).bytes());
            assert!(part.block().starts_with(b"{") && part.block().ends_with(b"}"), "{:?}", part.block());
        }
        assert!(run.part(2..2).is_empty());
    }

    #[test]
    fn escapes_what_could_fool_a_terminal() {
        assert_eq!(escape(b"a\x1b[31m\r\nb", 100), "a\\u{1b}[31m\\r\\nb");
        assert_eq!(escape("x\u{202e}y".as_bytes(), 100), "x\\u{202e}y");
        assert_eq!(escape(b"abcdef", 3), "abc… (3 bytes more)");
    }
}
