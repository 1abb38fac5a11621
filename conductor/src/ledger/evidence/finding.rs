//! What a check found, and what it looked at.

use serde::Serialize;
use uuid::Uuid;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A frame is not what was recorded.
    Altered,
    /// A frame is not there.
    Missing,
    /// A frame stands in another's place, or was changed together with its hash.
    Displaced,
    /// The last frames of a stream are not there.
    TailCut,
    /// Nothing of a stream is there, and no retention is on record.
    StreamMissing,
    /// The end of a stream, as it was written down, is not the end of its frames.
    HeadsDisagree,
    /// A stream's end is said to be signed, or should long be, and no known key has.
    Unsigned,
    /// A checkpoint's signature is not that of the key which had to sign it.
    BadSignature,
    /// A checkpoint is not there.
    CheckpointMissing,
    /// A checkpoint is not what was signed, or not the same in two places.
    CheckpointAltered,
    /// A decision, an approval or a grant is not what the frames say.
    DecisionDiffers,
    /// Two frames came under one number.
    Conflict,
    /// A file is not what was exported.
    FileAltered,
}

impl What {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Altered => "altered",
            Self::Missing => "missing",
            Self::Displaced => "swapped, renumbered or altered",
            Self::TailCut => "tail cut",
            Self::StreamMissing => "stream missing",
            Self::HeadsDisagree => "heads disagree",
            Self::Unsigned => "unsigned",
            Self::BadSignature => "bad signature",
            Self::CheckpointMissing => "checkpoint missing",
            Self::CheckpointAltered => "checkpoint altered",
            Self::DecisionDiffers => "decision differs",
            Self::Conflict => "conflict",
            Self::FileAltered => "file altered",
        }
    }
}

/// Something that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is.
    pub what: What,
    /// The stream, or the journal whose checkpoint it is.
    #[serde(serialize_with = "shown")]
    pub id: Option<Uuid>,
    /// The first bad frame, or the checkpoint.
    pub number: Option<i64>,
    /// What exactly.
    pub why: String,
}

fn shown<S: serde::Serializer>(id: &Option<Uuid>, to: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => to.collect_str(id),
        None => to.serialize_none(),
    }
}

impl Finding {
    /// One of a frame.
    pub fn frame(what: What, stream: Uuid, seq: i64, why: impl Into<String>) -> Self {
        Self { what, id: Some(stream), number: Some(seq), why: why.into() }
    }
}

/// What was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Streams whose frames were read.
    pub streams: u64,
    /// Frames that were read.
    pub frames: u64,
    /// Checkpoints that were read.
    pub checkpoints: u64,
    /// Frames behind the last checkpoint of their stream.
    pub unsigned: u64,
    /// Of these, frames from before there were chains.
    pub unchained: u64,
    /// Frames that came into a gap of a chain, and are no part of it.
    pub outside: u64,
    /// Frames whose bytes were erased, on record.
    pub erased: u64,
    /// Streams that were removed, on record.
    pub retained: u64,
    /// Decisions that were compared with the frames.
    pub decisions: u64,
    /// Decisions of which the ledger has less than the frames say.
    pub sparse: u64,
}

impl Seen {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.streams += other.streams;
        self.frames += other.frames;
        self.checkpoints += other.checkpoints;
        self.unsigned += other.unsigned;
        self.unchained += other.unchained;
        self.outside += other.outside;
        self.erased += other.erased;
        self.retained += other.retained;
        self.decisions += other.decisions;
        self.sparse += other.sparse;
    }
}
