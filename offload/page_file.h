// PageFile: pages on disk. Byte layout and protocol: docs/file-formats.md.
//
// The store's files (one per directory) are extents, each with room for one page of one size.
// Extents of a size are a pool: a page takes one when content comes, the one that has been free for
// longest. A durable page leaves the extent of its committed version alone: its next write takes
// another one, and writes until the next commit go there. An extent that a durable page has left is
// free only after the next committed(). A scratch page (gradients, activations) has one extent from
// its first write until drop(), and its content does not survive the process. A write puts a 4 KiB
// header and the payload in ONE transfer: the caller's buffer begins with room for the header
// (kPageHeaderBytes), payload behind it.
//
// The index in memory holds, for each page, extent, generation and checksum of its newest version.
// A read is good only if header checksum, page id, store id, extent, generation and payload
// checksum all equal the index (this catches lost, stale and misdirected writes).
//
// Several stores may share one numbering of pages. A page that is not `here` has no content in this
// store; adopt() and release() change that. Pages that are `local` have room in the store, but are
// no part of what it was made for.
//
// Threading: one thread calls everything. A write's checksum is computed on a thread of this object
// (which waits for `after` in the order of the calls), a read is checked on the storage's thread
// that completes it. Waiting reads queue apart from waiting writes, so a fetch never stands behind
// a write-back that waits for its optimizer; an `after` may depend on events of earlier calls only.
// A page is never read and written at the same time (the pager's events see to that), and not
// written twice at a time; an extent that goes from page to page waits for the first one's
// transfers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "offload/page_trace.h"
#include "offload/residency.h"
#include "offload/storage.h"

namespace pagoda {

inline constexpr int64_t kPageHeaderBytes = 4096;

struct PageSpec {
  int64_t bytes = 0;    // payload; multiple of kIoAlign
  uint32_t record = 0;  // pages of one record share a generation at every commit
  bool durable = true;
  bool here = true;  // may have content in this store
  // Belongs to this opening of the store: others may have fewer or more such pages, so they are not
  // counted in the superblock. They are scratch, and their ids are above those of all other pages.
  bool local = false;
  // What is here of a durable page is a copy of what another store keeps: scratch in this one. The
  // superblock does not tell, so that a store's pages may be copied in some runs.
  bool copied = false;
  // Whether its content survives the process.
  bool keeps() const { return durable && !copied; }
  // Extents that it needs. `slots` is PageFile::Options'.
  int extents(int slots) const { return !here ? 0 : keeps() ? slots : 1; }
};

// What a checkpoint says of one durable page. Fixed size, written into manifests.
struct PageVersion {
  PageId page = 0;
  uint32_t extent = 0;
  uint64_t generation = 0;
  uint32_t checksum = 0;  // CRC32C of the payload
  bool operator==(const PageVersion&) const = default;
};

class PageFile {
 public:
  struct Options {
    std::vector<std::string> directories;  // at least one, created if missing
    std::string name;                      // files are DIRECTORY/NAME.K, K = 0, 1, ...
    int slots = 2;  // extents per durable page; 1 when the run keeps no checkpoints
    PageTrace trace = {};
    bool read_only = false;  // open() only: no write is made, and others may read too
    std::string path(size_t k) const {
      return strf("%s/%s.%zu", directories[k].c_str(), name.c_str(), k);
    }
  };

  static constexpr int kStreams = 2;  // reads, writes

  // Bytes on disk that create() will allocate in all, over `directories` files.
  static int64_t disk_bytes(const std::vector<PageSpec>& pages, int slots, int directories = 1);

  // Creates new files (kCannotCreate if they exist or do not fit) with a fresh random store id and
  // extents for the pages that are here.
  static Result<std::unique_ptr<PageFile>> create(Storage* storage, const Options& options,
                                                  std::vector<PageSpec> pages);
  // Opens existing files; superblocks must agree with `pages` (kMismatch) and with `store_id`, and
  // there must be extents for all that are here (kMismatch).
  // `committed` is the checkpoint to continue from: one entry per durable page that is here, each
  // with an extent of its own, or kMismatch. With one slot there is none, and these are the pages
  // of the last versions(), which the next writes replace.
  static Result<std::unique_ptr<PageFile>> open(Storage* storage, const Options& options,
                                                std::vector<PageSpec> pages,
                                                const std::string& store_id,
                                                const std::vector<PageVersion>& committed);
  // Whether these have extents in it in place of its own pages, as open() asks.
  bool has_room(const std::vector<PageSpec>& pages) const;
  // The files of these options, whether they exist or not.
  static std::vector<std::string> paths(const Options& options);
  // Removes the files; ok if there are none. No PageFile of them may be open.
  static Status remove(Storage* storage, const Options& options);
  ~PageFile();

  const std::string& store_id() const;  // 32 hex digits
  const std::vector<PageSpec>& pages() const;

  // Writes the page's payload as `generation`, after `after` has happened. REQUIRES: it is here.
  // `buffer` is header room + payload (kPageHeaderBytes + bytes), kIoAlign-aligned; it must not
  // change until the returned event. The checksum is computed on a thread of this object just
  // before the transfer. Errors end in status(); the event happens all the same.
  Event write(PageId page, std::byte* buffer, uint64_t generation, const Event& after);
  // Reads the page's newest version into `buffer` (same layout) after `after`, and checks it. An
  // error ends in status() and leaves a payload of zeros.
  Event read(PageId page, std::byte* buffer, const Event& after);
  // True if the page has a version on disk.
  bool has(PageId page) const;
  // Generation of the newest version. REQUIRES: has(page).
  uint64_t generation(PageId page) const;
  // Where the page's newest version lies: for measurements of the same transfer by the storage
  // alone. REQUIRES: has(page).
  struct Extent {
    int file = -1;       // handle of the storage
    int64_t offset = 0;  // of the header
    int64_t bytes = 0;   // header and payload
  };
  Extent extent(PageId page) const;
  // Forgets a scratch page's content.
  void drop(PageId page);

  // From now on the page is here; a durable one must have content at the next versions(). Until
  // then it needs one extent, and from then on as many as others. REQUIRES: it was not, and a page
  // of its kind and size was released, whose room it takes.
  void adopt(PageId page);
  // From now on the page is not here. What is committed of a durable page stays on disk until the
  // next committed(), and the rest of its room is free at once. REQUIRES: it was here.
  void release(PageId page);

  // First error of any transfer so far. Thread-safe.
  Status status() const;

  // Commit, in this order and with no write of a durable page in flight: sync() flushes the files
  // (or returns the first error of any transfer so far, so that nothing is committed after one);
  // versions() are the newest versions of all durable pages here (each must have one); after the
  // caller has made a manifest of them durable, committed() makes these the versions that later
  // writes leave alone. No durable page may be written between sync() and committed().
  std::vector<PageVersion> versions() const;
  Status sync();
  void committed();

  // Reads and checks every durable page (`pagoda ckpt verify`); the first bad page is the error.
  Status verify();

  // Counters since creation, for metrics and for tests that must prove a run really paged.
  struct Counters {
    int64_t reads = 0, writes = 0, read_bytes = 0, write_bytes = 0;
  };
  Counters counters() const;

 private:
  struct Impl;
  explicit PageFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagoda
