-- What rules left to people, and who answered. The same names and columns as in
-- migrations/postgres/0006_approvals.sql. decisions.decided_by is editor, approver (elsewhere
-- than in the session) or conductor from here on.

-- A question about permission that people were asked.
CREATE TABLE approvals (
    approval_id TEXT NOT NULL, -- the question
    session_id TEXT, -- the session that asked
    seq INTEGER, -- the request's frame, as in decisions.seq
    turn INTEGER, -- the turn it belongs to; null outside turns
    user_name TEXT, -- whose session it is
    team TEXT, -- that user's team; several are joined by commas
    agent TEXT, -- the agent at work
    for_user TEXT, -- who prompted: for whom it would be done
    rule TEXT, -- the rule that asked; null if no rule matched
    reason TEXT, -- why it asked
    approvers TEXT, -- who was to answer, in words
    terms TEXT, -- how the rules wanted it asked
    is_shown BOOLEAN, -- whether those who drive the session were asked, too
    asked_us INTEGER, -- when it was asked
    due_us INTEGER, -- when it would have been denied; null if that depended on who was there
    ended_us INTEGER, -- when it ended; null while it is open
    duration_us INTEGER, -- the time between, in microseconds
    outcome TEXT, -- allowed, rejected, timed_out, cancelled or interrupted; null while it is open
    answered_by TEXT, -- who answered; null if nobody did
    answered_via TEXT, -- editor or approvals
    answer_reason TEXT, -- what they said about it, or why it ended
    asked_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', asked_us / 1000000, 'unixepoch') || printf('.%06dZ', asked_us % 1000000)) VIRTUAL,
    due_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', due_us / 1000000, 'unixepoch') || printf('.%06dZ', due_us % 1000000)) VIRTUAL,
    ended_at TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%dT%H:%M:%S', ended_us / 1000000, 'unixepoch') || printf('.%06dZ', ended_us % 1000000)) VIRTUAL,
    PRIMARY KEY (approval_id)
);
CREATE INDEX approvals_on_asked ON approvals (asked_us);
CREATE INDEX approvals_on_session ON approvals (session_id, seq);

-- Who allowed what under which rule: ORDER BY at DESC.
CREATE VIEW approval_log AS
SELECT approvals.approval_id, approvals.session_id, approvals.seq, approvals.asked_at AS at, approvals.user_name, approvals.team,
    approvals.for_user, approvals.agent, sessions.repository, approvals.rule, approvals.reason, approvals.approvers,
    decisions.title, decisions.sub_actions, coalesce(approvals.outcome, 'open') AS outcome, approvals.answered_by,
    approvals.answered_via, approvals.answer_reason, CAST(approvals.duration_us / 1000.0 AS double precision) AS waited_ms,
    decisions.policy_revision
FROM approvals
LEFT JOIN sessions ON sessions.session_id = approvals.session_id
LEFT JOIN decisions ON decisions.session_id = approvals.session_id AND decisions.seq = approvals.seq;

-- What waits for people: ORDER BY at.
CREATE VIEW approvals_open AS
SELECT approvals.approval_id, approvals.session_id, approvals.asked_at AS at, approvals.due_at, approvals.for_user, approvals.agent,
    approvals.rule, approvals.approvers
FROM approvals WHERE approvals.outcome IS NULL;
