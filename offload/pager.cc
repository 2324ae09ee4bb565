#include "offload/pager.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace pagoda {

Lease::Lease(Lease&& other) noexcept
    : pager_(std::exchange(other.pager_, nullptr)),
      stream_(other.stream_),
      uses_(std::move(other.uses_)),
      data_(std::move(other.data_)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  release();
  pager_ = std::exchange(other.pager_, nullptr);
  stream_ = other.stream_;
  uses_ = std::move(other.uses_);
  data_ = std::move(other.data_);
  return *this;
}

void Lease::release() {
  const auto is_guess = [](const PageUse& use) { return use.access == Access::kPrefetch; };
  if (std::all_of(uses_.begin(), uses_.end(), is_guess)) pager_ = nullptr;  // nothing is leased
  if (pager_) release(stream_->record());
}

void Lease::release(const Event& done) {
  if (pager_) std::exchange(pager_, nullptr)->release(*this, done);
}

int64_t Pager::device_bytes(const Options& options, int device) {
  int64_t bytes = 0;
  for (size_t c = 0; c < options.classes.size(); ++c) {
    bytes += options.classes[c].device_slots[device] * options.page_bytes[c];
  }
  return bytes;
}

int64_t Pager::host_bytes(const Options& options) {
  int64_t bytes = 0;
  for (size_t c = 0; c < options.classes.size(); ++c) {
    bytes += options.classes[c].host_slots * (options.page_bytes[c] + kPageHeaderBytes);
  }
  return bytes;
}

Result<std::unique_ptr<Pager>> Pager::create(Options options, PageFile* file, Storage* storage) {
  ASSIGN_OR_RETURN(HostMemory memory, HostMemory::allocate(host_bytes(options)));
  storage->register_memory(memory.data(), memory.bytes());
  return std::unique_ptr<Pager>(new Pager(std::move(options), file, storage, std::move(memory)));
}

Pager::Pager(Options options, PageFile* file, Storage* storage, HostMemory memory)
    : options_(std::move(options)),
      file_(file),
      storage_(storage),
      memory_(std::move(memory)),
      residency_(static_cast<int>(options_.devices.size()), options_.classes, options_.page_class),
      disk_ready_(options_.page_class.size()) {
  const int devices = static_cast<int>(options_.devices.size());
  base_.assign(options_.classes.size(), std::vector<std::byte*>(devices + 1));
  slots_.resize(options_.classes.size());
  std::vector<std::byte*> next(devices + 1, memory_.data());
  if (devices > 0) pin_ = options_.devices.front()->pin(memory_.data(), memory_.bytes());
  for (int d = 0; d < devices; ++d) {
    next[d] = options_.devices[d]->arena() + options_.arena_offset[d];
    CHECK(options_.arena_offset[d] + device_bytes(options_, d) <=
          options_.devices[d]->arena_bytes());
    copies_.push_back(
        {options_.devices[d]->make_stream(strf("upload %d", d), WorkKind::kUpload),
         options_.devices[d]->make_stream(strf("download %d", d), WorkKind::kDownload)});
    resident_lane_.push_back(options_.trace.lane("resident", strf("device %d", d)));
  }
  resident_lane_.push_back(options_.trace.lane("resident", "host"));
  resident_bytes_.assign(resident_lane_.size(), -1);
  peak_bytes_.assign(resident_lane_.size(), 0);
  for (size_t c = 0; c < options_.classes.size(); ++c) {
    slots_[c].resize(devices + 1);
    for (int p = 0; p <= devices; ++p) {
      const bool host = p == devices;
      const int64_t stride = options_.page_bytes[c] + (host ? kPageHeaderBytes : 0);
      const int32_t count =
          host ? options_.classes[c].host_slots : options_.classes[c].device_slots[p];
      base_[c][p] = next[p];
      next[p] += stride * count;
      slots_[c][p].resize(count);
    }
  }
}

Pager::~Pager() {
  drain();
  storage_->register_memory(nullptr, 0);
}

// A host slot's address is that of its payload; the header room lies before it.
std::byte* Pager::slot_data(PageId page, int place, int32_t slot) const {
  const uint16_t c = options_.page_class[page];
  if (place < residency_.devices()) return base_[c][place] + slot * options_.page_bytes[c];
  return base_[c][place] + slot * (options_.page_bytes[c] + kPageHeaderBytes) + kPageHeaderBytes;
}

Pager::SlotState& Pager::slot_state(PageId page, int place, int32_t slot) {
  return slots_[options_.page_class[page]][place][slot];
}

Event Pager::before_overwrite(const SlotState& slot) {
  std::vector<Event> events = slot.readers;
  events.push_back(slot.ready);
  return when_all(events);
}

// Reads that are over are forgotten, or a page that is only ever read would collect them for ever.
void Pager::add_reader(SlotState& slot, const Event& done) {
  std::erase_if(slot.readers, [](const Event& reader) { return reader.happened(); });
  slot.readers.push_back(done);
}

void Pager::copy(const Move& move, bool up) {
  const int host = residency_.devices();
  SlotState& device_slot = slot_state(move.page, move.device, move.device_slot);
  SlotState& host_slot = slot_state(move.page, host, move.host_slot);
  SlotState& source = up ? host_slot : device_slot;
  SlotState& target = up ? device_slot : host_slot;
  Stream& stream = up ? *copies_[move.device].upload : *copies_[move.device].download;
  stream.wait(source.ready);
  stream.wait(before_overwrite(target));
  std::byte* on_device = slot_data(move.page, move.device, move.device_slot);
  std::byte* in_host = slot_data(move.page, host, move.host_slot);
  const int64_t bytes = options_.page_bytes[options_.page_class[move.page]];
  if (stream.traced()) {
    stream.begin_span(options_.trace.label(up ? "upload" : "download", move.page, bytes));
  }
  stream.copy(up ? on_device : in_host, up ? in_host : on_device, bytes);
  stream.end_span();
  const Event done = stream.record();
  add_reader(source, done);
  target.ready = done;
  target.readers.clear();
  target.generation = source.generation;
  (up ? counters_.uploads : counters_.downloads) += 1;
  (up ? counters_.upload_bytes : counters_.download_bytes) += bytes;
}

void Pager::carry_out(const Move& move) {
  if (move.kind == Move::Kind::kUpload) return copy(move, true);
  if (move.kind == Move::Kind::kDownload) return copy(move, false);
  const int host = residency_.devices();
  SlotState& slot = slot_state(move.page, host, move.host_slot);
  std::byte* buffer = slot_data(move.page, host, move.host_slot) - kPageHeaderBytes;
  const int64_t bytes = options_.page_bytes[options_.page_class[move.page]];
  CHECK(move.page < file_->pages().size(), "page %u never goes to disk", move.page);
  if (move.kind == Move::Kind::kFetch) {
    const Event after = when_all({before_overwrite(slot), disk_ready_[move.page]});
    slot.ready = file_->read(move.page, buffer, after);
    disk_ready_[move.page] = slot.ready;
    slot.readers.clear();
    slot.generation = file_->generation(move.page);
    counters_.fetches += 1;
    counters_.fetch_bytes += bytes;
    return;
  }
  const Event after = when_all({slot.ready, disk_ready_[move.page]});
  const Event done = file_->write(move.page, buffer, slot.generation, after);
  add_reader(slot, done);
  disk_ready_[move.page] = done;
  counters_.write_backs += 1;
  counters_.write_back_bytes += bytes;
}

void Pager::count(const PageUse& use) {
  if (use.access == Access::kPrefetch) return;
  const bool there = use.access == Access::kCreate || residency_.valid_at(use.page, use.place);
  counters_.uses += 1;
  counters_.hits += there;
  const bool on_device = use.place.tier == Tier::kDevice;
  if (!on_device || use.access == Access::kCreate) return;
  counters_.device_reads += 1;
  counters_.device_hits += there;
  counters_.host_hits += !there && residency_.valid_at(use.page, Place::host());
}

// Notes the bytes that each place holds from the newest task on, and traces them when that task
// begins.
void Pager::note_held(Stream& stream) {
  for (int p = 0; p <= residency_.devices(); ++p) {
    const Place place = p == residency_.devices() ? Place::host() : Place::on_device(p);
    const int64_t bytes = residency_.used_bytes(options_.page_bytes, place);
    peak_bytes_[p] = std::max(peak_bytes_[p], bytes);
    if (!options_.trace.on() || bytes == std::exchange(resident_bytes_[p], bytes)) continue;
    stream.enqueue([trace = options_.trace.trace(), lane = resident_lane_[p], bytes] {
      trace->counter(lane, bytes);
    });
  }
}

Lease Pager::acquire(std::span<const PageUse> uses, Stream& stream, uint64_t generation) {
  moves_.clear();
  for (const PageUse& use : uses) count(use);
  residency_.acquire(uses, moves_, acquired_);
  for (const Move& move : moves_) carry_out(move);
  Lease lease;
  lease.pager_ = this;
  lease.stream_ = &stream;
  lease.uses_.assign(uses.begin(), uses.end());
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].access == Access::kPrefetch) {
      lease.data_.push_back(nullptr);
      continue;
    }
    const int place = residency_.place_index(uses[i].place);
    SlotState& slot = slot_state(uses[i].page, place, acquired_[i]);
    if (uses[i].access == Access::kRead) {
      stream.wait(slot.ready);
    } else {
      stream.wait(before_overwrite(slot));
      slot.generation = generation;
    }
    lease.data_.push_back(slot_data(uses[i].page, place, acquired_[i]));
  }
  note_held(stream);
  return lease;
}

void Pager::release(Lease& lease, const Event& done) {
  for (const PageUse& use : lease.uses_) {
    if (use.access == Access::kPrefetch) continue;
    SlotState& slot = slot_state(use.page, residency_.place_index(use.place),
                                 residency_.slot_at(use.page, use.place));
    if (use.access == Access::kRead) {
      add_reader(slot, done);
    } else {
      slot.ready = done;
      slot.readers.clear();
    }
  }
  residency_.release(lease.uses_);
}

void Pager::discard(PageId page) {
  residency_.discard(page);
  const bool stored = page < file_->pages().size();
  if (stored && !file_->pages()[page].keeps()) file_->drop(page);
}

uint64_t Pager::generation_in_host(PageId page) const {
  const int host = residency_.devices();
  const int32_t slot = residency_.slot_at(page, Place::host());
  CHECK(slot != kNoSlot, "page %u is not in the host", page);
  return slots_[options_.page_class[page]][host][slot].generation;
}

void Pager::replace(PageId out, PageId in) {
  disk_ready_[out].wait();
  residency_.discard(out);
  residency_.replace(out, in);
  std::swap(options_.page_class[out], options_.page_class[in]);
  file_->release(out);
  file_->adopt(in);
}

Status Pager::flush() {
  for (PageId page = 0; page < file_->pages().size(); ++page) {
    if (!file_->pages()[page].keeps() || !file_->pages()[page].here) continue;
    moves_.clear();
    residency_.flush(page, moves_);
    for (const Move& move : moves_) carry_out(move);
  }
  drain();
  return status();
}

void Pager::drain() {
  for (const auto& classes : slots_) {
    for (const auto& places : classes) {
      for (const SlotState& slot : places) before_overwrite(slot).wait();
    }
  }
  for (const Event& event : disk_ready_) event.wait();
}

}  // namespace pagoda
