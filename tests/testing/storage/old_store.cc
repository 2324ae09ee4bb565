#include "tests/testing/storage/old_store.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "offload/checksum.h"
#include "tests/testing/files.h"

namespace pagoda {
namespace {

constexpr size_t kStoreBlock = 4096, kFirst = 65536;

uint64_t get(const std::string& bytes, size_t at, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, size);
  return value;
}

void put(std::string& bytes, size_t at, uint64_t value, size_t size) {
  std::memcpy(bytes.data() + at, &value, size);
}

void seal(std::string& bytes, size_t block) {
  put(bytes, block + kStoreBlock - 4, crc32c(bytes.data() + block, kStoreBlock - 4), 4);
}

std::string hash_text(const std::string& bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return strf("%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

// Where each extent lies, from the classes in the superblock.
std::vector<size_t> extent_offsets(const std::string& file) {
  std::vector<size_t> offsets;
  size_t end = kFirst;
  for (uint64_t c = 0; c < get(file, 56, 4); ++c) {
    const size_t at = 60 + 12 * c;
    for (uint64_t i = 0; i < get(file, at + 8, 4); ++i) {
      offsets.push_back(end);
      end += kStoreBlock + get(file, at, 8);
    }
  }
  EXPECT_EQ(end, file.size());
  return offsets;
}

}  // namespace

void make_old_run(const std::string& checkpoint, const std::string& page_file) {
  const std::string file = get_file(page_file);
  ASSERT_EQ(get(file, 8, 4), 2u);
  std::string old(file.size(), '\0');
  old.replace(0, 56, file, 0, 56);
  put(old, 8, 1, 4);
  seal(old, 0);
  old.replace(kStoreBlock, kStoreBlock, old, 0, kStoreBlock);

  const std::vector<size_t> offsets = extent_offsets(file);
  std::string pages = get_file(checkpoint + "/pages.bin");
  size_t end = kFirst;  // durable pages come first
  for (size_t i = 0; i < pages.size() / 20; ++i) {
    const size_t from = offsets[get(pages, 20 * i + 4, 4)];
    const size_t bytes = kStoreBlock + get(file, from + 48, 8);
    const size_t slot = i % 2, to = end + slot * bytes;
    old.replace(to, bytes, file, from, bytes);
    put(old, to + 8, 1, 4);
    put(old, to + 36, slot, 4);
    seal(old, to);
    put(pages, 20 * i + 4, slot, 4);
    end += 2 * bytes;
  }
  put_file(page_file, old);
  put_file(checkpoint + "/pages.bin", pages);

  const std::string manifest = get_file(checkpoint + "/MANIFEST");
  nlohmann::json json = nlohmann::json::parse(manifest.substr(0, manifest.find('\n')));
  ASSERT_EQ(json["format"], 6);
  json["format"] = 4;
  const nlohmann::json store = json["stores"][0];
  for (const auto& [key, value] : store.items()) {
    if (key != "host") json[key] = value;
  }
  json.erase("stores");
  json["pages_xxh3"] = hash_text(pages);
  const std::string line = json.dump();
  put_file(checkpoint + "/MANIFEST", line + "\nxxh3 " + hash_text(line) + "\n");
}

}  // namespace pagoda
