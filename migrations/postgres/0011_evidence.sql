-- What shows that nothing was changed afterwards: a chain of hashes through
-- each stream, and signed checkpoints over the heads of the chains.
-- The same names and columns as in migrations/sqlite/0011_evidence.sql.

ALTER TABLE frames ADD COLUMN chain bytea;
-- What is erased keeps its row and its hash, and loses its bytes.
ALTER TABLE frames ALTER COLUMN raw DROP NOT NULL;
COMMENT ON COLUMN frames.chain IS 'the hash of this row and of the one before it in the stream; null in rows that are older than this column, and in those that were imported into a gap';
COMMENT ON COLUMN frames.raw IS 'the bytes, without the newline: the truth; null once they were erased';
COMMENT ON COLUMN frames.hash IS 'SHA-256 of raw; it stays when raw is erased';

CREATE TABLE stream_heads (
    stream_id uuid NOT NULL PRIMARY KEY,
    journal_id uuid,
    seq bigint NOT NULL,
    chain bytea NOT NULL,
    checkpoint bigint
);
CREATE INDEX stream_heads_unsigned ON stream_heads (stream_id) WHERE checkpoint IS NULL;
COMMENT ON TABLE stream_heads IS 'The last frame of each stream, written with it.';
COMMENT ON COLUMN stream_heads.stream_id IS 'as in frames';
COMMENT ON COLUMN stream_heads.journal_id IS 'the journal that brought the frame, whose conductor signs it; null for what was imported, which any of them signs';
COMMENT ON COLUMN stream_heads.seq IS 'the frame''s number';
COMMENT ON COLUMN stream_heads.chain IS 'its hash, as in frames';
COMMENT ON COLUMN stream_heads.checkpoint IS 'the checkpoint that has signed it; null if none has yet';

CREATE TABLE checkpoints (
    journal_id uuid NOT NULL,
    number bigint NOT NULL,
    kind text NOT NULL,
    at_us bigint NOT NULL,
    at timestamptz GENERATED ALWAYS AS (to_timestamp(at_us / 1e6::float8)) STORED,
    previous bytea NOT NULL,
    root bytea NOT NULL,
    leaves bigint NOT NULL,
    key_id text NOT NULL,
    signature bytea NOT NULL,
    note text NOT NULL,
    PRIMARY KEY (journal_id, number)
);
COMMENT ON TABLE checkpoints IS 'One signed, linked log for each journal: checkpoints.jsonl in the state directory has the same.';
COMMENT ON COLUMN checkpoints.journal_id IS 'whose log it is';
COMMENT ON COLUMN checkpoints.number IS 'its number in the log, from 1';
COMMENT ON COLUMN checkpoints.kind IS 'heads (streams that went on), retained (streams that were removed), erased (streams whose bytes were erased) or key (a new key)';
COMMENT ON COLUMN checkpoints.at_us IS 'when it was made (microseconds since 1970)';
COMMENT ON COLUMN checkpoints.at IS 'when it was made';
COMMENT ON COLUMN checkpoints.previous IS 'the hash of the one before; zeros for the first';
COMMENT ON COLUMN checkpoints.root IS 'the root of the Merkle tree over its rows in checkpoint_heads, in order of stream_id';
COMMENT ON COLUMN checkpoints.leaves IS 'how many these are';
COMMENT ON COLUMN checkpoints.key_id IS 'the key that signed it';
COMMENT ON COLUMN checkpoints.signature IS 'Ed25519 over all of this';
COMMENT ON COLUMN checkpoints.note IS 'who did it and why; for a key, the new public key in base64';

CREATE TABLE checkpoint_heads (
    journal_id uuid NOT NULL,
    number bigint NOT NULL,
    stream_id uuid NOT NULL,
    seq bigint NOT NULL,
    chain bytea NOT NULL,
    PRIMARY KEY (journal_id, number, stream_id)
);
CREATE INDEX checkpoint_heads_on_stream_id ON checkpoint_heads (stream_id, seq);
COMMENT ON TABLE checkpoint_heads IS 'The heads that a checkpoint has signed: the leaves of its tree.';
COMMENT ON COLUMN checkpoint_heads.journal_id IS 'as in checkpoints';
COMMENT ON COLUMN checkpoint_heads.number IS 'as in checkpoints';
COMMENT ON COLUMN checkpoint_heads.stream_id IS 'as in frames';
COMMENT ON COLUMN checkpoint_heads.seq IS 'the last frame there was';
COMMENT ON COLUMN checkpoint_heads.chain IS 'its hash, as in frames';

CREATE TRIGGER checkpoints_stay BEFORE UPDATE OR DELETE ON checkpoints
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER checkpoints_stay_all BEFORE TRUNCATE ON checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER checkpoint_heads_stay BEFORE UPDATE OR DELETE ON checkpoint_heads
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER checkpoint_heads_stay_all BEFORE TRUNCATE ON checkpoint_heads
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- A decision is put together from several frames, so its row is filled step by
-- step; what is filled stays. A rebuild, which only the owner can do, lifts
-- this for its own transaction.
CREATE FUNCTION refuse_other_value() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    new_row jsonb := to_jsonb(NEW);
    changed text;
BEGIN
    SELECT was.key INTO changed FROM jsonb_each(to_jsonb(OLD)) AS was
    WHERE was.value <> 'null'::jsonb AND was.value IS DISTINCT FROM new_row -> was.key LIMIT 1;
    IF changed IS NOT NULL THEN
        RAISE EXCEPTION '% of %.%: what is recorded is never changed', TG_OP, TG_TABLE_NAME, changed
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'derived tables can be rebuilt with conductor ledger rebuild';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION refuse_other_value() IS 'the trigger that lets values be filled in, and never changed';
CREATE TRIGGER decisions_stay_filled AFTER UPDATE ON decisions
    FOR EACH ROW EXECUTE FUNCTION refuse_other_value();
CREATE TRIGGER decisions_stay BEFORE DELETE ON decisions
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER decisions_stay_all BEFORE TRUNCATE ON decisions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
