-- Answers of people that are remembered, and their use. The same names and columns as in
-- migrations/sqlite/0007_grants.sql.

CREATE TABLE grants (
    grant_id uuid NOT NULL,
    scope text,
    scope_name text,
    session_id uuid,
    author text,
    team text,
    reason text,
    what text,
    parts jsonb,
    given_us bigint,
    expires_us bigint,
    most_uses bigint,
    uses bigint,
    last_used_us bigint,
    revoked_us bigint,
    revoked_by text,
    end_reason text,
    given_at timestamptz GENERATED ALWAYS AS (to_timestamp(given_us / 1e6::float8)) STORED,
    expires_at timestamptz GENERATED ALWAYS AS (to_timestamp(expires_us / 1e6::float8)) STORED,
    last_used_at timestamptz GENERATED ALWAYS AS (to_timestamp(last_used_us / 1e6::float8)) STORED,
    revoked_at timestamptz GENERATED ALWAYS AS (to_timestamp(revoked_us / 1e6::float8)) STORED,
    PRIMARY KEY (grant_id)
);
COMMENT ON TABLE grants IS 'An answer of a person that is remembered: what it allows, where, until when.';
COMMENT ON COLUMN grants.grant_id IS 'the grant';
COMMENT ON COLUMN grants.scope IS 'where it holds: session, root, user or team';
COMMENT ON COLUMN grants.scope_name IS 'which session, directory, user or team';
COMMENT ON COLUMN grants.session_id IS 'the session, if it is for one';
COMMENT ON COLUMN grants.author IS 'who gave it';
COMMENT ON COLUMN grants.team IS 'the author''s team; several are joined by commas';
COMMENT ON COLUMN grants.reason IS 'why it was given';
COMMENT ON COLUMN grants.what IS 'what it allows, in words';
COMMENT ON COLUMN grants.parts IS 'the same, with the facts as they were found then';
COMMENT ON COLUMN grants.given_us IS 'when it was given';
COMMENT ON COLUMN grants.expires_us IS 'when its time is over';
COMMENT ON COLUMN grants.most_uses IS 'how often it may be used; null for any number of times';
COMMENT ON COLUMN grants.uses IS 'how often it was used';
COMMENT ON COLUMN grants.last_used_us IS 'when it was last used';
COMMENT ON COLUMN grants.revoked_us IS 'when it was taken back; null if it was not';
COMMENT ON COLUMN grants.revoked_by IS 'who took it back';
COMMENT ON COLUMN grants.end_reason IS 'why it was taken back';
COMMENT ON COLUMN grants.given_at IS 'when it was given';
COMMENT ON COLUMN grants.expires_at IS 'when its time is over';
COMMENT ON COLUMN grants.last_used_at IS 'when it was last used';
COMMENT ON COLUMN grants.revoked_at IS 'when it was taken back; null if it was not';

CREATE TABLE grant_uses (
    session_id uuid NOT NULL,
    seq bigint NOT NULL,
    turn bigint,
    user_name text,
    team text,
    agent text,
    grant_id uuid,
    request bigint,
    number bigint,
    uses_left bigint,
    sub_actions jsonb,
    at_us bigint,
    at timestamptz GENERATED ALWAYS AS (to_timestamp(at_us / 1e6::float8)) STORED,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX grant_uses_on_grant ON grant_uses (grant_id);
COMMENT ON TABLE grant_uses IS 'One use of a grant: what was allowed by it without asking anybody.';
COMMENT ON COLUMN grant_uses.session_id IS 'the session';
COMMENT ON COLUMN grant_uses.seq IS 'the note that tells of the use';
COMMENT ON COLUMN grant_uses.turn IS 'the turn that ran then';
COMMENT ON COLUMN grant_uses.user_name IS 'whose session it is';
COMMENT ON COLUMN grant_uses.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN grant_uses.agent IS 'the agent at work';
COMMENT ON COLUMN grant_uses.grant_id IS 'the grant';
COMMENT ON COLUMN grant_uses.request IS 'the request that it allowed, as in decisions.seq';
COMMENT ON COLUMN grant_uses.number IS 'the how many-th use of the grant it was';
COMMENT ON COLUMN grant_uses.uses_left IS 'how many uses were left; null if they are not counted';
COMMENT ON COLUMN grant_uses.sub_actions IS 'what it allowed';
COMMENT ON COLUMN grant_uses.at_us IS 'when';
COMMENT ON COLUMN grant_uses.at IS 'when';

CREATE VIEW grants_used AS
SELECT grants.grant_id, grants.author, grants.scope, grants.scope_name, grants.what, grants.reason, grants.given_at, grants.uses,
    grants.most_uses, grants.last_used_at,
    (SELECT count(DISTINCT grant_uses.session_id) FROM grant_uses WHERE grant_uses.grant_id = grants.grant_id) AS sessions
FROM grants
WHERE grants.uses > 0;
COMMENT ON VIEW grants_used IS 'Who has allowed what ahead of time, and how often that was used: ORDER BY last_used_at DESC.';
COMMENT ON COLUMN grants_used.grant_id IS 'the grant';
COMMENT ON COLUMN grants_used.author IS 'who gave it';
COMMENT ON COLUMN grants_used.scope IS 'session, root, user or team';
COMMENT ON COLUMN grants_used.scope_name IS 'which of these';
COMMENT ON COLUMN grants_used.what IS 'what it allows, in words';
COMMENT ON COLUMN grants_used.reason IS 'why it was given';
COMMENT ON COLUMN grants_used.given_at IS 'when it was given';
COMMENT ON COLUMN grants_used.uses IS 'how often it was used';
COMMENT ON COLUMN grants_used.most_uses IS 'how often it may be used';
COMMENT ON COLUMN grants_used.last_used_at IS 'when it was last used';
COMMENT ON COLUMN grants_used.sessions IS 'in how many sessions';

CREATE VIEW grants_open AS
SELECT grants.grant_id, grants.author, grants.scope, grants.scope_name, grants.what, grants.reason, grants.given_at, grants.expires_at,
    grants.uses, grants.most_uses
FROM grants
WHERE grants.revoked_us IS NULL AND grants.expires_us > CAST(extract(epoch FROM now()) * 1000000 AS bigint)
    AND (grants.most_uses IS NULL OR grants.uses < grants.most_uses);
COMMENT ON VIEW grants_open IS 'Grants that still allow something: ORDER BY expires_at.';
COMMENT ON COLUMN grants_open.grant_id IS 'the grant';
COMMENT ON COLUMN grants_open.author IS 'who gave it';
COMMENT ON COLUMN grants_open.scope IS 'session, root, user or team';
COMMENT ON COLUMN grants_open.scope_name IS 'which of these';
COMMENT ON COLUMN grants_open.what IS 'what it allows, in words';
COMMENT ON COLUMN grants_open.reason IS 'why it was given';
COMMENT ON COLUMN grants_open.given_at IS 'when it was given';
COMMENT ON COLUMN grants_open.expires_at IS 'when its time is over';
COMMENT ON COLUMN grants_open.uses IS 'how often it was used';
COMMENT ON COLUMN grants_open.most_uses IS 'how often it may be used; null for any number of times';

COMMENT ON COLUMN frames.stream_kind IS 'session, process, connection or grant';
