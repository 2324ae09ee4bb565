#include "plan/memory/host_division.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include "plan/memory/slot_share.h"
#include "plan/step/steady_run.h"

namespace pagoda {
namespace {

constexpr std::array<double, 5> kSampled = {1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0 / 2, 1.0};
constexpr std::array<double, 2> kQuicklySampled = {1.0 / 4, 1.0};
constexpr int kMostProposals = 4, kMostQuickProposals = 2;
constexpr int kSteps = 4, kQuickSteps = 3;  // until what a step moves stays the same
// A division is worth it if it moves at most this share of the bytes that the division in
// proportion moves. That one gives every class slots to work in, so a smaller saving does not pay.
constexpr double kWorthIt = 0.98;

using HostSlots = std::vector<int32_t>;  // [class]

// What one class of pages moves in a steady step.
struct Moved {
  bool any = false;        // pages pass through the host
  int64_t disk_bytes = 0;  // between host and disk
};

class StepCount {
 public:
  // `plan` is not owned. `slots`: the devices' slots.
  StepCount(const StepPlan* plan, const std::vector<SlotClass>& slots)
      : plan_(*plan), slots_(slots) {
    ExpertForecast forecast(plan->shape(), plan->pages(), slots);
    const auto tokens = layer_buffers_stay(plan->shape(), plan->pages(), slots)
                            ? SteadyRun::Tokens::kOne
                            : SteadyRun::Tokens::kEven;
    SteadyRun run(plan, tokens, &forecast);
    run.foresee_nothing();
    for (TaskList& step : steps_) {
      run.step([&](const StepPiece& piece) { add(piece.tasks, step); });
    }
  }

  // What each class moves with these host slots.
  std::vector<Moved> moved(const HostSlots& host, int steps) const;

 private:
  void add(const TaskList& tasks, TaskList& step) const;

  const StepPlan& plan_;
  std::vector<SlotClass> slots_;
  std::array<TaskList, 2> steps_;  // the first, and any after it
};

// Adds the tasks with only those uses that matter for this count.
void StepCount::add(const TaskList& tasks, TaskList& step) const {
  const PageTable& pages = plan_.pages();
  for (const Task& task : tasks) {
    Task kept;
    kept.joins_next = task.joins_next;
    for (int i = 0; i < task.num_uses; ++i) {
      const PageUse& use = task.uses[i];
      if (pages.classes[pages.pages[use.page].slot_class].stays()) continue;
      kept.use(use.page, use.place, use.access, use.last);
    }
    // The last one of those that join gives up what they all have.
    const bool ends = !task.joins_next && !step.empty() && step.back().joins_next;
    if (kept.num_uses > 0 || ends) step.push_back(kept);
  }
}

// A step uses the same pages as the step before it, so all expected uses come.
std::vector<Moved> StepCount::moved(const HostSlots& host, int steps) const {
  const PageTable& pages = plan_.pages();
  std::vector<SlotClass> slots = slots_;
  for (size_t c = 0; c < slots.size(); ++c) slots[c].host_slots = host[c];
  Replay replay(&pages, all_on_disk(plan_.shape(), pages, slots));
  std::vector<Moved> moved;
  for (int i = 0; i < steps; ++i) {
    moved.assign(slots.size(), {});
    replay.begin_cycle();
    for (const Task& task : steps_[i == 0 ? 0 : 1]) {
      for (const Move& move : replay.place(task).moves) {
        const PageTable::Page& page = pages.pages[move.page];
        const bool disk = move.kind == Move::Kind::kFetch || move.kind == Move::Kind::kWriteBack;
        moved[page.slot_class].any = true;
        moved[page.slot_class].disk_bytes += disk ? page.bytes : 0;
      }
    }
  }
  return moved;
}

// One class: bytes between host and disk by its host slots, as far as counted.
struct Curve {
  int64_t slot_bytes = 0;
  int64_t most = 0;  // slots that could be of use
  bool moves = false;
  std::map<int32_t, int64_t> disk_bytes = {};
};

struct Segment {
  size_t slot_class = 0;
  int32_t slots = 0;
  double saved = 0;  // bytes, by a byte of memory
};

// The segments of the lower convex hull from these slots on, the steepest first, as far as it
// falls.
void add_segments(size_t slot_class, const Curve& curve, int32_t from,
                  std::vector<Segment>& segments) {
  using Point = std::pair<int32_t, int64_t>;
  const auto saved = [&](const Point& a, const Point& b) {
    return static_cast<double>(a.second - b.second) /
           static_cast<double>((b.first - a.first) * curve.slot_bytes);
  };
  std::vector<Point> hull;
  for (auto point = curve.disk_bytes.find(from); point != curve.disk_bytes.end(); ++point) {
    while (hull.size() >= 2 && saved(hull.end()[-2], hull.back()) <= saved(hull.back(), *point)) {
      hull.pop_back();
    }
    hull.push_back(*point);
  }
  for (size_t i = 1; i < hull.size() && hull[i].second < hull[i - 1].second; ++i) {
    segments.push_back(
        {slot_class, hull[i].first - hull[i - 1].first, saved(hull[i - 1], hull[i])});
  }
}

class HostDivision {
 public:
  HostDivision(const StepPlan* plan, int64_t left_bytes, int64_t header_bytes,
               const std::vector<SlotClass>& slots, DivisionEffort effort);

  HostSlots divide();
  // The host memory from which nothing moves between host and disk. REQUIRES: divide().
  int64_t bytes_without_disk() const;
  int replays() const { return replays_; }

 private:
  bool is_known(const HostSlots& slots) const;
  int64_t count(const HostSlots& slots);
  bool pages(size_t c) const { return curves_[c].disk_bytes.at(least_[c]) > 0; }
  HostSlots with_everything() const;
  HostSlots with_working_slots() const;
  HostSlots in_proportion(HostSlots slots, bool only_moving) const;
  void sample(const HostSlots& from);
  HostSlots propose(HostSlots slots) const;
  int64_t left(const HostSlots& slots) const;

  StepCount count_;
  const bool quick_;
  int64_t left_bytes_;
  HostSlots least_;
  std::vector<Curve> curves_;
  int replays_ = 0;
};

HostDivision::HostDivision(const StepPlan* plan, int64_t left_bytes, int64_t header_bytes,
                           const std::vector<SlotClass>& slots, DivisionEffort effort)
    : count_(plan, slots), quick_(effort == DivisionEffort::kQuick), left_bytes_(left_bytes) {
  const std::vector<int64_t> here = pages_here(plan->shape(), plan->pages());
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = plan->pages().classes[c];
    least_.push_back(slots[c].host_slots);
    const int64_t most = info.stays() ? 0 : here[c];
    curves_.push_back({info.page_bytes + header_bytes, std::max<int64_t>(most, least_[c])});
  }
}

bool HostDivision::is_known(const HostSlots& slots) const {
  for (size_t c = 0; c < slots.size(); ++c) {
    if (!curves_[c].disk_bytes.contains(slots[c])) return false;
  }
  return true;
}

// Counts all bytes that move between host and disk, and adds a point to every curve.
int64_t HostDivision::count(const HostSlots& slots) {
  if (!is_known(slots)) {
    const std::vector<Moved> moved = count_.moved(slots, quick_ ? kQuickSteps : kSteps);
    ++replays_;
    for (size_t c = 0; c < slots.size(); ++c) {
      curves_[c].disk_bytes[slots[c]] = moved[c].disk_bytes;
      curves_[c].moves = curves_[c].moves || moved[c].any;
    }
  }
  int64_t bytes = 0;
  for (size_t c = 0; c < slots.size(); ++c) bytes += curves_[c].disk_bytes.at(slots[c]);
  return bytes;
}

// Bytes left beside these slots; below zero when they do not fit.
int64_t HostDivision::left(const HostSlots& slots) const {
  int64_t bytes = left_bytes_;
  for (size_t c = 0; c < slots.size(); ++c) {
    bytes -= (slots[c] - least_[c]) * curves_[c].slot_bytes;
  }
  return bytes;
}

HostSlots HostDivision::with_everything() const {
  HostSlots slots = least_;
  for (size_t c = 0; c < slots.size(); ++c) {
    if (pages(c)) slots[c] = static_cast<int32_t>(curves_[c].most);
  }
  return slots;
}

// Gives every class that passes through the host twice the slots that transfers and work need, so
// that neither waits for the other at once; takes a quarter of the memory for it.
HostSlots HostDivision::with_working_slots() const {
  HostSlots slots = least_;
  std::vector<SlotShare> shares;
  for (size_t c = 0; c < slots.size(); ++c) {
    const int64_t working = std::min<int64_t>(curves_[c].most, 2 * SlotClass().host_depth);
    if (curves_[c].moves && working > slots[c]) {
      shares.push_back({&slots[c], curves_[c].slot_bytes, working});
    }
  }
  int64_t bytes = left_bytes_ / 4;
  share_out(shares, bytes);
  return slots;
}

HostSlots HostDivision::in_proportion(HostSlots slots, bool only_moving) const {
  std::vector<SlotShare> shares;
  for (size_t c = 0; c < slots.size(); ++c) {
    if (only_moving && !curves_[c].moves) continue;
    shares.push_back({&slots[c], curves_[c].slot_bytes, curves_[c].most});
  }
  int64_t bytes = left(slots);
  share_out(shares, bytes);
  return slots;
}

// Counts some points of every curve, up to the slots that one class alone could get.
void HostDivision::sample(const HostSlots& from) {
  const int64_t bytes = left(from);
  count(from);
  const std::span<const double> fractions =
      quick_ ? std::span<const double>(kQuicklySampled) : kSampled;
  for (const double fraction : fractions) {
    HostSlots slots = from;
    for (size_t c = 0; c < slots.size(); ++c) {
      if (!pages(c)) continue;
      const int64_t more = std::min(curves_[c].most - from[c], bytes / curves_[c].slot_bytes);
      slots[c] += static_cast<int32_t>(std::ceil(fraction * static_cast<double>(more)));
    }
    count(slots);
  }
}

// The best division by the counted points, from these slots on.
HostSlots HostDivision::propose(HostSlots slots) const {
  std::vector<Segment> segments;
  for (size_t c = 0; c < slots.size(); ++c) add_segments(c, curves_[c], slots[c], segments);
  std::stable_sort(segments.begin(), segments.end(),
                   [](const Segment& a, const Segment& b) { return a.saved > b.saved; });
  int64_t bytes = left(slots);
  std::vector<uint8_t> cut(slots.size(), 0);  // nothing beyond a part of a segment is reached
  for (const Segment& segment : segments) {
    const size_t c = segment.slot_class;
    if (cut[c]) continue;
    const auto fit = static_cast<int32_t>(
        std::min<int64_t>(segment.slots, bytes / curves_[c].slot_bytes));
    slots[c] += fit;
    bytes -= fit * curves_[c].slot_bytes;
    cut[c] = fit < segment.slots;
  }
  return slots;
}

HostSlots HostDivision::divide() {
  count(least_);
  const HostSlots everything = with_everything();
  if (left(everything) >= 0) return in_proportion(everything, true);
  HostSlots best = in_proportion(least_, false);
  auto best_bytes = static_cast<int64_t>(kWorthIt * static_cast<double>(count(best)));
  const HostSlots from = with_working_slots();
  sample(from);
  for (int i = 0; i < (quick_ ? kMostQuickProposals : kMostProposals); ++i) {
    const HostSlots slots = propose(from);
    const bool known = is_known(slots);
    const int64_t bytes = count(slots);
    if (bytes < best_bytes) {
      best = slots;
      best_bytes = bytes;
    }
    if (known) break;  // it would be proposed again
  }
  return in_proportion(best, true);
}

int64_t HostDivision::bytes_without_disk() const {
  const HostSlots slots = with_everything();
  int64_t bytes = 0;
  for (size_t c = 0; c < slots.size(); ++c) bytes += slots[c] * curves_[c].slot_bytes;
  return bytes;
}

}  // namespace

DividedHost divide_host(const StepPlan& plan, int64_t left_bytes, int64_t header_bytes,
                        std::vector<SlotClass>& slots, DivisionEffort effort) {
  HostDivision division(&plan, left_bytes, header_bytes, slots, effort);
  const HostSlots host = division.divide();
  for (size_t c = 0; c < slots.size(); ++c) slots[c].host_slots = host[c];
  return {division.bytes_without_disk(), division.replays()};
}

}  // namespace pagoda
