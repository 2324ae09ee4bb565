// Rounds of transfers: at random assignments of devices to ranks, none of a round waits for another
// one of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan/step/rank_part.h"
#include "tests/testing/plan/planned_case.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

constexpr uint32_t kAssignments = kUnderSanitizer ? 40 : 400;

// What waits for the end of a round, in a list of the tasks of all ranks: lanes and pages that a
// transfer of the round holds, and all that comes behind them.
class RoundCheck {
 public:
  RoundCheck(const RunShape& shape, const PageTable& pages) : shape_(shape), pages_(pages) {}

  // Returns what is wrong; "" if nothing is.
  std::string check(const TaskList& all) {
    for (RunShape of_rank = shape_; of_rank.rank < of_rank.ranks(); ++of_rank.rank) {
      const std::string fault = check_rank(of_rank, all);
      if (!fault.empty()) return strf("rank %d: ", of_rank.rank) + fault;
    }
    const std::vector<bool> ends = transfer_rounds(shape_, pages_, all);
    if (ends.size() != all.size()) return "not a value for each task";
    for (size_t i = 0; i < all.size(); ++i) {
      if (ends[i]) end_round();
      const std::string fault = check(all[i]);
      if (!fault.empty()) return strf("task %zu: ", i) + fault;
    }
    end_round();
    return "";
  }
  int64_t rounds = 0, transfers = 0, most_together = 0;

 private:
  using Lane = std::pair<int, int>;  // [device, lane]; the host's as lane kLanes

  // A rank ends as many rounds as all, has each of its transfers in that of the list of all, and
  // ends it behind its last one.
  std::string check_rank(const RunShape& shape, const TaskList& all) const {
    const std::vector<bool> ends = transfer_rounds(shape, pages_, all);
    const EndedRounds own = ended_rounds(shape, pages_, all);
    const auto rounds = std::count(ends.begin(), ends.end(), true);
    if (own.all != rounds + 1) return strf("it ends %d rounds of %td", own.all, rounds + 1);
    if (own.before.size() != own_part(shape, all).size()) return "not a value for each task";
    int round = 0, open = -1;
    size_t at = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      round += ends[i] ? 1 : 0;
      if (!runs_here(shape, all[i])) continue;
      const int before = own.before[at++];
      const bool crosses = crosses_ranks(all[i]);
      if (crosses && before != round) return "a transfer is in another round";
      if (before == open && !crosses) {
        // Only between two transfers of the round.
        const auto later = std::find_if(
            all.begin() + static_cast<std::ptrdiff_t>(i), all.end(),
            [&](const Task& task) { return runs_here(shape, task) && crosses_ranks(task); });
        const bool same = later != all.end() && own.before[at] == open;
        if (!same) return "a round is open behind its last transfer";
      }
      if (crosses) open = round;
    }
    return "";
  }
  bool crosses_ranks(const Task& task) const {
    return (task.kind == TaskKind::kSend || task.kind == TaskKind::kReceive) &&
           shape_.rank_of(task.device) != shape_.rank_of(task.peer);
  }
  std::string check(const Task& task) {
    const bool crosses = crosses_ranks(task);
    const Lane lane = {task.device, task.on_host ? kLanes : static_cast<int>(task.lane)};
    bool waits = lanes_.contains(lane);
    for (const PageUse& use : task.used()) waits = waits || held_.contains(place_of(use));
    if (crosses) {
      if (waits) return "a transfer waits for one of its round";
      const bool sends = task.kind == TaskKind::kSend;
      if (!sends && open_ != strf("%d to %d", task.peer, task.device)) {
        return "a receive is not in the round of its send";
      }
      open_ = sends ? strf("%d to %d", task.device, task.peer) : "";
      transfers_ += sends ? 1 : 0;
      for (const PageUse& use : task.used()) held_.insert(place_of(use));
      if (!sends) lanes_.insert(lane);
      return "";
    }
    if (!waits) return "";
    lanes_.insert(lane);
    for (const PageUse& use : task.used()) held_.insert(place_of(use));
    return "";
  }
  static std::pair<PageId, int> place_of(const PageUse& use) {
    return {use.page, use.place.tier == Tier::kHost ? -1 : use.place.device};
  }
  void end_round() {
    rounds += transfers_ > 0 ? 1 : 0;
    transfers += transfers_;
    most_together = std::max(most_together, transfers_);
    transfers_ = 0;
    held_.clear();
    lanes_.clear();
  }

  const RunShape& shape_;
  const PageTable& pages_;
  int64_t transfers_ = 0;
  std::string open_;                        // the send whose receive comes next
  std::set<std::pair<PageId, int>> held_;   // pages at devices; -1: at the host
  std::set<Lane> lanes_;
};

TEST(TransferRounds, NoTransferWaitsForAnotherOfItsRound) {
  int64_t rounds = 0, transfers = 0, most = 0;
  for (uint32_t seed = 1; seed <= kAssignments; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int devices = static_cast<int>(2 + random() % 4);
    const int ranks = static_cast<int>(2 + random() % static_cast<uint32_t>(devices - 1));
    RunShape shape = random_shape(random, devices);
    divide_into_ranks(random, ranks, shape);
    StepKind kind;
    kind.group_blocks = 1 + seed % 4;
    kind.options.microbatch_major = random() % 4 == 0;
    kind.apply_to(shape);
    const PageTable pages(shape);
    const int own = shape.own_devices().count;
    const MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(static_cast<size_t>(own), 12345)};
    const MemoryPlan memory = plan_memory(shape, pages, budget, 4096).take();
    shape = seated(shape, memory);
    DryRun run(shape, pages, memory.classes, memory.state_on_device,
               Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0)));
    RoundCheck check(shape, pages);
    for (int step = 0; step < 2; ++step) {
      run.train(random_routing(random, shape), [&](const StepPiece& piece) {
        EXPECT_EQ(check.check(piece.all_tasks()), "");
      });
    }
    if (testing::Test::HasFailure()) return;
    rounds += check.rounds;
    transfers += check.transfers;
    most = std::max(most, check.most_together);
  }
  EXPECT_GT(transfers, rounds * 11 / 10);
  EXPECT_GE(most, 3);
}

// Sends, each with its receive behind it.
struct TransferList {
  void add(int from, int to, PageId page, int wave, int lane = 0) {
    Task task;
    task.kind = TaskKind::kSend;
    task.device = static_cast<uint8_t>(from);
    task.peer = static_cast<uint8_t>(to);
    task.wave = wave;
    task.lane = Lane::kOut;
    task.use(page, Place::on_device(from), Access::kRead);
    tasks.push_back(task);
    task.kind = TaskKind::kReceive;
    task.lane = in_lane(lane);
    std::swap(task.device, task.peer);
    tasks.push_back(task);
  }
  // [send] whether a round ends before it.
  std::vector<bool> rounds_that_end(const RunShape& shape, const PageTable& pages) const {
    const std::vector<bool> of_tasks = transfer_rounds(shape, pages, tasks);
    std::vector<bool> of_sends;
    for (size_t i = 0; i < of_tasks.size(); i += 2) of_sends.push_back(of_tasks[i]);
    return of_sends;
  }
  TaskList tasks;
};

// Two ranks with a device each: what goes one way and what comes the other start together.
TEST(TransferRounds, BothWaysOfAWaveAreOneRound) {
  std::mt19937 random(3);
  RunShape shape;
  do {
    shape = random_shape(random, 2);
  } while (shape.num_experts < 4 || std::ssize(shape.attending_devices()) < 2);
  shape.device_rank = {0, 1};
  const PageTable pages(shape);
  TransferList all;
  all.add(1, 0, pages.leaving(1, 0, 0), 0);
  all.add(0, 1, pages.leaving(0, 1, 0), 0);
  all.add(0, 1, pages.returning(1, 0, 0), 0);
  all.add(1, 0, pages.returning(0, 1, 0), 0);
  all.add(1, 0, pages.leaving(1, 0, 1), 1);
  all.add(0, 1, pages.gradient_sum(0, 0), -1);
  all.add(1, 0, pages.gradient_sum(1, 0), -1);
  const std::vector<bool> ends = {false, false, true, false, true, true, true};
  EXPECT_EQ(all.rounds_that_end(shape, pages), ends);
}

// What comes to a device by different lanes is of one round, but for parts of one parcel.
TEST(TransferRounds, LanesReceiveTogether) {
  std::mt19937 random(3);
  RunShape shape;
  do {
    shape = random_shape(random, 3);
  } while (shape.num_experts < 4 || std::ssize(shape.attending_devices()) < 3);
  shape.device_rank = {0, 1, 2};
  const PageTable pages(shape);
  TransferList all;
  all.add(0, 2, pages.leaving(0, 2, 0), 0, 0);
  all.add(1, 2, pages.leaving(1, 2, 0), 0, 1);
  all.add(0, 2, pages.leaving(0, 2, 0), 0, 2);  // another part
  all.add(1, 2, pages.leaving(1, 2, 0), 0, 1);  // the lane has received
  all.add(0, 1, pages.leaving(0, 1, 0), 0, 0);
  all.add(1, 2, pages.leaving(1, 2, 0), 0, 0);  // a part, by another lane
  const std::vector<bool> ends = {false, false, true, false, false, true};
  EXPECT_EQ(all.rounds_that_end(shape, pages), ends);
}

}  // namespace
}  // namespace pagoda
