#!/usr/bin/env bash
# Searches for inputs that break what reads files: builds the fuzz targets (tests/fuzz) with clang
# and runs them under AddressSanitizer and UBSan, each for a million executions or 20 minutes of a
# core, whichever is first, within 1 GiB. Prints a table: edges covered at first, at half of the
# time and at its end. Needs tools/install-deps.sh --clang.
#
#   tools/fuzz.sh [--seconds N] [--runs N] [--build-only] [TARGET...]     all targets if none
#
# What was learnt stays in build/fuzz-corpus for the next time. An input that breaks a target is in
# build/fuzz-found; build/fuzz/pagoda_fuzz TARGET FILE shows what it does.
# Exit codes: 0 nothing was found, 1 something was, 2 wrong arguments or it does not build, 69 there
# is no clang.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=1200
runs=1000000
build_only=0
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds | --runs)
      if ! [[ "${2:-}" =~ ^[1-9][0-9]{0,8}$ ]]; then
        echo "fuzz: $1 needs a whole number above 0" >&2
        exit 2
      fi
      if [ "$1" = --seconds ]; then seconds=$2; else runs=$2; fi
      shift
      ;;
    --build-only) build_only=1 ;;
    -h | --help)
      sed -n '2,13s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    -*)
      echo "fuzz: unknown argument \"$1\" (--seconds, --runs, --build-only)" >&2
      exit 2
      ;;
    *) targets+=("$1") ;;
  esac
  shift
done

if ! command -v clang++-16 > /dev/null; then
  echo "fuzz: there is no clang++-16; run tools/install-deps.sh --clang" >&2
  exit 69
fi
mkdir -p build
if ! { cmake --preset fuzz && ninja -C build/fuzz -j "${JOBS:-$(nproc)}" pagoda_fuzz; } \
    > build/fuzz-build.log 2>&1; then
  tail -30 build/fuzz-build.log >&2
  echo "fuzz: it does not build; all of the output is in build/fuzz-build.log" >&2
  exit 2
fi
program=build/fuzz/pagoda_fuzz
known=$("$program" --names) || exit 2
if [ "${#targets[@]}" -eq 0 ]; then mapfile -t targets <<< "$known"; fi
for target in "${targets[@]}"; do
  grep -qx -- "$target" <<< "$known" && continue
  echo "fuzz: no target \"$target\"; there are" $known >&2
  exit 2
done
if [ "$build_only" = 1 ]; then
  echo "fuzz: built $program"
  exit 0
fi

# Files that targets write: in memory where that can be, and gone at the end.
scratch=$(mktemp -d -p /dev/shm pagoda-fuzz-XXXXXX 2> /dev/null || mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
corpus=build/fuzz-corpus found=build/fuzz-found logs=build/fuzz-logs
mkdir -p "$corpus" "$found" "$logs"
"$program" --seeds "$scratch/seeds" || exit 2
export ASAN_OPTIONS=quarantine_size_mb=32:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

# number LOG KEY: the last "KEY: N" of libFuzzer's lines, or "-".
number() { grep -o "$2:* *[0-9]*" "$1" | tail -1 | grep -o '[0-9]*$' || echo -; }

# half TARGET LOG: half of the time or of the executions, on from the corpus.
half() {
  TMPDIR=$scratch "$program" "$1" "$corpus/$1" "$scratch/seeds/$1" \
    -dict="$scratch/seeds/$1.dict" -artifact_prefix="$found/$1-" \
    -max_total_time=$(((seconds + 1) / 2)) -runs=$(((runs + 1) / 2)) -max_len=16384 \
    -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=1024 -close_fd_mask=3 \
    -print_final_stats=1 > "$2" 2>&1
}

failed=0
row='%-12s %10s %8s %7s %7s %7s %7s  %s\n'
table=$(printf "$row" target executions seconds first half all MiB result)
for target in "${targets[@]}"; do
  mkdir -p "$corpus/$target"
  started=$SECONDS executions=0 edges=() result="nothing found"
  for part in 1 2; do
    log=$logs/$target-$part.log
    if ! half "$target" "$log"; then
      result="FOUND: $(grep -m1 -E 'ERROR|SUMMARY' "$log" | cut -c1-90)"
      failed=1
    fi
    [ "$part" = 1 ] && seeded=$(grep -m1 INITED "$log" | grep -o 'cov: [0-9]*' | grep -o '[0-9]*')
    executions=$((executions + $(number "$log" stat::number_of_executed_units | sed 's/^-$/0/')))
    # Threads differ from run to run: a later half may cover a few edges less.
    edges+=("$(printf '%s\n' "${edges[@]}" "$(number "$log" cov)" | sort -n | tail -1)")
    [ "$result" = "nothing found" ] || break
  done
  table+=$'\n'$(printf "$row" "$target" "$executions" "$((SECONDS - started))" "${seeded:--}" \
    "${edges[0]}" "${edges[1]:--}" "$(number "$log" stat::peak_rss_mb)" "$result")
  echo "fuzz: $(tail -1 <<< "$table")"
done
echo
echo "$table"
if [ "$failed" = 1 ]; then echo "fuzz: what was found is in $found, its reports in $logs" >&2; fi
exit "$failed"
