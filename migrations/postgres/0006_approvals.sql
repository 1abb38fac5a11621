-- What rules left to people, and who answered. The same names and columns as in
-- migrations/sqlite/0006_approvals.sql.

CREATE TABLE approvals (
    approval_id uuid NOT NULL,
    session_id uuid,
    seq bigint,
    turn bigint,
    user_name text,
    team text,
    agent text,
    for_user text,
    rule text,
    reason text,
    approvers text,
    terms jsonb,
    is_shown boolean,
    asked_us bigint,
    due_us bigint,
    ended_us bigint,
    duration_us bigint,
    outcome text,
    answered_by text,
    answered_via text,
    answer_reason text,
    asked_at timestamptz GENERATED ALWAYS AS (to_timestamp(asked_us / 1e6::float8)) STORED,
    due_at timestamptz GENERATED ALWAYS AS (to_timestamp(due_us / 1e6::float8)) STORED,
    ended_at timestamptz GENERATED ALWAYS AS (to_timestamp(ended_us / 1e6::float8)) STORED,
    PRIMARY KEY (approval_id)
);
CREATE INDEX approvals_on_asked ON approvals (asked_us);
CREATE INDEX approvals_on_session ON approvals (session_id, seq);
COMMENT ON TABLE approvals IS 'A question about permission that people were asked.';
COMMENT ON COLUMN approvals.approval_id IS 'the question';
COMMENT ON COLUMN approvals.session_id IS 'the session that asked';
COMMENT ON COLUMN approvals.seq IS 'the request''s frame, as in decisions.seq';
COMMENT ON COLUMN approvals.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN approvals.user_name IS 'whose session it is';
COMMENT ON COLUMN approvals.team IS 'that user''s team; several are joined by commas';
COMMENT ON COLUMN approvals.agent IS 'the agent at work';
COMMENT ON COLUMN approvals.for_user IS 'who prompted: for whom it would be done';
COMMENT ON COLUMN approvals.rule IS 'the rule that asked; null if no rule matched';
COMMENT ON COLUMN approvals.reason IS 'why it asked';
COMMENT ON COLUMN approvals.approvers IS 'who was to answer, in words';
COMMENT ON COLUMN approvals.terms IS 'how the rules wanted it asked';
COMMENT ON COLUMN approvals.is_shown IS 'whether those who drive the session were asked, too';
COMMENT ON COLUMN approvals.asked_us IS 'when it was asked';
COMMENT ON COLUMN approvals.due_us IS 'when it would have been denied; null if that depended on who was there';
COMMENT ON COLUMN approvals.ended_us IS 'when it ended; null while it is open';
COMMENT ON COLUMN approvals.duration_us IS 'the time between, in microseconds';
COMMENT ON COLUMN approvals.outcome IS 'allowed, rejected, timed_out, cancelled or interrupted; null while it is open';
COMMENT ON COLUMN approvals.answered_by IS 'who answered; null if nobody did';
COMMENT ON COLUMN approvals.answered_via IS 'editor or approvals';
COMMENT ON COLUMN approvals.answer_reason IS 'what they said about it, or why it ended';
COMMENT ON COLUMN approvals.asked_at IS 'when it was asked';
COMMENT ON COLUMN approvals.due_at IS 'when it would have been denied';
COMMENT ON COLUMN approvals.ended_at IS 'when it ended';

CREATE VIEW approval_log AS
SELECT approvals.approval_id, approvals.session_id, approvals.seq, approvals.asked_at AS at, approvals.user_name, approvals.team,
    approvals.for_user, approvals.agent, sessions.repository, approvals.rule, approvals.reason, approvals.approvers,
    decisions.title, decisions.sub_actions, coalesce(approvals.outcome, 'open') AS outcome, approvals.answered_by,
    approvals.answered_via, approvals.answer_reason, CAST(approvals.duration_us / 1000.0 AS double precision) AS waited_ms,
    decisions.policy_revision
FROM approvals
LEFT JOIN sessions ON sessions.session_id = approvals.session_id
LEFT JOIN decisions ON decisions.session_id = approvals.session_id AND decisions.seq = approvals.seq;
COMMENT ON VIEW approval_log IS 'Who allowed what under which rule: ORDER BY at DESC.';
COMMENT ON COLUMN approval_log.approval_id IS 'the question';
COMMENT ON COLUMN approval_log.session_id IS 'the session that asked';
COMMENT ON COLUMN approval_log.seq IS 'the request''s frame';
COMMENT ON COLUMN approval_log.at IS 'when it was asked';
COMMENT ON COLUMN approval_log.user_name IS 'whose session it is';
COMMENT ON COLUMN approval_log.team IS 'that user''s team';
COMMENT ON COLUMN approval_log.for_user IS 'who prompted';
COMMENT ON COLUMN approval_log.agent IS 'the agent at work';
COMMENT ON COLUMN approval_log.repository IS 'the repository of the session';
COMMENT ON COLUMN approval_log.rule IS 'the rule that asked';
COMMENT ON COLUMN approval_log.reason IS 'why it asked';
COMMENT ON COLUMN approval_log.approvers IS 'who was to answer';
COMMENT ON COLUMN approval_log.title IS 'what people were shown; written by the model, never trust it';
COMMENT ON COLUMN approval_log.sub_actions IS 'what would be done, with the facts as they were found then';
COMMENT ON COLUMN approval_log.outcome IS 'allowed, rejected, timed_out, cancelled, interrupted, or open';
COMMENT ON COLUMN approval_log.answered_by IS 'who answered';
COMMENT ON COLUMN approval_log.answered_via IS 'editor or approvals';
COMMENT ON COLUMN approval_log.answer_reason IS 'what they said about it, or why it ended';
COMMENT ON COLUMN approval_log.waited_ms IS 'how long it waited, in milliseconds; null while it is open';
COMMENT ON COLUMN approval_log.policy_revision IS 'names exactly the rules that were in force';

CREATE VIEW approvals_open AS
SELECT approvals.approval_id, approvals.session_id, approvals.asked_at AS at, approvals.due_at, approvals.for_user, approvals.agent,
    approvals.rule, approvals.approvers
FROM approvals WHERE approvals.outcome IS NULL;
COMMENT ON VIEW approvals_open IS 'What waits for people: ORDER BY at.';
COMMENT ON COLUMN approvals_open.approval_id IS 'the question';
COMMENT ON COLUMN approvals_open.session_id IS 'the session that asks';
COMMENT ON COLUMN approvals_open.at IS 'when it was asked';
COMMENT ON COLUMN approvals_open.due_at IS 'when it will be denied';
COMMENT ON COLUMN approvals_open.for_user IS 'who prompted';
COMMENT ON COLUMN approvals_open.agent IS 'the agent at work';
COMMENT ON COLUMN approvals_open.rule IS 'the rule that asks';
COMMENT ON COLUMN approvals_open.approvers IS 'who is to answer';

COMMENT ON COLUMN decisions.decided_by IS 'editor, approver (elsewhere than in the session) or conductor';
COMMENT ON COLUMN decision_log.decided_by IS 'editor, approver (elsewhere than in the session) or conductor';
