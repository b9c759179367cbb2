#!/bin/sh
# Pins every Python package of the images, with hashes and without any address: deploy/requirements.
# Run it in the repository's root after a change of dependencies in pyproject.toml; needs `uv`.
set -eu
pin() {
    uv pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-annotate \
        --no-header --no-emit-index-url --no-emit-find-links "$@"
}
for target in service worker agent agent-without-torch docs; do
    case $target in
        service) extras="--extra service --extra mcp --extra oidc --extra otel" ;;
        worker) extras="--extra worker --extra otel" ;;
        agent) extras="--extra agent --extra models" ;;
        agent-without-torch) extras="--extra agent" ;;
        docs) extras="--extra service --extra worker --extra agent --extra client --extra mcp --extra oidc --extra docs" ;;
    esac
    # shellcheck disable=SC2086  # the extras are several words
    pin pyproject.toml $extras -o "deploy/requirements/$target.txt"
done
printf 'maturin>=1.9.4,<2\n' | pin - -o deploy/requirements/build.txt
