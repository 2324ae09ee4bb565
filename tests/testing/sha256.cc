#include "tests/testing/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace pagoda {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::add(const void* data, size_t bytes) {
  CHECK(EVP_DigestUpdate(context_, data, bytes) == 1);
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  CHECK(EVP_DigestFinal_ex(context_, digest, &length) == 1);
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += strf("%02x", digest[i]);
  return text;
}

}  // namespace pagoda
