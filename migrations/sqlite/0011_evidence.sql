-- What shows that nothing was changed afterwards: a chain of hashes through
-- each stream, and signed checkpoints over the heads of the chains.
-- The same names and columns as in migrations/postgres/0011_evidence.sql.

ALTER TABLE frames ADD COLUMN chain BLOB; -- the hash of this row and of the one before it in the stream; null in rows that are older than this column, and in those that were imported into a gap

-- What is erased keeps its row and its hash, and loses its bytes. SQLite has no
-- statement for this; its documentation allows this way, as no row is stored
-- otherwise than before. To copy the table would take as much disk again.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'raw BLOB NOT NULL', 'raw BLOB') WHERE type = 'table' AND name = 'frames';
PRAGMA writable_schema = RESET;

-- The last frame of each stream, written with it.
CREATE TABLE stream_heads (
    stream_id TEXT NOT NULL PRIMARY KEY, -- as in frames
    journal_id TEXT, -- the journal that brought the frame, whose conductor signs it; null for what was imported, which any of them signs
    seq INTEGER NOT NULL, -- the frame's number
    chain BLOB NOT NULL, -- its hash, as in frames
    checkpoint INTEGER -- the checkpoint that has signed it; null if none has yet
);
CREATE INDEX stream_heads_unsigned ON stream_heads (stream_id) WHERE checkpoint IS NULL;

-- One signed, linked log for each journal: checkpoints.jsonl in the state
-- directory has the same.
CREATE TABLE checkpoints (
    journal_id TEXT NOT NULL, -- whose log it is
    number INTEGER NOT NULL, -- its number in the log, from 1
    kind TEXT NOT NULL, -- heads (streams that went on), retained (streams that were removed), erased (streams whose bytes were erased) or key (a new key)
    at_us INTEGER NOT NULL, -- when it was made
    at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', at_us / 1000000, 'unixepoch') || printf('.%06dZ', at_us % 1000000)) VIRTUAL,
    previous BLOB NOT NULL, -- the hash of the one before; zeros for the first
    root BLOB NOT NULL, -- the root of the Merkle tree over its rows in checkpoint_heads, in order of stream_id
    leaves INTEGER NOT NULL, -- how many these are
    key_id TEXT NOT NULL, -- the key that signed it
    signature BLOB NOT NULL, -- Ed25519 over all of this
    note TEXT NOT NULL, -- who did it and why; for a key, the new public key in base64
    PRIMARY KEY (journal_id, number)
);

-- The heads that a checkpoint has signed: the leaves of its tree.
CREATE TABLE checkpoint_heads (
    journal_id TEXT NOT NULL, -- as in checkpoints
    number INTEGER NOT NULL, -- as in checkpoints
    stream_id TEXT NOT NULL, -- as in frames
    seq INTEGER NOT NULL, -- the last frame there was
    chain BLOB NOT NULL, -- its hash, as in frames
    PRIMARY KEY (journal_id, number, stream_id)
);
CREATE INDEX checkpoint_heads_on_stream_id ON checkpoint_heads (stream_id, seq);

CREATE TRIGGER checkpoints_stay_update BEFORE UPDATE ON checkpoints
BEGIN SELECT RAISE(ABORT, 'UPDATE of checkpoints: what is recorded is never changed'); END;
CREATE TRIGGER checkpoints_stay_delete BEFORE DELETE ON checkpoints
BEGIN SELECT RAISE(ABORT, 'DELETE of checkpoints: what is recorded is never changed'); END;
CREATE TRIGGER checkpoint_heads_stay_update BEFORE UPDATE ON checkpoint_heads
BEGIN SELECT RAISE(ABORT, 'UPDATE of checkpoint_heads: what is recorded is never changed'); END;
CREATE TRIGGER checkpoint_heads_stay_delete BEFORE DELETE ON checkpoint_heads
BEGIN SELECT RAISE(ABORT, 'DELETE of checkpoint_heads: what is recorded is never changed'); END;

-- A decision is put together from several frames, so its row is filled step by
-- step; what is filled stays. A rebuild lifts this for its own transaction.
CREATE TRIGGER decisions_stay_filled BEFORE UPDATE ON decisions
WHEN (OLD.session_id IS NOT NULL AND NEW.session_id IS NOT OLD.session_id)
    OR (OLD.seq IS NOT NULL AND NEW.seq IS NOT OLD.seq)
    OR (OLD.turn IS NOT NULL AND NEW.turn IS NOT OLD.turn)
    OR (OLD.user_name IS NOT NULL AND NEW.user_name IS NOT OLD.user_name)
    OR (OLD.team IS NOT NULL AND NEW.team IS NOT OLD.team)
    OR (OLD.agent IS NOT NULL AND NEW.agent IS NOT OLD.agent)
    OR (OLD.call IS NOT NULL AND NEW.call IS NOT OLD.call)
    OR (OLD.tool_call_id IS NOT NULL AND NEW.tool_call_id IS NOT OLD.tool_call_id)
    OR (OLD.tool IS NOT NULL AND NEW.tool IS NOT OLD.tool)
    OR (OLD.kind IS NOT NULL AND NEW.kind IS NOT OLD.kind)
    OR (OLD.title IS NOT NULL AND NEW.title IS NOT OLD.title)
    OR (OLD.input IS NOT NULL AND NEW.input IS NOT OLD.input)
    OR (OLD.options IS NOT NULL AND NEW.options IS NOT OLD.options)
    OR (OLD.decision IS NOT NULL AND NEW.decision IS NOT OLD.decision)
    OR (OLD.option_id IS NOT NULL AND NEW.option_id IS NOT OLD.option_id)
    OR (OLD.option_kind IS NOT NULL AND NEW.option_kind IS NOT OLD.option_kind)
    OR (OLD.decided_by IS NOT NULL AND NEW.decided_by IS NOT OLD.decided_by)
    OR (OLD.rule IS NOT NULL AND NEW.rule IS NOT OLD.rule)
    OR (OLD.reason IS NOT NULL AND NEW.reason IS NOT OLD.reason)
    OR (OLD.asked_us IS NOT NULL AND NEW.asked_us IS NOT OLD.asked_us)
    OR (OLD.decided_us IS NOT NULL AND NEW.decided_us IS NOT OLD.decided_us)
    OR (OLD.duration_us IS NOT NULL AND NEW.duration_us IS NOT OLD.duration_us)
    OR (OLD.decided_user IS NOT NULL AND NEW.decided_user IS NOT OLD.decided_user)
    OR (OLD.method IS NOT NULL AND NEW.method IS NOT OLD.method)
    OR (OLD.verdict IS NOT NULL AND NEW.verdict IS NOT OLD.verdict)
    OR (OLD.rules IS NOT NULL AND NEW.rules IS NOT OLD.rules)
    OR (OLD.policy_revision IS NOT NULL AND NEW.policy_revision IS NOT OLD.policy_revision)
    OR (OLD.sub_actions IS NOT NULL AND NEW.sub_actions IS NOT OLD.sub_actions)
    OR (OLD.judging_us IS NOT NULL AND NEW.judging_us IS NOT OLD.judging_us)
    OR (OLD.ruled IS NOT NULL AND NEW.ruled IS NOT OLD.ruled)
    OR (OLD.subject IS NOT NULL AND NEW.subject IS NOT OLD.subject)
    OR (OLD.is_whole IS NOT NULL AND NEW.is_whole IS NOT OLD.is_whole)
    OR (OLD.terms IS NOT NULL AND NEW.terms IS NOT OLD.terms)
BEGIN SELECT RAISE(ABORT, 'UPDATE of decisions: what is recorded is never changed'); END;
CREATE TRIGGER decisions_stay_delete BEFORE DELETE ON decisions
BEGIN SELECT RAISE(ABORT, 'DELETE of decisions: what is recorded is never changed'); END;
