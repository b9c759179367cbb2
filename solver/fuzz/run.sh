#!/bin/sh
# Fuzzes the solver for SECONDS: solver/fuzz/run.sh SECONDS FOLDER. Failing inputs are saved in FOLDER.
# Stable compiler flags enable LLVM's coverage counters, so neither a nightly compiler nor cargo-fuzz is
# needed. The crate has no unsafe code, so address sanitizers would find nothing.
set -eu
seconds=$1
mkdir -p "$2/solver"
folder=$(cd "$2" && pwd)
cd "$(dirname "$0")"
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares" \
  cargo build --quiet --release --target "$host"
# -detect_leaks=0: rayon's threads outlive the run.
exec "target/$host/release/invariants" -max_total_time="$seconds" -max_len=4096 -timeout=30 \
  -rss_limit_mb=4096 -detect_leaks=0 -print_final_stats=1 -verbosity=0 \
  -artifact_prefix="$folder/solver-" "$folder/solver"
