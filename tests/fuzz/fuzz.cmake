# The fuzz targets as one program for libFuzzer: what reads files, and the generators of the tests.
# Nothing that trains is linked, so nothing of it is compiled.
find_package(GTest REQUIRED)  # apt: libgtest-dev
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*.cc
  ${PROJECT_SOURCE_DIR}/tests/fuzz/main/*.cc
  ${PROJECT_SOURCE_DIR}/tests/testing/storage/*.cc)
list(FILTER fuzz_sources EXCLUDE REGEX "_test\\.cc$")
foreach(name files model_folder temp_dir tiny_config)
  list(APPEND fuzz_sources ${PROJECT_SOURCE_DIR}/tests/testing/${name}.cc)
endforeach()
foreach(name option_file sheet_file)
  list(APPEND fuzz_sources ${PROJECT_SOURCE_DIR}/src/cli/${name}.cc)
endforeach()
add_executable(pagoda_fuzz ${fuzz_sources})
target_compile_definitions(pagoda_fuzz PRIVATE
  PAGODA_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
target_link_libraries(pagoda_fuzz PRIVATE config checkpoint tomlplusplus::tomlplusplus
  GTest::gtest)
target_link_options(pagoda_fuzz PRIVATE -fsanitize=fuzzer)
# Ops are written for GCC, and no target reaches them.
set_target_properties(kernels PROPERTIES SOURCES ${PROJECT_SOURCE_DIR}/kernels/gpu_ops_none.cc)
