#include "offload/chunk.h"

#include <cerrno>
#include <system_error>

#include "base/bytes.h"

namespace pagoda {
namespace {

// Enough for any burst of EAGAIN seen in practice, over in a fraction of a second if it never ends.
constexpr int kMaxStalls = 10000;

bool is_transient(int error) { return error == EAGAIN || error == EINTR || error == ECANCELED; }

ChunkState fail(const Chunk& chunk, const std::string& path, const std::string& why) {
  IoRequest& request = *chunk.request;
  if (request.status.ok()) {
    const bool read = request.op == IoRequest::Op::kRead;
    request.status = Status(
        Exit::kIoError,
        strf("%s %s failed at offset %lld (%lld bytes left): %s; saved checkpoints are untouched; "
             "check the disk and resume",
             read ? "reading" : "writing", path.c_str(), (long long)chunk.offset,
             (long long)chunk.bytes, why.c_str()));
  }
  return ChunkState::kFailed;
}

ChunkState stall(Chunk* chunk, const std::string& path, const std::string& why) {
  if (++chunk->stalls < kMaxStalls) return ChunkState::kAgain;
  return fail(*chunk, path, strf("no progress in %d attempts, last: %s", kMaxStalls, why.c_str()));
}

}  // namespace

Chunk make_chunk(IoRequest* request, int64_t begin, int64_t bytes) {
  Chunk chunk;
  chunk.request = request;
  chunk.offset = request->offset + begin;
  chunk.data = request->data + begin;
  chunk.bytes = bytes;
  return chunk;
}

int64_t next_chunk_bytes(int64_t left_bytes, int64_t chunk_bytes) {
  return left_bytes < chunk_bytes + chunk_bytes / 2 ? left_bytes : chunk_bytes;
}

ChunkState advance(Chunk* chunk, int64_t result, const std::string& path) {
  if (result == chunk->bytes) return ChunkState::kDone;
  if (result < 0) {
    const int error = static_cast<int>(-result);
    if (is_transient(error)) return stall(chunk, path, error_text(error));
    const bool read = chunk->request->op == IoRequest::Op::kRead;
    if (read && error == EIO && !std::exchange(chunk->read_retried, true))
      return ChunkState::kAgain;
    return fail(*chunk, path, error_text(error));
  }
  CHECK(result < chunk->bytes, "%lld bytes moved, %lld asked for", (long long)result,
        (long long)chunk->bytes);
  if (result == 0) return fail(*chunk, path, "the file ends here");
  const int64_t moved = result / kIoAlign * kIoAlign;
  if (moved == 0) return stall(chunk, path, strf("%lld bytes moved", (long long)result));
  chunk->offset += moved;
  chunk->data += moved;
  chunk->bytes -= moved;
  chunk->stalls = 0;
  return ChunkState::kAgain;
}

void check_request(const IoRequest& request, int64_t file_bytes) {
  CHECK(request.bytes > 0 && request.bytes % kIoAlign == 0, "request of %lld bytes",
        (long long)request.bytes);
  CHECK(request.offset >= 0 && request.offset % kIoAlign == 0, "request at offset %lld",
        (long long)request.offset);
  CHECK(reinterpret_cast<uintptr_t>(request.data) % kIoAlign == 0, "unaligned buffer %p",
        static_cast<void*>(request.data));
  CHECK(request.done != nullptr, "request without completion");
  CHECK(request.op == IoRequest::Op::kRead || request.offset + request.bytes <= file_bytes,
        "write of [%lld, +%lld) past the end (%lld) of a preallocated file",
        (long long)request.offset, (long long)request.bytes, (long long)file_bytes);
}

void complete(IoRequest* request) {
  // Moved out first: destroying a request destroys its `done`, which must not be running then.
  const auto done = std::move(request->done);
  done(*request);
}

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace pagoda
