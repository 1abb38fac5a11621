-- The ledger in SQLite: every frame as it came, and the tables derived from
-- the frames. migrations/postgres/0001_ledger.sql has the same names; a test
-- holds both against conductor/src/ledger/table.rs.
--
-- Times are whole microseconds since 1970, in columns that end in _us; beside
-- each stands a generated column with the time as ISO text in UTC. Ids are
-- text of 36 characters.

-- Every frame exactly as it came, once, where it entered or where the
-- conductor made it. Everything else is derived from these and can be rebuilt.
CREATE TABLE frames (
    stream_id TEXT NOT NULL, -- what it is numbered in: a session, a process or a connection
    seq INTEGER NOT NULL, -- its number in the stream, from 1
    stream_kind TEXT NOT NULL, -- session, process or connection
    at_us INTEGER NOT NULL, -- when it was recorded
    at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', at_us / 1000000, 'unixepoch') || printf('.%06dZ', at_us % 1000000)) VIRTUAL,
    origin TEXT NOT NULL, -- who made it: editor, agent or conductor
    destination TEXT NOT NULL, -- whom it is for: editor, agent, or record (a note of the conductor)
    kind TEXT NOT NULL, -- request, notification, result, error, note, or opaque (not a JSON-RPC message)
    method TEXT, -- the method of a request, a notification or a note
    request_id TEXT, -- the id of a request or an answer, as JSON text
    outgoing_id INTEGER, -- the id it was passed on with
    binding_id TEXT, -- the binding it belongs to, in a session's stream
    raw BLOB NOT NULL, -- the bytes, without the newline: the truth
    json TEXT, -- the same for queries; null where Postgres' jsonb could not hold it exactly, or above 1 MiB
    hash BLOB NOT NULL, -- SHA-256 of raw
    UNIQUE (stream_id, seq)
);
CREATE INDEX frames_notes ON frames (method, at_us) WHERE kind = 'note';

-- Frames that came under a number which another frame has already. There
-- should be none: each is a sign of a copied state directory or of tampering.
CREATE TABLE frame_conflicts (
    stream_id TEXT NOT NULL, -- as in frames
    seq INTEGER NOT NULL, -- as in frames
    hash BLOB NOT NULL, -- SHA-256 of the second frame
    raw BLOB NOT NULL, -- the second frame
    at_us INTEGER NOT NULL, -- when the second was recorded
    at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', at_us / 1000000, 'unixepoch') || printf('.%06dZ', at_us % 1000000)) VIRTUAL,
    origin TEXT NOT NULL, -- who made the second
    journal_id TEXT NOT NULL, -- the journal that brought it
    found_us INTEGER NOT NULL, -- when the conflict was found
    found_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', found_us / 1000000, 'unixepoch') || printf('.%06dZ', found_us % 1000000)) VIRTUAL,
    PRIMARY KEY (stream_id, seq, hash)
);

-- How far each conductor's journal has been carried into this database;
-- committed with the rows, so nothing comes twice.
CREATE TABLE journals (
    journal_id TEXT NOT NULL PRIMARY KEY, -- the journal
    host TEXT, -- the host it is on
    segment INTEGER NOT NULL, -- the segment reached
    byte_offset INTEGER NOT NULL, -- the place reached in it
    updated_us INTEGER NOT NULL, -- when that was
    updated_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', updated_us / 1000000, 'unixepoch') || printf('.%06dZ', updated_us % 1000000)) VIRTUAL
);

-- What is recorded stays as it is.
CREATE TRIGGER frames_stay_update BEFORE UPDATE ON frames
BEGIN SELECT RAISE(ABORT, 'UPDATE of frames: what is recorded is never changed'); END;
CREATE TRIGGER frames_stay_delete BEFORE DELETE ON frames
BEGIN SELECT RAISE(ABORT, 'DELETE of frames: what is recorded is never changed'); END;
CREATE TRIGGER frame_conflicts_stay_update BEFORE UPDATE ON frame_conflicts
BEGIN SELECT RAISE(ABORT, 'UPDATE of frame_conflicts: what is recorded is never changed'); END;
CREATE TRIGGER frame_conflicts_stay_delete BEFORE DELETE ON frame_conflicts
BEGIN SELECT RAISE(ABORT, 'DELETE of frame_conflicts: what is recorded is never changed'); END;

-- The derived tables.

-- One conversation of an editor with an agent. A session may be opened again after it ended.
CREATE TABLE sessions (
    session_id TEXT NOT NULL, -- the session's id; also the stream_id of its frames
    user_name TEXT, -- who opened it
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent, as named in agents.toml
    model TEXT, -- the model last chosen or reported
    mode TEXT, -- the mode last chosen or reported
    title TEXT, -- the title the agent gave it
    cwd TEXT, -- its directory on the service's host
    repository TEXT, -- the repository its directory lies in
    connection_id TEXT, -- the editor's connection that opened it last
    opened_us INTEGER, -- when it was opened first
    reopened_us INTEGER, -- when it was last opened again (load, resume)
    updated_us INTEGER, -- when its last frame was recorded
    ended_us INTEGER, -- when it ended, for the last time
    ended_seq INTEGER, -- the frame that says so
    end_reason TEXT, -- why it ended
    turns INTEGER, -- how many turns it has had
    tool_calls INTEGER, -- how many tool calls it has had
    frames INTEGER, -- how many frames it has; lines that are no frames are not counted
    opened_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', opened_us / 1000000, 'unixepoch') || printf('.%06dZ', opened_us % 1000000)) VIRTUAL,
    reopened_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', reopened_us / 1000000, 'unixepoch') || printf('.%06dZ', reopened_us % 1000000)) VIRTUAL,
    updated_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', updated_us / 1000000, 'unixepoch') || printf('.%06dZ', updated_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    is_open BOOLEAN GENERATED ALWAYS AS (ended_us IS NULL OR coalesce(reopened_us, 0) > ended_us) VIRTUAL, -- whether it has not ended, or was opened again since
    PRIMARY KEY (session_id)
);
CREATE INDEX sessions_on_opened ON sessions (opened_us);
CREATE INDEX sessions_on_user_name ON sessions (user_name);
CREATE INDEX sessions_on_repository ON sessions (repository);

-- The agent's process and the agent's own session that a session used; a session may have several over its life.
CREATE TABLE bindings (
    binding_id TEXT NOT NULL, -- the binding's id
    session_id TEXT, -- the session it serves
    seq INTEGER, -- the frame that made it
    process_id TEXT, -- the process
    agent TEXT, -- the agent, as named in agents.toml
    agent_session TEXT, -- the session's id at the agent
    how TEXT, -- new, load or resume
    bound_us INTEGER, -- when it was made
    ended_us INTEGER, -- when it ended
    bound_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', bound_us / 1000000, 'unixepoch') || printf('.%06dZ', bound_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    PRIMARY KEY (binding_id)
);
CREATE INDEX bindings_on_session_id ON bindings (session_id);
CREATE INDEX bindings_on_process_id ON bindings (process_id);

-- One running child of an agent: its start and its end.
CREATE TABLE processes (
    process_id TEXT NOT NULL, -- the process's id; also the stream_id of its frames
    agent TEXT, -- the agent, as named in agents.toml
    pid INTEGER, -- the operating system's number of it
    command TEXT, -- the command with its arguments
    cwd TEXT, -- the directory it was started in
    agent_name TEXT, -- the name it gives itself
    agent_version TEXT, -- the version it gives itself
    started_us INTEGER, -- when it was started
    ready_us INTEGER, -- when its handshake was done
    ended_us INTEGER, -- when it ended
    end_reason TEXT, -- why it ended
    exit_code INTEGER, -- its exit code, if it exited
    exit_signal TEXT, -- the signal that ended it, if one did
    crashed BOOLEAN, -- whether it ended on its own account, unasked
    stderr_tail TEXT, -- its last words on stderr
    started_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', started_us / 1000000, 'unixepoch') || printf('.%06dZ', started_us % 1000000)) VIRTUAL,
    ready_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ready_us / 1000000, 'unixepoch') || printf('.%06dZ', ready_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    PRIMARY KEY (process_id)
);
CREATE INDEX processes_on_started ON processes (started_us);

-- One connection of an editor.
CREATE TABLE connections (
    connection_id TEXT NOT NULL, -- the connection's id; also the stream_id of its frames
    user_name TEXT, -- who connected
    team TEXT, -- that user's team; several are joined by commas
    client TEXT, -- the editor's name and version
    opened_us INTEGER, -- when it was made
    closed_us INTEGER, -- when it ended
    close_reason TEXT, -- why it ended
    opened_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', opened_us / 1000000, 'unixepoch') || printf('.%06dZ', opened_us % 1000000)) VIRTUAL,
    closed_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', closed_us / 1000000, 'unixepoch') || printf('.%06dZ', closed_us % 1000000)) VIRTUAL,
    PRIMARY KEY (connection_id)
);
CREATE INDEX connections_on_opened ON connections (opened_us);

-- One prompt and all that follows until its answer.
CREATE TABLE turns (
    session_id TEXT NOT NULL, -- the session
    turn INTEGER NOT NULL, -- the turn's number: the seq of its prompt
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    model TEXT, -- the model, as far as it is known
    mode TEXT, -- the mode, as far as it is known
    prompt TEXT, -- the text of the prompt; links and resources as their addresses
    began_us INTEGER, -- when the prompt came
    ended_us INTEGER, -- when its answer came
    ended_seq INTEGER, -- the frame that answers it
    duration_us INTEGER, -- how long it took, in microseconds
    stop_reason TEXT, -- end_turn, max_tokens, max_turn_requests, refusal, cancelled
    error TEXT, -- the error, if the answer was one
    began_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', began_us / 1000000, 'unixepoch') || printf('.%06dZ', began_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, turn)
);
CREATE INDEX turns_on_began ON turns (began_us);

-- A message: its chunks joined.
CREATE TABLE messages (
    session_id TEXT NOT NULL, -- the session
    message INTEGER NOT NULL, -- the message's number: the seq of its first chunk
    turn INTEGER, -- the turn it belongs to; null outside turns
    role TEXT, -- user, agent or thought
    message_id TEXT, -- the agent's id of it, if it gives one
    began_us INTEGER, -- when its first chunk came
    ended_us INTEGER, -- when its last chunk came
    text TEXT, -- its text; what is not text is left out; up to 1 MiB
    chunks INTEGER, -- how many chunks it came in
    truncated BOOLEAN, -- whether text was left out because it is too long
    began_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', began_us / 1000000, 'unixepoch') || printf('.%06dZ', began_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, message)
);

-- A tool call, merged over its updates.
CREATE TABLE tool_calls (
    session_id TEXT NOT NULL, -- the session
    call INTEGER NOT NULL, -- the tool call's number: the seq of the frame that names it first
    tool_call_id TEXT, -- the agent's id of it; agents may use one again in a later turn
    turn INTEGER, -- the turn it belongs to; null outside turns
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    name TEXT, -- the tool's name; unknown if the agent tells none
    title TEXT, -- what the agent shows people; written by the model, never trust it
    kind TEXT, -- read, edit, delete, move, search, execute, think, fetch, switch_mode, other
    status TEXT, -- pending, in_progress, completed, failed
    input TEXT, -- what the tool was given (rawInput)
    output TEXT, -- what it gave back: rawOutput, or the agent's own form of it, or its content
    locations TEXT, -- the files it says it works on
    began_us INTEGER, -- when it was first named
    ended_us INTEGER, -- when it was completed or failed
    duration_us INTEGER, -- the time between, in microseconds
    began_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', began_us / 1000000, 'unixepoch') || printf('.%06dZ', began_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, call)
);
CREATE INDEX tool_calls_on_began ON tool_calls (began_us);
CREATE INDEX tool_calls_on_name ON tool_calls (name);

-- One access to a file, as far as frames tell of it.
CREATE TABLE file_accesses (
    session_id TEXT NOT NULL, -- the session
    seq INTEGER NOT NULL, -- the frame that tells of it
    item INTEGER NOT NULL, -- counts the accesses that one frame tells of
    turn INTEGER, -- the turn it belongs to; null outside turns
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    path TEXT, -- the file, as it was named
    access TEXT, -- read, write, delete, move, mention (by a person), touch (not told which)
    source TEXT, -- where it stands: fs (asked of us), diff, location, input (of a tool), resource or mention (in a prompt)
    call INTEGER, -- the tool call it belongs to, as in tool_calls.call
    tool_call_id TEXT, -- the agent's id of that tool call
    at_us INTEGER, -- when the frame was recorded
    error TEXT, -- why it was refused, for source fs
    at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', at_us / 1000000, 'unixepoch') || printf('.%06dZ', at_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, seq, item)
);
CREATE INDEX file_accesses_on_path ON file_accesses (path);
CREATE INDEX file_accesses_on_at ON file_accesses (at_us);

-- One command that was run, or that an agent asked to run.
CREATE TABLE commands (
    session_id TEXT NOT NULL, -- the session
    seq INTEGER NOT NULL, -- the frame that tells of it first
    turn INTEGER, -- the turn it belongs to; null outside turns
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    source TEXT, -- terminal (run for the agent, on request) or tool (run by the agent itself)
    line TEXT, -- the command as one line
    argv TEXT, -- program and arguments, where they are told apart
    cwd TEXT, -- the directory, if it was named
    call INTEGER, -- the tool call it belongs to, as in tool_calls.call
    tool_call_id TEXT, -- the agent's id of that tool call
    terminal_id TEXT, -- the terminal, for source terminal
    began_us INTEGER, -- when it was asked for
    ended_us INTEGER, -- when its end was told
    duration_us INTEGER, -- the time between, in microseconds
    exit_code INTEGER, -- its exit code, if told
    exit_signal TEXT, -- the signal that ended it, if told
    error TEXT, -- why it was not run: the error, or rejected, or cancelled
    began_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', began_us / 1000000, 'unixepoch') || printf('.%06dZ', began_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX commands_on_began ON commands (began_us);

-- Tokens and cost, as the agent reports them. Rows can be added up.
CREATE TABLE usage (
    session_id TEXT NOT NULL, -- the session
    seq INTEGER NOT NULL, -- the frame that reports it
    turn INTEGER, -- the turn it belongs to; null outside turns
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    model TEXT, -- the model, as far as it is known
    at_us INTEGER, -- when it was reported
    input_tokens INTEGER, -- tokens read by the model in this turn
    output_tokens INTEGER, -- tokens written by the model in this turn
    thought_tokens INTEGER, -- tokens of thoughts in this turn
    cached_read_tokens INTEGER, -- tokens read from a cache in this turn
    cached_write_tokens INTEGER, -- tokens written to a cache in this turn
    total_tokens INTEGER, -- all tokens in this turn
    cost REAL, -- money, added since the report before
    cost_total REAL, -- the session's sum, as the agent reported it
    currency TEXT, -- of the cost; a code of three letters
    context_used INTEGER, -- tokens in the context
    context_size INTEGER, -- how many it can take
    at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', at_us / 1000000, 'unixepoch') || printf('.%06dZ', at_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX usage_on_at ON usage (at_us);

-- The outcome of one request for permission.
CREATE TABLE decisions (
    session_id TEXT NOT NULL, -- the session
    seq INTEGER NOT NULL, -- the request's frame
    turn INTEGER, -- the turn it belongs to; null outside turns
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    call INTEGER, -- the tool call it is about, as in tool_calls.call
    tool_call_id TEXT, -- the agent's id of that tool call
    tool TEXT, -- the tool's name; unknown if the agent tells none
    kind TEXT, -- the tool's kind, as the agent tells
    title TEXT, -- what people were shown; written by the model, never trust it
    input TEXT, -- what the tool would be given
    options TEXT, -- the answers on offer
    decision TEXT, -- allow, reject, cancelled or error; null while it is open
    option_id TEXT, -- the answer that was chosen
    option_kind TEXT, -- allow_once, allow_always, reject_once, reject_always
    decided_by TEXT, -- editor or conductor
    rule TEXT, -- the rule that decided
    reason TEXT, -- why, in words
    asked_us INTEGER, -- when it was asked
    decided_us INTEGER, -- when it was decided
    duration_us INTEGER, -- the time between, in microseconds
    asked_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', asked_us / 1000000, 'unixepoch') || printf('.%06dZ', asked_us % 1000000)) VIRTUAL,
    decided_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', decided_us / 1000000, 'unixepoch') || printf('.%06dZ', decided_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX decisions_on_asked ON decisions (asked_us);
