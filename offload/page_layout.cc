#include "offload/page_layout.h"

#include <cstring>

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
  BlockWriter(std::byte* block, const char (&magic)[8]) : block_(block), next_(block) {
    std::memset(block, 0, kBlockBytes);
    bytes(magic, sizeof magic);
    number(kPageFormat);
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
  bool begin(const char (&magic)[8]) {
    uint32_t checksum, format;
    next_ = block_ + kChecksumOffset;
    number(checksum);
    next_ = block_ + sizeof magic;
    number(format);
    return std::memcmp(block_, magic, sizeof magic) == 0 && format == kPageFormat &&
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

template <typename Header, typename Visitor>
void visit_page_header(Header& header, Visitor& visitor) {
  visitor.number(header.page);
  visitor.id(header.store_id);
  visitor.number(header.record);
  visitor.number(header.slot);
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
  BlockWriter writer(block, kSuperblockMagic);
  visit_superblock(*this, writer);
  writer.finish();
}

bool Superblock::decode(const std::byte* block) {
  BlockReader reader(block);
  if (!reader.begin(kSuperblockMagic)) return false;
  visit_superblock(*this, reader);
  return true;
}

void PageHeader::encode(std::byte* block) const {
  BlockWriter writer(block, kPageMagic);
  visit_page_header(*this, writer);
  writer.finish();
}

bool PageHeader::decode(const std::byte* block) {
  BlockReader reader(block);
  if (!reader.begin(kPageMagic)) return false;
  visit_page_header(*this, reader);
  return true;
}

PageLayout::PageLayout(const std::vector<PageSpec>& pages, int slots, int files)
    : file_bytes(static_cast<size_t>(files), kFirstSlotOffset) {
  CHECK(slots >= 1 && files >= 1);
  for (const PageSpec& page : pages) {
    CHECK(page.bytes > 0 && page.bytes % kIoAlign == 0, "page of %lld bytes",
          (long long)page.bytes);
    Extent extent;
    extent.file = static_cast<int>(page.record % static_cast<uint32_t>(files));
    int64_t& end = file_bytes[static_cast<size_t>(extent.file)];
    extent.offset = end;
    extent.slot_bytes = kPageHeaderBytes + page.bytes;
    extent.slots = page.durable ? slots : 1;
    end += extent.slots * extent.slot_bytes;
    extents.push_back(extent);
  }
}

uint32_t page_table_hash(const std::vector<PageSpec>& pages) {
  std::string text;
  for (const PageSpec& page : pages) {
    text += strf("%lld %u %d\n", (long long)page.bytes, page.record, page.durable ? 1 : 0);
  }
  return crc32c(text.data(), static_cast<int64_t>(text.size()));
}

}  // namespace pagoda
