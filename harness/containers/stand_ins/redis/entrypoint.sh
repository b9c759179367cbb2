#!/bin/sh
# Starts the server as redis; the official image is compiled with protected mode off.
set -eu
[ "${1:-}" = redis-server ] || exec "$@"
if [ "$(id -u)" = 0 ]; then
    chown redis:redis /data
    exec setpriv --reuid redis --regid redis --clear-groups -- "$0" "$@"
fi
exec "$@" --protected-mode no
