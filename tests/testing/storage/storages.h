// The storages under test, by name, and blocking transfers on them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "device/device.h"
#include "offload/storage_posix.h"
#include "tests/testing/temp_dir.h"

namespace pagoda::testing {

// A storage and a directory to use it in. `kind` is "uring", "threads" or "sim". The first is
// absent (null) where the system refuses io_uring; tests then skip, saying so.
struct StorageUnderTest {
  explicit StorageUnderTest(const std::string& kind);
  // A second storage on the same files, as another process would have; not for sim.
  std::unique_ptr<Storage> another() const;
  std::string directory() const { return kind == "sim" ? "/sim" : temporary.path(); }

  std::string kind;
  TempDir temporary;
  std::unique_ptr<Storage> storage;
};

// Different bytes for every stamp and place; `bytes` is a multiple of 16.
void fill(std::byte* data, int64_t bytes, uint64_t stamp);

// "" or the first byte that differs.
std::string difference(const std::byte* found, const std::byte* expected, int64_t bytes);

HostMemory host_memory(int64_t bytes);

}  // namespace pagoda::testing

#define ASSERT_OK(expr)                                           \
  do {                                                            \
    const ::pagoda::Status status_of_expr = (expr);               \
    ASSERT_TRUE(status_of_expr.ok()) << status_of_expr.message(); \
  } while (0)
