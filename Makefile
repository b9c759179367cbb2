# Everything installs itself: a clean machine needs Python >= 3.11, Rust, a C compiler and make.
# Stamps under .venv/ make a second call fast.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOLVER := $(shell find solver -name '*.rs' -o -name 'Cargo.toml' | grep -v /target/)

.PHONY: client demo tasks packages test test-all test-of test-part test-changed compose-test fault-test rank-test scheduler-test hosts-test check docs reference tables serve bench wheels soak accuracy accuracy-check gpu paper fuzz clean
.DEFAULT_GOAL := demo

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

$(VENV)/.base: $(VENV)/.made pyproject.toml $(SOLVER)
	$(BIN)/pip install --quiet --editable '.[plot]'
	touch $@

$(VENV)/.service: $(VENV)/.base
	$(BIN)/pip install --quiet --editable '.[service,worker]'
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.docs

$(VENV)/.docs: $(VENV)/.base
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

# The ordinary torch wheel (2.6 GB with CUDA libraries; it runs on CPU). Only tests and captures need it.
$(VENV)/.torch: $(VENV)/.dev
	$(BIN)/pip install --quiet --editable '.[dev,models]'
	touch $@

# The service at work, in one minute. TORCH=1 installs torch, and an agent measures this machine.
demo: $(VENV)/.service $(if $(TORCH),$(VENV)/.torch)
	$(BIN)/python examples/demo.py

# The tasks of examples/tasks, each in an empty folder with an empty home: a line for each.
# TASKS=01 04 runs those whose names contain one of these. All of them end with the trainers' own
# parsers, which take what `shardwise export` writes.
tasks: $(VENV)/.torch
	$(BIN)/python -m tools.tasks $(TASKS)
	$(if $(TASKS),,$(BIN)/python -m tools.own_parsers)

# Programs of the system that tests need: installed where that may be done, else their tests are
# skipped and named. Quick when all is there.
packages:
	@$(PYTHON) tests/packages.py --install

# pytest on every core; a module's tests stay together, and what fails runs once more alone. FLAGS are
# pytest's own.
SUITE = OMP_NUM_THREADS=1 $(BIN)/python -m harness.suite
# Runs a command and writes the target's row of the last results in CONTRIBUTING.md.
RESULT = $(BIN)/python -m harness.suite.results "make $@"
CORES = -n auto --dist loadfile --no-loadscope-reorder

CARGO_TEST = cd solver && cargo test --package frontier

# What guards each promise, and every unit, property and golden test.
test: $(VENV)/.torch packages
	($(CARGO_TEST))
	$(SUITE) "make test" --whole -- $(CORES) -m "not full" $(FLAGS)

# The tests of the rooms that import what changed since SINCE, for the loop of edit and run.
SINCE ?= main

test-changed: $(VENV)/.torch packages
	$(SUITE).changed --since $(SINCE) $(CORES) -m "not full" $(FLAGS)

# Everything, with more examples of each law. Its row in CONTRIBUTING.md says what came of it.
test-all: export SHARDWISE_TESTS = all
test-all: $(VENV)/.torch packages
	($(CARGO_TEST))
	$(SUITE) "make test-all" --row -- $(CORES) $(FLAGS)

# One room's part of `make test`: make test-of ROOM=service (tests/rooms.py has their names).
test-of: $(VENV)/.torch packages
	@test -n "$(ROOM)" || { echo "make test-of ROOM=service; the rooms are in tests/rooms.py"; exit 2; }
	test "$(ROOM)" != solver || ($(CARGO_TEST))
	$(SUITE) "make test-of ROOM=$(ROOM)" -- $(CORES) -m "$(ROOM) and not full" $(FLAGS)

# A part of what `make test` leaves out: make test-part PART=0/12, to 11/12; 0/4 is a fourth.
test-part: export SHARDWISE_TESTS = all
test-part: $(VENV)/.torch packages
	$(SUITE) "make test-part PART=$(PART)" --row -- $(CORES) -m full --part $(PART) $(FLAGS)

# Slurm and Ray in containers run what we write for them: a few minutes, after one for an image
# of Debian. Needs a Docker engine, root and debootstrap; where one is missing, tests say so.
scheduler-test: $(VENV)/.torch
	$(RESULT) -- $(BIN)/python -m pytest --engine -m engine --timeout 1800 $(FLAGS) \
	  tests/containers/test_slurm.py \
	  tests/containers/test_ray.py

# Containers as hosts in two racks have links of a set bandwidth: minutes. Needs what scheduler-test
# needs, and tc.
hosts-test: $(VENV)/.torch
	$(RESULT) -- $(BIN)/python -m pytest --engine -m engine -n 0 --timeout 1800 $(FLAGS) \
	  tests/containers/test_hosts.py

# Images built on stand-ins for their bases, brought up by compose and asked. Needs a Docker engine,
# debootstrap and Rust; where one is missing it says so and passes.
compose-test: $(VENV)/.dev
	$(BIN)/python -m harness.containers.composed
	$(RESULT) -- $(BIN)/python -m pytest --engine -m engine -s $(FLAGS) tests/containers/test_images.py \
	  tests/containers/test_compose.py

# A dozen faults between those containers, a rolling upgrade and alerts, under load; ranks and hosts
# of agents that hang and die. Needs root on the engine's host too. 200 faults:
# python -m harness.containers.faults --seed 1
fault-test: $(VENV)/.torch
	$(BIN)/python -m harness.containers.composed
	$(RESULT) -- $(BIN)/python -m pytest --engine -m engine -s $(FLAGS) tests/containers/test_faults.py \
	  tests/containers/test_ranks.py

# The last of these alone. Without a Docker engine, root or debootstrap it says so.
rank-test: $(VENV)/.torch packages
	$(RESULT) -- $(BIN)/python -m pytest --engine -m engine -n 0 -r s $(FLAGS) tests/containers/test_ranks.py

check: $(VENV)/.dev docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m tools.blocking_client --check
	$(BIN)/python -m tools.commit_subjects
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest shardwise._core
	cd solver && cargo fmt --check
	cd solver/fuzz && cargo fmt --check
	cd solver && cargo clippy --release --all-targets -- -D warnings
	$(BIN)/python deploy/audit.py

# The blocking client, made of the asynchronous one.
client: $(VENV)/.dev
	$(BIN)/python -m tools.blocking_client

# The pages as HTML in out/docs; each warning, such as a link that leads nowhere, is an error.
docs: reference
	$(BIN)/python -m sphinx -E -W -n -q --keep-going -d out/doctrees -b html docs out/docs

# docs/reference, which is made of the code and not committed.
reference: $(VENV)/.dev
	$(BIN)/python -m tools.reference

# What is found by running operators; a test of each fails when it is not up to date. `make docs`
# writes two pages of docs/reference from them.
tables: $(VENV)/.torch
	$(BIN)/python -m tools.operators_table
	$(BIN)/python -m tools.execute_operators_table

serve: $(VENV)/.service
	$(BIN)/shardwise serve

# abi3 wheels of Linux on x86-64 and arm64, and the sdist, in dist/; each checked with auditwheel.
wheels: $(VENV)/.dev
	$(BIN)/python -m tools.wheels

# The headline's figures beside those kept: a quarter of an hour at most. KEEP=1 keeps them; ALL=1
# runs every benchmark, for hours.
bench: $(VENV)/.torch
	$(BIN)/python benchmarks/run.py $(if $(KEEP),--keep) $(if $(ALL),--all)

# A mixed load on PostgreSQL and Valkey while a worker is killed every minute: out/bench/soak.json.
# Then workers killed every few seconds, the service and the broker once: out/bench/kills.json. Then a
# curve of 64 counts with a worker killed every 30 s: out/bench/curve_kills.json.
# Then twenty tenants, two of them hostile: out/bench/crowd.json. Then mutated bodies, with /healthz
# quick throughout, and one tenant at every limit: out/bench/fuzzing.json, at_limits.json.
SOAK_MINUTES ?= 20
KILLS_MINUTES ?= 5
CROWD_MINUTES ?= 30
FUZZING_MINUTES ?= 10
LIMITS_SECONDS ?= 120

soak: $(VENV)/.dev
	SOAK_MINUTES=$(SOAK_MINUTES) PYTHONPATH=. $(BIN)/python benchmarks/soak.py
	PYTHONPATH=. $(BIN)/python benchmarks/kills.py --minutes $(KILLS_MINUTES)
	PYTHONPATH=. $(BIN)/python benchmarks/curve_kills.py
	PYTHONPATH=. $(BIN)/python benchmarks/crowd.py --minutes $(CROWD_MINUTES)
	PYTHONPATH=. $(BIN)/python benchmarks/fuzzing.py --minutes $(FUZZING_MINUTES)
	PYTHONPATH=. $(BIN)/python benchmarks/at_limits.py --seconds $(LIMITS_SECONDS)

# The papers' tables and figures beside ours, in ten minutes: benchmarks/paper/results, out/paper,
# docs/pictures. `make docs` writes docs/reference/paper.md from the results.
paper: $(VENV)/.torch
	PYTHONPATH=benchmarks $(BIN)/python -m paper

# Training steps that others published, all predicted anew (20 CPU minutes): the stored predictions
# and docs/accuracy.md. `accuracy-check` predicts the I-th of N parts and compares.
PART ?= 0/12

accuracy: $(VENV)/.torch
	$(BIN)/python -m benchmarks.published --predict --anew
	$(BIN)/python -m benchmarks.published -o docs/accuracy.md

accuracy-check: $(VENV)/.torch
	$(RESULT) -- $(BIN)/python -m benchmarks.published --check --part $(PART)

# All that one GPU can tell about the predictions: out/gpu. Without a GPU it says so and does nothing.
GPU_SECONDS ?= 600

gpu: $(VENV)/.torch
	$(BIN)/python -m benchmarks.gpu --budget $(GPU_SECONDS) -o out/gpu

# Each target for so long; what fails is kept under out/fuzz. Without atheris (no wheel for this
# Python or system) the reader's inputs are drawn without coverage, and it says so.
FUZZ_SECONDS ?= 60

fuzz: $(VENV)/.dev
	$(BIN)/pip install --quiet --editable '.[fuzz]' || echo "atheris cannot be installed here"
	$(BIN)/python -m harness.fuzz.problem_reader --seconds $(FUZZ_SECONDS)
	sh solver/fuzz/run.sh $(FUZZ_SECONDS) out/fuzz

clean:
	rm -rf $(VENV) out build dist solver/target solver/fuzz/target
