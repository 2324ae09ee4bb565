#include "tests/testing/storage/page_store.h"

#include <cstring>

#include "base/random.h"

namespace pagoda::testing {

std::vector<PageSpec> small_pages() {
  std::vector<PageSpec> pages;
  for (uint32_t record = 0; record < 3; ++record) {
    pages.push_back({kIoAlign, record, true});
    pages.push_back({kMaxPageBytes, record, true});
  }
  pages.push_back({2 * kIoAlign, 1, false});
  return pages;
}

void fill_page(std::byte* payload, int64_t bytes, uint64_t stamp) {
  const auto block = philox(99, RandomPurpose::kTest, stamp, 0);
  for (int64_t i = 0; i < bytes; i += 16) {
    std::memcpy(payload + i, block.data(), 16);
    std::memcpy(payload + i, &stamp, sizeof stamp);
    std::memcpy(payload + i + 8, &i, 4);
  }
}

bool holds_page(const std::byte* payload, int64_t bytes, uint64_t stamp) {
  std::vector<std::byte> expected(static_cast<size_t>(bytes));
  fill_page(expected.data(), bytes, stamp);
  return std::memcmp(payload, expected.data(), expected.size()) == 0;
}

Status Store::create() { return take(PageFile::create(storage, options, pages)); }

Status Store::open(const std::string& id, const std::vector<PageVersion>& committed) {
  return take(PageFile::open(storage, options, pages, id, committed));
}

Status Store::take(Result<std::unique_ptr<PageFile>> result) {
  if (result.ok()) file = result.take();
  return result.status();
}

Status Store::write(PageId page, uint64_t generation, uint64_t stamp) {
  fill_page(buffer.data() + kPageHeaderBytes, file->pages()[page].bytes, stamp);
  file->write(page, buffer.data(), generation, Event()).wait();
  return file->status();
}

Status Store::expect(PageId page, uint64_t stamp) {
  std::memset(buffer.data(), 0xee, static_cast<size_t>(buffer.bytes()));
  file->read(page, buffer.data(), Event()).wait();
  RETURN_IF_ERROR(file->status());
  const int64_t bytes = file->pages()[page].bytes;
  if (holds_page(buffer.data() + kPageHeaderBytes, bytes, stamp)) return Status();
  return Status(Exit::kInternal, strf("page %u holds other bytes and was accepted", page));
}

}  // namespace pagoda::testing
