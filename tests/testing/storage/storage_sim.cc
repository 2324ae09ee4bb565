#include "tests/testing/storage/storage_sim.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "base/random.h"

namespace pagoda {
namespace {

using Kind = SimFault::Kind;

Status no_power() { return Status(Exit::kIoError, "simulated power loss; restart the machine"); }

Status call_failed(const char* what, const std::string& path, const std::string& why) {
  return Status(Exit::kIoError,
                strf("%s %s: %s (simulated); saved checkpoints are untouched; resume", what,
                     path.c_str(), why.c_str()));
}

}  // namespace

SimStorage::SimStorage(uint64_t seed, int64_t max_delay_us)
    : seed_(seed), max_delay_us_(max_delay_us), thread_([this] { run(); }) {}

SimStorage::~SimStorage() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SimStorage::inject(const SimFault& fault) {
  std::lock_guard lock(mutex_);
  armed_.push_back({fault});
}

void SimStorage::clear_faults() {
  std::lock_guard lock(mutex_);
  armed_.clear();
}

int64_t SimStorage::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

int64_t SimStorage::faults() const {
  std::lock_guard lock(mutex_);
  return faults_;
}

bool SimStorage::crashed() const {
  std::lock_guard lock(mutex_);
  return crashed_;
}

void SimStorage::crash(uint64_t seed) {
  std::lock_guard lock(mutex_);
  if (!crashed_) crash_locked(seed);
}

void SimStorage::crash_locked(uint64_t seed) {
  for (Flight& flight : flights_) {
    // A write under way is one more unflushed write, for SimDisk to keep, drop or tear.
    const Chunk& chunk = flight.chunk;
    if (chunk.request->op == IoRequest::Op::kWrite && !flight.power_lost) {
      disk_.write(flight.file->node.get(), chunk.offset, chunk.data, chunk.bytes);
    }
    flight.power_lost = true;
  }
  disk_.crash(seed);
  crashed_ = true;
}

void SimStorage::restart() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return flights_.empty() && completing_ == 0; });
  for (const auto& [handle, file] : files_) {
    file->node->locked = false;
    file->node->readers = 0;
  }
  files_.clear();
  crashed_ = false;
}

void SimStorage::flip_bit(const std::string& path, int64_t offset_bytes, int bit) {
  std::lock_guard lock(mutex_);
  const SimDisk::NodePointer node = disk_.find(path);
  CHECK(node && offset_bytes < static_cast<int64_t>(node->bytes.size()) && bit < 8);
  node->bytes[static_cast<size_t>(offset_bytes)] ^= std::byte{static_cast<uint8_t>(1u << bit)};
}

std::vector<std::byte> SimStorage::contents(const std::string& path) const {
  std::lock_guard lock(mutex_);
  const SimDisk::NodePointer node = disk_.find(path);
  return node ? node->bytes : std::vector<std::byte>();
}

void SimStorage::set_contents(const std::string& path, const std::vector<std::byte>& bytes) {
  std::lock_guard lock(mutex_);
  const SimDisk::NodePointer node = disk_.find(path);
  CHECK(node && !node->is_directory);
  node->bytes = bytes;
  disk_.flush(node.get());
}

uint64_t SimStorage::random() {
  const auto block = philox(seed_, RandomPurpose::kFaults, 0, ++draws_);
  return (uint64_t{block[0]} << 32) | block[1];
}

std::optional<SimFault> SimStorage::draw_fault(uint32_t call) {
  ++calls_;
  std::optional<SimFault> chosen;
  for (ArmedFault& armed : armed_) {
    const SimFault& fault = armed.fault;
    if ((fault.calls & call) == 0) continue;
    ++armed.seen;
    const bool hit = fault.nth > 0
                         ? armed.seen == fault.nth
                         : static_cast<double>(random() >> 11) * 0x1p-53 < fault.probability;
    if (hit && !chosen) chosen = fault;
  }
  if (chosen) ++faults_;
  return chosen;
}

SimStorage::Entry SimStorage::enter(uint32_t call, const char* what, const std::string& path) {
  Entry entry;
  if (crashed_) {
    entry.status = no_power();
    return entry;
  }
  entry.fault = draw_fault(call);
  if (entry.fault && entry.fault->kind == Kind::kError) {
    entry.status = call_failed(what, path, error_text(entry.fault->error));
  }
  return entry;
}

// A crash strikes after the change was made and before anybody heard of it: the change is
// unflushed.
Status SimStorage::leave(const Entry& entry) {
  if (!entry.fault || entry.fault->kind != Kind::kCrash) return Status();
  crash_locked(entry.fault->crash_seed);
  return no_power();
}

// ---- transfers ----

void SimStorage::register_memory(std::byte* /*data*/, int64_t /*bytes*/) {}

std::shared_ptr<SimStorage::OpenFile> SimStorage::find_file(int handle) const {
  CHECK(handle >= 0 && handle < next_handle_, "no open file %d", handle);
  const auto file = files_.find(handle);
  return file == files_.end() ? nullptr : file->second;  // null: opened before a restart, or closed
}

void SimStorage::check_overlap(const IoRequest& request, const OpenFile& file) const {
  for (const Flight& flight : flights_) {
    const IoRequest& other = *flight.chunk.request;
    if (flight.power_lost || flight.file.get() != &file) continue;
    if (request.op == IoRequest::Op::kRead && other.op == IoRequest::Op::kRead) continue;
    CHECK(request.offset >= other.offset + other.bytes ||
              other.offset >= request.offset + request.bytes,
          "a write overlaps another transfer in flight at offset %lld of %s",
          (long long)request.offset, file.path.c_str());
  }
}

void SimStorage::submit(IoRequest* request) {
  {
    std::lock_guard lock(mutex_);
    CHECK(!stop_ || completing_ > 0, "submit to a storage being destroyed");
    Flight flight;
    flight.chunk = make_chunk(request, 0, request->bytes);
    flight.file = find_file(request->file);
    request->status = Status();
    flight.power_lost = crashed_ || flight.file == nullptr;
    if (!flight.power_lost) {
      check_request(*request, static_cast<int64_t>(flight.file->node->bytes.size()));
      check_overlap(*request, *flight.file);
      flight.fault = draw_fault(request->op == IoRequest::Op::kRead ? kSimRead : kSimWrite);
    }
    const bool crash = flight.fault && flight.fault->kind == Kind::kCrash;
    const uint64_t crash_seed = crash ? flight.fault->crash_seed : 0;
    flights_.push_back(std::move(flight));
    if (crash) crash_locked(crash_seed);
  }
  changed_.notify_all();
}

void SimStorage::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !flights_.empty(); });
    if (flights_.empty()) return;
    if (const int64_t pause_us = max_delay_us_ > 0 ? random() % (max_delay_us_ + 1) : 0;
        pause_us > 0) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      lock.lock();
    }
    const size_t index = random() % flights_.size();
    const bool delayed = flights_[index].fault && flights_[index].fault->kind == Kind::kDelay;
    if (delayed && std::exchange(flights_[index].first_attempt, false)) {
      const auto pause = std::chrono::microseconds(flights_[index].fault->delay_us);
      lock.unlock();
      std::this_thread::sleep_for(pause);
      lock.lock();
    }
    if (step(&flights_[index]) == ChunkState::kAgain) continue;
    IoRequest* request = flights_[index].chunk.request;
    std::swap(flights_[index], flights_.back());
    flights_.pop_back();
    ++completing_;
    lock.unlock();
    complete(request);
    lock.lock();
    --completing_;
    idle_.notify_all();
  }
}

ChunkState SimStorage::step(Flight* flight) {
  if (flight->power_lost) {
    flight->chunk.request->status = no_power();
    return ChunkState::kFailed;
  }
  const int64_t result = attempt(flight);
  flight->first_attempt = false;
  return advance(&flight->chunk, result, flight->file->path);
}

// One attempt of a transfer, as the kernel would answer it: bytes moved or -errno.
int64_t SimStorage::attempt(Flight* flight) {
  const Chunk& chunk = flight->chunk;
  const auto file_bytes = static_cast<int64_t>(flight->file->node->bytes.size());
  int64_t bytes = std::clamp(file_bytes - chunk.offset, int64_t{0}, chunk.bytes);
  if (bytes == 0) return 0;
  if (!flight->fault) return move_bytes(flight, chunk.offset, bytes, false);
  const SimFault& fault = *flight->fault;
  const bool first = flight->first_attempt;
  switch (fault.kind) {
    case Kind::kError:
      return -fault.error;
    case Kind::kTransient:
      return first ? -fault.error : move_bytes(flight, chunk.offset, bytes, false);
    case Kind::kZero:
      return first ? 0 : move_bytes(flight, chunk.offset, bytes, false);
    case Kind::kShort:
      return move_bytes(flight, chunk.offset, first ? bytes / 2 + 100 : bytes, false);
    case Kind::kStale:
      return move_bytes(flight, chunk.offset, bytes, true);
    case Kind::kMisdirected: {
      int64_t offset = chunk.offset + bytes;
      if (offset + bytes > file_bytes) offset = std::max(int64_t{0}, chunk.offset - bytes);
      return move_bytes(flight, offset, bytes, false);
    }
    case Kind::kBitFlip: {
      const auto place = static_cast<size_t>(random() % static_cast<uint64_t>(bytes));
      const std::byte flip{static_cast<uint8_t>(1u << (random() % 8))};
      const int64_t moved = move_bytes(flight, chunk.offset, bytes, false);
      const bool read = chunk.request->op == IoRequest::Op::kRead;
      if (read) chunk.data[place] ^= flip;
      if (!read) flight->file->node->bytes[static_cast<size_t>(chunk.offset) + place] ^= flip;
      return moved;
    }
    case Kind::kDelay:
    case Kind::kCrash:
      break;
  }
  return move_bytes(flight, chunk.offset, bytes, false);
}

int64_t SimStorage::move_bytes(Flight* flight, int64_t offset, int64_t bytes, bool stale) {
  const Chunk& chunk = flight->chunk;
  SimDisk::Node* node = flight->file->node.get();
  if (chunk.request->op == IoRequest::Op::kWrite) {
    if (!stale) disk_.write(node, offset, chunk.data, bytes);
  } else if (stale) {
    disk_.read_flushed(*node, offset, chunk.data, bytes);
  } else {
    std::memcpy(chunk.data, node->bytes.data() + offset, static_cast<size_t>(bytes));
  }
  return bytes;
}

// ---- files ----

Result<int> SimStorage::open(const std::string& path, int64_t bytes, FileUse use) {
  const bool create = use == FileUse::kCreate, read = use == FileUse::kRead;
  CHECK(bytes % kIoAlign == 0 && (bytes > 0 || (bytes == kAnyLength && !create)));
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimOpen, "cannot open", path);
  RETURN_IF_ERROR(entry.status);
  SimDisk::NodePointer node = disk_.find(path);
  if (create && node) {
    return Status(Exit::kCannotCreate, strf("cannot create %s: it exists already", path.c_str()));
  }
  if (create) {
    node = disk_.create_file(path);
    if (!node) return Status(Exit::kCannotCreate, strf("cannot create %s", path.c_str()));
    node->bytes.resize(static_cast<size_t>(bytes));
  }
  if (!node) return Status(Exit::kNoInput, strf("cannot open %s: it is missing", path.c_str()));
  if (node->locked || (!read && node->readers > 0)) {
    return Status(Exit::kCannotCreate, strf("%s is in use", path.c_str()));
  }
  if (bytes == kAnyLength) bytes = static_cast<int64_t>(node->bytes.size());
  if (node->is_directory || static_cast<int64_t>(node->bytes.size()) != bytes) {
    return Status(Exit::kMismatch, strf("%s has %lld bytes, not %lld", path.c_str(),
                                        (long long)node->bytes.size(), (long long)bytes));
  }
  if (use == FileUse::kUpdate) disk_.flush(node.get());
  RETURN_IF_ERROR(leave(entry));
  if (read) ++node->readers;
  node->locked = !read;
  files_[next_handle_] = std::make_shared<OpenFile>(OpenFile{node, path, use, Status()});
  return next_handle_++;
}

int64_t SimStorage::length(int handle) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<OpenFile> file = find_file(handle);
  return file ? static_cast<int64_t>(file->node->bytes.size()) : 0;  // opened before a restart
}

void SimStorage::close(int handle) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<OpenFile> file = find_file(handle);
  if (!file) return;  // opened before a restart
  for (const Flight& flight : flights_) {
    CHECK(flight.file != file || flight.power_lost, "%s closed with a transfer in flight",
          file->path.c_str());
  }
  if (file->use == FileUse::kRead) --file->node->readers;
  file->node->locked = false;
  files_.erase(handle);
}

Status SimStorage::sync(int handle) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<OpenFile> file = find_file(handle);
  if (!file) return no_power();
  const Entry entry = enter(kSimSync, "cannot flush", file->path);
  if (file->flushed.ok()) file->flushed = entry.status;
  RETURN_IF_ERROR(file->flushed);
  if (disk_.find(file->path) != file->node) {
    return call_failed("cannot flush", file->path, "it was removed, moved or replaced");
  }
  RETURN_IF_ERROR(leave(entry));
  const bool lying = entry.fault && entry.fault->kind == Kind::kStale;
  if (!lying) disk_.flush(file->node.get());
  return Status();
}

Status SimStorage::write_file(const std::string& path, const std::string& content) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimWriteFile, "cannot write", path);
  RETURN_IF_ERROR(entry.status);
  const SimDisk::NodePointer node = disk_.create_file(path);
  if (!node) return Status(Exit::kCannotCreate, strf("cannot create %s", path.c_str()));
  const auto* begin = reinterpret_cast<const std::byte*>(content.data());
  const bool half =
      entry.fault && (entry.fault->kind == Kind::kShort || entry.fault->kind == Kind::kCrash);
  node->bytes.assign(begin, begin + (half ? content.size() / 2 : content.size()));
  disk_.flush(node.get());
  RETURN_IF_ERROR(leave(entry));
  return half ? call_failed("cannot write", path, error_text(ENOSPC)) : Status();
}

// There is room for everything; only the file is made.
Status SimStorage::reserve_file(const std::string& path, int64_t /*bytes*/) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimWriteFile, "cannot reserve", path);
  RETURN_IF_ERROR(entry.status);
  if (!disk_.create_file(path)) {
    return Status(Exit::kCannotCreate, strf("cannot create %s", path.c_str()));
  }
  return leave(entry);
}

Result<std::string> SimStorage::read_file(const std::string& path, int64_t limit_bytes) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimReadFile, "cannot read", path);
  RETURN_IF_ERROR(entry.status);
  RETURN_IF_ERROR(leave(entry));
  const SimDisk::NodePointer node = disk_.find(path);
  if (!node || node->is_directory) {
    return Status(Exit::kNoInput, strf("cannot open %s: it is missing", path.c_str()));
  }
  if (static_cast<int64_t>(node->bytes.size()) > limit_bytes) {
    return Status(Exit::kBadData,
                  strf("%s has more than %lld bytes", path.c_str(), (long long)limit_bytes));
  }
  std::string content(reinterpret_cast<const char*>(node->bytes.data()), node->bytes.size());
  if (entry.fault && entry.fault->kind == Kind::kBitFlip && !content.empty()) {
    content[random() % content.size()] ^= static_cast<char>(1u << (random() % 8));
  }
  return content;
}

Status SimStorage::rename(const std::string& from, const std::string& to) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimRename, "cannot rename", from);
  RETURN_IF_ERROR(entry.status);
  if (!disk_.rename(from, to)) {
    return call_failed("cannot rename", from, "not possible to " + to);
  }
  return leave(entry);
}

Status SimStorage::make_directory(const std::string& path) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimMakeDirectory, "cannot create directory", path);
  RETURN_IF_ERROR(entry.status);
  if (!disk_.make_directory(path)) {
    return Status(Exit::kCannotCreate, strf("cannot create directory %s", path.c_str()));
  }
  return leave(entry);
}

Status SimStorage::sync_directory(const std::string& path) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimSyncDirectory, "cannot flush directory", path);
  RETURN_IF_ERROR(entry.status);
  const SimDisk::NodePointer node = disk_.find(path);
  if (!node || !node->is_directory) return call_failed("cannot flush directory", path, "missing");
  RETURN_IF_ERROR(leave(entry));
  const bool lying = entry.fault && entry.fault->kind == Kind::kStale;
  if (!lying) disk_.flush_directory(node.get());
  return Status();
}

Result<std::vector<std::string>> SimStorage::list_directory(const std::string& path) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimListDirectory, "cannot list", path);
  RETURN_IF_ERROR(entry.status);
  RETURN_IF_ERROR(leave(entry));
  const SimDisk::NodePointer node = disk_.find(path);
  if (!node || !node->is_directory) {
    return Status(Exit::kNoInput, strf("cannot list %s: it is missing", path.c_str()));
  }
  std::vector<std::string> names;
  for (const auto& [name, child] : node->entries) names.push_back(name);
  return names;
}

Status SimStorage::remove_file(const std::string& path) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimRemove, "cannot remove", path);
  RETURN_IF_ERROR(entry.status);
  const SimDisk::NodePointer node = disk_.find(path);
  if (node && (node->is_directory || !disk_.remove(path))) {
    return call_failed("cannot remove", path, "it is a directory");
  }
  return leave(entry);
}

Status SimStorage::remove_directory(const std::string& path) {
  std::lock_guard lock(mutex_);
  const Entry entry = enter(kSimRemove, "cannot remove directory", path);
  RETURN_IF_ERROR(entry.status);
  const SimDisk::NodePointer node = disk_.find(path);
  if (!node) return leave(entry);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->entries) names.push_back(name);
  bool removed = true;
  for (const std::string& name : names) removed = disk_.remove(path + "/" + name) && removed;
  if (!removed || !disk_.remove(path)) {
    return call_failed("cannot remove directory", path, "it holds directories");
  }
  return leave(entry);
}

bool SimStorage::exists(const std::string& path) {
  std::lock_guard lock(mutex_);
  return crashed_ || disk_.find(path) != nullptr;
}

bool SimStorage::is_directory(const std::string& path) {
  std::lock_guard lock(mutex_);
  const SimDisk::NodePointer node = crashed_ ? nullptr : disk_.find(path);
  return crashed_ || (node && node->is_directory);
}

std::string SimStorage::describe() const {
  return strf("simulated in memory, seed %llu", (unsigned long long)seed_);
}

}  // namespace pagoda
