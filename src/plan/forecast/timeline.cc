#include "plan/forecast/timeline.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace pagoda {

int Timeline::add_stream(std::string name) {
  streams_.push_back({std::move(name)});
  return static_cast<int>(streams_.size()) - 1;
}

int Timeline::add_resource(double capacity) {
  CHECK(capacity > 0);
  capacity_.push_back(capacity);
  demand_.push_back(0);
  return static_cast<int>(capacity_.size()) - 1;
}

Timeline::Work Timeline::add(int stream, int resource, double demand, double seconds,
                             std::span<const Work> after, double memory, int machine) {
  CHECK(seconds >= 0 && demand >= 0 && memory >= 0 && memory <= 1 && machine >= 0);
  const auto machines = static_cast<size_t>(machine) + 1;
  if (memory_wanted_.size() < machines) memory_wanted_.resize(machines, 0);
  const auto work = static_cast<Work>(works_.size());
  Piece& piece = works_.emplace_back();
  piece.stream = stream;
  if (demand > 0) piece.uses[0] = {resource, demand};
  piece.memory = memory;
  piece.machine = machine;
  piece.left_s = seconds;
  for (Work earlier : after) wait_too(work, earlier);
  if (stream != kNone) {
    wait_too(work, streams_[stream].last);
    streams_[stream].last = work;
  }
  return work;
}

void Timeline::take_too(Work work, int resource, double demand) {
  CHECK(demand > 0 && works_[work].uses[1].resource == kNone);
  works_[work].uses[1] = {resource, demand};
}

void Timeline::wait_too(Work work, Work earlier) {
  if (earlier == kNothing) return;
  works_[earlier].follow.push_back(work);
  ++works_[work].waits_for;
}

void Timeline::start(Work work) {
  running_.push_back(work);
  if (works_[work].wakes_s <= 0) begin(work);
}

void Timeline::begin(Work work) {
  Piece& piece = works_[work];
  piece.start_s = now_s_;
  for (const Piece::Use& use : piece.uses) {
    if (use.resource != kNone) demand_[use.resource] += use.demand;
  }
}

void Timeline::finish(Work work) {
  Piece& piece = works_[work];
  piece.end_s = now_s_;
  for (const Piece::Use& use : piece.uses) {
    if (use.resource != kNone) demand_[use.resource] -= use.demand;
  }
  if (piece.stream != kNone) streams_[piece.stream].busy_s += piece.end_s - piece.start_s;
  for (Work next : piece.follow) {
    Piece& following = works_[next];
    if (--following.waits_for > 0) continue;
    const bool idle = following.stream != kNone && piece.stream != following.stream;
    if (idle) following.wakes_s = wake_s_ + (taken(following) ? slice_s_ : 0);
    ready_.push_back(next);
  }
}

// Whether the pieces that run leave a resource no room for this one. A piece that wants several
// units needs room for one of them.
bool Timeline::taken(const Piece& piece) const {
  return std::any_of(piece.uses.begin(), piece.uses.end(), [&](const Piece::Use& use) {
    if (use.resource == kNone) return false;
    return capacity_[use.resource] - demand_[use.resource] < std::min(1.0, use.demand) - 1e-9;
  });
}

// The speed, in [0, 1], at which its resources let the piece run.
double Timeline::share(const Piece& piece) const {
  if (piece.wakes_s > 0) return 0;
  double share = 1;
  for (const Piece::Use& use : piece.uses) {
    if (use.resource == kNone) continue;
    share = std::min(share, capacity_[use.resource] / demand_[use.resource]);
  }
  return share;
}

// The share of each memory's rate that all running pieces want together; may be above 1.
void Timeline::count_memory() {
  std::fill(memory_wanted_.begin(), memory_wanted_.end(), 0);
  for (const Work work : running_) {
    const Piece& piece = works_[work];
    memory_wanted_[piece.machine] += share(piece) * piece.memory;
  }
}

double Timeline::left_s(const Piece& piece) const {
  if (piece.wakes_s > 0) return piece.wakes_s;
  const double wanted = memory_wanted_[piece.machine];
  return piece.left_s / share(piece) * (1 + piece.memory * std::max(0.0, wanted - 1));
}

// Goes on to the next moment at which a piece ends or wakes.
void Timeline::go_on() {
  count_memory();
  double step_s = std::numeric_limits<double>::infinity();
  for (const Work work : running_) step_s = std::min(step_s, left_s(works_[work]));
  CHECK(!running_.empty(), "the work that is left waits for itself");
  // The pieces that end now are chosen before any time is subtracted, so that rounding cannot
  // separate pieces that end together.
  std::vector<Work> over, awake;
  for (const Work work : running_) {
    Piece& piece = works_[work];
    const double left = left_s(piece);
    const bool wakes = piece.wakes_s > 0;
    if (left <= step_s * (1 + 1e-12)) {
      (wakes ? awake : over).push_back(work);
    } else if (wakes) {
      piece.wakes_s -= step_s;
    } else {
      piece.left_s *= 1 - step_s / left;
    }
  }
  now_s_ += step_s;
  std::erase_if(running_, [&](Work work) {
    return std::find(over.begin(), over.end(), work) != over.end();
  });
  for (const Work work : awake) {
    works_[work].wakes_s = 0;
    begin(work);
  }
  for (const Work work : over) finish(work);
  ended_ += over.size();
}

void Timeline::run() {
  for (size_t w = 0; w < works_.size(); ++w) {
    if (works_[w].waits_for == 0) ready_.push_back(static_cast<Work>(w));
  }
  while (ended_ < works_.size()) {
    while (!ready_.empty()) {
      const Work work = ready_.back();
      ready_.pop_back();
      start(work);
    }
    go_on();
  }
}

}  // namespace pagoda
