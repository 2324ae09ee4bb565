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
#include "offload/page_layout.h"
#include "offload/superblock.h"

namespace pagoda {
namespace {

constexpr int kVerifyWindow = 4;  // pages in flight during verify()

}  // namespace

struct PageFile::Impl {
  struct Version {
    bool present = false;
    uint32_t slot = 0;
    uint64_t generation = 0;
  };
  // The index entry of a page. `checksum` belongs to `newest`; it is written on the write stream
  // before the transfer starts and read after the transfer's event.
  struct Entry {
    Version newest, committed;
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
  StoreId id = {};
  std::string id_text;
  std::vector<int> files;
  std::vector<Entry> index;

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
        layout(pages, options.slots, static_cast<int>(options.directories.size())),
        index(pages.size()),
        read_lane(options.trace.lane("disk", "reads in flight")),
        write_lane(options.trace.lane("disk", "writes in flight")),
        check_lane(options.trace.lane("disk", "checks of reads")) {
    const auto pool = std::make_shared<ThreadPool>(1);
    Trace* trace = options.trace.trace();
    read_stream = make_host_stream({"page reads", WorkKind::kFetch, trace}, pool);
    write_stream = make_host_stream({"page writes", WorkKind::kWriteBack, trace}, pool);
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
  Superblock superblock(size_t file) const;
  Status write_superblocks();
  Status check_superblock(size_t file);
  Status adopt(const std::vector<PageVersion>& versions);

  uint32_t free_slot(PageId page) const;
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
    ASSIGN_OR_RETURN(const int file, storage->open(options.path(i), layout.file_bytes[i], use));
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

Superblock PageFile::Impl::superblock(size_t file) const {
  Superblock block;
  block.store_id = id;
  block.directory_count = narrow<uint32_t>(options.directories.size());
  block.directory_index = narrow<uint32_t>(file);
  block.page_count = narrow<uint32_t>(pages.size());
  block.slots = narrow<uint32_t>(options.slots);
  block.page_table_hash = page_table_hash(pages);
  block.file_bytes = layout.file_bytes[file];
  return block;
}

Status PageFile::Impl::write_superblocks() {
  for (size_t i = 0; i < files.size(); ++i) {
    RETURN_IF_ERROR(pagoda::write_superblocks(storage, files[i], superblock(i)));
    RETURN_IF_ERROR(storage->sync_directory(options.directories[i]));
  }
  return Status();
}

Status PageFile::Impl::check_superblock(size_t file) {
  const std::string path = options.path(file);
  ASSIGN_OR_RETURN(const Superblock found, read_superblocks(storage, files[file], path));
  if (store_id_text(found.store_id) != id_text) {
    return Status(
        Exit::kMismatch,
        strf("%s belongs to store %s, the checkpoint to store %s; name the checkpoint's "
             "own directories",
             path.c_str(), store_id_text(found.store_id).c_str(), printable(id_text).c_str()));
  }
  id = found.store_id;
  if (found == superblock(file)) return Status();
  return Status(
      Exit::kMismatch,
      strf("%s was made for other pages or directories (file %u of %u, %u pages, %u slots; "
           "expected file %zu of %zu, %zu pages, %d slots); use the run file it was made "
           "with",
           path.c_str(), found.directory_index, found.directory_count, found.page_count,
           found.slots, file, files.size(), pages.size(), options.slots));
}

// Takes over the versions of a checkpoint: one for each durable page.
Status PageFile::Impl::adopt(const std::vector<PageVersion>& versions) {
  const auto mismatch = [this](const std::string& why) {
    return Status(Exit::kMismatch, strf("the checkpoint does not fit store %s: %s; resume from "
                                        "another checkpoint",
                                        id_text.c_str(), why.c_str()));
  };
  for (const PageVersion& version : versions) {
    if (version.page >= pages.size() || !pages[version.page].durable ||
        version.slot >= static_cast<uint32_t>(options.slots)) {
      return mismatch(strf("page %u in slot %u", version.page, version.slot));
    }
    Entry& entry = index[version.page];
    if (entry.newest.present) return mismatch(strf("page %u twice", version.page));
    entry.newest = entry.committed = {true, version.slot, version.generation};
    entry.checksum = version.checksum;
  }
  for (size_t page = 0; page < pages.size(); ++page) {
    if (pages[page].durable && !index[page].newest.present) {
      return mismatch(strf("page %zu is missing", page));
    }
  }
  return Status();
}

// ---- transfers ----

// The slot a write may use: never the committed one, and with a third slot not the newest either,
// so that writes may go on while a commit is being made durable.
uint32_t PageFile::Impl::free_slot(PageId page) const {
  const Entry& entry = index[page];
  const int slots = layout.extents[page].slots;
  if (slots == 1) {
    CHECK(!entry.committed.present, "page %u has one slot, and a checkpoint in it", page);
    return 0;
  }
  uint32_t slot = 0;
  const auto taken = [&](uint32_t s) {
    const bool newest = slots > 2 && entry.newest.present && entry.newest.slot == s;
    return newest || (entry.committed.present && entry.committed.slot == s);
  };
  while (taken(slot)) ++slot;
  return slot;
}

PageFile::Extent PageFile::Impl::newest_extent(PageId page) const {
  const PageLayout::Extent& extent = layout.extents[page];
  return {files[static_cast<size_t>(extent.file)],
          extent.offset + index[page].newest.slot * extent.slot_bytes, extent.slot_bytes};
}

PageFile::Impl::Transfer* PageFile::Impl::make_transfer(IoRequest::Op op, PageId page,
                                                        std::byte* buffer) {
  const Version& version = index[page].newest;
  const Extent extent = newest_extent(page);
  auto* transfer = new Transfer;  // deleted in finish()
  transfer->header.store_id = id;
  transfer->header.page = page;
  transfer->header.record = pages[page].record;
  transfer->header.slot = version.slot;
  transfer->header.generation = version.generation;
  transfer->header.bytes = pages[page].bytes;
  IoRequest& request = transfer->request;
  request.op = op;
  request.file = extent.file;
  request.offset = extent.offset;
  request.data = buffer;
  request.bytes = extent.bytes;
  request.done = [this, transfer](IoRequest&) { finish(transfer); };
  std::lock_guard lock(mutex);
  ++in_flight;
  if (op == IoRequest::Op::kWrite && pages[page].durable) ++durable_writes;
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
    if (!read && pages[transfer->header.page].durable) --durable_writes;
    if (--in_flight == 0) idle.notify_all();
  }
  // `this` may be gone from here on.
  done.signal(transfer->delays);
}

Status PageFile::Impl::check_page(const Transfer& transfer) const {
  const PageHeader& expected = transfer.header;
  const std::byte* data = transfer.request.data;
  const auto bad = [&](const std::string& what) {
    const auto file = static_cast<size_t>(layout.extents[expected.page].file);
    return Status(Exit::kIoError,
                  strf("page %u of record %u in %s at offset %lld is corrupt: %s; it was not used; "
                       "check the disk, run `pagoda ckpt verify` and resume",
                       expected.page, expected.record, options.path(file).c_str(),
                       (long long)transfer.request.offset, what.c_str()));
  };
  const auto differs = [&](const char* field, uint64_t found, uint64_t want) {
    return bad(strf("%s %llu found, %llu expected", field, (unsigned long long)found,
                    (unsigned long long)want));
  };
  PageHeader found;
  if (!found.decode(data)) return bad("its header's checksum does not hold");
  if (found.store_id != expected.store_id) {
    return bad("store " + store_id_text(found.store_id) + " found, " + id_text + " expected");
  }
  if (found.page != expected.page) return differs("page", found.page, expected.page);
  if (found.record != expected.record) return differs("record", found.record, expected.record);
  if (found.slot != expected.slot) return differs("slot", found.slot, expected.slot);
  if (found.generation != expected.generation) {
    return differs("generation", found.generation, expected.generation);
  }
  const auto bytes = static_cast<uint64_t>(expected.bytes);
  if (found.bytes != expected.bytes)
    return differs("size", static_cast<uint64_t>(found.bytes), bytes);
  const uint32_t want = index[expected.page].checksum;
  if (found.checksum != want) return differs("checksum in its header", found.checksum, want);
  const uint32_t checksum = crc32c(data + kPageHeaderBytes, expected.bytes);
  if (checksum != want) return differs("payload checksum", checksum, want);
  return Status();
}

void PageFile::Impl::require_quiet() const {
  std::lock_guard lock(mutex);
  CHECK(durable_writes == 0, "a commit with %d page writes in flight", durable_writes);
}

PageFile::PageFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PageFile::~PageFile() = default;
std::vector<std::string> PageFile::paths(const Options& options) {
  std::vector<std::string> paths;
  for (size_t i = 0; i < options.directories.size(); ++i) paths.push_back(options.path(i));
  return paths;
}

Status PageFile::remove(Storage* storage, const Options& options) {
  for (const std::string& path : paths(options)) RETURN_IF_ERROR(storage->remove_file(path));
  return Status();
}

int64_t PageFile::disk_bytes(const std::vector<PageSpec>& pages, int slots, int directories) {
  int64_t bytes = 0;
  for (const int64_t file : PageLayout(pages, slots, directories).file_bytes) bytes += file;
  return bytes;
}

Result<std::unique_ptr<PageFile>> PageFile::create(Storage* storage, const Options& options,
                                                   std::vector<PageSpec> pages) {
  CHECK(!options.directories.empty());
  auto impl = std::make_unique<Impl>(storage, options, std::move(pages));
  ASSIGN_OR_RETURN(impl->id, random_store_id());
  impl->id_text = store_id_text(impl->id);
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
  CHECK(!options.directories.empty());
  auto impl = std::make_unique<Impl>(storage, options, std::move(pages));
  impl->id_text = store_id;
  RETURN_IF_ERROR(impl->open_files(options.read_only ? FileUse::kRead : FileUse::kUpdate));
  for (size_t i = 0; i < impl->files.size(); ++i) RETURN_IF_ERROR(impl->check_superblock(i));
  RETURN_IF_ERROR(impl->adopt(committed));
  return std::unique_ptr<PageFile>(new PageFile(std::move(impl)));
}

const std::string& PageFile::store_id() const { return impl_->id_text; }
const std::vector<PageSpec>& PageFile::pages() const { return impl_->pages; }

Event PageFile::write(PageId page, std::byte* buffer, uint64_t generation, const Event& after) {
  Impl* impl = impl_.get();
  CHECK(page < impl->pages.size() && !impl->options.read_only, "no page %u to write", page);
  impl->index[page].newest = {true, impl->free_slot(page), generation};
  Impl::Transfer* transfer = impl->make_transfer(IoRequest::Op::kWrite, page, buffer);
  Event done = transfer->done;
  Stream& stream = *impl->write_stream;
  stream.wait(after);
  if (stream.traced()) stream.begin_span(impl->options.trace.label("checksum", page));
  stream.enqueue([impl, transfer, after] {
    PageHeader& header = transfer->header;
    header.checksum = crc32c(transfer->request.data + kPageHeaderBytes, header.bytes);
    impl->index[header.page].checksum = header.checksum;
    header.encode(transfer->request.data);
    impl->submit(transfer, after);
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
  return impl_->index[page].newest.present;
}

uint64_t PageFile::generation(PageId page) const {
  CHECK(has(page), "page %u has no version", page);
  return impl_->index[page].newest.generation;
}

PageFile::Extent PageFile::extent(PageId page) const {
  CHECK(has(page), "page %u has no version", page);
  return impl_->newest_extent(page);
}

void PageFile::drop(PageId page) {
  CHECK(page < impl_->pages.size() && !impl_->pages[page].durable, "page %u is durable", page);
  impl_->index[page].newest.present = false;
}

Status PageFile::status() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->status;
}

std::vector<PageVersion> PageFile::versions() const {
  impl_->require_quiet();
  std::vector<PageVersion> versions;
  for (size_t page = 0; page < impl_->pages.size(); ++page) {
    if (!impl_->pages[page].durable) continue;
    const Impl::Entry& entry = impl_->index[page];
    CHECK(entry.newest.present, "page %zu was never written", page);
    versions.push_back(
        {narrow<PageId>(page), entry.newest.slot, entry.newest.generation, entry.checksum});
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
    if (impl_->pages[page].durable) impl_->index[page].committed = impl_->index[page].newest;
  }
}

Status PageFile::verify() {
  int64_t slot_bytes = 0;
  std::vector<PageId> todo;
  for (PageId page = 0; page < impl_->pages.size(); ++page) {
    if (!impl_->pages[page].durable || !has(page)) continue;
    todo.push_back(page);
    slot_bytes = std::max(slot_bytes, impl_->layout.extents[page].slot_bytes);
  }
  ASSIGN_OR_RETURN(const HostMemory buffers, HostMemory::allocate(kVerifyWindow * slot_bytes));
  Event done[kVerifyWindow];
  Status results[kVerifyWindow];
  Status first;
  for (size_t i = 0; i < todo.size() + kVerifyWindow; ++i) {
    const size_t place = i % kVerifyWindow;
    done[place].wait();
    if (first.ok()) first = results[place];
    if (i >= todo.size() || !first.ok()) continue;
    std::byte* buffer = buffers.data() + static_cast<int64_t>(place) * slot_bytes;
    done[place] = impl_->start_read(todo[i], buffer, Event(), &results[place]);
  }
  return first;
}

PageFile::Counters PageFile::counters() const {
  return {impl_->reads.load(), impl_->writes.load(), impl_->read_bytes.load(),
          impl_->write_bytes.load()};
}

}  // namespace pagoda
