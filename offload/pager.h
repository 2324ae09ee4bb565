// The pager: carries out what Residency decides. It owns the slots' memory (device arenas are
// given, host memory is its own), the copy streams and the bookkeeping of events; the page file
// holds the disk tier.
//
// Use of a page is a lease. acquire() decides in the order it is called, enqueues every transfer
// that is needed and returns at once; the bytes behind the lease are valid for work enqueued on the
// given stream after acquire() and before release(). So running ahead of the computation is
// prefetching: a transfer starts as soon as the slot it fills is no longer read. A kPrefetch use
// only starts transfers: its stream does not wait for them. Nothing waits for a completion to
// decide something, and nothing can deadlock: transfers and kernels wait only for earlier ones.
//
// Threading: one thread (the executor's) calls everything, except status().
// Errors of transfers do not stop the streams: they end in status(), which the caller looks at
// before it believes a result or commits. Acquiring more than the slots can hold is a bug (the plan
// computes the minimum before the run).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "offload/page_file.h"
#include "offload/residency.h"

namespace pagoda {

class Pager;

// The right to use some pages on a stream. Move-only; release() or destruction records on the
// stream the event after which the slots may be reused.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { release(); }

  // The bytes of uses[i] of the acquire; nullptr for a kPrefetch.
  std::byte* data(size_t i) const { return data_[i]; }
  void release();
  // release(), but the slots may be reused when `done` has happened.
  void release(const Event& done);

 private:
  friend class Pager;
  Pager* pager_ = nullptr;
  Stream* stream_ = nullptr;
  std::vector<PageUse> uses_;
  std::vector<std::byte*> data_;
};

class Pager {
 public:
  struct Options {
    std::vector<Device*> devices;           // not owned
    std::vector<int64_t> arena_offset;      // where the slots begin in each device's arena
    std::vector<SlotClass> classes;
    std::vector<int64_t> page_bytes;        // of each class
    // [page] its class. Page p is page p of the file; pages beyond those of the file stay on one
    // device, which has slots for all of them.
    std::vector<uint16_t> page_class;
    PageTrace trace = {};
  };

  static constexpr int kStreamsPerDevice = 2;  // uploads, downloads

  static int64_t device_bytes(const Options& options, int device);  // the slots' bytes on a device
  static int64_t host_bytes(const Options& options);                // with header room

  // `file` and `storage` are not owned.
  static Result<std::unique_ptr<Pager>> create(Options options, PageFile* file, Storage* storage);
  ~Pager();

  // Leases `uses` all at once for work on `stream`. `generation` becomes the version of pages that
  // are written or created.
  Lease acquire(std::span<const PageUse> uses, Stream& stream, uint64_t generation);
  // The same calls as Residency's: uses that are certain to come, cycles of uses that are expected
  // again, and pages that should stay on devices.
  void foresee(std::span<const PageUse> uses) { residency_.foresee(uses); }
  void foresee_later(std::span<const PageUse> uses) { residency_.foresee_later(uses); }
  void begin_cycle() { residency_.begin_cycle(); }
  void leave_cycle() { residency_.leave_cycle(); }
  void keep(std::span<const PageId> pages) { residency_.keep(pages); }
  void discard(PageId page);
  void set_on_disk(PageId page) { residency_.set_on_disk(page); }
  // The generation of the page's content in the host. REQUIRES: it is there.
  uint64_t generation_in_host(PageId page) const;
  // Page `in` of another page file is here in the place of `out`, whose content is discarded, from
  // now on. It has no content yet. REQUIRES: `out` is not leased, `in` is not here, both have one
  // size, and nothing is foreseen.
  void replace(PageId out, PageId in);

  // Writes every durable page of the file whose newest version is not on disk, waits for all
  // transfers, and reports the first error so far. No lease may be held.
  Status flush();
  // Waits for all transfers.
  void drain();
  Status status() const { return file_->status(); }

  const Residency& residency() const { return residency_; }
  PageFile& file() { return *file_; }

  // Totals since creation.
  struct Counters {
    int64_t uses = 0;      // page uses, prefetches apart
    int64_t hits = 0;      // uses of pages that were already resident
    int64_t device_reads = 0;  // uses that read content on a device
    int64_t device_hits = 0;   // of device_reads, found on that device
    int64_t host_hits = 0;     // of the other device_reads, found in host memory
    int64_t uploads = 0, upload_bytes = 0;
    int64_t downloads = 0, download_bytes = 0;
    int64_t fetches = 0, fetch_bytes = 0;
    int64_t write_backs = 0, write_back_bytes = 0;
  };
  const Counters& counters() const { return counters_; }
  // The most bytes of slots there that held a page behind an acquire() so far.
  int64_t peak_bytes(Place place) const { return peak_bytes_[residency_.place_index(place)]; }

 private:
  friend class Lease;
  // When the bytes of a slot may be read and overwritten.
  struct SlotState {
    Event ready;                 // the last write
    std::vector<Event> readers;  // reads since
    uint64_t generation = 0;
  };
  struct Copies {
    std::unique_ptr<Stream> upload, download;
  };

  Pager(Options options, PageFile* file, Storage* storage, HostMemory memory);
  std::byte* slot_data(PageId page, int place, int32_t slot) const;
  SlotState& slot_state(PageId page, int place, int32_t slot);
  void count(const PageUse& use);
  void note_held(Stream& stream);
  void carry_out(const Move& move);
  void copy(const Move& move, bool up);
  void release(Lease& lease, const Event& done);
  static Event before_overwrite(const SlotState& slot);
  static void add_reader(SlotState& slot, const Event& done);

  Options options_;
  PageFile* file_;
  Storage* storage_;
  HostMemory memory_;
  std::shared_ptr<void> pin_;  // page-locks memory_ for the devices' copies
  Residency residency_;
  std::vector<std::vector<std::byte*>> base_;             // [class][place]
  std::vector<std::vector<std::vector<SlotState>>> slots_;  // [class][place][slot]
  std::vector<Event> disk_ready_;                         // [page], last transfer to or from disk
  std::vector<Copies> copies_;                            // [device]
  std::vector<Move> moves_;
  std::vector<int32_t> acquired_;
  Counters counters_;
  std::vector<Trace::Lane> resident_lane_;   // [place]
  std::vector<int64_t> resident_bytes_;      // [place], as traced last
  std::vector<int64_t> peak_bytes_;          // [place]
};

}  // namespace pagoda
