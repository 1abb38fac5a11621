-- Answers of people that are remembered, and their use. The same names and columns as in
-- migrations/postgres/0007_grants.sql.

-- An answer of a person that is remembered: what it allows, where, until when.
CREATE TABLE grants (
    grant_id TEXT NOT NULL, -- the grant
    scope TEXT, -- where it holds: session, root, user or team
    scope_name TEXT, -- which session, directory, user or team
    session_id TEXT, -- the session, if it is for one
    author TEXT, -- who gave it
    team TEXT, -- the author's team; several are joined by commas
    reason TEXT, -- why it was given
    what TEXT, -- what it allows, in words
    parts TEXT, -- the same, with the facts as they were found then
    given_us INTEGER, -- when it was given
    expires_us INTEGER, -- when its time is over
    most_uses INTEGER, -- how often it may be used; null for any number of times
    uses INTEGER, -- how often it was used
    last_used_us INTEGER, -- when it was last used
    revoked_us INTEGER, -- when it was taken back; null if it was not
    revoked_by TEXT, -- who took it back
    end_reason TEXT, -- why it was taken back
    given_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', given_us / 1000000, 'unixepoch') || printf('.%06dZ', given_us % 1000000)) VIRTUAL,
    expires_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', expires_us / 1000000, 'unixepoch') || printf('.%06dZ', expires_us % 1000000)) VIRTUAL,
    last_used_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', last_used_us / 1000000, 'unixepoch') || printf('.%06dZ', last_used_us % 1000000)) VIRTUAL,
    revoked_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', revoked_us / 1000000, 'unixepoch') || printf('.%06dZ', revoked_us % 1000000)) VIRTUAL,
    PRIMARY KEY (grant_id)
);

-- One use of a grant: what was allowed by it without asking anybody.
CREATE TABLE grant_uses (
    session_id TEXT NOT NULL, -- the session
    seq INTEGER NOT NULL, -- the note that tells of the use
    turn INTEGER, -- the turn that ran then
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    grant_id TEXT, -- the grant
    request INTEGER, -- the request that it allowed, as in decisions.seq
    number INTEGER, -- the how many-th use of the grant it was
    uses_left INTEGER, -- how many uses were left; null if they are not counted
    sub_actions TEXT, -- what it allowed
    at_us INTEGER, -- when
    at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', at_us / 1000000, 'unixepoch') || printf('.%06dZ', at_us % 1000000)) VIRTUAL,
    PRIMARY KEY (session_id, seq)
);
CREATE INDEX grant_uses_on_grant ON grant_uses (grant_id);

-- Who has allowed what ahead of time, and how often that was used: ORDER BY last_used_at DESC.
CREATE VIEW grants_used AS
SELECT grants.grant_id, grants.author, grants.scope, grants.scope_name, grants.what, grants.reason, grants.given_at, grants.uses,
    grants.most_uses, grants.last_used_at,
    (SELECT count(DISTINCT grant_uses.session_id) FROM grant_uses WHERE grant_uses.grant_id = grants.grant_id) AS sessions
FROM grants
WHERE grants.uses > 0;

-- Grants that still allow something: ORDER BY expires_at.
CREATE VIEW grants_open AS
SELECT grants.grant_id, grants.author, grants.scope, grants.scope_name, grants.what, grants.reason, grants.given_at, grants.expires_at,
    grants.uses, grants.most_uses
FROM grants
WHERE grants.revoked_us IS NULL AND grants.expires_us > CAST(strftime('%s', 'now') AS INTEGER) * 1000000
    AND (grants.most_uses IS NULL OR grants.uses < grants.most_uses);
