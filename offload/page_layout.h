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

// Format 1 is read and gone on with: there every page had extents of its own.
inline constexpr uint32_t kPageFormat = 2, kFixedFormat = 1;
inline constexpr int64_t kSuperblockBytes = 4096;  // two copies, A at 0 and B behind it
inline constexpr int64_t kFirstExtentOffset = 64 * 1024;
// No run has more of either, and no larger page.
inline constexpr size_t kMostClasses = 256;
inline constexpr int64_t kMostExtents = int64_t{1} << 23, kMostPageBytes = int64_t{1} << 38;

using StoreId = std::array<uint8_t, 16>;
std::string store_id_text(const StoreId& id);  // 32 hex digits

// The extents for pages of one size, of a whole store.
struct ExtentClass {
  int64_t page_bytes = 0;  // payload
  uint32_t extents = 0;
  bool operator==(const ExtentClass&) const = default;
};

struct Superblock {
  uint32_t format = kPageFormat;
  StoreId store_id = {};
  uint32_t directory_count = 0;
  uint32_t directory_index = 0;
  uint32_t page_count = 0;       // of counted_pages()
  uint32_t slots = 0;            // per durable page
  uint32_t page_table_hash = 0;  // of page_table_hash()
  int64_t file_bytes = 0;
  std::vector<ExtentClass> classes;  // at most kMostClasses; none in kFixedFormat

  void encode(std::byte* block) const;  // kSuperblockBytes
  // False if magic, format or checksum do not hold, or there are too many classes.
  bool decode(const std::byte* block);
  bool operator==(const Superblock&) const = default;
};

struct PageHeader {
  uint32_t format = kPageFormat;
  StoreId store_id = {};
  PageId page = 0;
  uint32_t record = 0;
  uint32_t extent = 0;  // its number; in kFixedFormat that of the page's extents which it was in
  uint32_t checksum = 0;  // of the payload
  uint64_t generation = 0;
  int64_t bytes = 0;  // payload

  void encode(std::byte* block) const;  // kPageHeaderBytes
  bool decode(const std::byte* block);
  // "generation 6 found, 7 expected", or "" if this is the header that is expected in a store of
  // `store_format`, in which headers of kFixedFormat may be left.
  std::string difference_from(const PageHeader& expected, uint32_t store_format, int slots) const;
  bool operator==(const PageHeader&) const = default;
};

// The extents that a store of `pages` needs: `slots` for each durable page that is here, and one
// for each other page that is.
std::vector<ExtentClass> extent_classes(const std::vector<PageSpec>& pages, int slots);

// Where every extent of a store lies.
struct PageLayout {
  struct Extent {
    int file = 0;
    int64_t offset = 0;
    int64_t page_bytes = 0;  // payload, behind a header
    int64_t bytes() const { return kPageHeaderBytes + page_bytes; }
  };
  uint32_t format = kPageFormat;
  std::vector<ExtentClass> classes;  // none in kFixedFormat
  std::vector<Extent> extents;       // by number
  std::vector<int64_t> file_bytes;   // by file

  // Extents are numbered class by class, and number e lies in file e mod `files`.
  static PageLayout of_classes(std::vector<ExtentClass> classes, size_t files);
  // The layout of kFixedFormat, which has no room for local pages. Pages lie in order of id, those
  // of record r in file r mod `files`.
  // The extents of durable pages are numbered first, then the others.
  static PageLayout fixed(const std::vector<PageSpec>& pages, int slots, size_t files);
};

// How many of the pages a superblock counts: all but those that are local, which come last.
size_t counted_pages(const std::vector<PageSpec>& pages);
// What the formats have in common: the bytes, record and durability of every page that is counted.
uint32_t page_table_hash(const std::vector<PageSpec>& pages);

}  // namespace pagoda
