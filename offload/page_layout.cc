#include "offload/page_layout.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/bytes.h"
#include "offload/checksum.h"

namespace pagoda {
namespace {

constexpr char kSuperblockMagic[8] = {'P', 'A', 'G', 'O', 'D', 'A', 'S', 'T'};
constexpr char kPageMagic[8] = {'P', 'A', 'G', 'O', 'D', 'A', 'P', 'G'};
constexpr int64_t kBlockBytes = 4096;
static_assert(kBlockBytes == kSuperblockBytes && kBlockBytes == kPageHeaderBytes);
constexpr int64_t kChecksumOffset = kBlockBytes - 4;

// Visits the fields of a block in order; the same visit writes and reads, so that the two cannot
// disagree.
class BlockWriter {
 public:
  BlockWriter(std::byte* block, const char (&magic)[8], uint32_t format)
      : block_(block), next_(block) {
    std::memset(block, 0, kBlockBytes);
    bytes(magic, sizeof magic);
    number(format);
  }
  template <typename T>
  void number(T value) {
    for (size_t i = 0; i < sizeof value; ++i) {
      *next_++ = std::byte{static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i))};
    }
  }
  void id(const StoreId& id) { bytes(id.data(), id.size()); }
  void finish() {
    next_ = block_ + kChecksumOffset;
    number(crc32c(block_, kChecksumOffset));
  }

 private:
  void bytes(const void* data, size_t count) {
    std::memcpy(next_, data, count);
    next_ += count;
  }
  std::byte* block_;
  std::byte* next_;
};

class BlockReader {
 public:
  explicit BlockReader(const std::byte* block) : block_(block), next_(block) {}
  // Consumes magic and format; false unless both and the checksum hold.
  bool begin(const char (&magic)[8], uint32_t& format) {
    uint32_t checksum;
    next_ = block_ + kChecksumOffset;
    number(checksum);
    next_ = block_ + sizeof magic;
    number(format);
    return std::memcmp(block_, magic, sizeof magic) == 0 &&
           (format == kPageFormat || format == kFixedFormat) &&
           checksum == crc32c(block_, kChecksumOffset);
  }
  template <typename T>
  void number(T& value) {
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof value; ++i) sum |= std::to_integer<uint64_t>(*next_++) << (8 * i);
    value = static_cast<T>(sum);
  }
  void id(StoreId& id) {
    std::memcpy(id.data(), next_, id.size());
    next_ += id.size();
  }

 private:
  const std::byte* block_;
  const std::byte* next_;
};

template <typename Block, typename Visitor>
void visit_superblock(Block& block, Visitor& visitor) {
  visitor.number(block.directory_count);
  visitor.id(block.store_id);
  visitor.number(block.directory_index);
  visitor.number(block.page_count);
  visitor.number(block.slots);
  visitor.number(block.page_table_hash);
  visitor.number(block.file_bytes);
}

template <typename Class, typename Visitor>
void visit_class(Class& extent_class, Visitor& visitor) {
  visitor.number(extent_class.page_bytes);
  visitor.number(extent_class.extents);
}

template <typename Header, typename Visitor>
void visit_page_header(Header& header, Visitor& visitor) {
  visitor.number(header.page);
  visitor.id(header.store_id);
  visitor.number(header.record);
  visitor.number(header.extent);
  visitor.number(header.generation);
  visitor.number(header.bytes);
  visitor.number(header.checksum);
}

}  // namespace

std::string store_id_text(const StoreId& id) {
  std::string text;
  for (const uint8_t byte : id) text += strf("%02x", byte);
  return text;
}

void Superblock::encode(std::byte* block) const {
  CHECK(classes.size() <= kMostClasses, "%zu sizes of pages", classes.size());
  BlockWriter writer(block, kSuperblockMagic, format);
  visit_superblock(*this, writer);
  if (format != kFixedFormat) {
    writer.number(static_cast<uint32_t>(classes.size()));
    for (const ExtentClass& c : classes) visit_class(c, writer);
  }
  writer.finish();
}

bool Superblock::decode(const std::byte* block) {
  BlockReader reader(block);
  if (!reader.begin(kSuperblockMagic, format)) return false;
  visit_superblock(*this, reader);
  uint32_t count = 0;
  if (format != kFixedFormat) reader.number(count);
  if (count > kMostClasses) return false;
  classes.resize(count);
  for (ExtentClass& c : classes) visit_class(c, reader);
  return true;
}

void PageHeader::encode(std::byte* block) const {
  BlockWriter writer(block, kPageMagic, format);
  visit_page_header(*this, writer);
  writer.finish();
}

bool PageHeader::decode(const std::byte* block) {
  BlockReader reader(block);
  if (!reader.begin(kPageMagic, format)) return false;
  visit_page_header(*this, reader);
  return true;
}

std::string PageHeader::difference_from(const PageHeader& expected, uint32_t store_format,
                                        int slots) const {
  if (store_id != expected.store_id) {
    return strf("store %s found, %s expected", store_id_text(store_id).c_str(),
                store_id_text(expected.store_id).c_str());
  }
  const bool fixed = format == kFixedFormat;
  const uint32_t place = fixed ? expected.extent % static_cast<uint32_t>(slots) : expected.extent;
  struct Field {
    const char* name;
    uint64_t found, expected;
  };
  const Field fields[] = {
      {"page", page, expected.page},
      {"record", record, expected.record},
      {"format", format, std::max(format, store_format)},
      {fixed ? "slot" : "extent", extent, place},
      {"generation", generation, expected.generation},
      {"size", static_cast<uint64_t>(bytes), static_cast<uint64_t>(expected.bytes)},
      {"checksum in its header", checksum, expected.checksum},
  };
  for (const Field& field : fields) {
    if (field.found == field.expected) continue;
    return strf("%s %llu found, %llu expected", field.name, (unsigned long long)field.found,
                (unsigned long long)field.expected);
  }
  return "";
}

std::vector<ExtentClass> extent_classes(const std::vector<PageSpec>& pages, int slots) {
  std::map<int64_t, int64_t> extents;  // by the bytes of a page
  for (const PageSpec& page : pages) {
    CHECK(page.bytes > 0 && page.bytes % kIoAlign == 0, "page of %lld bytes",
          (long long)page.bytes);
    extents[page.bytes] += page.extents(slots);
  }
  std::vector<ExtentClass> classes;
  for (const auto& [bytes, count] : extents) {
    if (count > 0) classes.push_back({bytes, narrow<uint32_t>(count)});
  }
  return classes;
}

int64_t PageFile::disk_bytes(const std::vector<PageSpec>& pages, int slots, int directories) {
  int64_t bytes = directories * kFirstExtentOffset;
  for (const ExtentClass& c : extent_classes(pages, slots)) {
    bytes += c.extents * (kPageHeaderBytes + c.page_bytes);
  }
  return bytes;
}

PageLayout PageLayout::of_classes(std::vector<ExtentClass> classes, size_t files) {
  PageLayout layout;
  layout.classes = std::move(classes);
  layout.file_bytes.assign(files, kFirstExtentOffset);
  for (const ExtentClass& c : layout.classes) {
    for (uint32_t i = 0; i < c.extents; ++i) {
      const size_t file = layout.extents.size() % files;
      layout.extents.push_back({static_cast<int>(file), layout.file_bytes[file], c.page_bytes});
      layout.file_bytes[file] += layout.extents.back().bytes();
    }
  }
  return layout;
}

PageLayout PageLayout::fixed(const std::vector<PageSpec>& pages, int slots, size_t files) {
  PageLayout layout;
  layout.format = kFixedFormat;
  layout.file_bytes.assign(files, kFirstExtentOffset);
  const auto durable = std::count_if(pages.begin(), pages.end(),
                                     [](const PageSpec& page) { return page.durable; });
  const size_t count = counted_pages(pages);
  size_t of_durable = 0, of_scratch = static_cast<size_t>(durable * slots);
  layout.extents.resize(of_scratch + count - static_cast<size_t>(durable));
  for (size_t i = 0; i < count; ++i) {
    const PageSpec& page = pages[i];
    const size_t file = page.record % files;
    size_t& next = page.durable ? of_durable : of_scratch;
    for (int i = 0; i < (page.durable ? slots : 1); ++i) {
      Extent& extent = layout.extents[next++];
      extent = {static_cast<int>(file), layout.file_bytes[file], page.bytes};
      layout.file_bytes[file] += extent.bytes();
    }
  }
  return layout;
}

size_t counted_pages(const std::vector<PageSpec>& pages) {
  size_t count = pages.size();
  while (count > 0 && pages[count - 1].local) --count;
  return count;
}

uint32_t page_table_hash(const std::vector<PageSpec>& pages) {
  std::string text;
  for (size_t i = 0; i < counted_pages(pages); ++i) {
    const PageSpec& page = pages[i];
    CHECK(!page.local, "page %zu is local", i);
    text += strf("%lld %u %d\n", (long long)page.bytes, page.record, page.durable ? 1 : 0);
  }
  return crc32c(text.data(), static_cast<int64_t>(text.size()));
}

}  // namespace pagoda
