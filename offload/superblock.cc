#include "offload/superblock.h"

#include <sys/random.h>

#include "base/log.h"
#include "device/device.h"

namespace pagoda {

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

}  // namespace pagoda
