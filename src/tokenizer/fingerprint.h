// A running XXH3-128 (Collet, xxHash). It tells whether bytes changed by accident; it is no
// protection against intent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace pagoda {

class Fingerprint {
 public:
  Fingerprint();
  ~Fingerprint();
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  void add(const void* data, int64_t bytes);
  void add(const std::string& text);
  std::string hex() const;  // 32 hex digits, of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string fingerprint_of(const std::string& text);

}  // namespace pagoda
