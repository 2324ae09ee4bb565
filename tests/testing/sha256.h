// SHA-256 of a run's outcome.
#pragma once

#include <openssl/evp.h>

#include <string>

#include "base/check.h"

namespace pagoda {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    CHECK(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
  }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(const void* data, size_t bytes) {
    CHECK(EVP_DigestUpdate(context_, data, bytes) == 1);
  }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    CHECK(EVP_DigestFinal_ex(context_, digest, &length) == 1);
    std::string text;
    for (unsigned i = 0; i < length; ++i) text += strf("%02x", digest[i]);
    return text;
  }

 private:
  EVP_MD_CTX* context_;
};

}  // namespace pagoda
