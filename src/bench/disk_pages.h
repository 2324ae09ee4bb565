// The pages of a race: a page file like training's, read and written in two ways. Whole pages go in
// order of their ids, with a window of them in flight.
//
// "page file" is PageFile::write and read: header, CRC32C of the payload, and at a read the check
// of both. "storage" submits the same transfers at the same places to the same Storage without
// looking at the bytes; it writes no valid pages.
#pragma once

#include <memory>
#include <string>

#include "bench/race/timing.h"
#include "bench/roofs/disk_roof.h"
#include "device/device.h"
#include "offload/page_file.h"
#include "offload/storage.h"

namespace pagoda {

class DiskPages {
 public:
  // A new page file in `directory`, every page written once, and room in memory for the window.
  // `storage` is not owned; one DiskPages at a time may use it. REQUIRES: 0 < page_bytes <= bytes,
  // page_bytes a multiple of kIoAlign. kCannotCreate when the disk has no room.
  static Result<std::unique_ptr<DiskPages>> create(Storage* storage, const std::string& directory,
                                                   int64_t page_bytes, int64_t bytes);
  ~DiskPages();  // removes the file

  // All slots of the file, headers included.
  FileRegion region() const;
  Result<Timing> write();
  // REQUIRES: nothing else has written the region since the last write().
  Result<Timing> read();
  // Through the storage alone.
  Result<Timing> move_plain(IoRequest::Op op);

 private:
  DiskPages(Storage* storage, PageFile::Options options, HostMemory memory, int window);
  std::byte* buffer(PageId page);
  int64_t slot_bytes() const;
  template <typename Start>
  Timing race(const Start& start);
  Result<Timing> checked(const Timing& timing) const;

  Storage* storage_;
  PageFile::Options options_;
  HostMemory memory_;
  int window_;  // pages in flight
  std::unique_ptr<PageFile> file_;
  uint64_t generation_ = 0;
};

}  // namespace pagoda
