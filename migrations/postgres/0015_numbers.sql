-- Numbers begin with 1: a frame or a checkpoint with another one was never recorded. What is there
-- is not looked at, so that a row which somebody has put there does not keep the service from
-- starting; conductor ledger verify names it.

ALTER TABLE frames ADD CONSTRAINT frames_from_one CHECK (seq > 0) NOT VALID;
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_from_one CHECK (number > 0) NOT VALID;

COMMENT ON COLUMN checkpoints.kind IS 'heads (streams that went on), retained (streams that were removed), erased (streams whose bytes were erased), frames (single frames whose bytes were erased, which the note names) or key (a new key)';
COMMENT ON COLUMN stream_heads.journal_id IS 'the journal that brought the frame, whose conductor signs it; null for what was imported and not signed then';
