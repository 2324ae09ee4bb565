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
      peak_bytes_(static_cast<size_t>(residency_.devices()) + 1, 0) {
  for (const PageTable::Class& c : pages_.classes) slot_bytes_.push_back(c.page_bytes);
  note_peaks();
}

void Replay::note_peaks() {
  for (int p = 0; p <= residency_.devices(); ++p) {
    const Place place = p == residency_.devices() ? Place::host() : Place::on_device(p);
    peak_bytes_[p] = std::max(peak_bytes_[p], held_bytes(place));
  }
}

void Replay::count_moves() {
  for (const Move& move : moves_) {
    PageTraffic::Link& link = traffic_.of(move.kind);
    ++link.moves;
    link.bytes += pages_.pages[move.page].bytes;
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
  note_peaks();
  for (const PageUse& use : task.used()) {
    if (use.last) discard(use.page);
  }
  return {moves_, slots_};
}

void Replay::flush(PageId page) {
  moves_.clear();
  residency_.flush(page, moves_);
  count_moves();
}

}  // namespace pagoda
