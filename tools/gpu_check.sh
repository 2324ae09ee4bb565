#!/usr/bin/env bash
# Is this machine's GPU one that Pagoda computes right on, and how fast: builds the GPU's ops, their
# comparison with the CPU's and their benchmark, and runs them. Needs nothing but the CUDA toolkit
# (12 or later), a C++ compiler and CMake 3.25; minutes to build, half of one to run. Its output
# begins with date, commit, driver and GPU; runs worth keeping are tools/bench/results/gpu_check-*.
#
#   tools/gpu_check.sh [--build-only] [--ops]
#
# --build-only: builds. --ops: without the benchmarks. Exit codes: 0 PASS, 1 FAIL, 2 wrong arguments
# or it does not build, 69 no GPU or no driver, 72 not enough memory on the GPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build="$here/../build/gpu_check"
run=1
options=()
for argument in "$@"; do
  case "$argument" in
    --build-only) run=0 ;;
    --ops) options+=("$argument") ;;
    *) echo "gpu_check: $argument: the options are --build-only and --ops" >&2; exit 2 ;;
  esac
done
mkdir -p "$build"
if ! { cmake -S "$here/gpu_check" -B "$build" && cmake --build "$build" -j "$(nproc)"; } \
    > "$build/build.log" 2>&1; then
  tail -30 "$build/build.log" >&2
  echo "gpu_check: it does not build; all of the output is in build/gpu_check/build.log" >&2
  exit 2
fi
[ "$run" = 1 ] || { echo "gpu_check: built"; exit 0; }
commit=$(git -C "$here" describe --always --dirty --exclude '*' 2> /dev/null || echo unknown)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -1 || true)
echo "gpu_check: $(date -u '+%F %R') UTC, commit $commit, driver ${driver:-unknown}"
exec "$build/gpu_check" "${options[@]}"
