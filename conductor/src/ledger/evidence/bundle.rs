//! A session in one file, which anybody can check who knows the public key and
//! has nothing else: frames with their chain, decisions, the checkpoints that
//! signed the session with the proof that it is in them, and the keys that led
//! to the one that signed.
//!
//! A line each, in this order, and each in exactly one form; the last has the
//! hash of all before it, so that a file which was damaged on its way is told
//! from one that was forged.

use std::io::{self, BufRead, Cursor};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{
    Hash,
    checkpoint::{Checkpoint, Head, Kind, as_hex, as_text},
    finding::{Finding, Seen, What},
    hex,
    key::PublicKey,
    merkle,
    stream::{By, OnRecord, Stands, StreamCheck},
    unhex,
    verify::decisions,
};
use crate::ledger::table::DECISIONS;

/// What the first line says.
const FORMAT: &str = "conductor session 1";

/// How the first line begins.
const BEGINNING: &[u8] = b"{\"bundle\":";

/// So much is looked at of a first line; a header is far shorter.
const LOOKED_AT: u64 = 4096;

/// No line is longer: a frame in base64, at most.
const LONGEST: u64 = 256 << 20;

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// What it is.
    Bundle(Header),
    /// A checkpoint of the log that introduced a key, or the one that came next.
    Key(Checkpoint),
    /// A checkpoint that has signed the session.
    Signed(Signed),
    /// The rules that decisions were made by.
    Policy(Policy),
    /// A decision: each column of the table as text.
    Decision(Vec<Option<String>>),
    /// A frame.
    Frame(FrameLine),
    /// The hash of all lines before this one.
    End(End),
}

/// What the file is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Which form it has.
    pub format: String,
    /// The session.
    #[serde(with = "as_text")]
    pub session: Uuid,
    /// When it was exported.
    pub made_us: i64,
}

impl Header {
    /// Of a session.
    pub fn new(session: Uuid, made_us: i64) -> Self {
        Self { format: FORMAT.to_owned(), session, made_us }
    }
}

/// A checkpoint, and the proof that a head is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signed {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The head.
    pub head: Head,
    /// Its place among the checkpoint's leaves.
    pub at: usize,
    /// The hashes beside its way to the root.
    pub proof: Vec<String>,
}

impl Signed {
    /// Proves that a head is among those of a checkpoint; `None` if it is not.
    pub fn new(checkpoint: Checkpoint, heads: &[Head], stream: Uuid) -> Option<Self> {
        let at = heads.iter().position(|head| head.stream == stream)?;
        let leaves: Vec<_> = heads.iter().map(Head::leaf).collect();
        let proof = merkle::proof(&leaves, at).iter().map(|hash| hex(hash)).collect();
        Some(Self { checkpoint, head: heads[at], at, proof })
    }

    fn is_proven(&self) -> bool {
        let path: Option<Vec<Hash>> = self.proof.iter().map(|hash| unhex(hash)).collect();
        let leaves = usize::try_from(self.checkpoint.leaves).unwrap_or_default();
        let root = path.and_then(|path| merkle::proven(&self.head.leaf(), self.at, leaves, &path));
        root == Some(self.checkpoint.root)
    }
}

/// The rules that decisions were made by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Their revision, which the record of each decision names.
    pub revision: String,
    /// Their text, if whoever exported the session still had it. Only the revision is signed.
    pub text: Option<String>,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "fields are named as the columns are")]
pub struct FrameLine {
    pub seq: i64,
    pub stream_kind: String,
    pub at_us: i64,
    pub origin: String,
    pub destination: String,
    pub outgoing_id: Option<i64>,
    /// The bytes, if they are text.
    pub raw: Option<String>,
    /// The bytes, if they are not.
    pub raw_base64: Option<String>,
    pub hash: String,
    pub chain: Option<String>,
}

impl From<Stands> for FrameLine {
    fn from(row: Stands) -> Self {
        let (raw, raw_base64) = match row.raw.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(error)) => (None, Some(BASE64.encode(error.as_bytes()))),
        };
        Self {
            seq: row.seq,
            stream_kind: row.stream_kind,
            at_us: row.at_us,
            origin: row.origin,
            destination: row.destination,
            outgoing_id: row.outgoing_id,
            raw,
            raw_base64,
            hash: hex(&row.hash),
            chain: row.chain.map(|chain| hex(&chain)),
        }
    }
}

impl FrameLine {
    fn stands(self) -> Option<Stands> {
        let raw = match (self.raw, self.raw_base64) {
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(bytes)) => Some(BASE64.decode(bytes).ok()?),
            (None, None) => None,
            _ => return None,
        };
        let chain = match self.chain {
            Some(chain) => Some(unhex(&chain)?.to_vec()),
            None => None,
        };
        Some(Stands {
            seq: self.seq,
            stream_kind: self.stream_kind,
            at_us: self.at_us,
            origin: self.origin,
            destination: self.destination,
            outgoing_id: self.outgoing_id,
            raw,
            hash: unhex(&self.hash)?.to_vec(),
            chain,
            columns: None,
        })
    }
}

/// The hash of all lines before this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// It.
    #[serde(with = "as_hex")]
    pub sha256: Hash,
}

/// Writes lines, and the hash of them as the last.
#[derive(Debug, Default)]
pub struct Writer {
    hasher: Sha256,
}

impl Writer {
    /// A line, with its end.
    pub fn line(&mut self, line: &Line) -> String {
        let text = serde_json::to_string(line).unwrap_or_default() + "\n";
        self.hasher.update(&text);
        text
    }

    /// The last line.
    pub fn end(self) -> String {
        let end = Line::End(End { sha256: self.hasher.finalize().into() });
        serde_json::to_string(&end).unwrap_or_default() + "\n"
    }
}

/// What came of checking a file.
#[derive(Debug)]
pub struct Checked {
    /// The session.
    pub session: Option<Uuid>,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub seen: Seen,
    /// When the last checkpoint was made that has signed it.
    pub signed_us: Option<i64>,
    /// The last frame that it has signed.
    pub signed_to: i64,
}

/// The same file from its beginning, if it is one of these. One whose beginning was altered or cut
/// off is still one: that is for [`check`] to find.
pub fn recognise(mut file: impl BufRead) -> io::Result<Option<impl BufRead>> {
    let mut first = Vec::new();
    io::Read::take(&mut file, LOOKED_AT).read_until(b'\n', &mut first)?;
    let is_one = first.starts_with(BEGINNING)
        || memchr::memmem::find(&first, FORMAT.as_bytes()).is_some()
        || parse(&first).is_ok();
    Ok(is_one.then(|| io::Read::chain(Cursor::new(first), file)))
}

/// Checks a file with the keys that are known to be right.
pub fn check(mut file: impl BufRead, keys: &[PublicKey]) -> io::Result<Checked> {
    let mut checked =
        Checked { session: None, findings: Vec::new(), seen: Seen::default(), signed_us: None, signed_to: 0 };
    let mut hasher = Sha256::new();
    let mut reading = Reading { keys: keys.to_vec(), ..Reading::default() };
    let mut number = 0;
    loop {
        let mut text = Vec::new();
        number += 1;
        io::Read::take(&mut file, LONGEST).read_until(b'\n', &mut text)?;
        let outcome = parse(&text).and_then(|line| match line {
            Line::End(end) => {
                let rest = file.fill_buf().is_ok_and(<[u8]>::is_empty);
                match end.sha256 == Hash::from(hasher.clone().finalize()) && rest {
                    true => Ok(true),
                    false => Err("the hash at its end is not that of what is before it".to_owned()),
                }
            }
            line => reading.take(line, &mut checked).map(|()| false),
        });
        hasher.update(&text);
        match outcome {
            Ok(false) => {}
            Ok(true) => break,
            Err(why) => {
                let why = format!("line {number}: {why}");
                checked.findings.push(Finding {
                    what: What::FileAltered,
                    id: checked.session,
                    number: None,
                    why,
                });
                break;
            }
        }
    }
    reading.end(&mut checked);
    Ok(checked)
}

fn parse(text: &[u8]) -> Result<Line, String> {
    let Some((b'\n', text)) = text.split_last() else {
        return Err("the file ends before its end".to_owned());
    };
    let text = std::str::from_utf8(text).map_err(|_| "it is no text".to_owned())?;
    let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match serde_json::to_string(&line).is_ok_and(|again| again == text) {
        true => Ok(line),
        false => Err("it is not written as an export is".to_owned()),
    }
}

/// A file that is being read.
#[derive(Debug, Default)]
struct Reading {
    keys: Vec<PublicKey>,
    introductions: Vec<Checkpoint>,
    signed: Vec<Signed>,
    decisions: Vec<Vec<Option<String>>>,
    /// Begun with the first frame.
    check: Option<StreamCheck>,
}

impl Reading {
    fn take(&mut self, line: Line, checked: &mut Checked) -> Result<(), String> {
        let early = "it stands before the file says what it is".to_owned();
        match line {
            Line::Bundle(header) if checked.session.is_none() => {
                if header.format != FORMAT {
                    return Err(format!(
                        "its form is {:?}, and this program knows {FORMAT:?}",
                        header.format
                    ));
                }
                checked.session = Some(header.session);
            }
            Line::Bundle(_) => return Err("a second beginning".to_owned()),
            Line::Key(key) => self.introductions.push(key),
            Line::Signed(signed) => self.signed.push(signed),
            Line::Policy(_) => {}
            Line::Decision(row) => self.decisions.push(row),
            Line::Frame(frame) => {
                let session = checked.session.ok_or(early)?;
                if self.check.is_none() {
                    self.check = Some(self.begin(session, checked));
                }
                let row = frame.stands().ok_or("a frame's hash or bytes cannot be read")?;
                if let Some(check) = &mut self.check {
                    check.row(row);
                }
            }
            Line::End(_) => {}
        }
        Ok(())
    }

    /// All that must be known of signatures is known when the frames begin.
    fn begin(&mut self, session: Uuid, checked: &mut Checked) -> StreamCheck {
        self.learn_keys();
        let mut on_record = OnRecord::default();
        for signed in &self.signed {
            let it = &signed.checkpoint;
            let at = |what, why: &str| Finding {
                what,
                id: Some(it.journal),
                number: Some(it.number),
                why: why.to_owned(),
            };
            if !self.keys.iter().any(|key| it.is_signed_by(key)) {
                let why = "no key that is known, or that a known key has introduced, has signed it";
                checked.findings.push(at(What::BadSignature, why));
            } else if !signed.is_proven() || signed.head.stream != session {
                checked
                    .findings
                    .push(at(What::CheckpointAltered, "it is not proven that the session is in it"));
            } else {
                on_record.erased.add(it, &signed.head);
                checked.seen.checkpoints += 1;
                let by = if it.kind == Kind::Heads { By::Known } else { By::Removal };
                on_record.signed.push((signed.head, by));
                if by == By::Known {
                    checked.signed_to = checked.signed_to.max(signed.head.seq);
                    checked.signed_us = checked.signed_us.max(Some(it.at_us));
                }
            }
        }
        StreamCheck::new(session, on_record)
    }

    /// Keys that those which are known have introduced, and keys that introduced these.
    fn learn_keys(&mut self) {
        let new = |it: &Checkpoint| PublicKey::parse(&it.note).ok().filter(|_| it.kind == Kind::Key);
        let named: Vec<_> = self.introductions.iter().filter_map(new).collect();
        loop {
            let before = self.keys.len();
            for (at, it) in self.introductions.iter().enumerate() {
                let Some(introduced) = new(it) else { continue };
                // Forwards: a known key has signed that this one is next.
                if self.keys.iter().any(|key| it.is_signed_by(key)) && !self.keys.contains(&introduced) {
                    self.keys.push(introduced);
                }
                // Backwards: a known key has signed what follows that, and is linked to it.
                let Some(next) = self.introductions.get(at + 1) else { continue };
                let vouches =
                    next.previous == it.link() && self.keys.iter().any(|key| next.is_signed_by(key));
                let older = named.iter().find(|key| it.is_signed_by(key));
                if let Some(older) = older.filter(|older| vouches && !self.keys.contains(older)) {
                    self.keys.push(*older);
                }
            }
            if self.keys.len() == before {
                return;
            }
        }
    }

    fn end(self, checked: &mut Checked) {
        let Some(check) = self.check else {
            if checked.findings.is_empty() {
                let why = "it has no frames".to_owned();
                checked.findings.push(Finding {
                    what: What::FileAltered,
                    id: checked.session,
                    number: None,
                    why,
                });
            }
            return;
        };
        let session = checked.session.unwrap_or_default();
        let mut done = check.end_alone();
        if let Some(told) = done.facts.take() {
            let (told, has_old) =
                (told.get(DECISIONS).map_or(&[][..], Vec::as_slice), done.seen.unchained > 0);
            let compared = decisions::compare(session, DECISIONS, told, &self.decisions, has_old);
            done.seen.decisions += self.decisions.len() as u64;
            done.seen.sparse += compared.sparse;
            done.finding = done.finding.or(compared.finding);
        }
        if done.finding.is_none() && done.seen.unsigned > 0 && !self.signed.is_empty() {
            // Whoever has a file that is signed can write frames behind it, with their hashes.
            let why = "the last checkpoint that is here has not signed it, so nothing shows that it was recorded: \
                       export the session again after the next one";
            let first = checked.signed_to + 1;
            done.finding = Some(Finding::frame(What::Unsigned, session, first, why));
        }
        checked.seen.add(&done.seen);
        checked.findings.extend(done.finding);
        if self.signed.is_empty() {
            // It cannot be told from one whose checkpoints were taken out.
            let why = "no checkpoint has covered it yet, so nothing shows that this is what was recorded: \
                       export it again after the next one, which a service makes every minute unless it is told otherwise \
                       (ledger.checkpoint_every)"
                .to_owned();
            checked.findings.push(Finding { what: What::Unsigned, id: Some(session), number: None, why });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn is_one(text: &[u8]) -> bool {
        recognise(text).unwrap().is_some()
    }

    #[test]
    fn a_bundle_is_told_from_other_files_even_if_it_was_altered() {
        let mut writer = Writer::default();
        let header = writer.line(&Line::Bundle(Header::new(Uuid::nil(), 1)));
        let text = header.clone() + &writer.end();
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(is_one(&bytes), "bit {bit}");
        }
        assert!(is_one(&text.as_bytes()[header.len()..]), "its first line was cut off");
        let mut whole = String::new();
        io::Read::read_to_string(&mut recognise(text.as_bytes()).unwrap().unwrap(), &mut whole).unwrap();
        assert_eq!(whole, text, "nothing is taken from it");
        for other in [&b""[..], b"\n", b"{}\n", b"{\"seq\":1}\n", b"SQLite format 3\0", &[b'x'; 9000]] {
            assert!(!is_one(other), "{other:?}");
        }
    }
}
