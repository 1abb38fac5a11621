-- Protected places that were changed in a turn without anybody having been asked, beside the tool
-- calls in `unmediated`. The same names and columns as in migrations/postgres/0009_containment.sql.
-- Such a change is a row of file_accesses with the source `survey`: it was found by looking at the
-- disk before and after the turn.

CREATE INDEX file_accesses_on_survey ON file_accesses (at_us) WHERE source = 'survey';

-- What was done, or may have been, and nobody was asked: ORDER BY at DESC. A tool call has no path
-- here, a changed place no tool.
DROP VIEW unmediated;
CREATE VIEW unmediated AS
SELECT tool_calls.session_id, tool_calls.call AS seq, tool_calls.began_at AS at, tool_calls.user_name, tool_calls.agent,
    (SELECT processes.agent_version FROM bindings JOIN processes ON processes.process_id = bindings.process_id
        WHERE bindings.session_id = tool_calls.session_id AND bindings.bound_us <= tool_calls.began_us
        ORDER BY bindings.bound_us DESC LIMIT 1) AS agent_version,
    tool_calls.name AS tool, tool_calls.kind, tool_calls.title, tool_calls.input, tool_calls.status, CAST(NULL AS text) AS path
FROM tool_calls
WHERE coalesce(tool_calls.kind, 'other') NOT IN ('read', 'search', 'think')
    AND tool_calls.status IN ('in_progress', 'completed', 'failed')
    AND NOT EXISTS (SELECT 1 FROM decisions
        WHERE decisions.session_id = tool_calls.session_id AND decisions.call = tool_calls.call)
UNION ALL
SELECT file_accesses.session_id, file_accesses.seq, file_accesses.at, file_accesses.user_name, file_accesses.agent,
    (SELECT processes.agent_version FROM bindings JOIN processes ON processes.process_id = bindings.process_id
        WHERE bindings.session_id = file_accesses.session_id AND bindings.bound_us <= file_accesses.at_us
        ORDER BY bindings.bound_us DESC LIMIT 1),
    NULL, CASE file_accesses.access WHEN 'delete' THEN 'delete' ELSE 'edit' END, NULL, NULL, 'completed', file_accesses.path
FROM file_accesses
WHERE file_accesses.source = 'survey';
