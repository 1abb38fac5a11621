-- Numbers begin with 1: a frame or a checkpoint with another one was never recorded. SQLite adds
-- no condition to a table that there is, but refuses such rows in this way.

CREATE TRIGGER frames_from_one BEFORE INSERT ON frames WHEN NEW.seq < 1
BEGIN SELECT RAISE(ABORT, 'frames are numbered from 1'); END;
CREATE TRIGGER checkpoints_from_one BEFORE INSERT ON checkpoints WHEN NEW.number < 1
BEGIN SELECT RAISE(ABORT, 'checkpoints are numbered from 1'); END;
