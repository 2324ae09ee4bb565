#include "plan/timeline.h"

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
                             std::span<const Work> after) {
  CHECK(seconds >= 0 && demand >= 0);
  const auto work = static_cast<Work>(works_.size());
  Piece& piece = works_.emplace_back();
  piece.stream = stream;
  piece.resource = demand > 0 ? resource : kNone;
  piece.demand = demand;
  piece.left_s = seconds;
  const auto wait = [&](Work earlier) {
    if (earlier == kNothing) return;
    works_[earlier].follow.push_back(work);
    ++piece.waits_for;
  };
  for (Work earlier : after) wait(earlier);
  if (stream != kNone) {
    wait(streams_[stream].last);
    streams_[stream].last = work;
  }
  return work;
}

void Timeline::start(Work work) {
  running_.push_back(work);
  if (works_[work].wakes_s <= 0) begin(work);
}

void Timeline::begin(Work work) {
  Piece& piece = works_[work];
  piece.start_s = now_s_;
  if (piece.resource != kNone) demand_[piece.resource] += piece.demand;
}

void Timeline::finish(Work work) {
  Piece& piece = works_[work];
  piece.end_s = now_s_;
  if (piece.resource != kNone) demand_[piece.resource] -= piece.demand;
  if (piece.stream != kNone) streams_[piece.stream].busy_s += piece.end_s - piece.start_s;
  for (Work next : piece.follow) {
    Piece& following = works_[next];
    if (--following.waits_for > 0) continue;
    const bool of_another = piece.stream != following.stream;
    if (of_another && piece.stream != kNone && following.stream != kNone) {
      following.wakes_s = hand_over_s_;
    }
    ready_.push_back(next);
  }
}

double Timeline::speed(const Piece& piece) const {
  if (piece.resource == kNone || piece.wakes_s > 0) return 1;
  return std::min(1.0, capacity_[piece.resource] / demand_[piece.resource]);
}

void Timeline::run() {
  for (size_t w = 0; w < works_.size(); ++w) {
    if (works_[w].waits_for == 0) ready_.push_back(static_cast<Work>(w));
  }
  size_t ended = 0;
  while (ended < works_.size()) {
    while (!ready_.empty()) {
      const Work work = ready_.back();
      ready_.pop_back();
      start(work);
    }
    const auto left_s = [&](const Piece& piece) {
      return piece.wakes_s > 0 ? piece.wakes_s : piece.left_s / speed(piece);
    };
    double step_s = std::numeric_limits<double>::infinity();
    for (Work work : running_) step_s = std::min(step_s, left_s(works_[work]));
    CHECK(!running_.empty(), "the work that is left waits for itself");
    // What ends now is decided before anything is taken off, so that rounding cannot separate
    // pieces that end together.
    std::vector<Work> over, awake;
    for (Work work : running_) {
      Piece& piece = works_[work];
      const bool now = left_s(piece) <= step_s * (1 + 1e-12);
      if (now) {
        (piece.wakes_s > 0 ? awake : over).push_back(work);
      } else if (piece.wakes_s > 0) {
        piece.wakes_s -= step_s;
      } else {
        piece.left_s -= step_s * speed(piece);
      }
    }
    now_s_ += step_s;
    std::erase_if(running_, [&](Work work) {
      return std::find(over.begin(), over.end(), work) != over.end();
    });
    for (Work work : awake) {
      works_[work].wakes_s = 0;
      begin(work);
    }
    for (Work work : over) finish(work);
    ended += over.size();
  }
}

}  // namespace pagoda
