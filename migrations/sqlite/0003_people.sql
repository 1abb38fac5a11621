-- Who said what in a session that several people drive. The same names and
-- columns as in migrations/postgres/0003_people.sql.
--
-- turns.user_name is who prompted: the owner, or another who drives the session;
-- turns.team is that user's team, null if it is not known.

ALTER TABLE decisions ADD COLUMN decided_user TEXT; -- who answered, the owner or another; null if it was the conductor
-- So far nobody but the owner could answer.
UPDATE decisions SET decided_user = user_name WHERE decided_by = 'editor';

-- Who allowed what, what was denied, what was asked and not answered: ORDER BY at.
DROP VIEW decision_log;
CREATE VIEW decision_log AS
SELECT decisions.session_id, decisions.seq, decisions.asked_at AS at, decisions.turn, decisions.user_name, decisions.team, decisions.agent,
    sessions.repository, decisions.tool, decisions.kind, decisions.title, decisions.input,
    coalesce(decisions.decision, 'asked') AS decision, decisions.option_kind, decisions.decided_by, decisions.rule, decisions.reason,
    CAST(decisions.duration_us / 1000.0 AS double precision) AS waited_ms, decisions.decided_user
FROM decisions LEFT JOIN sessions ON sessions.session_id = decisions.session_id;
