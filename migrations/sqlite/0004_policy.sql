-- What the policy said to each request, and which tool calls it never saw. The same
-- names and columns as in migrations/postgres/0004_policy.sql.

ALTER TABLE decisions ADD COLUMN method TEXT; -- the method of the request that was judged
ALTER TABLE decisions ADD COLUMN verdict TEXT; -- what the policy said: allow, ask or deny; null before there was one
ALTER TABLE decisions ADD COLUMN rules TEXT; -- the ids of all rules that matched
ALTER TABLE decisions ADD COLUMN policy_revision TEXT; -- names exactly the rules that were in force
ALTER TABLE decisions ADD COLUMN sub_actions TEXT; -- what would be done, with the facts as they were found then
ALTER TABLE decisions ADD COLUMN judging_us INTEGER; -- how long judging took, in microseconds

DROP VIEW decision_log;
CREATE VIEW decision_log AS
SELECT decisions.session_id, decisions.seq, decisions.asked_at AS at, decisions.turn, decisions.user_name, decisions.team, decisions.agent,
    sessions.repository, decisions.tool, decisions.kind, decisions.title, decisions.input,
    coalesce(decisions.decision, 'asked') AS decision, decisions.option_kind, decisions.decided_by, decisions.rule, decisions.reason,
    CAST(decisions.duration_us / 1000.0 AS double precision) AS waited_ms, decisions.decided_user,
    decisions.method, decisions.verdict, decisions.policy_revision
FROM decisions LEFT JOIN sessions ON sessions.session_id = decisions.session_id;

-- Tool calls that may have had an effect and for which the agent did not ask: ORDER BY at DESC.
CREATE VIEW unmediated AS
SELECT tool_calls.session_id, tool_calls.call AS seq, tool_calls.began_at AS at, tool_calls.user_name, tool_calls.agent,
    (SELECT processes.agent_version FROM bindings JOIN processes ON processes.process_id = bindings.process_id
        WHERE bindings.session_id = tool_calls.session_id AND bindings.bound_us <= tool_calls.began_us
        ORDER BY bindings.bound_us DESC LIMIT 1) AS agent_version,
    tool_calls.name AS tool, tool_calls.kind, tool_calls.title, tool_calls.input, tool_calls.status
FROM tool_calls
WHERE coalesce(tool_calls.kind, 'other') NOT IN ('read', 'search', 'think')
    AND tool_calls.status IN ('in_progress', 'completed', 'failed')
    AND NOT EXISTS (SELECT 1 FROM decisions
        WHERE decisions.session_id = tool_calls.session_id AND decisions.call = tool_calls.call);

-- The share of tool calls with a possible effect that were decided about, by agent and version.
CREATE VIEW policy_coverage AS
SELECT called.agent, called.agent_version, count(*) AS calls, sum(called.is_decided) AS decided,
    CAST(100.0 * sum(called.is_decided) / count(*) AS double precision) AS percent, max(called.began_at) AS last_at
FROM (
    SELECT tool_calls.agent, tool_calls.began_at,
        (SELECT processes.agent_version FROM bindings JOIN processes ON processes.process_id = bindings.process_id
            WHERE bindings.session_id = tool_calls.session_id AND bindings.bound_us <= tool_calls.began_us
            ORDER BY bindings.bound_us DESC LIMIT 1) AS agent_version,
        CASE WHEN EXISTS (SELECT 1 FROM decisions
            WHERE decisions.session_id = tool_calls.session_id AND decisions.call = tool_calls.call)
            THEN 1 ELSE 0 END AS is_decided
    FROM tool_calls
    WHERE coalesce(tool_calls.kind, 'other') NOT IN ('read', 'search', 'think')
        AND tool_calls.status IN ('in_progress', 'completed', 'failed')
) AS called
GROUP BY called.agent, called.agent_version;
