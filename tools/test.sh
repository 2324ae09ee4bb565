#!/usr/bin/env bash
# Installs what is missing, builds, and runs tests. The last line counts test cases.
#
#   tools/test.sh             what a user needs to believe in the build on this machine
#   tools/test.sh all         what must hold before a change is merged: cuda, asan, tsan and neon
#   tools/test.sh STAGE...    one or several of
#
#     release   tests of what this machine runs, in release
#     cuda      all tests in release, with kernels for GPUs compiled, where nvcc is
#     asan      unit tests and tiny training runs under AddressSanitizer and UBSan, built by clang
#     tsan      those with threads under ThreadSanitizer, with our own GEMM instead of oneDNN, by
#               clang, which needs half of GCC's time
#     neon      what has code per instruction set compiles for AArch64, where a compiler for it is
set -uo pipefail
cd "$(dirname "$0")/.."

# Programs that run under a sanitizer; long ones do less there. AddressSanitizer runs those that
# handle memory or files of others, but neither arithmetic on vectors, whose bounds release checks
# too, nor whole processes.
asan_tests=(
  options_test run_file_test metrics_test trace_test cli_test
  model_sizes_test machine_sheet_test
  model_config_test safetensors_test hf_folder_test hf_writer_test upcycle_test
  utf8_test tokenizer_test tokenizer_refusal_test
  token_file_test dataset_test packed_step_test
  chat_test example_test inspection_test
  device_test chunk_test open_storage_test storage_test page_file_test page_file_crash_test
  residency_test pager_test checkpoint_test
  products_test ops_elementwise_test ops_swiglu_test ops_route_test ops_attention_test
  working_memory_test adam_test text_stream_test generation_test bench_test
  root_promise_table_test step_trace_test trainer_fault_test routing_trace_test
  ranks_faults_test
  page_pool_test carrier_thread_test carrier_turns_test carrier_parts_test mpi_link_test
  heartbeat_test
  cuda_device_test cuda_run_test fuzz_replay_test
)
# ThreadSanitizer: what has threads, each kind of them once or twice. Ops share their work out in
# one way (products and routing have it), and runs of ranks are the trainer's.
tsan_tests=(
  trace_test delays_test link_test
  device_test device_turn_test numa_test open_storage_test storage_test page_file_test
  pager_test checkpoint_test tokenizer_threads_test products_test ops_route_test
  together_promise_test root_promise_table_test step_trace_test trainer_fault_test
  ranks_trainer_test ranks_faults_test stages_promise_test cuda_nccl_link_test
  page_pool_test carrier_thread_test carrier_turns_test carrier_parts_test mpi_link_test
  heartbeat_test heartbeat_ranks_test
  cuda_device_test cuda_run_test
)

jobs=$(nproc)
reports=build/reports
started=$SECONDS
stage_failed=0
folders=()

say() { printf '\n== [%4ds] %s\n' "$((SECONDS - started))" "$*"; }

# build PRESET [TARGET...]: without a GPU no kernel's PTX is made into machine code, which would
# take most of nvcc's time. The test kernel_sheet does that to the kernels that have changed.
build() {
  local preset=$1 options=()
  shift
  say "$preset: build"
  if [ "$preset" = cuda ]; then
    options=(-UPAGODA_CUDA_ARCHITECTURES)
    if [ ! -e /dev/nvidiactl ] && ! nvidia-smi > /dev/null 2>&1; then
      options=(-DPAGODA_CUDA_ARCHITECTURES=90-virtual)
    fi
  fi
  cmake --preset "$preset" "${options[@]}" > "build/$preset-configure.log" 2>&1 ||
    { cat "build/$preset-configure.log"; return 1; }
  ninja -C "build/$preset" -j "$jobs" "$@"
}

# run_tests PRESET [NAME...]: all tests, those named, or with user_tests those of `release`.
run_tests() {
  local preset=$1 folder only=()
  shift
  folder="$PWD/$reports/$preset"
  rm -rf "$folder"
  mkdir -p "$folder"
  folders+=("$folder")
  if [ "$*" = user_tests ]; then
    only=(-LE for_all)
  elif [ $# -gt 0 ]; then
    only=(-R "^($(IFS='|'; echo "$*"))\$")
  else
    only=(-E '^trainer_fault_test$')  # trainer_fault_unthinned has all of it, and more
  fi
  say "$preset: run ${*:-all tests}"
  GTEST_OUTPUT="xml:$folder/" ctest --test-dir "build/$preset" -j $((jobs + 1)) --timeout 900 \
    --output-on-failure --no-tests=error --output-junit "$folder/ctest.xml" "${only[@]}"
}

# stage PRESET [NAME...]: builds and runs; a failure is remembered, later stages still run.
stage() {
  local preset=$1 name
  shift
  for name in "$@"; do
    [ "$name" = user_tests ] || [ -n "$(find tests -name "$name.cc")" ] && continue
    echo "test: tools/test.sh names $name, but no folder of tests/ has $name.cc" >&2
    stage_failed=1
    return
  done
  if ! build "$preset" "$@"; then
    say "$preset: BUILD FAILED"
    stage_failed=1
    return
  fi
  run_tests "$preset" "$@" || stage_failed=1
}

# All tests in release, in a build with kernels for GPUs if these can be compiled here. Programs
# that measure, which no test runs, compile.
cuda() {
  if ! PATH=$PATH:/usr/local/cuda/bin command -v nvcc > /dev/null; then
    say "cuda: SKIPPED, there is no nvcc; release takes its place, with all tests"
    stage release
    build release benches || stage_failed=1
    return
  fi
  stage cuda
  build cuda benches || stage_failed=1
}

# What has code per instruction set also compiles for AArch64, where its vectors are NEON's.
neon() {
  local compiler=aarch64-linux-gnu-g++ source
  say "neon: optim, kernels/cpu and the streams of memory compile"
  if ! command -v "$compiler" > /dev/null; then
    echo "neon: SKIPPED, there is no $compiler (Debian: g++-aarch64-linux-gnu)"
    return
  fi
  for source in optim/*.cc kernels/cpu/*.cc kernels/cpu/*/*.cc src/device/past_cache.cc \
    src/bench/roofs/streams.cc; do
    "$compiler" -std=c++20 -O1 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno \
      -I. -Isrc -c -o /dev/null "$source" || stage_failed=1
  done
}

wanted=("$@")
if [ "$*" = "" ]; then wanted=(release); fi
if [ "$*" = all ]; then wanted=(cuda asan tsan neon); fi
mkdir -p build

say "install"
clang=()
case " ${wanted[*]} " in *" asan "* | *" tsan "*) clang=(--clang) ;; esac
bash tools/install-deps.sh "${clang[@]}" || exit $?
# It would take the stacks of emulated kernels' threads for those of functions that are over.
export ASAN_OPTIONS=detect_stack_use_after_return=0
for name in "${wanted[@]}"; do
  case "$name" in
    release) stage release user_tests ;;
    cuda) cuda ;;
    asan) stage asan "${asan_tests[@]}" ;;
    tsan) stage tsan "${tsan_tests[@]}" ;;
    neon) neon ;;
    *)
      echo "test: unknown stage \"$name\" (all, or some of release, cuda, asan, tsan, neon)" >&2
      exit 2
      ;;
  esac
done

say "done"
if [ "${#folders[@]}" -gt 0 ]; then
  python3 tools/count_tests.py "${folders[@]}" || stage_failed=1
fi
exit "$stage_failed"
