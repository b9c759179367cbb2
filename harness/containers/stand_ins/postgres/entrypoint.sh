#!/bin/bash
# Makes the cluster on an empty folder and starts the server, as postgres and never as root.
set -euo pipefail
[ "${1:-}" = postgres ] || exec "$@"
if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
    POSTGRES_PASSWORD=$(<"$POSTGRES_PASSWORD_FILE")
    export POSTGRES_PASSWORD
    unset POSTGRES_PASSWORD_FILE
fi
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown postgres:postgres "$PGDATA"
    chmod 0700 "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --init-groups -- "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?is needed for a new cluster, or POSTGRES_PASSWORD_FILE}"
    user=${POSTGRES_USER:-postgres}
    database=${POSTGRES_DB:-$user}
    initdb --username "$user" --pwfile <(printf '%s\n' "$POSTGRES_PASSWORD")
    printf 'host all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    pg_ctl --wait -o "-c listen_addresses=''" start
    if [ "$database" != postgres ]; then
        createdb --username "$user" --maintenance-db postgres "$database"
    fi
    pg_ctl --mode fast --wait stop
fi
unset POSTGRES_PASSWORD
exec "$@" -c "listen_addresses=*"
