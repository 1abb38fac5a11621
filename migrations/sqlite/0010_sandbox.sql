-- What held each process, and what of it outlived the service.
-- The same names and columns as in migrations/postgres/0010_sandbox.sql.

ALTER TABLE processes ADD COLUMN sandbox_mode TEXT; -- what was wished for: required, preferred or off; null in older records
ALTER TABLE processes ADD COLUMN sandbox TEXT; -- the layers that held it, joined by commas; empty for none
ALTER TABLE processes ADD COLUMN sandbox_missing TEXT; -- the layers that were asked for and did not hold, each with the reason
ALTER TABLE processes ADD COLUMN leftovers INTEGER; -- processes that outlived it and the service, and were ended at the next start

-- What holds the processes of each agent: ORDER BY last_at DESC.
CREATE VIEW sandboxes AS
SELECT agent, sandbox_mode AS mode, sandbox AS layers, sandbox_missing AS missing,
    count(*) AS processes, sum(coalesce(leftovers, 0)) AS leftovers, max(started_at) AS last_at
FROM processes
WHERE sandbox_mode IS NOT NULL
GROUP BY agent, sandbox_mode, sandbox, sandbox_missing;
