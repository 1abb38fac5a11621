#!/bin/sh
# Runs deploy/postgres/roles.sql with the passwords of the stack. They are read from files and handed
# over on stdin, so that no command line has them.
set -eu
PGPASSWORD=$(cat /run/secrets/postgres-password)
export PGPASSWORD
psql --no-psqlrc --quiet --host "${PGHOST:-postgres}" --username conductor --dbname conductor <<END
\set owner_password '$(cat /run/secrets/ledger-owner-password)'
\set service_password '$(cat /run/secrets/ledger-password)'
\i /roles.sql
END
