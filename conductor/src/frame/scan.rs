//! One pass over a line: is it JSON, and where are the parts we route by?
//!
//! Written by hand because it runs for every frame in both directions: it
//! borrows, allocates nothing, does not recurse, and yields byte positions,
//! which no JSON library does for nested keys in one pass.

use super::{Kind, Method, Peek, Span};

/// Deeper nesting is refused, so that no peer's parser overflows its stack.
const MAX_DEPTH: u32 = 128;

/// Why a line is not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not valid UTF-8.
    #[error("not valid UTF-8")]
    NotUtf8,
    /// Not JSON; the offset is where it went wrong.
    #[error("not JSON (at byte {0})")]
    NotJson(u32),
    /// JSON, but an array: JSON-RPC batches are not part of ACP.
    #[error("a batch, which ACP does not have")]
    Batch,
    /// JSON, but neither an object nor an array.
    #[error("not a JSON object")]
    NotObject,
    /// Nested too deeply.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A key that decides where the frame goes stands there twice: two
    /// parsers could disagree on what it says.
    #[error("a key of the envelope stands there twice")]
    Ambiguous,
    /// The id is neither a string, a number nor null.
    #[error("an id that is neither a string, a number nor null")]
    BadId,
}

/// Peeks at a line of unknown encoding.
pub(super) fn peek(line: &[u8]) -> Result<Peek, Fault> {
    if std::str::from_utf8(line).is_err() {
        return Err(Fault::NotUtf8);
    }
    peek_utf8(line)
}

/// Peeks at a line that is known to be UTF-8.
pub(super) fn peek_utf8(line: &[u8]) -> Result<Peek, Fault> {
    let mut scan = Scan { bytes: line, at: 0 };
    scan.space();
    match scan.byte() {
        Some(b'{') => {}
        Some(b'[') => {
            scan.skip(0)?;
            scan.end()?;
            return Err(Fault::Batch);
        }
        _ => {
            scan.skip(0)?;
            scan.end()?;
            return Err(Fault::NotObject);
        }
    }
    let mut peek = Peek::default();
    let mut seen = Seen::default();
    let (mut result, mut error) = (Span::default(), Span::default());
    scan.object(0, |scan, key| {
        match key {
            b"id" => {
                seen.once(Seen::ID)?;
                peek.id = scan.value(1)?;
                if !matches!(line[peek.id.start as usize], b'"' | b'n' | b'-' | b'0'..=b'9') {
                    return Err(Fault::BadId);
                }
            }
            b"method" => {
                seen.once(Seen::METHOD)?;
                peek.name = scan.value(1)?;
                peek.method = method(peek.name.of(line));
            }
            b"params" => {
                seen.once(Seen::PARAMS)?;
                let start = scan.at;
                scan.params(&mut peek, &mut seen)?;
                peek.params = scan.since(start);
            }
            b"result" => {
                seen.once(Seen::RESULT)?;
                let start = scan.at;
                scan.result(&mut peek, &mut seen)?;
                result = scan.since(start);
            }
            b"error" => {
                seen.once(Seen::ERROR)?;
                let start = scan.at;
                scan.error(&mut peek, &mut seen)?;
                error = scan.since(start);
            }
            _ => scan.skip(1)?,
        }
        Ok(())
    })?;
    scan.end()?;
    // Some peers write both and mean the one that is not null.
    let void = |span: Span| span.is_none() || span.of(line) == b"null";
    let is_error = error.is_some() && (result.is_none() || void(result) && !void(error));
    if !is_error && !void(error) {
        return Err(Fault::Ambiguous);
    }
    peek.outcome = if is_error { error } else { result };
    // A session id of another type names no session.
    if peek.session.is_some() && line[peek.session.start as usize] != b'"' {
        peek.session = Span::default();
    }
    peek.kind = match (peek.name.is_some(), peek.id.is_some()) {
        (true, true) => Kind::Request,
        (true, false) => Kind::Notification,
        (false, true) if is_error => Kind::Error,
        (false, true) if result.is_some() => Kind::Result,
        _ => Kind::Opaque,
    };
    Ok(peek)
}

fn method(name: &[u8]) -> Method {
    let inner = name.get(1..name.len().saturating_sub(1)).unwrap_or_default();
    if memchr::memchr(b'\\', inner).is_none() {
        return Method::parse(inner);
    }
    // Some encoders escape the slash.
    serde_json::from_slice::<String>(name).map_or(Method::Other, |name| Method::parse(name.as_bytes()))
}

/// Which deciding keys have been seen.
#[derive(Default)]
struct Seen(u16);

impl Seen {
    const ID: u16 = 1;
    const METHOD: u16 = 2;
    const PARAMS: u16 = 4;
    const RESULT: u16 = 8;
    const SESSION: u16 = 16;
    const REQUEST: u16 = 32;
    const UPDATE: u16 = 64;
    const UPDATE_KIND: u16 = 128;
    const DATA: u16 = 256;
    const MCP: u16 = 512;
    const STOP: u16 = 1024;
    const ERROR: u16 = 2048;

    fn once(&mut self, key: u16) -> Result<(), Fault> {
        if self.0 & key != 0 {
            return Err(Fault::Ambiguous);
        }
        self.0 |= key;
        Ok(())
    }
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn bad<T>(&self) -> Result<T, Fault> {
        Err(Fault::NotJson(self.at as u32))
    }

    fn since(&self, start: usize) -> Span {
        Span { start: start as u32, end: self.at as u32 }
    }

    fn space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn end(&mut self) -> Result<(), Fault> {
        self.space();
        if self.at == self.bytes.len() { Ok(()) } else { self.bad() }
    }

    /// Walks the members of an object. `member` gets the unescaped key and
    /// must consume the value. `depth` is the nesting around the object.
    fn object(
        &mut self,
        depth: u32,
        mut member: impl FnMut(&mut Self, &[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if depth >= MAX_DEPTH {
            return Err(Fault::TooDeep);
        }
        self.at += 1;
        self.space();
        if self.byte() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let start = self.at;
            if self.byte() != Some(b'"') {
                return self.bad();
            }
            let escaped = self.string()?;
            let raw = &self.bytes[start..self.at];
            self.space();
            if self.byte() != Some(b':') {
                return self.bad();
            }
            self.at += 1;
            self.space();
            if escaped {
                // A key may be written with escapes and mean the same.
                let key = serde_json::from_slice::<String>(raw).unwrap_or_default();
                member(self, key.as_bytes())?;
            } else {
                member(self, &raw[1..raw.len() - 1])?;
            }
            self.space();
            match self.byte() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.bad(),
            }
            self.space();
        }
    }

    fn params(&mut self, peek: &mut Peek, seen: &mut Seen) -> Result<(), Fault> {
        if self.byte() != Some(b'{') {
            return self.skip(1);
        }
        self.object(1, |scan, key| match key {
            b"sessionId" => scan.note(2, &mut peek.session, seen, Seen::SESSION),
            b"requestId" => scan.note(2, &mut peek.request_id, seen, Seen::REQUEST),
            b"update" => {
                seen.once(Seen::UPDATE)?;
                scan.update(peek, seen)
            }
            b"mcpServers" => scan.note(2, &mut peek.mcp_servers, seen, Seen::MCP),
            _ => scan.skip(2),
        })
    }

    /// What is said in it decides nothing, so that may stand there twice; the last one counts, as
    /// it does for whoever reads the record.
    fn update(&mut self, peek: &mut Peek, seen: &mut Seen) -> Result<(), Fault> {
        if self.byte() != Some(b'{') {
            return self.skip(2);
        }
        self.object(2, |scan, key| match key {
            b"sessionUpdate" => scan.note(3, &mut peek.update, seen, Seen::UPDATE_KIND),
            b"content" => {
                peek.text = Span::default();
                if scan.byte() != Some(b'{') {
                    return scan.skip(3);
                }
                scan.object(3, |scan, key| {
                    let value = scan.value(4)?;
                    if key == b"text" {
                        peek.text = value;
                    }
                    Ok(())
                })
            }
            b"messageId" => {
                peek.message = scan.at as u32;
                scan.skip(3)
            }
            _ => scan.skip(3),
        })
    }

    fn result(&mut self, peek: &mut Peek, seen: &mut Seen) -> Result<(), Fault> {
        if self.byte() != Some(b'{') {
            return self.skip(1);
        }
        self.object(1, |scan, key| match key {
            b"sessionId" => scan.note(2, &mut peek.session, seen, Seen::SESSION),
            b"stopReason" => scan.note(2, &mut peek.stop_reason, seen, Seen::STOP),
            _ => scan.skip(2),
        })
    }

    fn error(&mut self, peek: &mut Peek, seen: &mut Seen) -> Result<(), Fault> {
        if self.byte() != Some(b'{') {
            return self.skip(1);
        }
        self.object(1, |scan, key| match key {
            b"data" => {
                seen.once(Seen::DATA)?;
                scan.find(2, b"sessionId", &mut peek.session, seen, Seen::SESSION)
            }
            _ => scan.skip(2),
        })
    }

    /// Consumes a value; if it is an object, notes where the value of `wanted`
    /// stands.
    fn find(
        &mut self,
        depth: u32,
        wanted: &[u8],
        found: &mut Span,
        seen: &mut Seen,
        mark: u16,
    ) -> Result<(), Fault> {
        if self.byte() != Some(b'{') {
            return self.skip(depth);
        }
        self.object(depth, |scan, key| {
            if key == wanted {
                return scan.note(depth + 1, found, seen, mark);
            }
            scan.skip(depth + 1)
        })
    }

    /// Consumes the value of a deciding key, which may stand there once.
    fn note(&mut self, depth: u32, found: &mut Span, seen: &mut Seen, mark: u16) -> Result<(), Fault> {
        seen.once(mark)?;
        *found = self.value(depth)?;
        Ok(())
    }

    fn value(&mut self, depth: u32) -> Result<Span, Fault> {
        let start = self.at;
        self.skip(depth)?;
        Ok(self.since(start))
    }

    /// Consumes any value without recursion. `depth` is the nesting around it.
    fn skip(&mut self, depth: u32) -> Result<(), Fault> {
        // One bit per open container: set for an object.
        let mut objects: u128 = 0;
        let mut open: u32 = 0;
        loop {
            // A value begins here.
            match self.byte() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'{' | b'[') => {
                    if depth + open >= MAX_DEPTH {
                        return Err(Fault::TooDeep);
                    }
                    let object = self.byte() == Some(b'{');
                    self.at += 1;
                    self.space();
                    if self.byte() == Some(if object { b'}' } else { b']' }) {
                        self.at += 1;
                    } else {
                        objects = objects << 1 | u128::from(object);
                        open += 1;
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => self.number()?,
            }
            // A value has ended; close what ends with it.
            loop {
                if open == 0 {
                    return Ok(());
                }
                self.space();
                let object = objects & 1 == 1;
                match self.byte() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                        if object {
                            self.key()?;
                        }
                        break;
                    }
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    _ => return self.bad(),
                }
                self.at += 1;
                objects >>= 1;
                open -= 1;
            }
        }
    }

    /// Consumes `"key" :` and the space around it.
    fn key(&mut self) -> Result<(), Fault> {
        if self.byte() != Some(b'"') {
            return self.bad();
        }
        self.string()?;
        self.space();
        if self.byte() != Some(b':') {
            return self.bad();
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word) {
            return self.bad();
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        match self.byte() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return self.bad(),
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while matches!(self.byte(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { self.bad() } else { Ok(()) }
    }

    /// Consumes a string from its opening quote; says whether it holds escapes.
    fn string(&mut self) -> Result<bool, Fault> {
        self.at += 1;
        let mut escaped = false;
        loop {
            self.plain();
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.at += 1;
                    match self.byte() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        // Lone surrogates are let through: agents that cut
                        // strings between UTF-16 units do send them.
                        Some(b'u') => {
                            let hex = self.bytes.get(self.at + 1..self.at + 5);
                            if !hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                                return self.bad();
                            }
                            self.at += 5;
                        }
                        _ => return self.bad(),
                    }
                }
                _ => return self.bad(),
            }
        }
    }

    /// Moves to the next quote, backslash or control character, many bytes at a
    /// time: strings are most of what passes through.
    fn plain(&mut self) {
        // Keys and names end within these; only texts go on.
        if self.plain_words(2) {
            return;
        }
        // No early exit within a block, so that compilers make vector
        // instructions of it.
        while let Some(block) = self.rest().first_chunk::<32>() {
            let stops = |byte: u8| (byte == b'"') | (byte == b'\\') | (byte < 0x20);
            if block.iter().fold(false, |hit, byte| hit | stops(*byte)) {
                break;
            }
            self.at += block.len();
        }
        if self.plain_words(usize::MAX) {
            return;
        }
        while let Some(byte) = self.byte() {
            if byte == b'"' || byte == b'\\' || byte < 0x20 {
                return;
            }
            self.at += 1;
        }
    }

    /// The same by words of eight bytes, at most so many. Gives whether it has
    /// found the end.
    fn plain_words(&mut self, most: usize) -> bool {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const HIGH: u64 = 0x8080_8080_8080_8080;
        for _ in 0..most {
            let Some(chunk) = self.rest().first_chunk::<8>() else { return false };
            let word = u64::from_le_bytes(*chunk);
            let quote = word ^ (ONES * u64::from(b'"'));
            let slash = word ^ (ONES * u64::from(b'\\'));
            let hit = (quote.wrapping_sub(ONES) & !quote
                | slash.wrapping_sub(ONES) & !slash
                | word.wrapping_sub(ONES * 0x20) & !word)
                & HIGH;
            if hit != 0 {
                self.at += hit.trailing_zeros() as usize / 8;
                return true;
            }
            self.at += 8;
        }
        false
    }
}

#[cfg(test)]
mod tests;
