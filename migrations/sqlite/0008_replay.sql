-- What is needed to make a decision again, and what was asked and denied under which rule.
-- The same names and columns as in migrations/postgres/0008_replay.sql.

ALTER TABLE decisions ADD COLUMN ruled TEXT; -- what the rules said, before what people had granted: allow, ask or deny; null in older records
ALTER TABLE decisions ADD COLUMN subject TEXT; -- who asked, as it was judged: user, teams, role, agent, mode, model, directory
ALTER TABLE decisions ADD COLUMN is_whole BOOLEAN; -- whether subject, sub_actions and terms are exactly what was judged; null in older records
ALTER TABLE decisions ADD COLUMN terms TEXT; -- where the rules ask: who may answer, and for how long; null in older records, and where they do not ask

-- What people were asked, by the rule that asked: ORDER BY times DESC.
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

-- What the rules denied, by the rule: ORDER BY times DESC.
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

-- How long people took to answer, by rule and day: ORDER BY day DESC, times DESC.
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
        SELECT rule, duration_us, decision, decided_by, substr(asked_at, 1, 10) AS day
        FROM decisions WHERE verdict = 'ask' AND method = 'session/request_permission'
    ) AS asked
) AS ranked
GROUP BY ranked.rule, ranked.day;
