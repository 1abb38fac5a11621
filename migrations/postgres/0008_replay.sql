-- What is needed to make a decision again, and what was asked and denied under which rule.
-- The same names and columns as in migrations/sqlite/0008_replay.sql.

ALTER TABLE decisions ADD COLUMN ruled text;
ALTER TABLE decisions ADD COLUMN subject jsonb;
ALTER TABLE decisions ADD COLUMN is_whole boolean;
ALTER TABLE decisions ADD COLUMN terms jsonb;
COMMENT ON COLUMN decisions.ruled IS 'what the rules said, before what people had granted: allow, ask or deny; null in older records';
COMMENT ON COLUMN decisions.subject IS 'who asked, as it was judged: user, teams, role, agent, mode, model, directory';
COMMENT ON COLUMN decisions.is_whole IS 'whether subject, sub_actions and terms are exactly what was judged; null in older records';
COMMENT ON COLUMN decisions.terms IS 'where the rules ask: who may answer, and for how long; null in older records, and where they do not ask';

CREATE VIEW asked_by_rule AS
SELECT ranked.rule, count(*) AS times, max(ranked.asked_at) AS last_at,
    sum(CASE WHEN ranked.decision = 'allow' THEN 1 ELSE 0 END) AS allowed,
    max(CASE WHEN ranked.place = 1 THEN CAST(ranked.session_id AS text) END) AS example_session,
    max(CASE WHEN ranked.place = 1 THEN ranked.seq END) AS example_seq,
    max(CASE WHEN ranked.place = 1 THEN ranked.reason END) AS example
FROM (
    SELECT rule, session_id, seq, asked_at, decision, reason,
        row_number() OVER (PARTITION BY rule ORDER BY asked_us DESC, session_id, seq) AS place
    FROM decisions WHERE verdict = 'ask' AND method = 'session/request_permission'
) AS ranked
GROUP BY ranked.rule;
COMMENT ON VIEW asked_by_rule IS 'What people were asked, by the rule that asked: ORDER BY times DESC.';
COMMENT ON COLUMN asked_by_rule.rule IS 'the rule; null if no rule matched';
COMMENT ON COLUMN asked_by_rule.times IS 'how often';
COMMENT ON COLUMN asked_by_rule.last_at IS 'when it was last asked';
COMMENT ON COLUMN asked_by_rule.allowed IS 'how often somebody allowed it';
COMMENT ON COLUMN asked_by_rule.example_session IS 'the session of the last one';
COMMENT ON COLUMN asked_by_rule.example_seq IS 'its frame';
COMMENT ON COLUMN asked_by_rule.example IS 'why it was asked, in words';

CREATE VIEW denied_by_rule AS
SELECT ranked.rule, count(*) AS times, max(ranked.asked_at) AS last_at,
    count(DISTINCT ranked.user_name) AS users,
    max(CASE WHEN ranked.place = 1 THEN CAST(ranked.session_id AS text) END) AS example_session,
    max(CASE WHEN ranked.place = 1 THEN ranked.seq END) AS example_seq,
    max(CASE WHEN ranked.place = 1 THEN ranked.reason END) AS example
FROM (
    SELECT rule, session_id, seq, asked_at, user_name, reason,
        row_number() OVER (PARTITION BY rule ORDER BY asked_us DESC, session_id, seq) AS place
    FROM decisions WHERE verdict = 'deny'
) AS ranked
GROUP BY ranked.rule;
COMMENT ON VIEW denied_by_rule IS 'What the rules denied, by the rule: ORDER BY times DESC.';
COMMENT ON COLUMN denied_by_rule.rule IS 'the rule';
COMMENT ON COLUMN denied_by_rule.times IS 'how often';
COMMENT ON COLUMN denied_by_rule.last_at IS 'when it last denied something';
COMMENT ON COLUMN denied_by_rule.users IS 'in sessions of how many users';
COMMENT ON COLUMN denied_by_rule.example_session IS 'the session of the last one';
COMMENT ON COLUMN denied_by_rule.example_seq IS 'its frame';
COMMENT ON COLUMN denied_by_rule.example IS 'why it was denied, in words';

CREATE VIEW waiting_times AS
SELECT ranked.rule, ranked.day, count(*) AS times,
    CAST(max(CASE WHEN ranked.place = (ranked.waited + 1) / 2 THEN ranked.duration_us END) / 1000.0 AS double precision) AS p50_ms,
    CAST(max(CASE WHEN ranked.place = (ranked.waited * 95 + 99) / 100 THEN ranked.duration_us END) / 1000.0 AS double precision) AS p95_ms,
    CAST(max(ranked.duration_us) / 1000.0 AS double precision) AS max_ms,
    sum(CASE WHEN ranked.decision IN ('allow', 'reject') AND ranked.decided_by <> 'conductor' THEN 1 ELSE 0 END) AS answered,
    sum(CASE WHEN ranked.decision = 'reject' AND ranked.decided_by = 'conductor' THEN 1 ELSE 0 END) AS timed_out
FROM (
    SELECT rule, day, duration_us, decision, decided_by,
        row_number() OVER (PARTITION BY rule, day ORDER BY CASE WHEN duration_us IS NULL THEN 1 ELSE 0 END, duration_us) AS place,
        count(duration_us) OVER (PARTITION BY rule, day) AS waited
    FROM (
        SELECT rule, duration_us, decision, decided_by, to_char(asked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day
        FROM decisions WHERE verdict = 'ask' AND method = 'session/request_permission'
    ) AS asked
) AS ranked
GROUP BY ranked.rule, ranked.day;
COMMENT ON VIEW waiting_times IS 'How long people took to answer, by rule and day: ORDER BY day DESC, times DESC.';
COMMENT ON COLUMN waiting_times.rule IS 'the rule; null if no rule matched';
COMMENT ON COLUMN waiting_times.day IS 'the day it was asked, in UTC, as YYYY-MM-DD';
COMMENT ON COLUMN waiting_times.times IS 'how often it was asked';
COMMENT ON COLUMN waiting_times.p50_ms IS 'half of those that ended did so within this, in milliseconds';
COMMENT ON COLUMN waiting_times.p95_ms IS '95 % of those that ended did so within this';
COMMENT ON COLUMN waiting_times.max_ms IS 'the longest of them';
COMMENT ON COLUMN waiting_times.answered IS 'how many a person answered';
COMMENT ON COLUMN waiting_times.timed_out IS 'how many were rejected because nobody answered';
