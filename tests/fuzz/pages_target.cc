#include <cstring>

#include "base/check.h"
#include "offload/checksum.h"
#include "offload/page_layout.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/storage/page_store.h"
#include "tests/testing/storage/storage_sim.h"

namespace pagoda {
namespace {

using testing::Store;

constexpr size_t kBeginBytes = 128;  // a block's fields end before
constexpr size_t kBlockBytes = 4096;
constexpr const char* kFile = "/s/pages.0";

// A page file in memory whose durable pages have all been written once.
struct WrittenStore {
  WrittenStore() {
    CHECK(sim.make_directory("/s").ok() && store.create().ok());
    for (PageId page = 0; page < store.file->pages().size(); ++page) {
      if (store.file->pages()[page].durable) CHECK(store.write(page, 1, page).ok());
    }
    CHECK(store.file->sync().ok());
    versions = store.file->versions();
    id = store.file->store_id();
    const PageLayout layout =
        PageLayout::of_classes(extent_classes(store.file->pages(), store.options.slots), 1);
    block_offsets = {0, kBlockBytes};
    for (const PageVersion& v : versions) {
      block_offsets.push_back(static_cast<size_t>(layout.extents[v.extent].offset));
    }
    store.file.reset();
    bytes = sim.contents(kFile);
  }

  SimStorage sim{1, 0};
  Store store{&sim, {{"/s"}, "pages", 2}};
  std::string id;
  std::vector<PageVersion> versions;
  std::vector<size_t> block_offsets;
  std::vector<std::byte> bytes;
};

WrittenStore& written() {
  static WrittenStore the_store;
  return the_store;
}

// Every block that is taken for good is written as it was read.
template <typename Block>
void check_block(const std::byte* bytes) {
  Block block, again;
  if (!block.decode(bytes)) return;
  std::vector<std::byte> copy(kBlockBytes);
  block.encode(copy.data());
  CHECK(again.decode(copy.data()) && again == block);
}

void seal(std::byte* block) {
  uint32_t checksum = crc32c(block, kBlockBytes - 4);
  for (size_t i = kBlockBytes - 4; i < kBlockBytes; ++i, checksum >>= 8) {
    block[i] = std::byte{static_cast<uint8_t>(checksum)};
  }
}

}  // namespace

void fuzz_pages(std::string_view input) {
  WrittenStore& s = written();
  std::vector<std::byte> bytes = s.bytes;
  for (const size_t offset : s.block_offsets) {
    if (input.empty()) break;
    const bool sealed = (input[0] & 1) != 0;
    input.remove_prefix(1);
    const std::string_view begin = input.substr(0, kBeginBytes);
    std::memcpy(bytes.data() + offset, begin.data(), begin.size());
    input.remove_prefix(begin.size());
    if (sealed) seal(bytes.data() + offset);
    check_block<Superblock>(bytes.data() + offset);
    check_block<PageHeader>(bytes.data() + offset);
  }
  std::vector<PageVersion> versions = s.versions;
  for (size_t i = 0; i < versions.size() && input.size() >= 20; ++i, input.remove_prefix(20)) {
    std::memcpy(&versions[i].page, input.data(), 4);
    std::memcpy(&versions[i].extent, input.data() + 4, 4);
    std::memcpy(&versions[i].generation, input.data() + 8, 8);
    std::memcpy(&versions[i].checksum, input.data() + 16, 4);
  }
  s.sim.set_contents(kFile, bytes);
  if (s.store.open(s.id, versions).ok()) {
    // Each page holds what was written, or the damage is told.
    if (s.store.file->verify().ok()) {
      for (PageId page = 0; page < s.versions.size(); ++page) {
        CHECK(s.store.expect(page, page).ok(), "page %u", page);
      }
    }
  }
  s.store.file.reset();
}

std::vector<std::string> pages_seeds() {
  const WrittenStore& s = written();
  std::string blocks;
  for (const size_t offset : s.block_offsets) {
    blocks += '1';
    blocks.append(reinterpret_cast<const char*>(s.bytes.data() + offset), kBeginBytes);
  }
  std::string versions;
  for (const PageVersion& v : s.versions) {
    versions.append(reinterpret_cast<const char*>(&v.page), 4);
    versions.append(reinterpret_cast<const char*>(&v.extent), 4);
    versions.append(reinterpret_cast<const char*>(&v.generation), 8);
    versions.append(reinterpret_cast<const char*>(&v.checksum), 4);
  }
  return {blocks, blocks + versions, blocks.substr(0, 1 + kBeginBytes)};
}

}  // namespace pagoda
