-- The views that answer what people ask of the record. The same names and
-- columns as in migrations/postgres/0002_views.sql; README.md, "Audit with SQL",
-- describes them.

-- What happened in a session, one row for each thing: ORDER BY at_us, seq.
CREATE VIEW session_timeline AS
SELECT session_id, at_us, at, seq, turn, what, detail, status, CAST(duration_us / 1000.0 AS double precision) AS duration_ms
FROM (
    SELECT session_id, opened_us AS at_us, opened_at AS at, 0 AS seq, CAST(NULL AS bigint) AS turn, 'opened' AS what, cwd AS detail, agent AS status, CAST(NULL AS bigint) AS duration_us
    FROM sessions WHERE opened_us IS NOT NULL
    UNION ALL
    SELECT session_id, bound_us, bound_at, seq, NULL, 'bound', agent_session, how, NULL
    FROM bindings WHERE session_id IS NOT NULL
    UNION ALL
    SELECT session_id, began_us, began_at, turn, turn, 'prompt', prompt, NULL, NULL
    FROM turns
    UNION ALL
    SELECT session_id, began_us, began_at, message, turn, CASE role WHEN 'agent' THEN 'message' ELSE role END, text, NULL, ended_us - began_us
    FROM messages
    UNION ALL
    SELECT session_id, began_us, began_at, call, turn, 'tool call', name || coalesce(': ' || title, ''), status, duration_us
    FROM tool_calls
    UNION ALL
    SELECT session_id, began_us, began_at, seq, turn, 'command', line, coalesce(error, exit_signal, CAST(exit_code AS text)), duration_us
    FROM commands
    UNION ALL
    SELECT session_id, at_us, at, seq, turn, 'file', path, coalesce(error, access), NULL
    FROM file_accesses
    UNION ALL
    SELECT session_id, asked_us, asked_at, seq, turn, 'decision', tool || coalesce(': ' || title, ''), coalesce(decision, 'asked'), duration_us
    FROM decisions
    UNION ALL
    SELECT session_id, ended_us, ended_at, ended_seq, turn, 'turn end', error, stop_reason, duration_us
    FROM turns WHERE ended_us IS NOT NULL
    UNION ALL
    SELECT session_id, ended_us, ended_at, ended_seq, NULL, 'ended', end_reason, NULL, NULL
    FROM sessions WHERE ended_us IS NOT NULL
) AS things;

-- Every file that was touched and how often, for each agent and repository.
CREATE VIEW file_heat AS
SELECT file_accesses.path, sessions.repository, file_accesses.agent,
    count(*) FILTER (WHERE access <> 'mention') AS touches,
    count(*) FILTER (WHERE access = 'read') AS reads,
    count(*) FILTER (WHERE access = 'write') AS writes,
    count(*) FILTER (WHERE access = 'delete') AS deletes,
    count(*) FILTER (WHERE access = 'move') AS moves,
    count(*) FILTER (WHERE access = 'mention') AS mentions,
    count(*) FILTER (WHERE error IS NOT NULL) AS refused,
    count(DISTINCT file_accesses.session_id) AS sessions,
    count(DISTINCT file_accesses.user_name) AS users,
    min(file_accesses.at) AS first_at,
    max(file_accesses.at) AS last_at
FROM file_accesses LEFT JOIN sessions ON sessions.session_id = file_accesses.session_id
GROUP BY file_accesses.path, sessions.repository, file_accesses.agent;

-- Every command, whoever ran it.
CREATE VIEW command_log AS
SELECT commands.session_id, commands.seq, commands.began_at AS at, commands.turn, commands.user_name, commands.team, commands.agent,
    sessions.repository, commands.source, commands.line, commands.cwd, commands.exit_code, commands.exit_signal,
    CAST(commands.duration_us / 1000.0 AS double precision) AS duration_ms, commands.error, tool_calls.name AS tool
FROM commands
LEFT JOIN sessions ON sessions.session_id = commands.session_id
LEFT JOIN tool_calls ON tool_calls.session_id = commands.session_id AND tool_calls.call = commands.call;

-- Tokens and cost by week, team, user, agent and model.
CREATE VIEW usage_weekly AS
SELECT date(usage.at_us / 1000000, 'unixepoch', 'weekday 0', '-6 days') AS week, usage.team, usage.user_name, usage.agent, usage.model,
    coalesce(usage.currency, paid.currency) AS currency,
    count(DISTINCT usage.session_id) AS sessions,
    CAST(sum(usage.input_tokens) AS bigint) AS input_tokens,
    CAST(sum(usage.output_tokens) AS bigint) AS output_tokens,
    CAST(sum(usage.thought_tokens) AS bigint) AS thought_tokens,
    CAST(sum(usage.cached_read_tokens) AS bigint) AS cached_read_tokens,
    CAST(sum(usage.cached_write_tokens) AS bigint) AS cached_write_tokens,
    CAST(sum(usage.total_tokens) AS bigint) AS total_tokens,
    sum(usage.cost) AS cost
FROM usage
LEFT JOIN (SELECT session_id, max(currency) AS currency FROM usage GROUP BY session_id) AS paid
    ON paid.session_id = usage.session_id
GROUP BY date(usage.at_us / 1000000, 'unixepoch', 'weekday 0', '-6 days'), usage.team, usage.user_name, usage.agent, usage.model, coalesce(usage.currency, paid.currency);

-- How long tools take, for each agent: ORDER BY p95_ms DESC.
CREATE VIEW slow_tools AS
SELECT agent, name, count(*) AS calls,
    count(*) FILTER (WHERE status = 'failed') AS failed,
    CAST(avg(duration_us) / 1000.0 AS double precision) AS mean_ms,
    CAST(min(CASE WHEN place * 2 >= many THEN duration_us END) / 1000.0 AS double precision) AS median_ms,
    CAST(min(CASE WHEN place * 100 >= many * 95 THEN duration_us END) / 1000.0 AS double precision) AS p95_ms,
    CAST(max(duration_us) / 1000.0 AS double precision) AS slowest_ms,
    CAST(sum(duration_us) / 1000.0 AS double precision) AS total_ms
FROM (
    SELECT agent, name, status, duration_us,
        row_number() OVER (PARTITION BY agent, name ORDER BY duration_us) AS place,
        count(*) OVER (PARTITION BY agent, name) AS many
    FROM tool_calls WHERE duration_us IS NOT NULL
) AS ended
GROUP BY agent, name;

-- Processes of agents that ended on their own account, unasked: ORDER BY at DESC.
CREATE VIEW agent_crashes AS
SELECT processes.ended_at AS at, processes.agent, processes.agent_version, processes.end_reason, processes.exit_code, processes.exit_signal,
    CAST((processes.ended_us - processes.started_us) / 1000.0 AS double precision) AS lived_ms,
    (SELECT count(DISTINCT bindings.session_id) FROM bindings WHERE bindings.process_id = processes.process_id) AS sessions,
    processes.stderr_tail, processes.process_id
FROM processes WHERE processes.crashed;

-- How much is done where: one row for each repository.
CREATE VIEW sessions_by_repository AS
SELECT coalesce(repository, '(none)') AS repository, count(*) AS sessions,
    count(*) FILTER (WHERE is_open) AS open_now,
    count(DISTINCT user_name) AS users,
    count(DISTINCT agent) AS agents,
    CAST(coalesce(sum(turns), 0) AS bigint) AS turns,
    CAST(coalesce(sum(tool_calls), 0) AS bigint) AS tool_calls,
    min(opened_at) AS first_at,
    max(updated_at) AS last_at
FROM sessions GROUP BY coalesce(repository, '(none)');

-- Who allowed what, what was denied, what was asked and not answered: ORDER BY at.
CREATE VIEW decision_log AS
SELECT decisions.session_id, decisions.seq, decisions.asked_at AS at, decisions.turn, decisions.user_name, decisions.team, decisions.agent,
    sessions.repository, decisions.tool, decisions.kind, decisions.title, decisions.input,
    coalesce(decisions.decision, 'asked') AS decision, decisions.option_kind, decisions.decided_by, decisions.rule, decisions.reason,
    CAST(decisions.duration_us / 1000.0 AS double precision) AS waited_ms
FROM decisions LEFT JOIN sessions ON sessions.session_id = decisions.session_id;

-- What could not be recorded, and when recording stopped and went on.
CREATE VIEW recording_gaps AS
SELECT stream_id, stream_kind, seq, at, method, json -> 'params' ->> 'reason' AS reason, CAST(json -> 'params' ->> 'count' AS bigint) AS frames
FROM frames WHERE kind = 'note' AND method IN ('_conductor/gap', '_conductor/recording');
