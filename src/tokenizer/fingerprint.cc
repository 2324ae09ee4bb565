#include "tokenizer/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "base/file.h"

namespace pagoda {

struct Fingerprint::State {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

Fingerprint::Fingerprint() : state_(std::make_unique<State>()) {
  CHECK(state_->xxh != nullptr && XXH3_128bits_reset(state_->xxh.get()) == XXH_OK);
}

Fingerprint::~Fingerprint() = default;

void Fingerprint::add(const void* data, int64_t bytes) {
  CHECK(XXH3_128bits_update(state_->xxh.get(), data, static_cast<size_t>(bytes)) == XXH_OK);
}

void Fingerprint::add(const std::string& text) {
  add(text.data(), static_cast<int64_t>(text.size()));
}

std::string Fingerprint::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh.get());
  return strf("%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

std::string fingerprint_of(const std::string& text) {
  Fingerprint fingerprint;
  fingerprint.add(text);
  return fingerprint.hex();
}

namespace {

std::string kind_of(const std::string& path) {
  const std::filesystem::path name(path);
  const std::string last = name.extension();
  const bool compressed = last == ".gz" || last == ".zst";
  return (compressed ? name.stem().extension().string() : "") + last;
}

}  // namespace

Result<std::string> fingerprint_of_files(const std::vector<std::string>& paths) {
  Fingerprint all;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path, Links::kFollow));
    Fingerprint one;
    std::string block(static_cast<size_t>(std::min(file.bytes(), kMiB)), '\0');
    for (int64_t at = 0; at < file.bytes(); at += kMiB) {
      const int64_t bytes = std::min(kMiB, file.bytes() - at);
      RETURN_IF_ERROR(file.read(at, block.data(), bytes));
      one.add(block.data(), bytes);
    }
    all.add(strf("%s %lld %s\n", kind_of(path).c_str(), (long long)file.bytes(),
                 one.hex().c_str()));
  }
  return all.hex();
}

}  // namespace pagoda
