#include "tokenizer/fingerprint.h"

#include <xxhash.h>

#include "base/bytes.h"

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

}  // namespace pagoda
