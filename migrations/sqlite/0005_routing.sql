-- What agents offer, and where prompts went. The same names and columns as in
-- migrations/postgres/0005_routing.sql.

-- What an agent was found to offer: one of its models or modes.
CREATE TABLE models (
    agent TEXT NOT NULL, -- the agent, as named in agents.toml
    kind TEXT NOT NULL, -- model or mode
    value TEXT NOT NULL, -- the agent's own name of it
    name TEXT, -- its name for people
    agent_version TEXT, -- the version that told of it last
    first_us INTEGER, -- when the agent first told of it
    last_us INTEGER, -- when the agent last told of it
    process_id TEXT, -- the process that told of it last
    first_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', first_us / 1000000, 'unixepoch') || printf('.%06dZ', first_us % 1000000)) VIRTUAL,
    last_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', last_us / 1000000, 'unixepoch') || printf('.%06dZ', last_us % 1000000)) VIRTUAL,
    PRIMARY KEY (agent, kind, value)
);

-- Where a prompt went, and why; one row for each agent that was tried.
CREATE TABLE routes_taken (
    session_id TEXT NOT NULL, -- the session
    seq INTEGER NOT NULL, -- the note that tells of the decision
    turn INTEGER, -- the turn that ran then; null if the prompt comes next
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent that was chosen
    from_agent TEXT, -- the agent that the session was with; null if it was with none
    model TEXT, -- the model that the agent is set to; null for its own
    mode TEXT, -- the mode that the agent is set to; null for its own
    route TEXT, -- the route that matched, by its name or its number
    how TEXT, -- named, route, model, bound or default
    reason TEXT, -- the same in words
    attempt INTEGER, -- 0 for the first choice, then the number of the fallback
    failed TEXT, -- why the one before could not take the prompt
    at_us INTEGER, -- when it was decided
    at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', at_us / 1000000, 'unixepoch') || printf('.%06dZ', at_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX routes_taken_on_at ON routes_taken (at_us);

-- Who went where and why; fallbacks with their reason: ORDER BY at DESC, seq.
CREATE VIEW route_log AS
SELECT routes_taken.session_id, routes_taken.seq, routes_taken.at, routes_taken.user_name, routes_taken.team, sessions.repository,
    routes_taken.from_agent, routes_taken.agent, routes_taken.model, routes_taken.mode, routes_taken.route, routes_taken.how,
    routes_taken.reason, routes_taken.attempt, routes_taken.failed,
    (SELECT min(turns.turn) FROM turns
        WHERE turns.session_id = routes_taken.session_id AND turns.turn >= coalesce(routes_taken.turn, routes_taken.seq)) AS turn
FROM routes_taken LEFT JOIN sessions ON sessions.session_id = routes_taken.session_id;
