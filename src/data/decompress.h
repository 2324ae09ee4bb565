// Unpacking of gzip (RFC 1952, with zlib) and Zstandard (RFC 8878, with libzstd), a block at a
// time. Memory is bounded whatever the input: a Zstandard window above 128 MiB is refused. Text
// does not shrink a thousandfold, so input that unpacks to more is refused once it is large.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace pagoda {

enum class Compression : uint8_t { kNone, kGzip, kZstd };

// Receives bytes in order; its first error ends the reading.
using BlockVisitor = std::function<Status(std::string_view)>;

// One stream. Several members (frames) behind each other are one text.
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Unpacks `packed` into blocks of at most a MiB. kBadData when it is damaged or followed by
  // something else; the message begins with the path.
  virtual Status add(std::string_view packed, const BlockVisitor& visit) = 0;
  // Call after the last add(). kBadData when the stream is cut short.
  virtual Status finish() = 0;

  // REQUIRES: compression is not kNone. `path` is for messages.
  static std::unique_ptr<Decompressor> create(Compression compression, const std::string& path);
};

}  // namespace pagoda
