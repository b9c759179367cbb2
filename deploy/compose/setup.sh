#!/bin/sh
# Migrates the schema; creates an administrator's key, Prometheus' (which only reads) and an agent's
# one-time token in FOLDER, once.
set -eu
folder=$1
umask 077
shardwise migrate
if [ ! -s "$folder/admin.key" ]; then
    shardwise keys create --tenant default --name compose \
        --scope read --scope submit --scope admin >"$folder/admin.key.new"
    mv "$folder/admin.key.new" "$folder/admin.key"
fi
if [ ! -s "$folder/prometheus.key" ]; then
    shardwise keys create --tenant default --name prometheus --scope read \
        >"$folder/prometheus.key.new"
    # Prometheus is another user; the folder lists nothing and only containers mount it.
    chmod 0444 "$folder/prometheus.key.new"
    mv "$folder/prometheus.key.new" "$folder/prometheus.key"
fi
if [ ! -s "$folder/agent.token" ]; then
    shardwise keys enrol --tenant default --name compose >"$folder/agent.token.new"
    mv "$folder/agent.token.new" "$folder/agent.token"
fi
