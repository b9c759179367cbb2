# One file, five targets: `service`, `worker`, `agent` (run on a GPU host), `docs` (the pages that the
# service serves) and `build` (the wheel).
#
#   docker build --target service -t shardwise-service .
#
# Base images are named by version; pin them by digest with --build-arg (docs/deploy.md says how).
# Python packages are pinned with their hashes in deploy/requirements (deploy/lock.sh makes them).

ARG PYTHON_IMAGE=python:3.12.8-slim-bookworm
ARG RUST_IMAGE=rust:1.83.0-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:12.6.3-base-ubuntu24.04
# Of the agent's base: the package of its Python. Of the agent: the file of deploy/requirements, which
# is agent-without-torch where torch comes from elsewhere or nothing trains.
ARG AGENT_PYTHON=python3.12
ARG AGENT_REQUIREMENTS=agent

FROM ${RUST_IMAGE} AS rust

FROM ${PYTHON_IMAGE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
ENV PATH=/usr/local/cargo/bin:$PATH \
    CARGO_HOME=/usr/local/cargo \
    RUSTUP_HOME=/usr/local/rustup \
    SOURCE_DATE_EPOCH=1735689600
WORKDIR /source
COPY deploy/requirements/build.txt deploy/requirements/build.txt
RUN pip install --no-cache-dir --require-hashes -r deploy/requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY solver solver
COPY migrations migrations
COPY shardwise shardwise
COPY service service
COPY worker worker
COPY agent agent
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/solver/target \
    maturin build --release --strip --out /wheels

# The pages that the service serves at /manual/, as `make docs` builds them. The reference is made of
# the code, which is that of the wheel.
FROM ${PYTHON_IMAGE} AS docs
COPY deploy/requirements/docs.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
WORKDIR /source
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python -m zipfile -e /wheels/*.whl .
COPY tools tools
COPY deploy deploy
COPY benchmarks/paper benchmarks/paper
COPY benchmarks/published benchmarks/published
COPY docs docs
# Links to files that are not copied stay as their names; `make check` sees that those exist.
RUN python -m tools.reference \
 && python -m sphinx -E -q -d /tmp/doctrees -b html docs /manual

# What the service and the worker have in common: a user, an environment of its own, no compiler.
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 shardwise \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/shardwise --create-home \
      --shell /usr/sbin/nologin shardwise
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SHARDWISE_DATA_DIR=/var/lib/shardwise \
    SHARDWISE_LOG_FORMAT=json
WORKDIR /var/lib/shardwise

# Of packages, tests are left out, and of plotly all but the JavaScript that the page loads.
FROM base AS service
COPY deploy/requirements/service.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt \
 && find "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" -type d \
      \( -name tests -o -path '*/onnx/backend/test' -o -path '*/plotly/graph_objs' \
      -o -path '*/plotly/validators' -o -path '*/plotly/labextension' \) -prune -exec rm -rf {} +
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps /wheels/*.whl
COPY --from=docs /manual /usr/share/doc/shardwise
USER 10001:10001
ENV SHARDWISE_HOST=0.0.0.0 \
    SHARDWISE_PORT=8000 \
    SHARDWISE_DOCS_DIR=/usr/share/doc/shardwise \
    SHARDWISE_AUTH=required
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-IS", "-c", "import socket; c = socket.create_connection(('127.0.0.1', 8000), 2); c.sendall(b'GET /readyz HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n'); raise SystemExit(b' 200 ' not in c.recv(64))"]
ENTRYPOINT ["shardwise"]
CMD ["serve"]

FROM base AS worker
COPY deploy/requirements/worker.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt \
 && find "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" -type d -name tests \
      -prune -exec rm -rf {} +
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps /wheels/*.whl
USER 10001:10001
ENV SHARDWISE_WORKER_METRICS_HOST=0.0.0.0 \
    SHARDWISE_WORKER_METRICS_PORT=9100
EXPOSE 9100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-IS", "-c", "import socket; c = socket.create_connection(('127.0.0.1', 9100), 2); c.sendall(b'GET /metrics HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n'); raise SystemExit(b' 200 ' not in c.recv(64))"]
ENTRYPOINT ["shardwise"]
CMD ["worker"]

# The agent starts training: torch with CUDA libraries, on NVIDIA's base image. pip stays behind in a
# stage of its own, as there is none in the base.
FROM ${CUDA_IMAGE} AS agent-base
ARG AGENT_PYTHON
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends "${AGENT_PYTHON}" \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 shardwise \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/shardwise --create-home \
      --shell /usr/sbin/nologin shardwise
ENV PATH=/opt/shardwise/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SHARDWISE_LOG_FORMAT=json \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM agent-base AS agent-packages
ARG AGENT_PYTHON
ARG AGENT_REQUIREMENTS
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends "${AGENT_PYTHON}-venv" \
 && rm -rf /var/lib/apt/lists/* \
 && "${AGENT_PYTHON}" -m venv /opt/pip \
 && "${AGENT_PYTHON}" -m venv --without-pip /opt/shardwise
COPY deploy/requirements/${AGENT_REQUIREMENTS}.txt /tmp/requirements.txt
RUN /opt/pip/bin/pip --python /opt/shardwise/bin/python install --no-cache-dir --require-hashes \
      -r /tmp/requirements.txt

FROM agent-base AS agent
COPY --from=agent-packages /opt/shardwise /opt/shardwise
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,from=agent-packages,source=/opt/pip,target=/opt/pip \
    /opt/pip/bin/pip --python /opt/shardwise/bin/python install --no-cache-dir --no-deps /wheels/*.whl
WORKDIR /var/lib/shardwise
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["shardwise"]
CMD ["agent", "--config", "/etc/shardwise/agent.toml", "--data-dir", "/var/lib/shardwise"]
