-- What agents offer, and where prompts went. The same names and columns as in
-- migrations/sqlite/0005_routing.sql.

CREATE TABLE models (
    agent text NOT NULL,
    kind text NOT NULL,
    value text NOT NULL,
    name text,
    agent_version text,
    first_us bigint,
    last_us bigint,
    process_id uuid,
    first_at timestamptz GENERATED ALWAYS AS (to_timestamp(first_us / 1e6::float8)) STORED,
    last_at timestamptz GENERATED ALWAYS AS (to_timestamp(last_us / 1e6::float8)) STORED,
    PRIMARY KEY (agent, kind, value)
);
COMMENT ON TABLE models IS 'What an agent was found to offer: one of its models or modes.';
COMMENT ON COLUMN models.agent IS 'the agent, as named in agents.toml';
COMMENT ON COLUMN models.kind IS 'model or mode';
COMMENT ON COLUMN models.value IS 'the agent''s own name of it';
COMMENT ON COLUMN models.name IS 'its name for people';
COMMENT ON COLUMN models.agent_version IS 'the version that told of it last';
COMMENT ON COLUMN models.first_us IS 'when the agent first told of it';
COMMENT ON COLUMN models.last_us IS 'when the agent last told of it';
COMMENT ON COLUMN models.process_id IS 'the process that told of it last';
COMMENT ON COLUMN models.first_at IS 'when the agent first told of it';
COMMENT ON COLUMN models.last_at IS 'when the agent last told of it';

CREATE TABLE routes_taken (
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    turn bigint,
    user_name text,
    team text,
    agent text,
    from_agent text,
    model text,
    mode text,
    route text,
    how text,
    reason text,
    attempt bigint,
    failed text,
    at_us bigint,
    at timestamptz GENERATED ALWAYS AS (to_timestamp(at_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX routes_taken_on_at ON routes_taken (at_us);
COMMENT ON TABLE routes_taken IS 'Where a prompt went, and why; one row for each agent that was tried.';
COMMENT ON COLUMN routes_taken.session_id IS 'the session';
COMMENT ON COLUMN routes_taken.seq IS 'the note that tells of the decision';
COMMENT ON COLUMN routes_taken.turn IS 'the turn that ran then; null if the prompt comes next';
COMMENT ON COLUMN routes_taken.user_name IS 'whose session it is';
COMMENT ON COLUMN routes_taken.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN routes_taken.agent IS 'the agent that was chosen';
COMMENT ON COLUMN routes_taken.from_agent IS 'the agent that the session was with; null if it was with none';
COMMENT ON COLUMN routes_taken.model IS 'the model that the agent is set to; null for its own';
COMMENT ON COLUMN routes_taken.mode IS 'the mode that the agent is set to; null for its own';
COMMENT ON COLUMN routes_taken.route IS 'the route that matched, by its name or its number';
COMMENT ON COLUMN routes_taken.how IS 'named, route, model, bound or default';
COMMENT ON COLUMN routes_taken.reason IS 'the same in words';
COMMENT ON COLUMN routes_taken.attempt IS '0 for the first choice, then the number of the fallback';
COMMENT ON COLUMN routes_taken.failed IS 'why the one before could not take the prompt';
COMMENT ON COLUMN routes_taken.at_us IS 'when it was decided';
COMMENT ON COLUMN routes_taken.at IS 'when it was decided';

CREATE VIEW route_log AS
SELECT routes_taken.session_id, routes_taken.seq, routes_taken.at, routes_taken.user_name, routes_taken.team, sessions.repository,
    routes_taken.from_agent, routes_taken.agent, routes_taken.model, routes_taken.mode, routes_taken.route, routes_taken.how,
    routes_taken.reason, routes_taken.attempt, routes_taken.failed,
    (SELECT min(turns.turn) FROM turns
        WHERE turns.session_id = routes_taken.session_id AND turns.turn >= coalesce(routes_taken.turn, routes_taken.seq)) AS turn
FROM routes_taken LEFT JOIN sessions ON sessions.session_id = routes_taken.session_id;
COMMENT ON VIEW route_log IS 'Who went where and why; fallbacks with their reason: ORDER BY at DESC, seq.';
COMMENT ON COLUMN route_log.session_id IS 'the session';
COMMENT ON COLUMN route_log.seq IS 'the note that tells of the decision';
COMMENT ON COLUMN route_log.at IS 'when it was decided';
COMMENT ON COLUMN route_log.user_name IS 'whose session it is';
COMMENT ON COLUMN route_log.team IS 'that user''s team';
COMMENT ON COLUMN route_log.repository IS 'the repository of the session';
COMMENT ON COLUMN route_log.from_agent IS 'the agent that the session was with';
COMMENT ON COLUMN route_log.agent IS 'the agent that was chosen';
COMMENT ON COLUMN route_log.model IS 'the model that it is set to; null for its own';
COMMENT ON COLUMN route_log.mode IS 'the mode that it is set to; null for its own';
COMMENT ON COLUMN route_log.route IS 'the route that matched';
COMMENT ON COLUMN route_log.how IS 'named, route, model, bound or default';
COMMENT ON COLUMN route_log.reason IS 'the same in words';
COMMENT ON COLUMN route_log.attempt IS '0 for the first choice, then the number of the fallback';
COMMENT ON COLUMN route_log.failed IS 'why the one before could not take the prompt';
COMMENT ON COLUMN route_log.turn IS 'the turn of the prompt, as in turns.turn; null if it never began';
