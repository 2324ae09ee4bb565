#include "tests/testing/plan/job_search.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

namespace pagoda {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

bool equal(const Job& a, const Job& b) {
  const auto same = [](const Operation& x, const Operation& y) {
    return x.machine == y.machine && x.time == y.time;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

// The rest of a job from one of its operations on.
struct Rest {
  int64_t time = 0;
  std::vector<int64_t> until, work, after;  // [machine] time before its first use, on it, after it
};

struct State {
  std::vector<size_t> next;    // [job]
  std::vector<int64_t> ready;  // [job]
  std::vector<int64_t> free;   // [machine]
};

class Search {
 public:
  Search(const std::vector<Job>& jobs, int machines, int64_t bound, int64_t most_states);
  ShortestSchedule run();

 private:
  void visit(const State& state);
  int64_t start(const State& state, size_t job) const;
  int64_t least_makespan(const State& state) const;
  bool seen(const State& state);
  std::vector<size_t> choices(const State& state) const;

  const std::vector<Job>& jobs_;
  size_t machines_;
  int64_t most_states_;
  bool same_ = true;  // all jobs are equal
  std::vector<std::vector<Rest>> rest_;  // [job][operation]
  std::unordered_map<std::string, int64_t> seen_;  // relative state -> earliest time
  ShortestSchedule result_;
};

Search::Search(const std::vector<Job>& jobs, int machines, int64_t bound, int64_t most_states)
    : jobs_(jobs), machines_(static_cast<size_t>(machines)), most_states_(most_states) {
  result_.makespan = bound;
  result_.certain = true;
  for (const Job& job : jobs) {
    same_ = same_ && equal(job, jobs.front());
    std::vector<Rest> rests(job.size() + 1);
    rests.back() = {0, std::vector<int64_t>(machines_, kNever), std::vector<int64_t>(machines_, 0),
                    std::vector<int64_t>(machines_, kNever)};
    for (size_t k = job.size(); k-- > 0;) {
      Rest& rest = rests[k] = rests[k + 1];
      const auto m = static_cast<size_t>(job[k].machine);
      for (int64_t& until : rest.until) until = std::min(kNever, until + job[k].time);
      rest.until[m] = 0;
      if (rest.after[m] == kNever) rest.after[m] = rest.time;
      rest.work[m] += job[k].time;
      rest.time += job[k].time;
    }
    rest_.push_back(std::move(rests));
  }
}

int64_t Search::start(const State& state, size_t job) const {
  const Operation& operation = jobs_[job][state.next[job]];
  return std::max(state.ready[job], state.free[static_cast<size_t>(operation.machine)]);
}

int64_t Search::least_makespan(const State& state) const {
  int64_t least = 0;
  std::vector<int64_t> head = std::vector<int64_t>(machines_, kNever), tail = head;
  std::vector<int64_t> work(machines_, 0);
  for (size_t j = 0; j < jobs_.size(); ++j) {
    if (state.next[j] == jobs_[j].size()) {
      least = std::max(least, state.ready[j]);
      continue;
    }
    const Rest& rest = rest_[j][state.next[j]];
    const int64_t from = start(state, j);
    least = std::max(least, from + rest.time);
    for (size_t m = 0; m < machines_; ++m) {
      head[m] = std::min(head[m], from + rest.until[m]);
      tail[m] = std::min(tail[m], rest.after[m]);
      work[m] += rest.work[m];
    }
  }
  for (size_t m = 0; m < machines_; ++m) {
    if (work[m] > 0) least = std::max(least, std::max(head[m], state.free[m]) + work[m] + tail[m]);
  }
  return least;
}

// What will happen depends on the state relative to its earliest job.
bool Search::seen(const State& state) {
  int64_t base = kNever, over = 0;
  std::vector<std::pair<int64_t, int64_t>> left;
  std::vector<int64_t> arrival(machines_, kNever);
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const bool ended = state.next[j] == jobs_[j].size();
    if (ended) over = std::max(over, state.ready[j]);
    const int64_t from = ended ? 0 : start(state, j);
    left.emplace_back(static_cast<int64_t>(state.next[j]), from);
    if (ended) continue;
    base = std::min(base, from);
    const Rest& rest = rest_[j][state.next[j]];
    for (size_t m = 0; m < machines_; ++m) {
      arrival[m] = std::min(arrival[m], from + rest.until[m]);
    }
  }
  std::vector<int64_t> numbers = {std::max(over - base, int64_t{0})};
  for (auto& [next, from] : left) from = std::max(from - base, int64_t{0});
  if (same_) std::sort(left.begin(), left.end());
  for (const auto& [next, from] : left) numbers.insert(numbers.end(), {next, from});
  for (size_t m = 0; m < machines_; ++m) {
    numbers.push_back(arrival[m] >= kNever ? -1 : std::max(state.free[m], arrival[m]) - base);
  }
  const std::string key(reinterpret_cast<const char*>(numbers.data()),
                        numbers.size() * sizeof(int64_t));
  const auto [place, fresh] = seen_.emplace(key, base);
  if (!fresh && place->second <= base) return true;
  place->second = base;
  return false;
}

// The jobs that may come next on the machine that can be done first.
std::vector<size_t> Search::choices(const State& state) const {
  size_t first = jobs_.size();
  int64_t first_end = kNever;
  for (size_t j = 0; j < jobs_.size(); ++j) {
    if (state.next[j] == jobs_[j].size()) continue;
    const int64_t end = start(state, j) + jobs_[j][state.next[j]].time;
    if (end < first_end) {
      first_end = end;
      first = j;
    }
  }
  const int32_t machine = jobs_[first][state.next[first]].machine;
  std::vector<size_t> chosen = {first};
  for (size_t j = 0; j < jobs_.size(); ++j) {
    if (j == first || state.next[j] == jobs_[j].size()) continue;
    if (jobs_[j][state.next[j]].machine != machine || start(state, j) >= first_end) continue;
    const auto twin = std::find_if(chosen.begin(), chosen.end(), [&](size_t other) {
      return same_ && state.next[other] == state.next[j];
    });
    if (twin == chosen.end()) {
      chosen.push_back(j);
    } else if (state.ready[j] < state.ready[*twin]) {
      *twin = j;
    }
  }
  return chosen;
}

void Search::visit(const State& state) {
  if (!result_.certain || least_makespan(state) >= result_.makespan) return;
  bool over = true;
  for (size_t j = 0; j < jobs_.size(); ++j) over = over && state.next[j] == jobs_[j].size();
  if (over) {
    result_.makespan = least_makespan(state);
    return;
  }
  if (seen(state)) return;
  if (++result_.states > most_states_) {
    result_.certain = false;
    return;
  }
  for (const size_t job : choices(state)) {
    const Operation& operation = jobs_[job][state.next[job]];
    State after = state;
    const int64_t end = start(state, job) + operation.time;
    after.ready[job] = end;
    after.free[static_cast<size_t>(operation.machine)] = end;
    ++after.next[job];
    visit(after);
  }
}

ShortestSchedule Search::run() {
  visit({std::vector<size_t>(jobs_.size(), 0), std::vector<int64_t>(jobs_.size(), 0),
         std::vector<int64_t>(machines_, 0)});
  return result_;
}

}  // namespace

ShortestSchedule shortest_schedule(const std::vector<Job>& jobs, int machines, int64_t bound,
                                   int64_t most_states) {
  return Search(jobs, machines, bound, most_states).run();
}

}  // namespace pagoda
