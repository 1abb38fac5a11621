-- Erasure: the words of a session can be taken out of the ledger for good. What is left
-- of a frame is its number, its time, its hash and its place in the chain: raw and json
-- are null then.

-- SQLite cannot drop NOT NULL from a column. Only the declaration changes, not a single
-- row: copying what may be gigabytes is not needed. The index below makes everybody else
-- who has the file open read the declaration again.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'raw BLOB NOT NULL', 'raw BLOB')
    WHERE type = 'table' AND name IN ('frames', 'frame_conflicts');
PRAGMA writable_schema = RESET;

-- Which frames were erased: what is derived from them cannot be made again.
CREATE INDEX frames_erased ON frames (stream_id, seq) WHERE raw IS NULL;
