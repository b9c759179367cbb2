#!/bin/sh
# Random passwords and the key of webhooks in FOLDER, made once; the database's URL with the
# password in it.
#   secrets.sh FOLDER DATABASE_HOST
# The app's user (10001) owns what it reads; Grafana (472) and PostgreSQL read theirs.
set -eu
folder=$1
host=$2
umask 077

random() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

keep() { # NAME OWNER MODE, content on standard input; never overwrites
    if [ -s "$folder/$1" ]; then
        cat >/dev/null
        return
    fi
    cat >"$folder/$1.new"
    if [ "$(id -u)" = 0 ]; then chown "$2" "$folder/$1.new"; fi
    chmod "$3" "$folder/$1.new"
    mv "$folder/$1.new" "$folder/$1"
}

mkdir -p "$folder"
if [ "$(id -u)" = 0 ]; then chown 10001:10001 "$folder"; fi
# Others may pass through to a file that is theirs; none may list it.
chmod 0711 "$folder"
random | keep postgres.password 10001:10001 0440
random | keep grafana.password 472:0 0400
random | keep webhook.key 10001:10001 0400
printf 'postgresql://shardwise:%s@%s:5432/shardwise' "$(cat "$folder/postgres.password")" "$host" |
    keep database.url 10001:10001 0400
