#include "offload/superblock.h"

#include <sys/random.h>

#include "base/bytes.h"
#include "base/log.h"
#include "device/device.h"

namespace pagoda {
namespace {

// The numbers are a file's: what is computed from them must stay within bounds.
bool within_bounds(const std::vector<ExtentClass>& classes) {
  int64_t extents = 0;
  for (const ExtentClass& c : classes) {
    if (c.page_bytes <= 0 || c.page_bytes > kMostPageBytes || c.page_bytes % kIoAlign != 0) {
      return false;
    }
    extents += c.extents;
  }
  return extents <= kMostExtents;
}

}  // namespace

Result<StoreId> random_store_id() {
  StoreId id;
  if (::getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size())) return id;
  return Status(Exit::kUnavailable, "the system's random number generator gave no store id");
}

Status write_superblocks(Storage* storage, int file, const Superblock& superblock) {
  ASSIGN_OR_RETURN(const HostMemory block, HostMemory::allocate(kSuperblockBytes));
  superblock.encode(block.data());
  for (const int64_t offset : {int64_t{0}, kSuperblockBytes}) {
    RETURN_IF_ERROR(
        transfer_now(storage, IoRequest::Op::kWrite, file, offset, block.data(), kSuperblockBytes));
  }
  return storage->sync(file);
}

Result<Superblock> read_superblocks(Storage* storage, int file, const std::string& path) {
  ASSIGN_OR_RETURN(const HostMemory blocks, HostMemory::allocate(2 * kSuperblockBytes));
  RETURN_IF_ERROR(
      transfer_now(storage, IoRequest::Op::kRead, file, 0, blocks.data(), 2 * kSuperblockBytes));
  Superblock a, b;
  const bool a_ok = a.decode(blocks.data());
  const bool b_ok = b.decode(blocks.data() + kSuperblockBytes);
  if ((!a_ok && !b_ok) || (a_ok && b_ok && a != b)) {
    return Status(Exit::kIoError,
                  strf("%s: superblocks at offsets 0 and %lld are damaged or not of format %u; the "
                       "file was left alone; resume from an export",
                       path.c_str(), (long long)kSuperblockBytes, kPageFormat));
  }
  if (!a_ok || !b_ok) log_warn(path + ": one of two superblocks is damaged; using the other");
  return a_ok ? a : b;
}

Superblock superblock_of(const PageLayout& layout, const std::vector<PageSpec>& pages, int slots,
                         const StoreId& id, size_t index) {
  Superblock block;
  block.format = layout.format;
  block.store_id = id;
  block.directory_count = narrow<uint32_t>(layout.file_bytes.size());
  block.directory_index = narrow<uint32_t>(index);
  block.page_count = narrow<uint32_t>(counted_pages(pages));
  block.slots = narrow<uint32_t>(slots);
  block.page_table_hash = page_table_hash(pages);
  block.file_bytes = layout.file_bytes[index];
  block.classes = layout.classes;
  return block;
}

Result<FoundStore> read_store(Storage* storage, const std::vector<int>& files,
                              const std::vector<std::string>& paths, const std::string& store_id,
                              const std::vector<PageSpec>& pages, int slots) {
  std::vector<Superblock> blocks;
  for (size_t i = 0; i < files.size(); ++i) {
    ASSIGN_OR_RETURN(Superblock block, read_superblocks(storage, files[i], paths[i]));
    if (store_id_text(block.store_id) != store_id) {
      return Status(Exit::kMismatch,
                    strf("%s belongs to store %s, the checkpoint to store %s; name the "
                         "checkpoint's own directories",
                         paths[i].c_str(), store_id_text(block.store_id).c_str(),
                         printable(store_id).c_str()));
    }
    blocks.push_back(std::move(block));
  }
  FoundStore store = {blocks[0].store_id, {}};
  if (blocks[0].format == kFixedFormat) {
    store.layout = PageLayout::fixed(pages, slots, files.size());
  } else {
    const bool good = within_bounds(blocks[0].classes);
    store.layout = PageLayout::of_classes(
        good ? blocks[0].classes : std::vector<ExtentClass>(), files.size());
  }
  // Stores from before pages moved were made with those elsewhere as not durable.
  std::vector<PageSpec> before = pages;
  for (PageSpec& page : before) page.durable = page.durable && page.here;
  for (size_t i = 0; i < files.size(); ++i) {
    const Superblock& block = blocks[i];
    if (block != superblock_of(store.layout, pages, slots, store.id, i) &&
        block != superblock_of(store.layout, before, slots, store.id, i)) {
      return Status(Exit::kMismatch,
                    strf("%s was made for other pages or directories (file %u of %u, %u pages, %u "
                         "slots; expected file %zu of %zu, %zu pages, %d slots); use the run file "
                         "it was made with",
                         paths[i].c_str(), block.directory_index, block.directory_count,
                         block.page_count, block.slots, i, files.size(), counted_pages(pages),
                         slots));
    }
    if (const int64_t bytes = storage->length(files[i]); bytes != block.file_bytes) {
      return Status(Exit::kMismatch,
                    strf("%s has %lld bytes, its pages need %lld; it was left alone: resume from "
                         "an export",
                         paths[i].c_str(), (long long)bytes, (long long)block.file_bytes));
    }
  }
  return store;
}

}  // namespace pagoda
