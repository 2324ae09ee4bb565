// A small page file for tests, with pages whose content is told by a stamp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "offload/page_file.h"
#include "tests/testing/storage/storages.h"

namespace pagoda::testing {

inline constexpr int64_t kMaxPageBytes = 3 * kIoAlign;

// Three records of two durable pages, and one scratch page.
std::vector<PageSpec> small_pages();

// A payload that is different for every stamp.
void fill_page(std::byte* payload, int64_t bytes, uint64_t stamp);
bool holds_page(const std::byte* payload, int64_t bytes, uint64_t stamp);

// A page file and a buffer for one page at a time.
struct Store {
  explicit Store(Storage* storage, PageFile::Options options = {{"/s/a", "/s/b"}, "pages", 2})
      : storage(storage), options(std::move(options)) {}

  Status create();
  Status open(const std::string& id, const std::vector<PageVersion>& committed);
  Status take(Result<std::unique_ptr<PageFile>> result);
  Status write(PageId page, uint64_t generation, uint64_t stamp);
  // Ok if the page reads back with this content.
  Status expect(PageId page, uint64_t stamp);

  Storage* storage;
  PageFile::Options options;
  std::vector<PageSpec> pages = small_pages();  // of the next create() or open()
  HostMemory buffer = host_memory(kPageHeaderBytes + kMaxPageBytes);
  std::unique_ptr<PageFile> file;
};

}  // namespace pagoda::testing
