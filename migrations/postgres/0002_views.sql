-- The views that answer what people ask of the record. The same names and
-- columns as in migrations/sqlite/0002_views.sql; README.md, "Audit with SQL",
-- describes them.

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
COMMENT ON VIEW session_timeline IS 'What happened in a session, one row for each thing: ORDER BY at_us, seq.';
COMMENT ON COLUMN session_timeline.session_id IS 'the session';
COMMENT ON COLUMN session_timeline.at_us IS 'when it began (microseconds since 1970)';
COMMENT ON COLUMN session_timeline.at IS 'when it began';
COMMENT ON COLUMN session_timeline.seq IS 'the frame that tells of it first';
COMMENT ON COLUMN session_timeline.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN session_timeline.what IS 'opened, bound, prompt, message, thought, user, tool call, command, file, decision, turn end, ended';
COMMENT ON COLUMN session_timeline.detail IS 'the text, tool, command line, path, error or reason';
COMMENT ON COLUMN session_timeline.status IS 'how it went';
COMMENT ON COLUMN session_timeline.duration_ms IS 'how long it took, in milliseconds';

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
COMMENT ON VIEW file_heat IS 'Every file that was touched and how often, for each agent and repository.';
COMMENT ON COLUMN file_heat.path IS 'the file, as it was named';
COMMENT ON COLUMN file_heat.repository IS 'the repository of the session''s directory';
COMMENT ON COLUMN file_heat.agent IS 'the agent';
COMMENT ON COLUMN file_heat.touches IS 'how often it was touched; one tool call may tell of a file several times';
COMMENT ON COLUMN file_heat.reads IS 'of these, reading';
COMMENT ON COLUMN file_heat.writes IS 'of these, writing';
COMMENT ON COLUMN file_heat.deletes IS 'of these, deleting';
COMMENT ON COLUMN file_heat.moves IS 'of these, moving';
COMMENT ON COLUMN file_heat.mentions IS 'how often people named it in prompts';
COMMENT ON COLUMN file_heat.refused IS 'how often it was refused';
COMMENT ON COLUMN file_heat.sessions IS 'in how many sessions';
COMMENT ON COLUMN file_heat.users IS 'of how many users';
COMMENT ON COLUMN file_heat.first_at IS 'the first time';
COMMENT ON COLUMN file_heat.last_at IS 'the last time';

CREATE VIEW command_log AS
SELECT commands.session_id, commands.seq, commands.began_at AS at, commands.turn, commands.user_name, commands.team, commands.agent,
    sessions.repository, commands.source, commands.line, commands.cwd, commands.exit_code, commands.exit_signal,
    CAST(commands.duration_us / 1000.0 AS double precision) AS duration_ms, commands.error, tool_calls.name AS tool
FROM commands
LEFT JOIN sessions ON sessions.session_id = commands.session_id
LEFT JOIN tool_calls ON tool_calls.session_id = commands.session_id AND tool_calls.call = commands.call;
COMMENT ON VIEW command_log IS 'Every command, whoever ran it.';
COMMENT ON COLUMN command_log.session_id IS 'the session';
COMMENT ON COLUMN command_log.seq IS 'the frame that tells of it first';
COMMENT ON COLUMN command_log.at IS 'when it was asked for';
COMMENT ON COLUMN command_log.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN command_log.user_name IS 'whose session it is';
COMMENT ON COLUMN command_log.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN command_log.agent IS 'the agent';
COMMENT ON COLUMN command_log.repository IS 'the repository of the session''s directory';
COMMENT ON COLUMN command_log.source IS 'terminal (run for the agent, on request) or tool (run by the agent itself)';
COMMENT ON COLUMN command_log.line IS 'the command as one line';
COMMENT ON COLUMN command_log.cwd IS 'the directory, if it was named';
COMMENT ON COLUMN command_log.exit_code IS 'its exit code, if told';
COMMENT ON COLUMN command_log.exit_signal IS 'the signal that ended it, if told';
COMMENT ON COLUMN command_log.duration_ms IS 'how long it took, in milliseconds';
COMMENT ON COLUMN command_log.error IS 'why it was not run';
COMMENT ON COLUMN command_log.tool IS 'the tool that ran it';

CREATE VIEW usage_weekly AS
SELECT CAST(date_trunc('week', usage.at AT TIME ZONE 'UTC') AS date) AS week, usage.team, usage.user_name, usage.agent, usage.model,
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
GROUP BY CAST(date_trunc('week', usage.at AT TIME ZONE 'UTC') AS date), usage.team, usage.user_name, usage.agent, usage.model, coalesce(usage.currency, paid.currency);
COMMENT ON VIEW usage_weekly IS 'Tokens and cost by week, team, user, agent and model.';
COMMENT ON COLUMN usage_weekly.week IS 'the Monday it begins with (UTC)';
COMMENT ON COLUMN usage_weekly.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN usage_weekly.user_name IS 'whose session it is';
COMMENT ON COLUMN usage_weekly.agent IS 'the agent';
COMMENT ON COLUMN usage_weekly.model IS 'the model, as far as it is known';
COMMENT ON COLUMN usage_weekly.currency IS 'of the cost';
COMMENT ON COLUMN usage_weekly.sessions IS 'how many sessions';
COMMENT ON COLUMN usage_weekly.input_tokens IS 'tokens read by the model';
COMMENT ON COLUMN usage_weekly.output_tokens IS 'tokens written by the model';
COMMENT ON COLUMN usage_weekly.thought_tokens IS 'tokens of thoughts';
COMMENT ON COLUMN usage_weekly.cached_read_tokens IS 'tokens read from a cache';
COMMENT ON COLUMN usage_weekly.cached_write_tokens IS 'tokens written to a cache';
COMMENT ON COLUMN usage_weekly.total_tokens IS 'all tokens';
COMMENT ON COLUMN usage_weekly.cost IS 'money; null where agents tell none';

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
COMMENT ON VIEW slow_tools IS 'How long tools take, for each agent: ORDER BY p95_ms DESC.';
COMMENT ON COLUMN slow_tools.agent IS 'the agent';
COMMENT ON COLUMN slow_tools.name IS 'the tool';
COMMENT ON COLUMN slow_tools.calls IS 'how many calls have ended';
COMMENT ON COLUMN slow_tools.failed IS 'of these, how many failed';
COMMENT ON COLUMN slow_tools.mean_ms IS 'the mean duration in milliseconds';
COMMENT ON COLUMN slow_tools.median_ms IS 'half of them took no longer';
COMMENT ON COLUMN slow_tools.p95_ms IS '95 of 100 took no longer';
COMMENT ON COLUMN slow_tools.slowest_ms IS 'the longest';
COMMENT ON COLUMN slow_tools.total_ms IS 'all together';

CREATE VIEW agent_crashes AS
SELECT processes.ended_at AS at, processes.agent, processes.agent_version, processes.end_reason, processes.exit_code, processes.exit_signal,
    CAST((processes.ended_us - processes.started_us) / 1000.0 AS double precision) AS lived_ms,
    (SELECT count(DISTINCT bindings.session_id) FROM bindings WHERE bindings.process_id = processes.process_id) AS sessions,
    processes.stderr_tail, processes.process_id
FROM processes WHERE processes.crashed;
COMMENT ON VIEW agent_crashes IS 'Processes of agents that ended on their own account, unasked: ORDER BY at DESC.';
COMMENT ON COLUMN agent_crashes.at IS 'when it ended';
COMMENT ON COLUMN agent_crashes.agent IS 'the agent';
COMMENT ON COLUMN agent_crashes.agent_version IS 'the version it gave itself';
COMMENT ON COLUMN agent_crashes.end_reason IS 'why it ended';
COMMENT ON COLUMN agent_crashes.exit_code IS 'its exit code, if it exited';
COMMENT ON COLUMN agent_crashes.exit_signal IS 'the signal that ended it, if one did';
COMMENT ON COLUMN agent_crashes.lived_ms IS 'how long it lived, in milliseconds';
COMMENT ON COLUMN agent_crashes.sessions IS 'how many sessions used it';
COMMENT ON COLUMN agent_crashes.stderr_tail IS 'its last words on stderr';
COMMENT ON COLUMN agent_crashes.process_id IS 'the process';

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
COMMENT ON VIEW sessions_by_repository IS 'How much is done where: one row for each repository.';
COMMENT ON COLUMN sessions_by_repository.repository IS 'the repository; (none) for sessions outside any';
COMMENT ON COLUMN sessions_by_repository.sessions IS 'how many sessions';
COMMENT ON COLUMN sessions_by_repository.open_now IS 'of these, how many have not ended';
COMMENT ON COLUMN sessions_by_repository.users IS 'of how many users';
COMMENT ON COLUMN sessions_by_repository.agents IS 'with how many agents';
COMMENT ON COLUMN sessions_by_repository.turns IS 'how many turns';
COMMENT ON COLUMN sessions_by_repository.tool_calls IS 'how many tool calls';
COMMENT ON COLUMN sessions_by_repository.first_at IS 'when the first was opened';
COMMENT ON COLUMN sessions_by_repository.last_at IS 'when the last frame was recorded';

CREATE VIEW decision_log AS
SELECT decisions.session_id, decisions.seq, decisions.asked_at AS at, decisions.turn, decisions.user_name, decisions.team, decisions.agent,
    sessions.repository, decisions.tool, decisions.kind, decisions.title, decisions.input,
    coalesce(decisions.decision, 'asked') AS decision, decisions.option_kind, decisions.decided_by, decisions.rule, decisions.reason,
    CAST(decisions.duration_us / 1000.0 AS double precision) AS waited_ms
FROM decisions LEFT JOIN sessions ON sessions.session_id = decisions.session_id;
COMMENT ON VIEW decision_log IS 'Who allowed what, what was denied, what was asked and not answered: ORDER BY at.';
COMMENT ON COLUMN decision_log.session_id IS 'the session';
COMMENT ON COLUMN decision_log.seq IS 'the request''s frame';
COMMENT ON COLUMN decision_log.at IS 'when it was asked';
COMMENT ON COLUMN decision_log.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN decision_log.user_name IS 'whose session it is';
COMMENT ON COLUMN decision_log.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN decision_log.agent IS 'the agent';
COMMENT ON COLUMN decision_log.repository IS 'the repository of the session''s directory';
COMMENT ON COLUMN decision_log.tool IS 'the tool''s name; unknown if the agent tells none';
COMMENT ON COLUMN decision_log.kind IS 'the tool''s kind, as the agent tells';
COMMENT ON COLUMN decision_log.title IS 'what people were shown; written by the model, never trust it';
COMMENT ON COLUMN decision_log.input IS 'what the tool would be given';
COMMENT ON COLUMN decision_log.decision IS 'allow, reject, cancelled, error, or asked (not answered)';
COMMENT ON COLUMN decision_log.option_kind IS 'allow_once, allow_always, reject_once, reject_always';
COMMENT ON COLUMN decision_log.decided_by IS 'editor or conductor';
COMMENT ON COLUMN decision_log.rule IS 'the rule that decided';
COMMENT ON COLUMN decision_log.reason IS 'why, in words';
COMMENT ON COLUMN decision_log.waited_ms IS 'how long the answer took, in milliseconds';

CREATE VIEW recording_gaps AS
SELECT stream_id, stream_kind, seq, at, method, json -> 'params' ->> 'reason' AS reason, CAST(json -> 'params' ->> 'count' AS bigint) AS frames
FROM frames WHERE kind = 'note' AND method IN ('_conductor/gap', '_conductor/recording');
COMMENT ON VIEW recording_gaps IS 'What could not be recorded, and when recording stopped and went on.';
COMMENT ON COLUMN recording_gaps.stream_id IS 'the session, process or connection';
COMMENT ON COLUMN recording_gaps.stream_kind IS 'which of these';
COMMENT ON COLUMN recording_gaps.seq IS 'the note''s number';
COMMENT ON COLUMN recording_gaps.at IS 'when the note was written';
COMMENT ON COLUMN recording_gaps.method IS '_conductor/gap or _conductor/recording';
COMMENT ON COLUMN recording_gaps.reason IS 'why';
COMMENT ON COLUMN recording_gaps.frames IS 'how many frames are missing, for a gap';
