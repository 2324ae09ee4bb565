#include "tests/testing/storage/storages.h"

#include <cstring>

#include "base/random.h"
#include "tests/testing/storage/storage_sim.h"

namespace pagoda::testing {

StorageUnderTest::StorageUnderTest(const std::string& kind) : kind(kind) {
  if (kind == "sim") {
    storage = std::make_unique<SimStorage>(/*seed=*/1);
    EXPECT_TRUE(storage->make_directory("/sim").ok());
  } else {
    storage = another();
  }
}

std::unique_ptr<Storage> StorageUnderTest::another() const {
  PosixOptions options;
  options.lock_wait_ms = 120;
  options.access = probe_direct_io(temporary.path());
  if (kind == "threads") return make_thread_storage(options, 3);
  auto uring = make_uring_storage(options);
  return uring.ok() ? uring.take() : nullptr;
}

void fill(std::byte* data, int64_t bytes, uint64_t stamp) {
  for (int64_t i = 0; i < bytes; i += 16) {
    const auto block =
        philox(/*seed=*/20260801, RandomPurpose::kTest, stamp, static_cast<uint64_t>(i));
    std::memcpy(data + i, block.data(), 16);
  }
}

std::string difference(const std::byte* found, const std::byte* expected, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    if (found[i] != expected[i]) {
      return strf("byte %lld is %02x, expected %02x", (long long)i, (int)found[i],
                  (int)expected[i]);
    }
  }
  return "";
}

HostMemory host_memory(int64_t bytes) {
  auto memory = HostMemory::allocate(bytes);
  EXPECT_TRUE(memory.ok());
  return memory.take();
}

}  // namespace pagoda::testing
