#!/bin/sh
# Migrates the schema; creates an administrator's key, Prometheus' (which only reads) and an agent's
# one-time token in FOLDER, once.
set -eu
folder=$1
umask 077

keep() { # NAME MODE COMMAND…, whose output becomes a file, unless there is one
    file=$folder/$1
    mode=$2
    shift 2
    if [ -s "$file" ]; then return; fi
    "$@" >"$file.new"
    chmod "$mode" "$file.new"
    mv "$file.new" "$file"
}

shardwise migrate
# Side by side: each is a Python that starts, and the service waits for all.
keep admin.key 0600 shardwise keys create --tenant default --name compose \
    --scope read --scope submit --scope admin &
admin=$!
# Prometheus is another user; the folder lists nothing and only containers mount it.
keep prometheus.key 0444 shardwise keys create --tenant default --name prometheus --scope read &
prometheus=$!
keep agent.token 0600 shardwise keys enrol --tenant default --name compose &
agent=$!
for made in "$admin" "$prometheus" "$agent"; do wait "$made"; done
