-- What held each process, and what of it outlived the service.
-- The same names and columns as in migrations/sqlite/0010_sandbox.sql.

ALTER TABLE processes ADD COLUMN sandbox_mode text;
ALTER TABLE processes ADD COLUMN sandbox text;
ALTER TABLE processes ADD COLUMN sandbox_missing text;
ALTER TABLE processes ADD COLUMN leftovers bigint;
COMMENT ON COLUMN processes.sandbox_mode IS 'what was wished for: required, preferred or off; null in older records';
COMMENT ON COLUMN processes.sandbox IS 'the layers that held it, joined by commas; empty for none';
COMMENT ON COLUMN processes.sandbox_missing IS 'the layers that were asked for and did not hold, each with the reason';
COMMENT ON COLUMN processes.leftovers IS 'processes that outlived it and the service, and were ended at the next start';

CREATE VIEW sandboxes AS
SELECT agent, sandbox_mode AS mode, sandbox AS layers, sandbox_missing AS missing,
    count(*) AS processes, sum(coalesce(leftovers, 0)) AS leftovers, max(started_at) AS last_at
FROM processes
WHERE sandbox_mode IS NOT NULL
GROUP BY agent, sandbox_mode, sandbox, sandbox_missing;
COMMENT ON VIEW sandboxes IS 'What holds the processes of each agent: ORDER BY last_at DESC.';
