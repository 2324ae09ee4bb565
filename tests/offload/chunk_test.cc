// The chunks of a transfer: how it is cut, and what follows from what the system says of each; and
// the checksum of pages.
#include "offload/chunk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/bytes.h"
#include "offload/checksum.h"
#include "tests/testing/storage/storages.h"

namespace pagoda {
namespace {

using testing::fill;
using Op = IoRequest::Op;

// A page and its header: nothing small is left over, nothing grows past 1.5 chunks.
TEST(Chunk, HeadersAreNoChunksOfTheirOwn) {
  for (const int64_t page_bytes : {kIoAlign, kMiB, 3 * kMiB / 2, 4 * kMiB, 28 * kMiB}) {
    const int64_t all = page_bytes + kIoAlign;
    int64_t sum = 0;
    for (int64_t next; sum < all; sum += next) {
      next = next_chunk_bytes(all - sum, kMiB);
      EXPECT_LT(next, 3 * kMiB / 2);
      EXPECT_GE(next, std::min(all, kMiB / 2)) << "at " << sum << " of " << all;
      EXPECT_EQ(next % kIoAlign, 0);
      if (next <= 0) break;
    }
    EXPECT_EQ(sum, all);
  }
}

TEST(Chunk, FollowsItsRule) {
  std::vector<std::byte> memory(8 * kIoAlign);
  IoRequest request;
  request.data = memory.data();
  request.bytes = 8 * kIoAlign;
  request.op = Op::kWrite;
  Chunk chunk = make_chunk(&request, 0, request.bytes);
  EXPECT_EQ(advance(&chunk, -EAGAIN, "f"), ChunkState::kAgain);  // also as the very first
  EXPECT_EQ(advance(&chunk, 2 * kIoAlign + 7, "f"), ChunkState::kAgain);
  EXPECT_EQ(chunk.offset, 2 * kIoAlign);
  EXPECT_EQ(chunk.bytes, 6 * kIoAlign);
  EXPECT_EQ(advance(&chunk, 100, "f"), ChunkState::kAgain);
  EXPECT_EQ(chunk.offset, 2 * kIoAlign);
  EXPECT_EQ(advance(&chunk, -ECANCELED, "f"), ChunkState::kAgain);
  EXPECT_EQ(advance(&chunk, 6 * kIoAlign, "f"), ChunkState::kDone);
  EXPECT_TRUE(request.status.ok());
  EXPECT_EQ(advance(&chunk, -EIO, "f"), ChunkState::kFailed);  // a write: no second attempt
  EXPECT_EQ(request.status.code(), Exit::kIoError);

  request.op = Op::kRead;
  request.status = Status();
  EXPECT_EQ(advance(&chunk, -EIO, "f"), ChunkState::kAgain);  // a read: one
  EXPECT_EQ(advance(&chunk, -EIO, "f"), ChunkState::kFailed);
  EXPECT_EQ(advance(&chunk, 0, "f"), ChunkState::kFailed);
  int attempts = 0;
  while (advance(&chunk, -EINTR, "f") == ChunkState::kAgain) ASSERT_LT(++attempts, 1000000);
}

// Check value of CRC32C and a bitwise computation, on lengths around the vector widths.
TEST(Checksum, IsCrc32c) {
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  std::vector<std::byte> data(5008);
  fill(data.data(), static_cast<int64_t>(data.size()), 9);
  for (const int64_t bytes : {0, 1, 7, 8, 63, 64, 1000, 4092, 5000}) {
    uint32_t crc = ~0u;
    for (int64_t i = 0; i < bytes; ++i) {
      crc ^= std::to_integer<uint32_t>(data[static_cast<size_t>(i)]);
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    }
    EXPECT_EQ(crc32c(data.data(), bytes), ~crc) << bytes << " bytes";
  }
}

}  // namespace
}  // namespace pagoda
