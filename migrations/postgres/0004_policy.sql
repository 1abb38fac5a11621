-- What the policy said to each request, and which tool calls it never saw. The same
-- names and columns as in migrations/sqlite/0004_policy.sql.

ALTER TABLE decisions ADD COLUMN method text;
ALTER TABLE decisions ADD COLUMN verdict text;
ALTER TABLE decisions ADD COLUMN rules jsonb;
ALTER TABLE decisions ADD COLUMN policy_revision text;
ALTER TABLE decisions ADD COLUMN sub_actions jsonb;
ALTER TABLE decisions ADD COLUMN judging_us bigint;
COMMENT ON TABLE decisions IS 'What was decided about one request of an agent or an editor.';
COMMENT ON COLUMN decisions.decided_by IS 'editor, or conductor if the policy decided alone';
COMMENT ON COLUMN decisions.method IS 'the method of the request that was judged';
COMMENT ON COLUMN decisions.verdict IS 'what the policy said: allow, ask or deny; null before there was one';
COMMENT ON COLUMN decisions.rules IS 'the ids of all rules that matched';
COMMENT ON COLUMN decisions.policy_revision IS 'names exactly the rules that were in force';
COMMENT ON COLUMN decisions.sub_actions IS 'what would be done, with the facts as they were found then';
COMMENT ON COLUMN decisions.judging_us IS 'how long judging took, in microseconds';

CREATE OR REPLACE VIEW decision_log AS
SELECT decisions.session_id, decisions.seq, decisions.asked_at AS at, decisions.turn, decisions.user_name, decisions.team, decisions.agent,
    sessions.repository, decisions.tool, decisions.kind, decisions.title, decisions.input,
    coalesce(decisions.decision, 'asked') AS decision, decisions.option_kind, decisions.decided_by, decisions.rule, decisions.reason,
    CAST(decisions.duration_us / 1000.0 AS double precision) AS waited_ms, decisions.decided_user,
    decisions.method, decisions.verdict, decisions.policy_revision
FROM decisions LEFT JOIN sessions ON sessions.session_id = decisions.session_id;
COMMENT ON COLUMN decision_log.method IS 'the method of the request that was judged';
COMMENT ON COLUMN decision_log.verdict IS 'what the policy said: allow, ask or deny';
COMMENT ON COLUMN decision_log.policy_revision IS 'names exactly the rules that were in force';

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
COMMENT ON VIEW unmediated IS 'Tool calls that may have had an effect and for which the agent did not ask: ORDER BY at DESC.';
COMMENT ON COLUMN unmediated.session_id IS 'the session';
COMMENT ON COLUMN unmediated.seq IS 'the frame that names it first';
COMMENT ON COLUMN unmediated.at IS 'when it was first named';
COMMENT ON COLUMN unmediated.user_name IS 'whose session it is';
COMMENT ON COLUMN unmediated.agent IS 'the agent at work';
COMMENT ON COLUMN unmediated.agent_version IS 'the version it gave itself';
COMMENT ON COLUMN unmediated.tool IS 'the tool''s name';
COMMENT ON COLUMN unmediated.kind IS 'the tool''s kind, as the agent tells';
COMMENT ON COLUMN unmediated.title IS 'what the agent shows people; written by the model, never trust it';
COMMENT ON COLUMN unmediated.input IS 'what the tool was given';
COMMENT ON COLUMN unmediated.status IS 'in_progress, completed or failed';

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
COMMENT ON VIEW policy_coverage IS 'The share of tool calls with a possible effect that were decided about, by agent and version.';
COMMENT ON COLUMN policy_coverage.agent IS 'the agent';
COMMENT ON COLUMN policy_coverage.agent_version IS 'the version it gave itself';
COMMENT ON COLUMN policy_coverage.calls IS 'tool calls that may have had an effect';
COMMENT ON COLUMN policy_coverage.decided IS 'those among them that were decided about';
COMMENT ON COLUMN policy_coverage.percent IS 'their share';
COMMENT ON COLUMN policy_coverage.last_at IS 'when the last of them began';
