#include "data/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <vector>

#include "base/bytes.h"
#include "base/log.h"

namespace pagoda {

namespace {

constexpr size_t kUnpackedBlockBytes = size_t{1} << 20;
constexpr int kMaxWindowLog = 27;
constexpr int64_t kMaxExpansion = 1000;
constexpr int64_t kSmallBytes = 64 * kMiB;  // up to here the expansion is not looked at

class PackedStream : public Decompressor {
 protected:
  explicit PackedStream(const std::string& path) : path_(path), block_(kUnpackedBlockBytes) {}

  Status bad(const std::string& why) const {
    return Status(Exit::kBadData, strf("%s: %s; nothing was trained, get or pack the file again",
                                       printable(path_).c_str(), why.c_str()));
  }
  Status pass_on(size_t in_bytes, size_t out_bytes, const BlockVisitor& visit) {
    in_bytes_ += static_cast<int64_t>(in_bytes);
    out_bytes_ += static_cast<int64_t>(out_bytes);
    if (out_bytes_ > kSmallBytes && out_bytes_ / kMaxExpansion > in_bytes_) {
      return bad(strf("unpacks to more than %lld times its size, which text does not",
                      (long long)kMaxExpansion));
    }
    return out_bytes == 0 ? Status() : visit(std::string_view(block_.data(), out_bytes));
  }

  const std::string path_;
  std::vector<char> block_;
  bool between_members_ = false;

 private:
  int64_t in_bytes_ = 0, out_bytes_ = 0;
};

class Gzip final : public PackedStream {
 public:
  explicit Gzip(const std::string& path) : PackedStream(path) {
    constexpr int kGzipOnly = 16;
    CHECK(inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK, "zlib has no memory");
  }
  ~Gzip() override { inflateEnd(&stream_); }

  Status add(std::string_view packed, const BlockVisitor& visit) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = narrow<uInt>(packed.size());
    bool full = false;
    while (stream_.avail_in > 0 || full) {
      if (between_members_) CHECK(inflateReset(&stream_) == Z_OK);
      between_members_ = false;
      const uInt before = stream_.avail_in;
      stream_.next_out = reinterpret_cast<Bytef*>(block_.data());
      stream_.avail_out = narrow<uInt>(block_.size());
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
        return bad(std::string("damaged gzip data, or something else behind it: ") +
                   (stream_.msg != nullptr ? stream_.msg : "needs a dictionary"));
      }
      full = stream_.avail_out == 0 && code != Z_STREAM_END;
      between_members_ = code == Z_STREAM_END;
      RETURN_IF_ERROR(
          pass_on(before - stream_.avail_in, block_.size() - stream_.avail_out, visit));
    }
    return Status();
  }
  Status finish() override {
    return between_members_ ? Status() : bad("the gzip data ends in the middle");
  }

 private:
  z_stream stream_ = {};
};

class Zstd final : public PackedStream {
 public:
  explicit Zstd(const std::string& path) : PackedStream(path), stream_(ZSTD_createDCtx()) {
    CHECK(stream_ != nullptr, "libzstd has no memory");
    const size_t set =
        ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
    CHECK(ZSTD_isError(set) == 0, "%s", ZSTD_getErrorName(set));
  }

  Status add(std::string_view packed, const BlockVisitor& visit) override {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    bool full = false;
    while (in.pos < in.size || full) {
      const size_t before = in.pos;
      ZSTD_outBuffer out{block_.data(), block_.size(), 0};
      const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(left) != 0) {
        return bad(std::string("damaged Zstandard data, or something else behind it: ") +
                   ZSTD_getErrorName(left));
      }
      between_members_ = left == 0;
      full = out.pos == out.size && left != 0;
      RETURN_IF_ERROR(pass_on(in.pos - before, out.pos, visit));
    }
    return Status();
  }
  Status finish() override {
    return between_members_ ? Status() : bad("the Zstandard data ends in the middle");
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* stream) const { ZSTD_freeDCtx(stream); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> stream_;
};

}  // namespace

std::unique_ptr<Decompressor> Decompressor::create(Compression compression,
                                                   const std::string& path) {
  CHECK(compression != Compression::kNone);
  if (compression == Compression::kGzip) return std::make_unique<Gzip>(path);
  return std::make_unique<Zstd>(path);
}

}  // namespace pagoda
