// SHA-256 of a run's outcome.
#pragma once

#include <openssl/types.h>

#include <string>

namespace pagoda {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(const void* data, size_t bytes);
  std::string hex();  // ends it: nothing may be added after

 private:
  EVP_MD_CTX* context_;
};

}  // namespace pagoda
