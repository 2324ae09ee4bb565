#include "tests/testing/storage/page_history.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace pagoda {
namespace {

constexpr Place kDevice{Tier::kDevice, 0};

// The pages that were used in the last depth - 1 uses of different pages in a row.
class Recent {
 public:
  explicit Recent(int depth) : depth_(depth) {}
  void happen(const Happening& h) {
    if (h.kind == Happening::kReplaced) {
      if (h.page == latest_) latest_ = kNobody;
      return;
    }
    if (h.page != latest_) ++turn_;
    latest_ = h.page;
    turn_of_[h.page] = turn_;
  }
  bool has(PageId page) const {
    const auto at = turn_of_.find(page);
    return at != turn_of_.end() && turn_ - at->second < depth_ - 1;
  }

 private:
  int depth_, turn_ = 0;
  PageId latest_ = kNobody;
  std::map<PageId, int> turn_of_;
};

// Who may be evicted of those resident: not who was used just now, while there is another.
std::vector<PageId> victims(const std::set<PageId>& resident, const Happening& h,
                            const Recent& recent) {
  std::vector<PageId> all, others;
  for (PageId page : resident) {
    if (page == h.held) continue;
    all.push_back(page);
    if (!recent.has(page)) others.push_back(page);
  }
  return others.empty() ? all : others;
}

}  // namespace

int fewest_misses(const PlaceTrace& trace) {
  Recent recent(trace.depth);
  for (const Happening& h : trace.before) recent.happen(h);
  std::map<std::set<PageId>, int> reached{{trace.start, 0}};
  for (const Happening& h : trace.counted) {
    std::map<std::set<PageId>, int> next;
    const auto reach = [&](std::set<PageId> resident, PageId out, int misses) {
      resident.erase(out);
      if (h.kind != Happening::kReplaced) resident.insert(h.page);
      const auto [at, fresh] = next.try_emplace(std::move(resident), misses);
      if (!fresh) at->second = std::min(at->second, misses);
    };
    for (const auto& [resident, misses] : reached) {
      const int then = misses + (h.kind == Happening::kRead);
      if (h.kind == Happening::kReplaced) {
        reach(resident, h.page, misses);
      } else if (resident.contains(h.page)) {
        reach(resident, kNobody, misses);
      } else if (static_cast<int>(resident.size()) < trace.slots) {
        reach(resident, kNobody, then);
      } else {
        for (PageId out : victims(resident, h, recent)) reach(resident, out, then);
      }
    }
    recent.happen(h);
    reached = std::move(next);
  }
  int fewest = INT32_MAX;
  for (const auto& [resident, misses] : reached) fewest = std::min(fewest, misses);
  return fewest;
}

int belady_misses(const PlaceTrace& trace) {
  Recent recent(trace.depth);
  for (const Happening& h : trace.before) recent.happen(h);
  std::set<PageId> resident = trace.start;
  const auto next_read = [&](size_t from, PageId page) {
    for (size_t i = from; i < trace.counted.size(); ++i) {
      if (trace.counted[i].page != page) continue;
      return trace.counted[i].kind == Happening::kRead ? i : trace.counted.size();
    }
    return trace.counted.size();
  };
  int misses = 0;
  for (size_t i = 0; i < trace.counted.size(); ++i) {
    const Happening& h = trace.counted[i];
    if (h.kind == Happening::kReplaced) {
      resident.erase(h.page);
    } else if (!resident.contains(h.page)) {
      misses += h.kind == Happening::kRead;
      if (static_cast<int>(resident.size()) == trace.slots) {
        const std::vector<PageId> out = victims(resident, h, recent);
        resident.erase(*std::max_element(out.begin(), out.end(), [&](PageId a, PageId b) {
          return next_read(i + 1, a) < next_read(i + 1, b);
        }));
      }
      resident.insert(h.page);
    }
    recent.happen(h);
  }
  return misses;
}

PageHistory::PageHistory(const Residency* residency, uint16_t slot_class)
    : residency_(*residency), slot_class_(slot_class) {
  const SlotClass& slots = residency->classes()[slot_class];
  device_.slots = slots.device_slots[0];
  device_.depth = slots.device_depth;
  host_.slots = slots.host_slots;
  host_.depth = slots.host_depth;
}

void PageHistory::start() {
  for (PageId page = 0; page < residency_.num_pages(); ++page) {
    if (!has(page)) continue;
    if (residency_.valid_at(page, kDevice)) device_.start.insert(page);
    if (residency_.valid_at(page, Place::host())) host_.start.insert(page);
  }
  counting_ = true;
}

void PageHistory::note(const PageUse& use, std::span<const Move> all_moves) {
  const bool guess = use.access == Access::kPrefetch;
  std::vector<Move> moves;
  std::copy_if(all_moves.begin(), all_moves.end(), std::back_inserter(moves),
               [&](const Move& move) { return has(move.page); });
  // A page that is in the host already and goes up from there is held meanwhile.
  PageId held = kNobody;
  for (const Move& move : moves) {
    const bool comes = move.kind == Move::Kind::kFetch || move.kind == Move::Kind::kDownload;
    if (move.kind == Move::Kind::kUpload && held == kNobody) held = move.page;
    if (comes && move.page == use.page) break;
  }
  for (const Move& move : moves) {
    if (move.kind == Move::Kind::kUpload) add(host_, {Happening::kRead, move.page});
    if (move.kind == Move::Kind::kDownload) add(host_, {Happening::kCreate, move.page, held});
    uploads_ += counting_ && move.kind == Move::Kind::kUpload && !guess;
    fetches_ += counting_ && move.kind == Move::Kind::kFetch;
  }
  if (guess && !residency_.valid_at(use.page, use.place)) return;
  const bool on_device = use.place == kDevice;
  const bool free = guess || use.access == Access::kCreate;
  const auto kind = free ? Happening::kCreate : Happening::kRead;
  add(on_device ? device_ : host_, {kind, use.page});
  const bool void_elsewhere = changes_content(use.access) || use.last;
  if (void_elsewhere) add(on_device ? host_ : device_, {Happening::kReplaced, use.page});
  if (use.last) add(on_device ? device_ : host_, {Happening::kReplaced, use.page});
}

}  // namespace pagoda
