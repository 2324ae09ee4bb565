#include "plan/step/replay.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda {

PageTraffic::Link& PageTraffic::of(Move::Kind kind) {
  switch (kind) {
    case Move::Kind::kFetch: return fetch;
    case Move::Kind::kUpload: return upload;
    case Move::Kind::kDownload: return download;
    case Move::Kind::kWriteBack: return write_back;
  }
  CHECK(false, "no such move");
}

PageTraffic::Link PageTraffic::Link::operator-(const Link& other) const {
  return {moves - other.moves, bytes - other.bytes};
}

PageTraffic PageTraffic::operator-(const PageTraffic& other) const {
  return {fetch - other.fetch, upload - other.upload, download - other.download,
          write_back - other.write_back};
}

Residency all_on_disk(const RunShape& shape, const PageTable& pages,
                      const std::vector<SlotClass>& classes) {
  Residency residency(shape.own_devices().count, classes, slot_classes_here(shape, pages));
  for (PageId p = 0; p < pages.pages.size(); ++p) {
    if (pages.pages[p].durable) residency.set_on_disk(p);
  }
  return residency;
}

Replay::Replay(const PageTable* pages, Residency start)
    : pages_(*pages),
      residency_(std::move(start)),
      where_(pages->pages.size() * (residency_.devices() + 1), kNoSlot) {
  const int places = residency_.devices() + 1;
  held_bytes_.assign(places, 0);
  for (const SlotClass& c : residency_.classes()) {
    std::vector<std::vector<PageId>>& holders = holder_.emplace_back();
    for (int32_t slots : c.device_slots) holders.emplace_back(slots, kNobody);
    holders.emplace_back(c.host_slots, kNobody);
  }
  peak_bytes_ = held_bytes_;
  for (PageId p = 0; p < pages_.pages.size(); ++p) note(p);
}

// Updates the places of one page. A page that lost its slot to another one without a transfer is
// not noted; the other one is.
void Replay::note(PageId page) {
  const int devices = residency_.devices();
  const int64_t bytes = pages_.pages[page].bytes;
  for (int p = 0; p <= devices; ++p) {
    std::vector<PageId>& holders = holder_[pages_.pages[page].slot_class][p];
    int32_t& was = where_[page * (devices + 1) + p];
    const int32_t is = residency_.slot_at(page, p < devices ? Place::on_device(p) : Place::host());
    if (was != kNoSlot && was != is && holders[was] == page) {
      holders[was] = kNobody;
      held_bytes_[p] -= bytes;
    }
    if (is != kNoSlot && holders[is] != page) {
      if (holders[is] == kNobody) held_bytes_[p] += bytes;
      holders[is] = page;
    }
    was = is;
    peak_bytes_[p] = std::max(peak_bytes_[p], held_bytes_[p]);
  }
}

void Replay::count_moves() {
  for (const Move& move : moves_) {
    PageTraffic::Link& link = traffic_.of(move.kind);
    ++link.moves;
    link.bytes += pages_.pages[move.page].bytes;
    note(move.page);
  }
}

Replay::Placed Replay::place(const Task& task) {
  moves_.clear();
  residency_.acquire(task.used(), moves_, slots_);
  held_.insert(held_.end(), task.used().begin(), task.used().end());
  if (!task.joins_next) {
    residency_.release(held_);
    held_.clear();
  }
  count_moves();
  for (const PageUse& use : task.used()) note(use.page);
  for (const PageUse& use : task.used()) {
    if (use.last) discard(use.page);
  }
  return {moves_, slots_};
}

void Replay::discard(PageId page) {
  residency_.discard(page);
  note(page);
}

void Replay::flush(PageId page) {
  moves_.clear();
  residency_.flush(page, moves_);
  count_moves();
}

int64_t Replay::peak_bytes(Place place) const { return peak_bytes_[residency_.place_index(place)]; }

}  // namespace pagoda
