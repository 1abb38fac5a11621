-- Who said what in a session that several people drive. The same names and
-- columns as in migrations/sqlite/0003_people.sql.

ALTER TABLE decisions ADD COLUMN decided_user text;
COMMENT ON COLUMN decisions.decided_user IS 'who answered, the owner or another; null if it was the conductor';
-- So far nobody but the owner could answer.
UPDATE decisions SET decided_user = user_name WHERE decided_by = 'editor';

COMMENT ON COLUMN turns.user_name IS 'who prompted: the owner, or another who drives the session';
COMMENT ON COLUMN turns.team IS 'that user''s team; several are joined by commas; null if it is not known';

-- Replaced rather than made anew: what others have built on it stays, and so do
-- the rights to it.
CREATE OR REPLACE VIEW decision_log AS
SELECT decisions.session_id, decisions.seq, decisions.asked_at AS at, decisions.turn, decisions.user_name, decisions.team, decisions.agent,
    sessions.repository, decisions.tool, decisions.kind, decisions.title, decisions.input,
    coalesce(decisions.decision, 'asked') AS decision, decisions.option_kind, decisions.decided_by, decisions.rule, decisions.reason,
    CAST(decisions.duration_us / 1000.0 AS double precision) AS waited_ms, decisions.decided_user
FROM decisions LEFT JOIN sessions ON sessions.session_id = decisions.session_id;
COMMENT ON COLUMN decision_log.decided_user IS 'who answered, the owner or another; null if it was the conductor';
