//! A checkpoint: what is signed, as bytes, as a line of the log, and how its
//! signature is checked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Canonical, Hash, hex,
    key::{Key, PublicKey},
    merkle, sha256, unhex,
};

/// What is signed, and what is linked.
const SIGNED: &str = "conductor checkpoint v1";
const LINKED: &str = "conductor checkpoint link v1";
const LEAF: &str = "conductor head v1";

/// Why a checkpoint was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Streams went on: their heads.
    Heads,
    /// Streams were removed because of their age: their last heads.
    Retained,
    /// The bytes of streams were erased, all up to their heads.
    Erased,
    /// The bytes of single frames were erased, which the note names; the heads of their streams.
    Frames,
    /// Another key signs from here on; the note is its public half.
    Key,
}

impl Kind {
    /// Its name in the ledger.
    pub fn name(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::Retained => "retained",
            Self::Erased => "erased",
            Self::Frames => "frames",
            Self::Key => "key",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Heads, Self::Retained, Self::Erased, Self::Frames, Self::Key];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// The head of a stream: its last frame at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Head {
    /// The stream.
    #[serde(with = "as_text")]
    pub stream: Uuid,
    /// The frame's number.
    pub seq: i64,
    /// Its hash in the chain.
    #[serde(with = "as_hex")]
    pub chain: Hash,
}

impl Head {
    /// The leaf that it is in a checkpoint's tree.
    pub fn leaf(&self) -> Hash {
        let bytes = Canonical::new(LEAF).fixed(self.stream.as_bytes()).number(self.seq).fixed(&self.chain);
        merkle::leaf(&bytes.bytes())
    }
}

/// The root of the tree over heads, which must be in order of stream.
pub fn root(heads: &[Head]) -> Hash {
    let leaves: Vec<_> = heads.iter().map(Head::leaf).collect();
    merkle::root(&leaves)
}

/// The note of a checkpoint that names frames: a line for each stream, then who did it and why.
pub fn naming(frames: &BTreeMap<Uuid, Vec<i64>>, why: &str) -> String {
    let mut note = String::new();
    for (stream, numbers) in frames {
        note += &stream.to_string();
        for number in numbers {
            note += &format!(" {number}");
        }
        note.push('\n');
    }
    note + "\n" + why
}

/// A checkpoint without its heads: what is signed, and the signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Whose log it is.
    #[serde(with = "as_text")]
    pub journal: Uuid,
    /// Its number there, from 1.
    pub number: i64,
    /// Why it was made.
    pub kind: Kind,
    /// When.
    pub at_us: i64,
    /// The one before: [`Checkpoint::link`] of it, zeros for the first.
    #[serde(with = "as_hex")]
    pub previous: Hash,
    /// The root of the tree over its heads.
    #[serde(with = "as_hex")]
    pub root: Hash,
    /// How many these are.
    pub leaves: i64,
    /// The key that signed it.
    pub key_id: String,
    /// Who did it and why; the new public key for [`Kind::Key`]; for [`Kind::Frames`] it begins
    /// with what [`naming`] writes.
    pub note: String,
    /// The signature, in hexadecimal digits.
    pub signature: String,
}

/// A line of the log: a checkpoint with its heads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What is signed.
    pub checkpoint: Checkpoint,
    /// The heads, in order of stream.
    pub heads: Vec<Head>,
}

/// What is to be signed, apart from what the log says of its place.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Why.
    pub kind: Kind,
    /// When.
    pub at_us: i64,
    /// Of what, each stream once.
    pub heads: Vec<Head>,
    /// Who and why.
    pub note: String,
}

impl Checkpoint {
    /// The bytes that are signed.
    fn signed(&self) -> Vec<u8> {
        Canonical::new(SIGNED)
            .fixed(self.journal.as_bytes())
            .number(self.number)
            .text(self.kind.name())
            .number(self.at_us)
            .fixed(&self.previous)
            .fixed(&self.root)
            .number(self.leaves)
            .text(&self.key_id)
            .text(&self.note)
            .bytes()
    }

    /// What the next one names as its previous: the hash of all this.
    pub fn link(&self) -> Hash {
        Canonical::new(LINKED).fixed(&sha256(&self.signed())).text(&self.signature).hash()
    }

    /// Whether this key has signed it.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.key_id == key.id() && key.has_signed(&self.signed(), &self.signature)
    }

    /// The frames of a stream that it names, if it is of that kind.
    pub fn frames_of(&self, stream: Uuid) -> Vec<i64> {
        if self.kind != Kind::Frames {
            return Vec::new();
        }
        // What people said comes behind an empty line, so that it cannot be taken for frames.
        let (lines, own) = (self.note.lines().take_while(|line| !line.is_empty()), stream.to_string());
        let of_stream = lines.filter_map(|line| line.split_once(' ')).filter(|(id, _)| *id == own);
        of_stream
            .flat_map(|(_, numbers)| numbers.split(' '))
            .filter_map(|number| number.parse().ok())
            .collect()
    }

    /// The key that must sign the next one; `None` if the note of a new key is none.
    pub fn next_key(&self) -> Option<String> {
        match self.kind {
            Kind::Key => PublicKey::parse(&self.note).ok().map(|key| key.id()),
            _ => Some(self.key_id.clone()),
        }
    }
}

impl Entry {
    /// Signs a draft as the one after another, or as the first.
    pub fn sign(draft: Draft, journal: Uuid, previous: Option<&Checkpoint>, key: &Key) -> Self {
        let Draft { kind, at_us, mut heads, note } = draft;
        heads.sort_unstable();
        heads.dedup_by_key(|head| head.stream);
        let mut checkpoint = Checkpoint {
            journal,
            number: previous.map_or(1, |previous| previous.number + 1),
            kind,
            at_us,
            previous: previous.map_or(super::NOTHING, Checkpoint::link),
            root: root(&heads),
            leaves: i64::try_from(heads.len()).unwrap_or(i64::MAX),
            key_id: key.public().id(),
            note,
            signature: String::new(),
        };
        checkpoint.signature = key.sign(&checkpoint.signed());
        Self { checkpoint, heads }
    }

    /// Whether the heads are those that are signed.
    pub fn has_its_heads(&self) -> bool {
        let in_order = self.heads.windows(2).all(|two| two[0].stream < two[1].stream);
        in_order
            && usize::try_from(self.checkpoint.leaves).is_ok_and(|leaves| leaves == self.heads.len())
            && root(&self.heads) == self.checkpoint.root
    }

    /// As a line of the log, without its end.
    pub fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// From a line of the log. Only what [`Entry::line`] writes is one, byte for byte.
    pub fn parse(line: &str) -> Result<Self, String> {
        let entry: Self = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if entry.line() == line { Ok(entry) } else { Err("it is not written as a checkpoint is".to_owned()) }
    }
}

/// Hashes in JSON.
pub(crate) mod as_hex {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::{Hash, hex, unhex};

    pub(crate) fn serialize<S: Serializer>(hash: &Hash, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(hash))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Hash, D::Error> {
        let text = String::deserialize(from)?;
        unhex(&text).ok_or_else(|| D::Error::custom("a hash has 64 hexadecimal digits"))
    }
}

/// Ids in JSON.
pub(crate) mod as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::Uuid;

    pub(crate) fn serialize<S: Serializer>(id: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        let text = String::deserialize(from)?;
        Uuid::try_parse(&text).map_err(|_| D::Error::custom("an id is a UUID"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn head(number: u128) -> Head {
        Head { stream: Uuid::from_u128(number), seq: 3, chain: sha256(&number.to_be_bytes()) }
    }

    fn draft(heads: Vec<Head>) -> Draft {
        Draft { kind: Kind::Heads, at_us: 5, heads, note: "a note".into() }
    }

    #[test]
    fn a_checkpoint_is_signed_linked_and_read_back() {
        let key = Key::generate().unwrap();
        let journal = Uuid::from_u128(1);
        let first = Entry::sign(draft(vec![head(9), head(4), head(9)]), journal, None, &key);
        assert_eq!(first.heads, [head(4), head(9)], "in order, each stream once");
        assert!(first.has_its_heads() && first.checkpoint.is_signed_by(key.public()));
        let second = Entry::sign(draft(Vec::new()), journal, Some(&first.checkpoint), &key);
        assert_eq!((second.checkpoint.number, second.checkpoint.previous), (2, first.checkpoint.link()));
        for entry in [first, second] {
            assert_eq!(Entry::parse(&entry.line()), Ok(entry));
        }
    }

    #[test]
    fn frames_are_named_and_words_of_people_are_none() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let frames = BTreeMap::from([(one, vec![3, 17])]);
        let note = naming(&frames, &format!("asked for by ann\n\n{two} 4"));
        let draft = Draft { kind: Kind::Frames, note, ..draft(vec![head(1)]) };
        let key = Key::generate().unwrap();
        let it = Entry::sign(draft, Uuid::from_u128(9), None, &key).checkpoint;
        assert_eq!((it.frames_of(one), it.frames_of(two)), (vec![3, 17], Vec::new()));
        assert_eq!(Checkpoint { kind: Kind::Erased, ..it }.frames_of(one), Vec::<i64>::new());
    }

    #[test]
    fn whatever_is_changed_breaks_it() {
        let key = Key::generate().unwrap();
        let entry = Entry::sign(draft(vec![head(4), head(9)]), Uuid::from_u128(1), None, &key);
        let it = &entry.checkpoint;
        let changed = [
            Checkpoint { journal: Uuid::from_u128(2), ..it.clone() },
            Checkpoint { number: 2, ..it.clone() },
            Checkpoint { kind: Kind::Erased, ..it.clone() },
            Checkpoint { at_us: 6, ..it.clone() },
            Checkpoint { previous: sha256(b""), ..it.clone() },
            Checkpoint { root: sha256(b""), ..it.clone() },
            Checkpoint { leaves: 3, ..it.clone() },
            Checkpoint { key_id: "other".into(), ..it.clone() },
            Checkpoint { note: String::new(), ..it.clone() },
        ];
        assert!(changed.iter().all(|one| !one.is_signed_by(key.public()) && one.link() != it.link()));
        let other = Key::generate().unwrap();
        assert!(!it.is_signed_by(other.public()));
        let fewer = Entry { heads: vec![head(4)], ..entry.clone() };
        let swapped = Entry { heads: vec![head(9), head(4)], ..entry.clone() };
        assert!(!fewer.has_its_heads() && !swapped.has_its_heads());
        // A line can be written in many ways that mean the same; only one is ours.
        assert!(Entry::parse(&entry.line().replacen(':', ": ", 1)).is_err());
    }
}
