-- The ledger in Postgres: every frame as it came, and the tables derived from
-- the frames. migrations/sqlite/0001_ledger.sql has the same names; a test
-- holds both against conductor/src/ledger/table.rs.
--
-- Times are whole microseconds since 1970, in columns that end in _us, so that
-- both databases hold the same; beside each stands a generated timestamptz.

-- A stream's id is a UUIDv7 and begins with the time it was made, so a month
-- of streams is a range of ids and can be a partition of its own.
CREATE TABLE frames (
    stream_id uuid NOT NULL,
    seq bigint NOT NULL,
    stream_kind text NOT NULL,
    at_us bigint NOT NULL,
    at timestamptz GENERATED ALWAYS AS (to_timestamp(at_us / 1e6::float8)) STORED,
    origin text NOT NULL,
    destination text NOT NULL,
    kind text NOT NULL,
    method text,
    request_id text,
    outgoing_id bigint,
    binding_id uuid,
    raw bytea NOT NULL,
    json jsonb,
    hash bytea NOT NULL,
    PRIMARY KEY (stream_id, seq)
) PARTITION BY RANGE (stream_id);
-- What no month's partition takes: before any was made, and after the last.
CREATE TABLE frames_default PARTITION OF frames DEFAULT;
-- Frames arrive almost in the order of time, so this index is tiny.
CREATE INDEX frames_on_time ON frames USING brin (at_us);
CREATE INDEX frames_notes ON frames (method, at_us) WHERE kind = 'note';
COMMENT ON TABLE frames IS 'Every frame exactly as it came, once, where it entered or where the conductor made it. Everything else is derived from these and can be rebuilt. Rows are never changed.';
COMMENT ON COLUMN frames.stream_id IS 'what it is numbered in: a session, a process or a connection';
COMMENT ON COLUMN frames.seq IS 'its number in the stream, from 1';
COMMENT ON COLUMN frames.stream_kind IS 'session, process or connection';
COMMENT ON COLUMN frames.at_us IS 'when it was recorded (microseconds since 1970)';
COMMENT ON COLUMN frames.at IS 'when it was recorded';
COMMENT ON COLUMN frames.origin IS 'who made it: editor, agent or conductor';
COMMENT ON COLUMN frames.destination IS 'whom it is for: editor, agent, or record (a note of the conductor)';
COMMENT ON COLUMN frames.kind IS 'request, notification, result, error, note, or opaque (not a JSON-RPC message)';
COMMENT ON COLUMN frames.method IS 'the method of a request, a notification or a note';
COMMENT ON COLUMN frames.request_id IS 'the id of a request or an answer, as JSON text';
COMMENT ON COLUMN frames.outgoing_id IS 'the id it was passed on with';
COMMENT ON COLUMN frames.binding_id IS 'the binding it belongs to, in a session''s stream';
COMMENT ON COLUMN frames.raw IS 'the bytes, without the newline: the truth';
COMMENT ON COLUMN frames.json IS 'the same for queries; null where jsonb cannot hold it exactly, or above 1 MiB';
COMMENT ON COLUMN frames.hash IS 'SHA-256 of raw';

CREATE TABLE frame_conflicts (
    stream_id uuid NOT NULL,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    raw bytea NOT NULL,
    at_us bigint NOT NULL,
    at timestamptz GENERATED ALWAYS AS (to_timestamp(at_us / 1e6::float8)) STORED,
    origin text NOT NULL,
    journal_id uuid NOT NULL,
    found_us bigint NOT NULL,
    found_at timestamptz GENERATED ALWAYS AS (to_timestamp(found_us / 1e6::float8)) STORED,
    PRIMARY KEY (stream_id, seq, hash)
);
COMMENT ON TABLE frame_conflicts IS 'Frames that came under a number which another frame has already. There should be none: each is a sign of a copied state directory or of tampering.';
COMMENT ON COLUMN frame_conflicts.stream_id IS 'as in frames';
COMMENT ON COLUMN frame_conflicts.seq IS 'as in frames';
COMMENT ON COLUMN frame_conflicts.hash IS 'SHA-256 of the second frame';
COMMENT ON COLUMN frame_conflicts.raw IS 'the second frame';
COMMENT ON COLUMN frame_conflicts.at_us IS 'when the second was recorded (microseconds since 1970)';
COMMENT ON COLUMN frame_conflicts.at IS 'when the second was recorded';
COMMENT ON COLUMN frame_conflicts.origin IS 'who made the second';
COMMENT ON COLUMN frame_conflicts.journal_id IS 'the journal that brought it';
COMMENT ON COLUMN frame_conflicts.found_us IS 'when the conflict was found (microseconds since 1970)';
COMMENT ON COLUMN frame_conflicts.found_at IS 'when the conflict was found';

CREATE TABLE journals (
    journal_id uuid NOT NULL PRIMARY KEY,
    host text,
    segment bigint NOT NULL,
    byte_offset bigint NOT NULL,
    updated_us bigint NOT NULL,
    updated_at timestamptz GENERATED ALWAYS AS (to_timestamp(updated_us / 1e6::float8)) STORED
);
COMMENT ON TABLE journals IS 'How far each conductor''s journal has been carried into this database; committed with the rows, so nothing comes twice.';
COMMENT ON COLUMN journals.journal_id IS 'the journal';
COMMENT ON COLUMN journals.host IS 'the host it is on';
COMMENT ON COLUMN journals.segment IS 'the segment reached';
COMMENT ON COLUMN journals.byte_offset IS 'the place reached in it';
COMMENT ON COLUMN journals.updated_us IS 'when that was (microseconds since 1970)';
COMMENT ON COLUMN journals.updated_at IS 'when that was';

-- What is recorded stays as it is. Whoever owns the tables can still lift
-- this, on purpose; nobody does by mistake.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of %: what is recorded is never changed', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'derived tables can be rebuilt with conductor ledger rebuild; frames cannot';
END $$;
COMMENT ON FUNCTION refuse_change() IS 'the trigger that keeps frames as they are';
CREATE TRIGGER frames_stay BEFORE UPDATE OR DELETE ON frames
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER frames_stay_all BEFORE TRUNCATE ON frames
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER frames_stay_all BEFORE TRUNCATE ON frames_default
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER frame_conflicts_stay BEFORE UPDATE OR DELETE ON frame_conflicts
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER frame_conflicts_stay_all BEFORE TRUNCATE ON frame_conflicts
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Makes the partitions of this month and the next ones. It runs with the
-- rights of the owner, because the role that writes frames may not make
-- tables; all it can be made to do is to make partitions that come in time
-- anyway. A month that has rows in the default partition already stays there.
CREATE FUNCTION ensure_frame_partitions(months int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    first timestamptz;
    low uuid;
    high uuid;
    part text;
    taken boolean;
    made int := 0;
BEGIN
    -- Two conductors may start at once.
    PERFORM pg_advisory_xact_lock(7420, 1);
    FOR ahead IN 0 .. least(greatest(months, 0), 24) LOOP
        first := (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => ahead)) AT TIME ZONE 'UTC';
        part := 'frames_' || to_char(first AT TIME ZONE 'UTC', 'YYYY_MM');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        low := (lpad(to_hex((extract(epoch FROM first) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
        high := (lpad(to_hex((extract(epoch FROM (first AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
        SELECT EXISTS (SELECT FROM frames_default WHERE stream_id >= low AND stream_id < high) INTO taken;
        CONTINUE WHEN taken;
        BEGIN
            -- Made apart and then attached: that does not lock out those who
            -- write to the other partitions.
            EXECUTE format('CREATE TABLE %I (LIKE frames INCLUDING ALL)', part);
            EXECUTE format('CREATE TRIGGER frames_stay_all BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', part);
            EXECUTE format('ALTER TABLE frames ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, low, high);
            made := made + 1;
        EXCEPTION WHEN check_violation THEN
            -- A row of that month came in between.
            NULL;
        END;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION ensure_frame_partitions(int) IS 'makes the partitions of frames for this month and so many more; returns how many it made';
-- Names are looked up where this migration put them, whoever calls.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION ensure_frame_partitions(int) SET search_path = %I, pg_catalog, pg_temp', current_schema());
END $$;

-- The derived tables.

CREATE TABLE sessions (
    session_id uuid NOT NULL,
    user_name text,
    team text,
    agent text,
    model text,
    mode text,
    title text,
    cwd text,
    repository text,
    connection_id uuid,
    opened_us bigint,
    reopened_us bigint,
    updated_us bigint,
    ended_us bigint,
    ended_seq bigint,
    end_reason text,
    turns bigint,
    tool_calls bigint,
    frames bigint,
    opened_at timestamptz GENERATED ALWAYS AS (to_timestamp(opened_us / 1e6::float8)) STORED,
    reopened_at timestamptz GENERATED ALWAYS AS (to_timestamp(reopened_us / 1e6::float8)) STORED,
    updated_at timestamptz GENERATED ALWAYS AS (to_timestamp(updated_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    is_open boolean GENERATED ALWAYS AS (ended_us IS NULL OR coalesce(reopened_us, 0) > ended_us) STORED,
    PRIMARY KEY (session_id)
);
CREATE INDEX sessions_on_opened ON sessions (opened_us);
CREATE INDEX sessions_on_user_name ON sessions (user_name);
CREATE INDEX sessions_on_repository ON sessions (repository);
COMMENT ON TABLE sessions IS 'One conversation of an editor with an agent. A session may be opened again after it ended.';
COMMENT ON COLUMN sessions.session_id IS 'the session''s id; also the stream_id of its frames';
COMMENT ON COLUMN sessions.user_name IS 'who opened it';
COMMENT ON COLUMN sessions.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN sessions.agent IS 'the agent, as named in agents.toml';
COMMENT ON COLUMN sessions.model IS 'the model last chosen or reported';
COMMENT ON COLUMN sessions.mode IS 'the mode last chosen or reported';
COMMENT ON COLUMN sessions.title IS 'the title the agent gave it';
COMMENT ON COLUMN sessions.cwd IS 'its directory on the service''s host';
COMMENT ON COLUMN sessions.repository IS 'the repository its directory lies in';
COMMENT ON COLUMN sessions.connection_id IS 'the editor''s connection that opened it last';
COMMENT ON COLUMN sessions.opened_us IS 'when it was opened first (microseconds since 1970)';
COMMENT ON COLUMN sessions.reopened_us IS 'when it was last opened again (load, resume) (microseconds since 1970)';
COMMENT ON COLUMN sessions.updated_us IS 'when its last frame was recorded (microseconds since 1970)';
COMMENT ON COLUMN sessions.ended_us IS 'when it ended, for the last time (microseconds since 1970)';
COMMENT ON COLUMN sessions.ended_seq IS 'the frame that says so';
COMMENT ON COLUMN sessions.end_reason IS 'why it ended';
COMMENT ON COLUMN sessions.turns IS 'how many turns it has had';
COMMENT ON COLUMN sessions.tool_calls IS 'how many tool calls it has had';
COMMENT ON COLUMN sessions.frames IS 'how many frames it has; lines that are no frames are not counted';
COMMENT ON COLUMN sessions.opened_at IS 'when it was opened first';
COMMENT ON COLUMN sessions.reopened_at IS 'when it was last opened again (load, resume)';
COMMENT ON COLUMN sessions.updated_at IS 'when its last frame was recorded';
COMMENT ON COLUMN sessions.ended_at IS 'when it ended, for the last time';
COMMENT ON COLUMN sessions.is_open IS 'whether it has not ended, or was opened again since';

CREATE TABLE bindings (
    binding_id uuid NOT NULL,
    session_id uuid,
    seq bigint,
    process_id uuid,
    agent text,
    agent_session text,
    how text,
    bound_us bigint,
    ended_us bigint,
    bound_at timestamptz GENERATED ALWAYS AS (to_timestamp(bound_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    PRIMARY KEY (binding_id)
);
CREATE INDEX bindings_on_session_id ON bindings (session_id);
CREATE INDEX bindings_on_process_id ON bindings (process_id);
COMMENT ON TABLE bindings IS 'The agent''s process and the agent''s own session that a session used; a session may have several over its life.';
COMMENT ON COLUMN bindings.binding_id IS 'the binding''s id';
COMMENT ON COLUMN bindings.session_id IS 'the session it serves';
COMMENT ON COLUMN bindings.seq IS 'the frame that made it';
COMMENT ON COLUMN bindings.process_id IS 'the process';
COMMENT ON COLUMN bindings.agent IS 'the agent, as named in agents.toml';
COMMENT ON COLUMN bindings.agent_session IS 'the session''s id at the agent';
COMMENT ON COLUMN bindings.how IS 'new, load or resume';
COMMENT ON COLUMN bindings.bound_us IS 'when it was made (microseconds since 1970)';
COMMENT ON COLUMN bindings.ended_us IS 'when it ended (microseconds since 1970)';
COMMENT ON COLUMN bindings.bound_at IS 'when it was made';
COMMENT ON COLUMN bindings.ended_at IS 'when it ended';

CREATE TABLE processes (
    process_id uuid NOT NULL,
    agent text,
    pid bigint,
    command text,
    cwd text,
    agent_name text,
    agent_version text,
    started_us bigint,
    ready_us bigint,
    ended_us bigint,
    end_reason text,
    exit_code bigint,
    exit_signal text,
    crashed boolean,
    stderr_tail text,
    started_at timestamptz GENERATED ALWAYS AS (to_timestamp(started_us / 1e6::float8)) STORED,
    ready_at timestamptz GENERATED ALWAYS AS (to_timestamp(ready_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    PRIMARY KEY (process_id)
);
CREATE INDEX processes_on_started ON processes (started_us);
COMMENT ON TABLE processes IS 'One running child of an agent: its start and its end.';
COMMENT ON COLUMN processes.process_id IS 'the process''s id; also the stream_id of its frames';
COMMENT ON COLUMN processes.agent IS 'the agent, as named in agents.toml';
COMMENT ON COLUMN processes.pid IS 'the operating system''s number of it';
COMMENT ON COLUMN processes.command IS 'the command with its arguments';
COMMENT ON COLUMN processes.cwd IS 'the directory it was started in';
COMMENT ON COLUMN processes.agent_name IS 'the name it gives itself';
COMMENT ON COLUMN processes.agent_version IS 'the version it gives itself';
COMMENT ON COLUMN processes.started_us IS 'when it was started (microseconds since 1970)';
COMMENT ON COLUMN processes.ready_us IS 'when its handshake was done (microseconds since 1970)';
COMMENT ON COLUMN processes.ended_us IS 'when it ended (microseconds since 1970)';
COMMENT ON COLUMN processes.end_reason IS 'why it ended';
COMMENT ON COLUMN processes.exit_code IS 'its exit code, if it exited';
COMMENT ON COLUMN processes.exit_signal IS 'the signal that ended it, if one did';
COMMENT ON COLUMN processes.crashed IS 'whether it ended on its own account, unasked';
COMMENT ON COLUMN processes.stderr_tail IS 'its last words on stderr';
COMMENT ON COLUMN processes.started_at IS 'when it was started';
COMMENT ON COLUMN processes.ready_at IS 'when its handshake was done';
COMMENT ON COLUMN processes.ended_at IS 'when it ended';

CREATE TABLE connections (
    connection_id uuid NOT NULL,
    user_name text,
    team text,
    client text,
    opened_us bigint,
    closed_us bigint,
    close_reason text,
    opened_at timestamptz GENERATED ALWAYS AS (to_timestamp(opened_us / 1e6::float8)) STORED,
    closed_at timestamptz GENERATED ALWAYS AS (to_timestamp(closed_us / 1e6::float8)) STORED,
    PRIMARY KEY (connection_id)
);
CREATE INDEX connections_on_opened ON connections (opened_us);
COMMENT ON TABLE connections IS 'One connection of an editor.';
COMMENT ON COLUMN connections.connection_id IS 'the connection''s id; also the stream_id of its frames';
COMMENT ON COLUMN connections.user_name IS 'who connected';
COMMENT ON COLUMN connections.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN connections.client IS 'the editor''s name and version';
COMMENT ON COLUMN connections.opened_us IS 'when it was made (microseconds since 1970)';
COMMENT ON COLUMN connections.closed_us IS 'when it ended (microseconds since 1970)';
COMMENT ON COLUMN connections.close_reason IS 'why it ended';
COMMENT ON COLUMN connections.opened_at IS 'when it was made';
COMMENT ON COLUMN connections.closed_at IS 'when it ended';

CREATE TABLE turns (
    session_id uuid NOT NULL,
    turn bigint NOT NULL,
    user_name text,
    team text,
    agent text,
    model text,
    mode text,
    prompt text,
    began_us bigint,
    ended_us bigint,
    ended_seq bigint,
    duration_us bigint,
    stop_reason text,
    error text,
    began_at timestamptz GENERATED ALWAYS AS (to_timestamp(began_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, turn)
);
CREATE INDEX turns_on_began ON turns (began_us);
COMMENT ON TABLE turns IS 'One prompt and all that follows until its answer.';
COMMENT ON COLUMN turns.session_id IS 'the session';
COMMENT ON COLUMN turns.turn IS 'the turn''s number: the seq of its prompt';
COMMENT ON COLUMN turns.user_name IS 'whose session it is';
COMMENT ON COLUMN turns.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN turns.agent IS 'the agent at work';
COMMENT ON COLUMN turns.model IS 'the model, as far as it is known';
COMMENT ON COLUMN turns.mode IS 'the mode, as far as it is known';
COMMENT ON COLUMN turns.prompt IS 'the text of the prompt; links and resources as their addresses';
COMMENT ON COLUMN turns.began_us IS 'when the prompt came (microseconds since 1970)';
COMMENT ON COLUMN turns.ended_us IS 'when its answer came (microseconds since 1970)';
COMMENT ON COLUMN turns.ended_seq IS 'the frame that answers it';
COMMENT ON COLUMN turns.duration_us IS 'how long it took, in microseconds';
COMMENT ON COLUMN turns.stop_reason IS 'end_turn, max_tokens, max_turn_requests, refusal, cancelled';
COMMENT ON COLUMN turns.error IS 'the error, if the answer was one';
COMMENT ON COLUMN turns.began_at IS 'when the prompt came';
COMMENT ON COLUMN turns.ended_at IS 'when its answer came';

CREATE TABLE messages (
    session_id uuid NOT NULL,
    message bigint NOT NULL,
    turn bigint,
    role text,
    message_id text,
    began_us bigint,
    ended_us bigint,
    text text,
    chunks bigint,
    truncated boolean,
    began_at timestamptz GENERATED ALWAYS AS (to_timestamp(began_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, message)
);
COMMENT ON TABLE messages IS 'A message: its chunks joined.';
COMMENT ON COLUMN messages.session_id IS 'the session';
COMMENT ON COLUMN messages.message IS 'the message''s number: the seq of its first chunk';
COMMENT ON COLUMN messages.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN messages.role IS 'user, agent or thought';
COMMENT ON COLUMN messages.message_id IS 'the agent''s id of it, if it gives one';
COMMENT ON COLUMN messages.began_us IS 'when its first chunk came (microseconds since 1970)';
COMMENT ON COLUMN messages.ended_us IS 'when its last chunk came (microseconds since 1970)';
COMMENT ON COLUMN messages.text IS 'its text; what is not text is left out; up to 1 MiB';
COMMENT ON COLUMN messages.chunks IS 'how many chunks it came in';
COMMENT ON COLUMN messages.truncated IS 'whether text was left out because it is too long';
COMMENT ON COLUMN messages.began_at IS 'when its first chunk came';
COMMENT ON COLUMN messages.ended_at IS 'when its last chunk came';

CREATE TABLE tool_calls (
    session_id uuid NOT NULL,
    call bigint NOT NULL,
    tool_call_id text,
    turn bigint,
    user_name text,
    team text,
    agent text,
    name text,
    title text,
    kind text,
    status text,
    input jsonb,
    output jsonb,
    locations jsonb,
    began_us bigint,
    ended_us bigint,
    duration_us bigint,
    began_at timestamptz GENERATED ALWAYS AS (to_timestamp(began_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, call)
);
CREATE INDEX tool_calls_on_began ON tool_calls (began_us);
CREATE INDEX tool_calls_on_name ON tool_calls (name);
COMMENT ON TABLE tool_calls IS 'A tool call, merged over its updates.';
COMMENT ON COLUMN tool_calls.session_id IS 'the session';
COMMENT ON COLUMN tool_calls.call IS 'the tool call''s number: the seq of the frame that names it first';
COMMENT ON COLUMN tool_calls.tool_call_id IS 'the agent''s id of it; agents may use one again in a later turn';
COMMENT ON COLUMN tool_calls.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN tool_calls.user_name IS 'whose session it is';
COMMENT ON COLUMN tool_calls.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN tool_calls.agent IS 'the agent at work';
COMMENT ON COLUMN tool_calls.name IS 'the tool''s name; unknown if the agent tells none';
COMMENT ON COLUMN tool_calls.title IS 'what the agent shows people; written by the model, never trust it';
COMMENT ON COLUMN tool_calls.kind IS 'read, edit, delete, move, search, execute, think, fetch, switch_mode, other';
COMMENT ON COLUMN tool_calls.status IS 'pending, in_progress, completed, failed';
COMMENT ON COLUMN tool_calls.input IS 'what the tool was given (rawInput)';
COMMENT ON COLUMN tool_calls.output IS 'what it gave back: rawOutput, or the agent''s own form of it, or its content';
COMMENT ON COLUMN tool_calls.locations IS 'the files it says it works on';
COMMENT ON COLUMN tool_calls.began_us IS 'when it was first named (microseconds since 1970)';
COMMENT ON COLUMN tool_calls.ended_us IS 'when it was completed or failed (microseconds since 1970)';
COMMENT ON COLUMN tool_calls.duration_us IS 'the time between, in microseconds';
COMMENT ON COLUMN tool_calls.began_at IS 'when it was first named';
COMMENT ON COLUMN tool_calls.ended_at IS 'when it was completed or failed';

CREATE TABLE file_accesses (
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    item bigint NOT NULL,
    turn bigint,
    user_name text,
    team text,
    agent text,
    path text,
    access text,
    source text,
    call bigint,
    tool_call_id text,
    at_us bigint,
    error text,
    at timestamptz GENERATED ALWAYS AS (to_timestamp(at_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, seq, item)
);
CREATE INDEX file_accesses_on_path ON file_accesses (path);
CREATE INDEX file_accesses_on_at ON file_accesses (at_us);
COMMENT ON TABLE file_accesses IS 'One access to a file, as far as frames tell of it.';
COMMENT ON COLUMN file_accesses.session_id IS 'the session';
COMMENT ON COLUMN file_accesses.seq IS 'the frame that tells of it';
COMMENT ON COLUMN file_accesses.item IS 'counts the accesses that one frame tells of';
COMMENT ON COLUMN file_accesses.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN file_accesses.user_name IS 'whose session it is';
COMMENT ON COLUMN file_accesses.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN file_accesses.agent IS 'the agent at work';
COMMENT ON COLUMN file_accesses.path IS 'the file, as it was named';
COMMENT ON COLUMN file_accesses.access IS 'read, write, delete, move, mention (by a person), touch (not told which)';
COMMENT ON COLUMN file_accesses.source IS 'where it stands: fs (asked of us), diff, location, input (of a tool), resource or mention (in a prompt)';
COMMENT ON COLUMN file_accesses.call IS 'the tool call it belongs to, as in tool_calls.call';
COMMENT ON COLUMN file_accesses.tool_call_id IS 'the agent''s id of that tool call';
COMMENT ON COLUMN file_accesses.at_us IS 'when the frame was recorded (microseconds since 1970)';
COMMENT ON COLUMN file_accesses.error IS 'why it was refused, for source fs';
COMMENT ON COLUMN file_accesses.at IS 'when the frame was recorded';

CREATE TABLE commands (
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    turn bigint,
    user_name text,
    team text,
    agent text,
    source text,
    line text,
    argv jsonb,
    cwd text,
    call bigint,
    tool_call_id text,
    terminal_id text,
    began_us bigint,
    ended_us bigint,
    duration_us bigint,
    exit_code bigint,
    exit_signal text,
    error text,
    began_at timestamptz GENERATED ALWAYS AS (to_timestamp(began_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX commands_on_began ON commands (began_us);
COMMENT ON TABLE commands IS 'One command that was run, or that an agent asked to run.';
COMMENT ON COLUMN commands.session_id IS 'the session';
COMMENT ON COLUMN commands.seq IS 'the frame that tells of it first';
COMMENT ON COLUMN commands.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN commands.user_name IS 'whose session it is';
COMMENT ON COLUMN commands.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN commands.agent IS 'the agent at work';
COMMENT ON COLUMN commands.source IS 'terminal (run for the agent, on request) or tool (run by the agent itself)';
COMMENT ON COLUMN commands.line IS 'the command as one line';
COMMENT ON COLUMN commands.argv IS 'program and arguments, where they are told apart';
COMMENT ON COLUMN commands.cwd IS 'the directory, if it was named';
COMMENT ON COLUMN commands.call IS 'the tool call it belongs to, as in tool_calls.call';
COMMENT ON COLUMN commands.tool_call_id IS 'the agent''s id of that tool call';
COMMENT ON COLUMN commands.terminal_id IS 'the terminal, for source terminal';
COMMENT ON COLUMN commands.began_us IS 'when it was asked for (microseconds since 1970)';
COMMENT ON COLUMN commands.ended_us IS 'when its end was told (microseconds since 1970)';
COMMENT ON COLUMN commands.duration_us IS 'the time between, in microseconds';
COMMENT ON COLUMN commands.exit_code IS 'its exit code, if told';
COMMENT ON COLUMN commands.exit_signal IS 'the signal that ended it, if told';
COMMENT ON COLUMN commands.error IS 'why it was not run: the error, or rejected, or cancelled';
COMMENT ON COLUMN commands.began_at IS 'when it was asked for';
COMMENT ON COLUMN commands.ended_at IS 'when its end was told';

CREATE TABLE usage (
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    turn bigint,
    user_name text,
    team text,
    agent text,
    model text,
    at_us bigint,
    input_tokens bigint,
    output_tokens bigint,
    thought_tokens bigint,
    cached_read_tokens bigint,
    cached_write_tokens bigint,
    total_tokens bigint,
    cost double precision,
    cost_total double precision,
    currency text,
    context_used bigint,
    context_size bigint,
    at timestamptz GENERATED ALWAYS AS (to_timestamp(at_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX usage_on_at ON usage (at_us);
COMMENT ON TABLE usage IS 'Tokens and cost, as the agent reports them. Rows can be added up.';
COMMENT ON COLUMN usage.session_id IS 'the session';
COMMENT ON COLUMN usage.seq IS 'the frame that reports it';
COMMENT ON COLUMN usage.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN usage.user_name IS 'whose session it is';
COMMENT ON COLUMN usage.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN usage.agent IS 'the agent at work';
COMMENT ON COLUMN usage.model IS 'the model, as far as it is known';
COMMENT ON COLUMN usage.at_us IS 'when it was reported (microseconds since 1970)';
COMMENT ON COLUMN usage.input_tokens IS 'tokens read by the model in this turn';
COMMENT ON COLUMN usage.output_tokens IS 'tokens written by the model in this turn';
COMMENT ON COLUMN usage.thought_tokens IS 'tokens of thoughts in this turn';
COMMENT ON COLUMN usage.cached_read_tokens IS 'tokens read from a cache in this turn';
COMMENT ON COLUMN usage.cached_write_tokens IS 'tokens written to a cache in this turn';
COMMENT ON COLUMN usage.total_tokens IS 'all tokens in this turn';
COMMENT ON COLUMN usage.cost IS 'money, added since the report before';
COMMENT ON COLUMN usage.cost_total IS 'the session''s sum, as the agent reported it';
COMMENT ON COLUMN usage.currency IS 'of the cost; a code of three letters';
COMMENT ON COLUMN usage.context_used IS 'tokens in the context';
COMMENT ON COLUMN usage.context_size IS 'how many it can take';
COMMENT ON COLUMN usage.at IS 'when it was reported';

CREATE TABLE decisions (
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    turn bigint,
    user_name text,
    team text,
    agent text,
    call bigint,
    tool_call_id text,
    tool text,
    kind text,
    title text,
    input jsonb,
    options jsonb,
    decision text,
    option_id text,
    option_kind text,
    decided_by text,
    rule text,
    reason text,
    asked_us bigint,
    decided_us bigint,
    duration_us bigint,
    asked_at timestamptz GENERATED ALWAYS AS (to_timestamp(asked_us / 1e6::float8)) STORED,
    decided_at timestamptz GENERATED ALWAYS AS (to_timestamp(decided_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX decisions_on_asked ON decisions (asked_us);
COMMENT ON TABLE decisions IS 'The outcome of one request for permission.';
COMMENT ON COLUMN decisions.session_id IS 'the session';
COMMENT ON COLUMN decisions.seq IS 'the request''s frame';
COMMENT ON COLUMN decisions.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN decisions.user_name IS 'whose session it is';
COMMENT ON COLUMN decisions.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN decisions.agent IS 'the agent at work';
COMMENT ON COLUMN decisions.call IS 'the tool call it is about, as in tool_calls.call';
COMMENT ON COLUMN decisions.tool_call_id IS 'the agent''s id of that tool call';
COMMENT ON COLUMN decisions.tool IS 'the tool''s name; unknown if the agent tells none';
COMMENT ON COLUMN decisions.kind IS 'the tool''s kind, as the agent tells';
COMMENT ON COLUMN decisions.title IS 'what people were shown; written by the model, never trust it';
COMMENT ON COLUMN decisions.input IS 'what the tool would be given';
COMMENT ON COLUMN decisions.options IS 'the answers on offer';
COMMENT ON COLUMN decisions.decision IS 'allow, reject, cancelled or error; null while it is open';
COMMENT ON COLUMN decisions.option_id IS 'the answer that was chosen';
COMMENT ON COLUMN decisions.option_kind IS 'allow_once, allow_always, reject_once, reject_always';
COMMENT ON COLUMN decisions.decided_by IS 'editor or conductor';
COMMENT ON COLUMN decisions.rule IS 'the rule that decided';
COMMENT ON COLUMN decisions.reason IS 'why, in words';
COMMENT ON COLUMN decisions.asked_us IS 'when it was asked (microseconds since 1970)';
COMMENT ON COLUMN decisions.decided_us IS 'when it was decided (microseconds since 1970)';
COMMENT ON COLUMN decisions.duration_us IS 'the time between, in microseconds';
COMMENT ON COLUMN decisions.asked_at IS 'when it was asked';
COMMENT ON COLUMN decisions.decided_at IS 'when it was decided';

SELECT ensure_frame_partitions(3);
