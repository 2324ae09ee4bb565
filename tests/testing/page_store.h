// A small page file for tests, with pages whose content is told by a stamp.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "offload/page_file.h"
#include "tests/testing/storages.h"

namespace pagoda::testing {

inline constexpr int64_t kMaxPageBytes = 3 * kIoAlign;

// Three records of two durable pages, and one scratch page.
inline std::vector<PageSpec> small_pages() {
  std::vector<PageSpec> pages;
  for (uint32_t record = 0; record < 3; ++record) {
    pages.push_back({kIoAlign, record, true});
    pages.push_back({kMaxPageBytes, record, true});
  }
  pages.push_back({2 * kIoAlign, 1, false});
  return pages;
}

// A payload that is different for every stamp.
inline void fill_page(std::byte* payload, int64_t bytes, uint64_t stamp) {
  const auto block = philox(99, RandomPurpose::kTest, stamp, 0);
  for (int64_t i = 0; i < bytes; i += 16) {
    std::memcpy(payload + i, block.data(), 16);
    std::memcpy(payload + i, &stamp, sizeof stamp);
    std::memcpy(payload + i + 8, &i, 4);
  }
}

inline bool holds_page(const std::byte* payload, int64_t bytes, uint64_t stamp) {
  std::vector<std::byte> expected(static_cast<size_t>(bytes));
  fill_page(expected.data(), bytes, stamp);
  return std::memcmp(payload, expected.data(), expected.size()) == 0;
}

// A page file and a buffer for one page at a time.
struct Store {
  explicit Store(Storage* storage, PageFile::Options options = {{"/s/a", "/s/b"}, "pages", 2})
      : storage(storage), options(std::move(options)) {}

  Status create() { return take(PageFile::create(storage, options, small_pages())); }
  Status open(const std::string& id, const std::vector<PageVersion>& committed) {
    return take(PageFile::open(storage, options, small_pages(), id, committed));
  }
  Status take(Result<std::unique_ptr<PageFile>> result) {
    if (result.ok()) file = result.take();
    return result.status();
  }
  Status write(PageId page, uint64_t generation, uint64_t stamp) {
    fill_page(buffer.data() + kPageHeaderBytes, file->pages()[page].bytes, stamp);
    file->write(page, buffer.data(), generation, Event()).wait();
    return file->status();
  }
  // Ok if the page reads back with this content.
  Status expect(PageId page, uint64_t stamp) {
    std::memset(buffer.data(), 0xee, static_cast<size_t>(buffer.bytes()));
    file->read(page, buffer.data(), Event()).wait();
    RETURN_IF_ERROR(file->status());
    const int64_t bytes = file->pages()[page].bytes;
    if (holds_page(buffer.data() + kPageHeaderBytes, bytes, stamp)) return Status();
    return Status(Exit::kInternal, strf("page %u holds other bytes and was accepted", page));
  }

  Storage* storage;
  PageFile::Options options;
  HostMemory buffer = host_memory(kPageHeaderBytes + kMaxPageBytes);
  std::unique_ptr<PageFile> file;
};

}  // namespace pagoda::testing
