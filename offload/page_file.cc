#include "offload/page_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/bytes.h"
#include "base/log.h"
#include "offload/checksum.h"
#include "offload/extent_pool.h"
#include "offload/page_layout.h"
#include "offload/superblock.h"

namespace pagoda {
namespace {

constexpr int kVerifyWindow = 4;  // pages in flight during verify()

}  // namespace

struct PageFile::Impl {
  // The index entry of a page: its newest version. `checksum` is written on the write stream before
  // the transfer starts and read after the transfer's event.
  struct Entry {
    bool present = false;
    bool committed = false;  // the committed checkpoint refers to it
    bool adopted = false;    // since the last commit, so that no checkpoint refers to the page
    uint32_t extent = 0;
    uint64_t generation = 0;
    uint32_t checksum = 0;
  };
  // One page on its way. Owned by the storage until its completion, which deletes it.
  struct Transfer {
    IoRequest request;
    PageHeader header;  // the written or the expected one (its checksum is in the index)
    Event done = Event::make();
    Delays delays;      // delays of `done`; set when the transfer is submitted
    TransferSpan span;  // from then on
    Status* result = nullptr;  // where an error goes instead of status()
  };

  Storage* storage = nullptr;
  Options options;
  std::vector<PageSpec> pages;
  PageLayout layout;
  ExtentPool pool;
  StoreId id = {};
  std::string id_text;
  std::vector<int> files;
  std::vector<Entry> index;
  std::vector<Event> transferred;  // of each extent: its transfers so far have ended

  mutable std::mutex mutex;  // guards the next three
  std::condition_variable idle;
  Status status;
  int in_flight = 0;
  int durable_writes = 0;  // those in flight

  std::atomic<int64_t> reads{0}, writes{0}, read_bytes{0}, write_bytes{0};

  // Two streams, so that a fetch does not queue behind a write-back that waits for its optimizer.
  std::unique_ptr<Stream> read_stream, write_stream;
  const Trace::Lane read_lane, write_lane, check_lane;

  Impl(Storage* storage, const Options& options, std::vector<PageSpec> pages_in)
      : storage(storage),
        options(options),
        pages(std::move(pages_in)),
        index(pages.size()),
        read_lane(options.trace.lane("disk", "reads in flight")),
        write_lane(options.trace.lane("disk", "writes in flight")),
        check_lane(options.trace.lane("disk", "checks of reads")) {
    CHECK(!options.directories.empty() && options.slots >= 1 && options.slots <= 2);
    const auto threads = std::make_shared<ThreadPool>(1);
    Trace* trace = options.trace.trace();
    read_stream = make_host_stream({"page reads", WorkKind::kFetch, trace}, threads);
    write_stream = make_host_stream({"page writes", WorkKind::kWriteBack, trace}, threads);
  }

  ~Impl() {
    read_stream.reset();
    write_stream.reset();
    {
      std::unique_lock lock(mutex);
      idle.wait(lock, [this] { return in_flight == 0; });
    }
    for (const int file : files) storage->close(file);
  }

  Status open_files(FileUse use);
  void remove_files();
  Status write_superblocks();
  Status take_over(const std::vector<PageVersion>& versions);
  bool make_pool(const std::vector<bool>& taken);

  void begin_version(PageId page, uint64_t generation);
  void forget(PageId page);
  Extent newest_extent(PageId page) const;
  Transfer* make_transfer(IoRequest::Op op, PageId page, std::byte* buffer);
  Event start_read(PageId page, std::byte* buffer, const Event& after, Status* result);
  void submit(Transfer* transfer, const Event& after);
  void finish(Transfer* transfer);
  Status check_page(const Transfer& transfer) const;
  void require_quiet() const;
};

// ---- files and superblocks ----

Status PageFile::Impl::open_files(FileUse use) {
  for (size_t i = 0; i < options.directories.size(); ++i) {
    const std::string& directory = options.directories[i];
    if (use == FileUse::kCreate) RETURN_IF_ERROR(make_durable_directory(storage, directory));
    const int64_t bytes = use == FileUse::kCreate ? layout.file_bytes[i] : Storage::kAnyLength;
    ASSIGN_OR_RETURN(const int file, storage->open(options.path(i), bytes, use));
    files.push_back(file);
    // Names are made durable too: now for a file that exists, after its first bytes for a new one.
    if (use == FileUse::kUpdate) RETURN_IF_ERROR(storage->sync_directory(directory));
  }
  return Status();
}

void PageFile::Impl::remove_files() {
  for (size_t i = 0; i < files.size(); ++i) {
    storage->close(files[i]);
    const Status removed = storage->remove_file(options.path(i));
    if (!removed.ok()) log_warn(removed.message());
  }
  files.clear();
}

Status PageFile::Impl::write_superblocks() {
  for (size_t i = 0; i < files.size(); ++i) {
    const Superblock block = superblock_of(layout, pages, options.slots, id, i);
    RETURN_IF_ERROR(pagoda::write_superblocks(storage, files[i], block));
    RETURN_IF_ERROR(storage->sync_directory(options.directories[i]));
  }
  return Status();
}

// Takes over the versions of a checkpoint: one for each durable page that is here.
Status PageFile::Impl::take_over(const std::vector<PageVersion>& versions) {
  const auto mismatch = [this](const std::string& why) {
    return Status(Exit::kMismatch, strf("the checkpoint does not fit store %s: %s; resume from "
                                        "another checkpoint",
                                        id_text.c_str(), why.c_str()));
  };
  std::vector<bool> taken(layout.extents.size());
  for (const PageVersion& version : versions) {
    const bool known = version.page < pages.size() && version.extent < layout.extents.size();
    const PageSpec page = known ? pages[version.page] : PageSpec();
    if (!known || !page.keeps() || !page.here ||
        layout.extents[version.extent].page_bytes != page.bytes) {
      return mismatch(strf("page %u in extent %u", version.page, version.extent));
    }
    Entry& entry = index[version.page];
    if (entry.present) return mismatch(strf("page %u twice", version.page));
    if (taken[version.extent]) return mismatch(strf("extent %u twice", version.extent));
    taken[version.extent] = true;
    entry = {true, options.slots > 1, false, version.extent, version.generation, version.checksum};
  }
  for (size_t page = 0; page < pages.size(); ++page) {
    if (pages[page].keeps() && pages[page].here && !index[page].present) {
      return mismatch(strf("page %zu is missing", page));
    }
  }
  return make_pool(taken) ? Status() : mismatch("it has too few extents for its pages");
}

// False if there are too few extents for the pages.
bool PageFile::Impl::make_pool(const std::vector<bool>& taken) {
  pool = ExtentPool(layout, taken);
  transferred.resize(layout.extents.size());
  return pool.reserve_all(pages, options.slots);
}

// ---- extents ----

// Gives the page's next version a place: over the newest one, unless that is committed.
void PageFile::Impl::begin_version(PageId page, uint64_t generation) {
  Entry& entry = index[page];
  CHECK(!entry.committed || options.slots > 1, "page %u has one slot, committed", page);
  if (!entry.present || entry.committed) {
    forget(page);
    entry.present = true;
    entry.extent = pool.take(pages[page].bytes);
  }
  entry.generation = generation;
}

// The page leaves its extent; that of a durable page is free at the next commit.
void PageFile::Impl::forget(PageId page) {
  Entry& entry = index[page];
  if (entry.present) {
    pages[page].keeps() ? pool.free_at_commit(entry.extent) : pool.free(entry.extent);
  }
  entry.present = entry.committed = false;
}

PageFile::Extent PageFile::Impl::newest_extent(PageId page) const {
  const PageLayout::Extent& extent = layout.extents[index[page].extent];
  return {files[static_cast<size_t>(extent.file)], extent.offset, extent.bytes()};
}

PageFile::Impl::Transfer* PageFile::Impl::make_transfer(IoRequest::Op op, PageId page,
                                                        std::byte* buffer) {
  const Entry& version = index[page];
  const Extent extent = newest_extent(page);
  auto* transfer = new Transfer;  // deleted in finish()
  transfer->header.store_id = id;
  transfer->header.page = page;
  transfer->header.record = pages[page].record;
  transfer->header.extent = version.extent;
  transfer->header.generation = version.generation;
  transfer->header.bytes = pages[page].bytes;
  IoRequest& request = transfer->request;
  request.op = op;
  request.file = extent.file;
  request.offset = extent.offset;
  request.data = buffer;
  request.bytes = extent.bytes;
  request.done = [this, transfer](IoRequest&) { finish(transfer); };
  Event& last = transferred[version.extent];
  last = when_all({last, transfer->done});
  std::lock_guard lock(mutex);
  ++in_flight;
  if (op == IoRequest::Op::kWrite && pages[page].keeps()) ++durable_writes;
  return transfer;
}

Event PageFile::Impl::start_read(PageId page, std::byte* buffer, const Event& after,
                                 Status* result) {
  Transfer* transfer = make_transfer(IoRequest::Op::kRead, page, buffer);
  transfer->result = result;
  Event done = transfer->done;
  if (after.happened()) {
    submit(transfer, after);
  } else {
    read_stream->wait(after);
    read_stream->enqueue([this, transfer, after] { submit(transfer, after); });
  }
  return done;
}

// Called once `after` has happened.
void PageFile::Impl::submit(Transfer* transfer, const Event& after) {
  const bool read = transfer->request.op == IoRequest::Op::kRead;
  transfer->delays = after.followed_by(read ? WorkKind::kFetch : WorkKind::kWriteBack);
  transfer->span.begin(options.trace, read ? "read" : "write", transfer->header.page,
                       transfer->request.bytes);
  storage->submit(&transfer->request);
}

// Runs on a thread of the storage.
void PageFile::Impl::finish(Transfer* finished) {
  const std::unique_ptr<Transfer> transfer(finished);
  const bool read = transfer->request.op == IoRequest::Op::kRead;
  transfer->span.end(read ? read_lane : write_lane);
  Status outcome = transfer->request.status;
  if (outcome.ok()) {
    (read ? reads : writes).fetch_add(1, std::memory_order_relaxed);
    (read ? read_bytes : write_bytes).fetch_add(transfer->request.bytes, std::memory_order_relaxed);
    if (read) {
      TransferSpan check;
      check.begin(options.trace, "check", transfer->header.page, transfer->header.bytes);
      outcome = check_page(*transfer);
      check.end(check_lane);
    }
  }
  if (read && !outcome.ok()) {
    // Work that waits for this page runs before anybody looks at status(): an index it finds here
    // must be one that every array has.
    std::memset(transfer->request.data + kPageHeaderBytes, 0,
                static_cast<size_t>(transfer->header.bytes));
  }
  Event done = transfer->done;
  if (transfer->result != nullptr) *transfer->result = outcome;
  {
    std::lock_guard lock(mutex);
    if (status.ok() && transfer->result == nullptr) status = outcome;
    if (!read && pages[transfer->header.page].keeps()) --durable_writes;
    if (--in_flight == 0) idle.notify_all();
  }
  // `this` may be gone from here on.
  done.signal(transfer->delays);
}

Status PageFile::Impl::check_page(const Transfer& transfer) const {
  PageHeader expected = transfer.header;
  expected.checksum = index[expected.page].checksum;
  const std::byte* data = transfer.request.data;
  const auto bad = [&](const std::string& what) {
    const auto file = static_cast<size_t>(layout.extents[expected.extent].file);
    return Status(Exit::kIoError,
                  strf("page %u of record %u in %s at offset %lld is corrupt: %s; it was not used; "
                       "check the disk, run `pagoda ckpt verify` and resume",
                       expected.page, expected.record, options.path(file).c_str(),
                       (long long)transfer.request.offset, what.c_str()));
  };
  PageHeader found;
  if (!found.decode(data)) return bad("its header's checksum does not hold");
  const std::string differs = found.difference_from(expected, layout.format, options.slots);
  if (!differs.empty()) return bad(differs);
  const uint32_t checksum = crc32c(data + kPageHeaderBytes, expected.bytes);
  if (checksum == expected.checksum) return Status();
  return bad(strf("payload checksum %u found, %u expected", checksum, expected.checksum));
}

void PageFile::Impl::require_quiet() const {
  std::lock_guard lock(mutex);
  CHECK(durable_writes == 0, "a commit with %d page writes in flight", durable_writes);
}

PageFile::PageFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PageFile::~PageFile() = default;

bool PageFile::has_room(const std::vector<PageSpec>& pages) const {
  ExtentPool pool(impl_->layout, std::vector<bool>(impl_->layout.extents.size()));
  return pool.reserve_all(pages, impl_->options.slots);
}

std::vector<std::string> PageFile::paths(const Options& options) {
  std::vector<std::string> paths;
  for (size_t i = 0; i < options.directories.size(); ++i) paths.push_back(options.path(i));
  return paths;
}

Status PageFile::remove(Storage* storage, const Options& options) {
  for (const std::string& path : paths(options)) RETURN_IF_ERROR(storage->remove_file(path));
  return Status();
}

Result<std::unique_ptr<PageFile>> PageFile::create(Storage* storage, const Options& options,
                                                   std::vector<PageSpec> pages) {
  auto impl = std::make_unique<Impl>(storage, options, std::move(pages));
  ASSIGN_OR_RETURN(impl->id, random_store_id());
  impl->id_text = store_id_text(impl->id);
  impl->layout = PageLayout::of_classes(extent_classes(impl->pages, options.slots),
                                        options.directories.size());
  CHECK(impl->make_pool(std::vector<bool>(impl->layout.extents.size())));
  Status status = impl->open_files(FileUse::kCreate);
  if (status.ok()) status = impl->write_superblocks();
  if (!status.ok()) {
    impl->remove_files();
    return status;
  }
  return std::unique_ptr<PageFile>(new PageFile(std::move(impl)));
}

Result<std::unique_ptr<PageFile>> PageFile::open(Storage* storage, const Options& options,
                                                 std::vector<PageSpec> pages,
                                                 const std::string& store_id,
                                                 const std::vector<PageVersion>& committed) {
  auto impl = std::make_unique<Impl>(storage, options, std::move(pages));
  impl->id_text = store_id;
  RETURN_IF_ERROR(impl->open_files(options.read_only ? FileUse::kRead : FileUse::kUpdate));
  ASSIGN_OR_RETURN(FoundStore found, read_store(storage, impl->files, paths(options), store_id,
                                                impl->pages, options.slots));
  impl->id = found.id;
  impl->layout = std::move(found.layout);
  RETURN_IF_ERROR(impl->take_over(committed));
  return std::unique_ptr<PageFile>(new PageFile(std::move(impl)));
}

const std::string& PageFile::store_id() const { return impl_->id_text; }
const std::vector<PageSpec>& PageFile::pages() const { return impl_->pages; }

Event PageFile::write(PageId page, std::byte* buffer, uint64_t generation, const Event& after) {
  Impl* impl = impl_.get();
  CHECK(page < impl->pages.size() && impl->pages[page].here && !impl->options.read_only,
        "no page %u to write", page);
  impl->begin_version(page, generation);
  const Event start = when_all({after, impl->transferred[impl->index[page].extent]});
  Impl::Transfer* transfer = impl->make_transfer(IoRequest::Op::kWrite, page, buffer);
  Event done = transfer->done;
  Stream& stream = *impl->write_stream;
  stream.wait(start);
  if (stream.traced()) stream.begin_span(impl->options.trace.label("checksum", page));
  stream.enqueue([impl, transfer, start] {
    PageHeader& header = transfer->header;
    header.checksum = crc32c(transfer->request.data + kPageHeaderBytes, header.bytes);
    impl->index[header.page].checksum = header.checksum;
    header.encode(transfer->request.data);
    impl->submit(transfer, start);
  });
  stream.end_span();
  return done;
}

Event PageFile::read(PageId page, std::byte* buffer, const Event& after) {
  CHECK(has(page), "page %u has no version on disk", page);
  return impl_->start_read(page, buffer, after, nullptr);
}

bool PageFile::has(PageId page) const {
  CHECK(page < impl_->pages.size(), "no page %u", page);
  return impl_->index[page].present;
}

uint64_t PageFile::generation(PageId page) const {
  CHECK(has(page), "page %u has no version", page);
  return impl_->index[page].generation;
}

PageFile::Extent PageFile::extent(PageId page) const {
  CHECK(has(page), "page %u has no version", page);
  return impl_->newest_extent(page);
}

void PageFile::drop(PageId page) {
  CHECK(page < impl_->pages.size() && !impl_->pages[page].keeps(), "page %u is durable", page);
  impl_->forget(page);
}

void PageFile::adopt(PageId page) {
  CHECK(page < impl_->pages.size() && !impl_->pages[page].here, "page %u is here", page);
  PageSpec& spec = impl_->pages[page];
  spec.here = true;
  const int later = spec.extents(impl_->options.slots) - 1;
  CHECK(impl_->pool.reserve(spec.bytes, 1, later), "page %u has no room here", page);
  impl_->index[page].adopted = later > 0;
}

void PageFile::release(PageId page) {
  CHECK(page < impl_->pages.size() && impl_->pages[page].here, "page %u is not here", page);
  PageSpec& spec = impl_->pages[page];
  Impl::Entry& entry = impl_->index[page];
  const int later = spec.extents(impl_->options.slots) - 1;
  // No checkpoint refers to a newest version that is not committed.
  if (entry.committed) impl_->forget(page);
  if (entry.present) impl_->pool.free(entry.extent);
  impl_->pool.cancel(spec.bytes, 1, later, entry.adopted);
  entry.present = entry.adopted = false;
  spec.here = false;
}

Status PageFile::status() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->status;
}

std::vector<PageVersion> PageFile::versions() const {
  impl_->require_quiet();
  std::vector<PageVersion> versions;
  for (size_t page = 0; page < impl_->pages.size(); ++page) {
    if (!impl_->pages[page].keeps() || !impl_->pages[page].here) continue;
    const Impl::Entry& entry = impl_->index[page];
    CHECK(entry.present, "page %zu was never written", page);
    versions.push_back({narrow<PageId>(page), entry.extent, entry.generation, entry.checksum});
  }
  return versions;
}

Status PageFile::sync() {
  impl_->require_quiet();
  RETURN_IF_ERROR(status());
  for (const int file : impl_->files) RETURN_IF_ERROR(impl_->storage->sync(file));
  return Status();
}

void PageFile::committed() {
  impl_->require_quiet();
  for (size_t page = 0; page < impl_->pages.size(); ++page) {
    impl_->index[page].committed = impl_->pages[page].keeps() && impl_->index[page].present;
    impl_->index[page].adopted = false;
  }
  impl_->pool.commit();
}

Status PageFile::verify() {
  int64_t most_bytes = 0;
  std::vector<PageId> todo;
  for (PageId page = 0; page < impl_->pages.size(); ++page) {
    if (!impl_->pages[page].keeps() || !has(page)) continue;
    todo.push_back(page);
    most_bytes = std::max(most_bytes, kPageHeaderBytes + impl_->pages[page].bytes);
  }
  ASSIGN_OR_RETURN(const HostMemory buffers, HostMemory::allocate(kVerifyWindow * most_bytes));
  Event done[kVerifyWindow];
  Status results[kVerifyWindow];
  Status first;
  for (size_t i = 0; i < todo.size() + kVerifyWindow; ++i) {
    const size_t place = i % kVerifyWindow;
    done[place].wait();
    if (first.ok()) first = results[place];
    if (i >= todo.size() || !first.ok()) continue;
    std::byte* buffer = buffers.data() + static_cast<int64_t>(place) * most_bytes;
    done[place] = impl_->start_read(todo[i], buffer, Event(), &results[place]);
  }
  return first;
}

PageFile::Counters PageFile::counters() const {
  return {impl_->reads.load(), impl_->writes.load(), impl_->read_bytes.load(),
          impl_->write_bytes.load()};
}

}  // namespace pagoda
