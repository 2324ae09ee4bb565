#include "bench/disk_pages.h"

#include <algorithm>
#include <mutex>

#include "base/bytes.h"
#include "base/log.h"
#include "bench/race/available_memory.h"
#include "bench/race/noise.h"

namespace pagoda {
namespace {

constexpr int64_t kWindowBytes = 64 * kMiB;
constexpr int kFewestInFlight = 4;

std::vector<PageSpec> page_table(int64_t page_bytes, int64_t bytes) {
  const PageSpec page = {page_bytes, 0, /*durable=*/false};
  return std::vector<PageSpec>(static_cast<size_t>(bytes / page_bytes), page);
}

int window_of(int64_t page_bytes, int64_t bytes) {
  const int64_t pages = std::max<int64_t>(kWindowBytes / page_bytes, kFewestInFlight);
  return narrow<int>(std::min(pages, bytes / page_bytes));
}

}  // namespace

Result<std::unique_ptr<DiskPages>> DiskPages::create(Storage* storage,
                                                     const std::string& directory,
                                                     int64_t page_bytes, int64_t bytes) {
  const int window = window_of(page_bytes, bytes);
  const int64_t slot_bytes = kPageHeaderBytes + page_bytes;
  const PageFile::Options options = {{directory}, "pages", 1};
  ASSIGN_OR_RETURN(std::unique_ptr<PageFile> file,
                   PageFile::create(storage, options, page_table(page_bytes, bytes)));
  RETURN_IF_ERROR(check_available(window * slot_bytes));
  ASSIGN_OR_RETURN(HostMemory memory, HostMemory::allocate(window * slot_bytes));
  fill_noise(memory.data(), memory.bytes());
  storage->register_memory(memory.data(), memory.bytes());
  std::unique_ptr<DiskPages> pages(
      new DiskPages(storage, options, std::move(memory), window));
  pages->file_ = std::move(file);
  RETURN_IF_ERROR(pages->write().status());
  return pages;
}

DiskPages::DiskPages(Storage* storage, PageFile::Options options, HostMemory memory, int window)
    : storage_(storage), options_(std::move(options)), memory_(std::move(memory)), window_(window) {
}

DiskPages::~DiskPages() {
  file_.reset();
  storage_->register_memory(nullptr, 0);
  const Status removed = PageFile::remove(storage_, options_);
  if (!removed.ok()) log_warn(removed.message());
}

int64_t DiskPages::slot_bytes() const { return kPageHeaderBytes + file_->pages()[0].bytes; }

FileRegion DiskPages::region() const {
  const auto pages = static_cast<int64_t>(file_->pages().size());
  return {PageFile::paths(options_)[0], file_->extent(0).offset, pages * slot_bytes()};
}

std::byte* DiskPages::buffer(PageId page) {
  return memory_.data() + static_cast<int64_t>(page % static_cast<PageId>(window_)) * slot_bytes();
}

// Starts every page once the page a window before it has ended; start(page) returns its end.
template <typename Start>
Timing DiskPages::race(const Start& start) {
  std::vector<Event> done(static_cast<size_t>(window_));
  const auto pages = narrow<PageId>(file_->pages().size());
  const TimingClock timer;
  for (PageId page = 0; page < pages; ++page) {
    Event& place = done[page % static_cast<PageId>(window_)];
    place.wait();
    place = start(page);
  }
  for (const Event& event : done) event.wait();
  return timer.finish(pages * slot_bytes());
}

Result<Timing> DiskPages::checked(const Timing& timing) const {
  RETURN_IF_ERROR(file_->status());
  return timing;
}

Result<Timing> DiskPages::write() {
  ++generation_;
  return checked(race(
      [this](PageId page) { return file_->write(page, buffer(page), generation_, Event()); }));
}

Result<Timing> DiskPages::read() {
  return checked(race([this](PageId page) { return file_->read(page, buffer(page), Event()); }));
}

Result<Timing> DiskPages::move_plain(IoRequest::Op op) {
  std::vector<IoRequest> requests(static_cast<size_t>(window_));
  Status failed;
  std::mutex mutex;  // guards failed
  const Timing timing = race([&](PageId page) {
    IoRequest& request = requests[page % requests.size()];
    const PageFile::Extent extent = file_->extent(page);
    request = {op, extent.file, extent.offset, buffer(page), extent.bytes, {}, {}};
    Event done = Event::make();
    request.done = [&, done](IoRequest& finished) mutable {
      if (!finished.status.ok()) {
        std::lock_guard lock(mutex);
        failed = finished.status;
      }
      done.signal();
    };
    storage_->submit(&request);
    return done;
  });
  RETURN_IF_ERROR(failed);
  return timing;
}

}  // namespace pagoda
