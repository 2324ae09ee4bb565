find_package(GTest REQUIRED)    # apt: libgtest-dev
find_package(OpenSSL REQUIRED)  # apt: libssl-dev

# What tests share is not worth -O3: what they test has it. In Release the last -O counts.
set(test_optimisation $<$<CONFIG:Release>:-O1>)
# Tests themselves are compiled quickly. -U: no checks of the C library without optimisation.
set(test_program_options -O0 -U_FORTIFY_SOURCE)
if(PAGODA_SANITIZE)  # what they test has its checks
  list(APPEND test_optimisation -fno-sanitize=undefined)
  list(APPEND test_program_options -fno-sanitize=undefined)
endif()

# The GPU's ops for the host (kernels/cuda/machine/machine.cuh): each .cu as C++, beside the
# emulation.
file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
set(emulated_sources)
foreach(source ${cuda_sources})
  get_filename_component(name ${source} NAME_WE)
  set(emulated ${PROJECT_BINARY_DIR}/emulated/${name}.cc)
  file(CONFIGURE OUTPUT ${emulated} CONTENT "#include \"${source}\"\n")
  list(APPEND emulated_sources ${emulated})
endforeach()
add_library(kernels_emulated STATIC ${emulated_sources}
  ${PROJECT_SOURCE_DIR}/kernels/cuda/machine/machine_emulated.cc)
target_link_libraries(kernels_emulated PUBLIC kernels optim)
if(PAGODA_SANITIZE)  # it jumps between stacks that sanitizers do not know of
  set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cuda/machine/machine_emulated.cc
    PROPERTIES COMPILE_OPTIONS "-O2;-fno-sanitize=all")
  target_compile_options(kernels_emulated PRIVATE -fno-sanitize=undefined)
endif()

# What gpu_check and the tests compare ops by.
file(GLOB check_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/gpu_check/*_cases.cc
  ${PROJECT_SOURCE_DIR}/tools/gpu_check/trial.cc ${PROJECT_SOURCE_DIR}/tools/gpu_check/scores.cc
  ${PROJECT_SOURCE_DIR}/tools/gpu_check/layer_pass.cc)
add_library(op_cases STATIC ${check_sources})
target_link_libraries(op_cases PUBLIC kernels optim)
target_compile_options(op_cases PRIVATE ${test_optimisation})

# What tests share, compiled once.
pagoda_layer(testing DIR tests/testing tests/testing/hetermoe tests/testing/plan
  tests/testing/ranks tests/testing/storage DEPENDS cli GTest::gtest OpenSSL::Crypto)
target_compile_definitions(testing PUBLIC PAGODA_MPIRUN="${MPIEXEC_EXECUTABLE}"
  PAGODA_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden" PAGODA_BINARY="$<TARGET_FILE:pagoda>")
target_compile_options(testing PRIVATE ${test_optimisation})
# What only tests with emulated kernels may take from the library.
set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/testing/emulated_machines.cc
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# Its vectors cross no object boundary.
set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/testing/lowered_kernel.cc
  PROPERTIES COMPILE_OPTIONS -Wno-psabi SKIP_UNITY_BUILD_INCLUSION ON)

# What these tests run on: GPUs that are made up. Objects, so that the linker takes them
# before the CUDA runtime and the kernels. Without the toolkit the tests are skipped.
set(on_fake_gpus cuda_bench_test cuda_device_test cuda_devices_test cuda_link_test
  cuda_mpi_link_test cuda_nccl_link_test cuda_products_test cuda_ranks_test cuda_run_test
  cuda_process_test)
if(PAGODA_HAS_CUDA)
  add_library(fake_cuda OBJECT tests/cuda/fake_cuda.cc tests/cuda/fake_streams.cc
    tests/cuda/fake_gpu_ops.cc tests/cuda/placed_ops.cc)
  target_link_libraries(fake_cuda PRIVATE kernels)
  target_compile_options(fake_cuda PRIVATE ${test_optimisation})
  add_executable(pagoda_fake_gpu tests/cuda/fake_gpu_program.cc $<TARGET_OBJECTS:fake_cuda>)
  target_link_libraries(pagoda_fake_gpu PRIVATE cli kernels_emulated)
endif()

# What most tests include, compiled once, but for JSON: GCC would instantiate its templates in each
# test. -fpch-preprocess: for ccache.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND test_program_options -fpch-preprocess)
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers.cc CONTENT "int main() {}\n")
add_executable(test_headers ${PROJECT_BINARY_DIR}/test_headers.cc)  # a program, as they are
target_link_libraries(test_headers PRIVATE testing GTest::gtest_main)
target_compile_options(test_headers PRIVATE ${test_program_options})
target_precompile_headers(test_headers PRIVATE <gtest/gtest.h>
  <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional> <map>
  <memory> <mutex> <numeric> <optional> <random> <set> <span> <string> <thread> <unordered_map>
  <utility> <vector>)

# What they compute takes longer than to compile them for it. They read their headers themselves.
set(computing_tests state_format_test mask_test pager_test ops_linear_test ops_attention_test
  products_test packed_step_test page_file_crash_test)

# What says whether this build computes, keeps and saves the right weights on this machine:
# tools/test.sh. The other tests say the same on every machine; tools/test.sh all has them too.
set(names_of_users adam_test attention_blocks_test numa_test ops_attention_test
  ops_cached_attention_test ops_linear_test products_test state_format_test working_memory_test
  open_storage_test page_file_crash_test page_file_test pager_test residency_test storage_test
  checkpoint_test generation_test parity_test tokenizer_vectors_test
  devices_promise_test ranks_promise_test root_promise_table_test root_promise_test
  stages_promise_test trainer_fault_test
  process_checkpoint_test process_disk_test process_exactly_once_test process_generate_test
  process_kill_test process_limits_test process_memory_test process_resume_test process_stop_test
  process_test gpu_run_test)
add_custom_target(user_tests)

# Gold links these programs in half the time of the linker that GCC takes by itself.
find_program(PAGODA_GOLD ld.gold)
mark_as_advanced(PAGODA_GOLD)

# Every NAME_test.cc is one ctest program, linked with all floors. It lies where its subject does.
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.cc)
list(FILTER test_sources EXCLUDE REGEX "/tests/testing/")
foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  if(NOT name IN_LIST on_fake_gpus)
    add_executable(${name} ${source})
  elseif(PAGODA_HAS_CUDA)
    add_executable(${name} ${source} $<TARGET_OBJECTS:fake_cuda>)
  else()
    add_executable(${name} tests/cuda/skipped.cc)
  endif()
  target_link_libraries(${name} PRIVATE testing GTest::gtest_main)
  if(PAGODA_GOLD AND NOT "${CMAKE_CXX_FLAGS} ${CMAKE_EXE_LINKER_FLAGS}" MATCHES "-fuse-ld=")
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
  if(name IN_LIST computing_tests AND NOT PAGODA_SANITIZE)
    target_compile_options(${name} PRIVATE ${test_optimisation})
  else()
    target_compile_options(${name} PRIVATE ${test_program_options})
    target_precompile_headers(${name} REUSE_FROM test_headers)
  endif()
  add_dependencies(${name} pagoda)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
  if(PAGODA_SANITIZE AND name IN_LIST on_fake_gpus AND NOT name STREQUAL cuda_products_test)
    target_sources(${name} PRIVATE tests/cuda/not_emulated.cc)
  elseif(source MATCHES "/tests/cuda/" AND NOT name STREQUAL gpu_run_test)
    target_link_libraries(${name} PRIVATE op_cases kernels_emulated)
  endif()
  if(name IN_LIST names_of_users)
    add_dependencies(user_tests ${name})
  else()
    set_tests_properties(${name} PROPERTIES LABELS for_all)
  endif()
  if(NOT name MATCHES "^gpu_")  # tests of the CPU also run where a GPU is
    set_tests_properties(${name} PROPERTIES ENVIRONMENT CUDA_VISIBLE_DEVICES=)
  endif()
endforeach()
foreach(name ${names_of_users})
  if(NOT TARGET ${name})
    message(FATAL_ERROR "names_of_users has ${name}, but no folder of tests/ has ${name}.cc")
  endif()
endforeach()
# NCCL is made up too. Where it is not there, so is its header.
foreach(name cuda_nccl_link_test cuda_ranks_test)
  if(PAGODA_HAS_CUDA)
    target_sources(${name} PRIVATE tests/cuda/ranks/fake_nccl.cc)
    if(NOT PAGODA_HAS_NCCL)
      target_sources(${name} PRIVATE src/parallel/gpus/nccl_link.cc)
      target_include_directories(${name} PRIVATE tests/cuda/ranks/no_nccl)
    endif()
  endif()
endforeach()
# So is cuBLAS, but for its header.
if(PAGODA_HAS_CUBLAS)
  target_sources(cuda_products_test PRIVATE kernels/cuda/library/library_products_cublas.cc)
elseif(PAGODA_HAS_CUDA)
  set_property(TARGET cuda_products_test PROPERTY SOURCES tests/cuda/skipped.cc)
endif()
# trainer_fault_test makes one in four of these calls fail.
if(NOT PAGODA_SANITIZE)
  add_test(NAME trainer_fault_unthinned COMMAND trainer_fault_test --unthinned)
  set_tests_properties(trainer_fault_unthinned
    PROPERTIES TIMEOUT 900 LABELS for_all ENVIRONMENT CUDA_VISIBLE_DEVICES=)
endif()
# What libFuzzer runs in a build of its own (tests/fuzz/fuzz.cmake), replayed.
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*.cc)
list(FILTER fuzz_sources EXCLUDE REGEX "_test\\.cc$")
target_sources(fuzz_replay_test PRIVATE ${fuzz_sources})
if(PAGODA_HAS_CUDA)
  target_compile_definitions(cuda_process_test PRIVATE
    PAGODA_FAKE_GPU_BINARY="$<TARGET_FILE:pagoda_fake_gpu>")
  add_dependencies(cuda_process_test pagoda_fake_gpu)
endif()

# What says the exit codes: the enum, the help and the page for people.
target_compile_definitions(exit_codes_test PRIVATE
  PAGODA_STATUS_HEADER="${PROJECT_SOURCE_DIR}/src/base/status.h"
  PAGODA_EXIT_CODES_PAGE="${PROJECT_SOURCE_DIR}/docs/exit-codes.md")

target_compile_definitions(process_slurm_test PRIVATE
  PAGODA_SLURM_SCRIPT="${PROJECT_SOURCE_DIR}/tools/slurm.sh")

# Several of these are started together.
add_executable(mpi_ranks tests/mpi/ranks_program.cc tests/testing/transfer_trial.cc)
target_link_libraries(mpi_ranks PRIVATE parallel)
target_compile_options(mpi_ranks PRIVATE ${test_optimisation})
target_compile_definitions(process_mpi_test PRIVATE
  PAGODA_RANKS_BINARY="$<TARGET_FILE:mpi_ranks>")
add_dependencies(process_mpi_test mpi_ranks)
add_executable(moving_ranks tests/mpi/moving_ranks.cc)
target_link_libraries(moving_ranks PRIVATE train)
target_compile_options(moving_ranks PRIVATE ${test_optimisation})
target_compile_definitions(process_moves_test PRIVATE
  PAGODA_MOVING_RANKS_BINARY="$<TARGET_FILE:moving_ranks>")
add_dependencies(process_moves_test moving_ranks)

# This machine's GPU, as tools/gpu_check.sh checks it, but for the benchmarks. Skipped without one.
if(PAGODA_HAS_CUDA_KERNELS AND TARGET CUDA::cublas)
  file(GLOB bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/gpu_check/bench*.cc)
  add_executable(gpu_check ${bench_sources} ${PROJECT_SOURCE_DIR}/tools/gpu_check/main.cc
    ${PROJECT_SOURCE_DIR}/tools/gpu_check/library_cublas.cc)
  target_link_libraries(gpu_check PRIVATE op_cases CUDA::cublas)
  target_compile_definitions(gpu_check PRIVATE
    PAGODA_GPU_CHECK_DIR="${PROJECT_SOURCE_DIR}/tools/gpu_check")
  add_dependencies(user_tests gpu_check)
  add_test(NAME gpu_check COMMAND gpu_check --ops)
  set_tests_properties(gpu_check PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 69)
else()
  add_test(NAME gpu_check
    COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: built without kernels for GPUs")
  set_tests_properties(gpu_check PROPERTIES SKIP_REGULAR_EXPRESSION SKIPPED)
endif()

find_package(Python3 REQUIRED COMPONENTS Interpreter)
# What nvcc makes of the kernels, beside the sheet that is kept: minutes where kernels have changed,
# though for one of the sheet's architectures. kernel_sheet.py --check --all is not part of a test.
add_test(NAME kernel_sheet_test
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/kernel_sheet_test.py)
add_test(NAME kernel_sheet
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/kernel_sheet.py --check)
set_tests_properties(kernel_sheet PROPERTIES TIMEOUT 3600 SKIP_RETURN_CODE 69)
set_tests_properties(kernel_sheet kernel_sheet_test PROPERTIES LABELS for_all
  ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
add_test(NAME check_tree
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_tree.py ${PROJECT_SOURCE_DIR})
add_test(NAME check_tree_self_test
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_tree.py --self-test)
set_tests_properties(check_tree check_tree_self_test PROPERTIES LABELS for_all)

add_test(NAME bench_rounds
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bench/pagoda_runs_test.py)

# Some cases of every attack, and programs broken on purpose that the attacks must find. A sanitizer
# takes memory and codes of its own.
if(NOT PAGODA_SANITIZE)
  add_test(NAME attack_quick
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/attack/attack.py --quick
            --pagoda $<TARGET_FILE:pagoda> --dir ${PROJECT_BINARY_DIR})
  add_test(NAME attack_self_test
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/attack/attack.py --self-test
            --pagoda $<TARGET_FILE:pagoda> --dir ${PROJECT_BINARY_DIR})
  set_tests_properties(attack_quick attack_self_test PROPERTIES TIMEOUT 900
    ENVIRONMENT "CUDA_VISIBLE_DEVICES=;PYTHONDONTWRITEBYTECODE=1")
  set_tests_properties(attack_self_test PROPERTIES LABELS for_all)
endif()

# Tries the tables on models of no size; nothing is timed.
add_test(NAME es_moe_tables
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bench/es_moe_tables.py
          $<TARGET_FILE:pagoda> --tiny
          --dir ${PROJECT_BINARY_DIR} --raw ${PROJECT_BINARY_DIR}/es-moe-tables)
set_tests_properties(es_moe_tables PROPERTIES LABELS for_all)
add_test(NAME device_tables
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bench/device_tables.py
          $<TARGET_FILE:pagoda> --tiny
          --dir ${PROJECT_BINARY_DIR} --raw ${PROJECT_BINARY_DIR}/device-tables)
add_test(NAME hexa_tables
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bench/hexa_tables.py
          $<TARGET_FILE:pagoda> --tiny
          --dir ${PROJECT_BINARY_DIR} --raw ${PROJECT_BINARY_DIR}/hexa-tables)
add_test(NAME freeze_table
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bench/freeze_table.py
          $<TARGET_FILE:pagoda> --tiny
          --dir ${PROJECT_BINARY_DIR} --raw ${PROJECT_BINARY_DIR}/freeze-table)
set_tests_properties(device_tables hexa_tables freeze_table
  PROPERTIES LABELS for_all TIMEOUT 1800)
# Without mpirun it is skipped.
add_test(NAME cluster_tour
  COMMAND ${PROJECT_SOURCE_DIR}/tools/cluster_tour.sh $<TARGET_FILE:pagoda>
          ${PROJECT_BINARY_DIR}/cluster-tour)
set_tests_properties(cluster_tour PROPERTIES LABELS for_all SKIP_RETURN_CODE 69)

# Programs that measure: ninja benches, or one by its name. Tests try those that every build makes,
# with --tiny, which times nothing.
add_custom_target(benches)
function(pagoda_bench name room)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/tools/bench/)
  add_executable(${name} EXCLUDE_FROM_ALL ${ARGN})
  target_link_libraries(${name} PRIVATE ${room})
  add_dependencies(benches ${name})
endfunction()
# What several of them share, compiled once.
add_library(bench_parts STATIC tools/bench/random_token_run.cc tools/bench/measured_run.cc
  tools/bench/layout_race.cc tools/bench/race_tables.cc tools/bench/exchange/drawn_exchange.cc
  tools/bench/exchange/executed_exchange.cc)
target_link_libraries(bench_parts PUBLIC testing)
# Asked by tools/make_tokenizer_vectors.py --check and tools/bench/tokenizer_bench.py.
pagoda_bench(tokenizer_probe data tokenizer_probe.cc)
# Asked by tools/make_template_vectors.py --check, check_template_spans.py, check_answer_places.py.
pagoda_bench(template_probe data template_probe.cc)
# Asked by tools/bench/adam_peers.py.
pagoda_bench(adam_probe bench adam_probe.cc)
# Prints misses of residency's choices beside LRU's and the clairvoyant's.
pagoda_bench(residency_study testing residency_study.cc)
# Prints how far the simulator's times are from those of real steps on this machine.
pagoda_bench(simulator_check bench_parts simulator_check.cc)
# Prints the same for steps on several devices, equal and not, whose links take time.
pagoda_bench(device_check bench_parts device_check.cc)
# Prints how far predictions are from steps of models that were not measured beforehand.
pagoda_bench(plan_check bench_parts plan_check.cc)
# Prints steps that page beside the least time this machine allows them.
pagoda_bench(step_bound bench_parts step_bound.cc)
# Prints HeterMoE's tables, executed on devices like its own, beside simulated ones.
pagoda_bench(zebra_tables bench_parts zebra_tables.cc order_search.cc)
# Tries most of them on models of no size.
set_target_properties(zebra_tables PROPERTIES EXCLUDE_FROM_ALL OFF)
add_test(NAME zebra_tables COMMAND zebra_tables ${PROJECT_BINARY_DIR} --tiny
  --only a40_v100,orders,errors,spread)
set_tests_properties(zebra_tables PROPERTIES LABELS for_all)
# Prints meshes of stages, experts and copies, and pipelines beside zebra, likewise.
pagoda_bench(mesh_tables bench_parts mesh_tables.cc)
# Prints what moves of experts between processes take and bring. Tried on a model of no size;
# skipped without MPI.
pagoda_bench(moves_study testing moves_study.cc)
set_target_properties(moves_study PROPERTIES EXCLUDE_FROM_ALL OFF)
add_test(NAME moves_study
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bench/launcher.py 2
          $<TARGET_FILE:moves_study> --tiny)
add_test(NAME moves_study_slowed COMMAND moves_study --slowed --tiny)
set_tests_properties(moves_study moves_study_slowed
  PROPERTIES LABELS for_all SKIP_RETURN_CODE 69 TIMEOUT 300)
# Prints how long stages of pipelines idle, and what their orders hold and read, beside what they
# should; and how long all-to-alls take in each order, beside the least time for them.
pagoda_bench(pipeline_tables bench_parts pipeline_tables.cc)
pagoda_bench(exchange_tables bench_parts exchange/exchange_tables.cc
  exchange/simulated_exchange.cc)
# Prints the same for processes of two devices, which tools/bench/exchange_machines.py starts in
# network namespaces. Skipped without MPI.
pagoda_bench(exchange_ranks bench_parts exchange/exchange_ranks.cc)
set_target_properties(exchange_ranks PROPERTIES EXCLUDE_FROM_ALL OFF)
add_test(NAME exchange_ranks
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bench/launcher.py 2
          $<TARGET_FILE:exchange_ranks> --tiny)
set_tests_properties(exchange_ranks
  PROPERTIES LABELS for_all SKIP_RETURN_CODE 69 TIMEOUT 300)
# Prints how long two models take at once, beside one after the other and Aurora's formulas.
pagoda_bench(colocation_tables bench_parts colocation_tables.cc served_run.cc)
# Prints what copies of rows cost, and what reading them in place saves.
pagoda_bench(row_copies bench_parts row_copies.cc)
foreach(tables mesh_tables pipeline_tables exchange_tables colocation_tables row_copies)
  set_target_properties(${tables} PROPERTIES EXCLUDE_FROM_ALL OFF)
  add_test(NAME ${tables} COMMAND ${tables} --tiny WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(${tables} PROPERTIES LABELS for_all)
endforeach()
# Prints what the planner's algorithms reach where the papers give figures.
pagoda_bench(planner_figures testing figures/planner_figures.cc figures/hetermoe_figures.cc
  figures/piper_figures.cc figures/piper_tables.cc exchange/simulated_exchange.cc)

# The longest begin first, so that none of them runs alone at the end.
set(long_tests trainer_fault_test root_promise_table_test root_promise_layers_test
  root_promise_test process_stop_test
  cuda_process_test cuda_run_test ranks_promise_test validator_test zebra_tables cluster_tour
  process_refusal_test process_resume_test process_test process_kill_test process_bench_test
  process_checkpoint_test process_mpi_test process_ranks_weights_test process_ranks_ends_test
  process_memory_test tokenizer_test predicted_bytes_test pager_test ranks_run_test
  stages_promise_test zebra_promise_test check_tree)
set(longest_tests device_tables hexa_tables process_plan_cluster_test pipeline_promise_test
  process_moves_test es_moe_tables ranks_moves_test ranks_trainer_test ranks_faults_test)
if(NOT PAGODA_SANITIZE)
  list(APPEND longest_tests trainer_fault_unthinned)
  list(APPEND long_tests attack_quick attack_self_test)
endif()
set_tests_properties(${long_tests} PROPERTIES COST 1)
set_tests_properties(${longest_tests} PROPERTIES COST 2)
# Processes of the one must come to a moment of their run in time, and shares of the other follow
# the time that its devices take. They begin first, one behind the other, and with the jobs that
# tools/test.sh gives two cores one test runs beside them at most.
set_tests_properties(process_lost_ranks_test measured_shares_test PROPERTIES COST 3 PROCESSORS 2)
