// The byte layout of a page file: what docs/file-formats.md describes, as structs with encode and
// decode. All numbers are little-endian; every block ends in the CRC32C of what precedes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "offload/page_file.h"

namespace pagoda {

inline constexpr uint32_t kPageFormat = 1;
inline constexpr int64_t kSuperblockBytes = 4096;  // two copies, A at 0 and B behind it
inline constexpr int64_t kFirstSlotOffset = 64 * 1024;

using StoreId = std::array<uint8_t, 16>;
std::string store_id_text(const StoreId& id);  // 32 hex digits

struct Superblock {
  StoreId store_id = {};
  uint32_t directory_count = 0;
  uint32_t directory_index = 0;
  uint32_t page_count = 0;
  uint32_t slots = 0;            // per durable page
  uint32_t page_table_hash = 0;  // CRC32C over every page's bytes, record and durability
  int64_t file_bytes = 0;

  void encode(std::byte* block) const;  // kSuperblockBytes
  // False if magic, format or checksum do not hold.
  bool decode(const std::byte* block);
  bool operator==(const Superblock&) const = default;
};

struct PageHeader {
  StoreId store_id = {};
  PageId page = 0;
  uint32_t record = 0;
  uint32_t slot = 0;
  uint32_t checksum = 0;  // of the payload
  uint64_t generation = 0;
  int64_t bytes = 0;  // payload

  void encode(std::byte* block) const;  // kPageHeaderBytes
  bool decode(const std::byte* block);
  bool operator==(const PageHeader&) const = default;
};

// Where every page lies. Pages are striped over the files by record and laid out in order of id.
struct PageLayout {
  struct Extent {
    int file = 0;
    int64_t offset = 0;      // of slot 0
    int64_t slot_bytes = 0;  // header + payload
    int slots = 1;
  };
  std::vector<Extent> extents;      // by page
  std::vector<int64_t> file_bytes;  // by file

  PageLayout(const std::vector<PageSpec>& pages, int slots, int files);
};

uint32_t page_table_hash(const std::vector<PageSpec>& pages);

}  // namespace pagoda
