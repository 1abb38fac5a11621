-- Roles for a ledger in Postgres, so that the service can add to the record and
-- not change it:
--
--   owner    makes the tables and migrates them, rebuilds, retains and erases;
--            ledger.owner_url, used by conductor ledger migrate and those commands,
--            and at the service's start if the service is told it
--   service  adds frames and checkpoints, fills in derived rows, reads;
--            ledger.url
--   auditor  reads, and nothing else: conductor ledger verify, sql, sessions
--
-- Run it as a superuser in the ledger's database, before the service's first
-- start or later; it can be run again. Passwords are asked for with \prompt or
-- given as variables:
--
--   psql -d conductor -v service_password=… -v owner_password=… -v auditor_password=… \
--        -f deploy/postgres/roles.sql
--
-- Other names: -v owner=… -v service=… -v auditor=… -v schema=…

\set ON_ERROR_STOP on
\if :{?owner}
\else
    \set owner conductor_owner
\endif
\if :{?service}
\else
    \set service conductor_service
\endif
\if :{?auditor}
\else
    \set auditor conductor_auditor
\endif
\if :{?schema}
\else
    \set schema public
\endif

-- The service reads with a deadline; nobody else needs one.
SELECT format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', name)
FROM unnest(ARRAY[:'owner', :'service', :'auditor']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
\if :{?owner_password}
    ALTER ROLE :"owner" PASSWORD :'owner_password';
\endif
\if :{?service_password}
    ALTER ROLE :"service" PASSWORD :'service_password';
\endif
\if :{?auditor_password}
    ALTER ROLE :"auditor" PASSWORD :'auditor_password';
\endif

BEGIN;

-- Search finds parts of commands and paths with it, and only a superuser or the database's owner can
-- make it. A ledger that was made without it says how to add the index, too.
SELECT format('CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA %I', :'schema')
WHERE EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_trgm') \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO %I, %I, %I', current_database(), :'owner', :'service', :'auditor') \gexec
-- Whoever may make objects in the schema could put some in front of ours.
REVOKE CREATE ON SCHEMA :"schema" FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA :"schema" TO :"owner" WITH GRANT OPTION;
GRANT USAGE ON SCHEMA :"schema" TO :"service", :"auditor";

-- In a ledger that was made without the extension, the index is made now.
SELECT format(
    'CREATE INDEX IF NOT EXISTS search_docs_on_line ON %1$I.search_docs USING gin (line %2$I.gin_trgm_ops, words, '
    '%1$I.search_spans(doc)) WITH (gin_pending_list_limit = 128) WHERE line IS NOT NULL',
    :'schema', nspname
)
FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
WHERE extname = 'pg_trgm'
    AND EXISTS (SELECT FROM pg_proc WHERE proname = 'search_spans' AND pronamespace = (:'schema')::regnamespace) \gexec

-- A ledger that one role made so far becomes the owner's.
SELECT format('ALTER %s %I.%I OWNER TO %I', CASE kind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, :'schema', name, :'owner')
FROM (
    SELECT relname AS name, relkind AS kind FROM pg_class
    WHERE relnamespace = (:'schema')::regnamespace AND relkind IN ('r', 'p', 'v')
) AS relations \gexec
SELECT format('ALTER FUNCTION %s OWNER TO %I', p.oid::regprocedure, :'owner')
FROM pg_proc AS p
WHERE p.pronamespace = (:'schema')::regnamespace
    AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = p.oid AND d.deptype = 'e') \gexec

-- What is there already; what the owner makes later is granted by the service at
-- its start, to the role of ledger.url, and here to the auditor.
REVOKE ALL ON ALL TABLES IN SCHEMA :"schema" FROM :"service", :"auditor";
GRANT SELECT ON ALL TABLES IN SCHEMA :"schema" TO :"service", :"auditor";
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" IN SCHEMA :"schema" GRANT SELECT ON TABLES TO :"auditor";
SELECT format(
    'GRANT %s ON %I.%I TO %I',
    -- These are only added to, and the index for search is the service's own. All other tables are
    -- derived from frames, or say how far the service is.
    CASE
        WHEN relname IN ('frames', 'frame_conflicts', 'checkpoints', 'checkpoint_heads') THEN 'INSERT'
        WHEN relname IN ('search_docs', 'search_pending') THEN 'INSERT, UPDATE, DELETE'
        ELSE 'INSERT, UPDATE'
    END,
    :'schema', relname, :'service'
)
FROM pg_class
WHERE relnamespace = (:'schema')::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
    AND relname <> '_sqlx_migrations' \gexec

COMMIT;
