find_package(GTest REQUIRED)    # apt: libgtest-dev
find_package(OpenSSL REQUIRED)  # apt: libssl-dev
include(GoogleTest)

# Every tests/NAME_test.cc is one ctest program, linked with all floors.
file(GLOB test_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.cc)
foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE cli GTest::gtest_main OpenSSL::Crypto)
  target_compile_definitions(${name} PRIVATE
    PAGODA_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden" PAGODA_BINARY="$<TARGET_FILE:pagoda>")
  add_dependencies(${name} pagoda)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
endforeach()

find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME check_tree
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_tree.py ${PROJECT_SOURCE_DIR})
add_test(NAME check_tree_self_test
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_tree.py --self-test)

# Asked by tools/make_tokenizer_vectors.py --check and tools/bench/tokenizer_bench.py.
add_executable(tokenizer_probe ${PROJECT_SOURCE_DIR}/tools/bench/tokenizer_probe.cc)
target_link_libraries(tokenizer_probe PRIVATE data)
