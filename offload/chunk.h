// Chunk: the part of one IoRequest that is handed to the system in one call, and the rule for what
// its result means. All storages, the simulated one included, share this rule, so that faults
// injected by tests exercise the code that real disks will.
//
// The rule (docs/reliability.md): a transfer is good only when every byte was moved. A short one
// goes on from the last whole kIoAlign block, because direct I/O must stay aligned; EINTR, EAGAIN
// and ECANCELED are tried again at once; an EIO of a read is tried again once; 0 bytes is the end
// of the file, an error; anything else is an error. Attempts without progress are bounded, so that
// a file ending inside a block cannot loop for ever.
#pragma once

#include <cstdint>
#include <string>

#include "offload/storage.h"

namespace pagoda {

struct Chunk {
  IoRequest* request = nullptr;
  int64_t offset = 0;  // in the file
  std::byte* data = nullptr;
  int64_t bytes = 0;          // still to be moved
  int stalls = 0;             // attempts in a row without progress
  bool read_retried = false;  // the one retry after EIO has been spent
};

enum class ChunkState : uint8_t { kDone, kAgain, kFailed };

// The chunk covering bytes [begin, begin + bytes) of the request.
Chunk make_chunk(IoRequest* request, int64_t begin, int64_t bytes);

// How much of the `left_bytes` of a request that are still to be cut goes into the next chunk:
// `chunk_bytes`, or all that is left when that is less than 1.5 of it. A page is a power of two and
// a header, and the header is not worth a transfer.
int64_t next_chunk_bytes(int64_t left_bytes, int64_t chunk_bytes);

// Accounts for one attempt: `result` is the number of bytes moved or -errno. kAgain: the chunk now
// describes what is left and must be issued again. kFailed: request->status is set (the first error
// of a request stays).
ChunkState advance(Chunk* chunk, int64_t result, const std::string& path);

// CHECKs the caller's side of the contract: alignment, sizes, and that writes stay inside the file.
void check_request(const IoRequest& request, int64_t file_bytes);

// Calls request->done, which may destroy the request.
void complete(IoRequest* request);

// "No space left on device", thread-safe.
std::string error_text(int error);

}  // namespace pagoda
