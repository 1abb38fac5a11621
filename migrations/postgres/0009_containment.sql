-- Protected places that were changed in a turn without anybody having been asked, beside the tool
-- calls in `unmediated`. The same names and columns as in migrations/sqlite/0009_containment.sql.
-- Such a change is a row of file_accesses with the source `survey`: it was found by looking at the
-- disk before and after the turn.

CREATE INDEX file_accesses_on_survey ON file_accesses (at_us) WHERE source = 'survey';
COMMENT ON COLUMN file_accesses.source IS 'where it stands: fs (asked of us), diff, location, input (of a tool), resource or mention (in a prompt), survey (found on the disk after the turn, and nobody was asked)';

CREATE OR REPLACE VIEW unmediated AS
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
COMMENT ON VIEW unmediated IS 'What was done, or may have been, and nobody was asked: tool calls, and protected places that were changed in a turn. ORDER BY at DESC.';
COMMENT ON COLUMN unmediated.seq IS 'the frame that names it first';
COMMENT ON COLUMN unmediated.tool IS 'the tool''s name; null for a changed place';
COMMENT ON COLUMN unmediated.kind IS 'the tool''s kind, as the agent tells; of a changed place edit or delete';
COMMENT ON COLUMN unmediated.path IS 'the protected place that was changed; null for a tool call';
