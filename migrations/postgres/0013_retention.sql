-- Erasure: the words of a session can be taken out of the ledger for good. What is left
-- of a frame is its number, its time, its hash and its place in the chain: raw and json
-- are null then.

ALTER TABLE frames ALTER COLUMN raw DROP NOT NULL;
ALTER TABLE frame_conflicts ALTER COLUMN raw DROP NOT NULL;
COMMENT ON COLUMN frames.raw IS 'the bytes, without the newline: the truth; null where they were erased';
COMMENT ON COLUMN frames.json IS 'the same for queries; null where jsonb could not hold it exactly, above 1 MiB, and where it was erased';
COMMENT ON COLUMN frame_conflicts.raw IS 'the second frame; null where it was erased';

-- Which frames were erased: what is derived from them cannot be made again.
CREATE INDEX frames_erased ON frames (stream_id, seq) WHERE raw IS NULL;

-- Retention and erasure are the two reasons for which rows go or change. They say so in
-- their transaction, and only whoever owns the table is heard. Everybody else, and every
-- other statement of the owner's, is refused as before.
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_LEVEL = 'ROW' AND current_setting('conductor.lifted', true) = 'on'
        AND pg_has_role(current_user, (SELECT relowner FROM pg_catalog.pg_class WHERE oid = TG_RELID), 'USAGE')
    THEN
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% of %: what is recorded is never changed', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'conductor ledger retain and conductor ledger erase are the ways to let it go';
END $$;
