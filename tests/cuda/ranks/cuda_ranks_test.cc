// Runs on several ranks with GPUs that send to each other by NCCL. GPUs and NCCL are made up
// (fake_cuda.h, fake_nccl.h), the ranks are threads: the bits of one process, transfers in the
// rounds of the plan, and an error of NCCL that ends all.
#include <gtest/gtest.h>

#include <thread>

#include "parallel/gpus/mixed_link.h"
#include "parallel/gpus/nccl_link.h"
#include "plan/step/rank_part.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/ranks/fake_nccl.h"
#include "tests/testing/memory_network.h"
#include "tests/testing/plan/dry_run.h"
#include "tests/testing/ranks/ranked_run.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

class CudaRanks : public testing::Test {
 protected:
  CudaRanks() {
    fake_cuda::start({.gpus = 4});
    fake_nccl::start();
  }
  ~CudaRanks() override {
    fake_cuda::slow_down(0, 0);
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
    EXPECT_EQ(fake_nccl::open_communicators(), 0);
  }

  // Runs the case on GPUs, over `open`; none: MPI carries all.
  RankedOutcome run(RankedRun& ranked, RankedCase c, const OpenGpuLink& open) {
    const Watchdog watchdog("ranks with GPUs", std::chrono::seconds(300));
    MemoryNetwork network(c.ranks);
    c.gpus = true;
    c.run = [&](const std::function<void(RankGroup&)>& program) {
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < c.ranks; ++rank) {
        ranks.emplace_back([&, rank] {
          auto all = MpiCommunicator::join([&] { return network.carrier(rank); }, 0).take();
          RankGroup group(all.get(), [&](std::vector<LinkEnd> ends, Trace* trace) {
            return open_mixed_link(*all, std::move(ends), kDeadlineSeconds, open, trace);
          });
          program(group);
        });
      }
      for (std::thread& rank : ranks) rank.join();
    };
    return ranked.on(c);
  }

  static constexpr double kDeadlineSeconds = 20;
};

Result<std::unique_ptr<Link>> open_fake(MpiCommunicator& all, const std::vector<Device*>& gpus,
                                        const std::vector<int>& rank_of, double deadline_s) {
  ASSIGN_OR_RETURN(std::unique_ptr<NcclLink> link,
                   NcclLink::create(all, fake_nccl::calls(), gpus, rank_of, deadline_s));
  return std::unique_ptr<Link>(std::move(link));
}

// What NCCL is to be called with, by a run that only plans, from the routing of each step.
class PlannedCalls {
 public:
  explicit PlannedCalls(int ranks) : runs_(static_cast<size_t>(ranks)) {}

  void note(Session& session, const StepResult& step) {
    const RunShape& shape = session.shape();
    std::unique_ptr<DryRun>& run = runs_[static_cast<size_t>(shape.rank)];
    if (run == nullptr) {
      const std::vector<int64_t> updates(shape.records.size(), 0);
      run = std::make_unique<DryRun>(shape, session.pages(), session.memory().classes,
                                     session.memory().state_on_device, Ledger(false, 0, updates));
    }
    run->train(step.routing, [&](const StepPiece& piece) { note(session, piece); });
  }

  const std::vector<std::string>& of(int device) { return calls_[static_cast<size_t>(device)]; }

 private:
  // A round is a group of each device that has a part in it.
  void note(const Session& session, const StepPiece& piece) {
    const RunShape& shape = session.shape();
    const TaskList& all = piece.all_tasks();
    const std::vector<bool> ends = transfer_rounds(shape, session.pages(), all);
    std::map<int, std::vector<std::string>> group;  // [device]
    for (size_t i = 0; i <= all.size(); ++i) {
      if (i == all.size() || ends[i]) add(group);
      if (i == all.size()) break;
      const Task& task = all[i];
      const bool sends = task.kind == TaskKind::kSend;
      if (!sends && task.kind != TaskKind::kReceive) continue;
      if (!runs_here(shape, task) || shape.rank_of(task.peer) == shape.rank) continue;
      group[task.device].push_back(strf("%s %lld %s %d", sends ? "send" : "receive",
                                        (long long)task.bytes, sends ? "to" : "from", task.peer));
    }
  }
  void add(std::map<int, std::vector<std::string>>& group) {
    for (const auto& [device, calls] : group) {
      std::vector<std::string>& all = calls_[static_cast<size_t>(device)];
      all.push_back("start");
      all.insert(all.end(), calls.begin(), calls.end());
      all.push_back("end");
    }
    group.clear();
  }

  std::vector<std::unique_ptr<DryRun>> runs_;      // [rank], each its own thread's
  std::array<std::vector<std::string>, 4> calls_;  // [device], its rank's thread's
};

void expect_planned_calls(PlannedCalls& planned) {
  for (int device = 0; device < 4; ++device) {
    SCOPED_TRACE(testing::Message() << "device " << device);
    std::vector<std::string> made = fake_nccl::log(device);
    std::erase_if(made,
                  [](const std::string& call) { return call == "finalize" || call == "destroy"; });
    EXPECT_EQ(made.size(), planned.of(device).size());
    EXPECT_TRUE(made == planned.of(device));
  }
}

// Groups of calls of all devices, each of which sends or receives something.
int64_t groups() {
  int64_t all = 0;
  for (int device = 0; device < 4; ++device) {
    const std::vector<std::string> log = fake_nccl::log(device);
    all += std::count(log.begin(), log.end(), "start");
  }
  return all;
}

// Each way of clipping, with the smallest budgets and with ample ones.
TEST_F(CudaRanks, LeaveTheBitsOfOneProcess) {
  RankedRun global(ClipKind::kGlobal), per_expert(ClipKind::kPerExpert);
  for (RankedCase c : std::vector<RankedCase>{
           {.ranks = 2, .devices_each = 1, .clip = ClipKind::kGlobal, .seed = 1},
           {.ranks = 2,
           .devices_each = 2,
           .smallest = true,
           .clip = ClipKind::kPerExpert,
           .seed = 2},
           {.ranks = 3, .devices_each = 1, .clip = ClipKind::kPerExpert, .attending = 1, .seed = 3},
           {.ranks = 2,
           .devices_each = 1,
           .smallest = true,
           .clip = ClipKind::kGlobal,
           .plan = {.prefetch = false},
           .seed = 4,
           .looks = true}}) {
    SCOPED_TRACE(text_of(c));
    RankedRun& ranked = c.clip == ClipKind::kGlobal ? global : per_expert;
    fake_cuda::start({.gpus = 4});
    fake_cuda::slow_down(static_cast<uint32_t>(c.seed), c.seed % 2 == 0 ? 40 : 0);
    fake_nccl::start();
    PlannedCalls planned(c.ranks);
    c.stepped = [&](Session& session, const StepResult& step) { planned.note(session, step); };
    const RankedOutcome outcome = run(ranked, c, open_fake);
    c.stepped = {};
    expect_alike(outcome);
    if (!c.looks) {
      EXPECT_EQ(outcome.sha256(), ranked.sha256());
      expect_planned_calls(planned);
    }
    EXPECT_GT(groups(), 20);
    const RankedOutcome by_mpi = run(ranked, c, {});
    EXPECT_EQ(by_mpi.sha256(), outcome.sha256());
  }
}

// Weights come from another rank's host by MPI, between the rounds of NCCL: when they are due, or a
// layer ahead.
TEST_F(CudaRanks, HaveGuests) {
  RankedRun ranked(ClipKind::kGlobal, DType::kBF16, kTinyConfig, 32, 6, Sharing::kData);
  RankedCase ahead{.ranks = 2, .devices_each = 1, .smallest = true, .seed = 7};
  ahead.more_bytes = 3 * 22 * 8 * kKiB;  // a third of it is what two layers' guests take
  for (RankedCase c :
       std::vector<RankedCase>{{.ranks = 2, .devices_each = 1, .smallest = true, .seed = 5},
                               {.ranks = 2, .devices_each = 2, .smallest = true, .seed = 6},
                               ahead}) {
    SCOPED_TRACE(text_of(c));
    fake_cuda::start({.gpus = 4});
    fake_cuda::slow_down(static_cast<uint32_t>(c.seed), c.seed % 2 == 0 ? 40 : 0);
    fake_nccl::start();
    PlannedCalls planned(c.ranks);
    c.stepped = [&](Session& session, const StepResult& step) {
      EXPECT_TRUE(session.shape().has_guests());
      EXPECT_EQ(session.shape().guest_layers, c.more_bytes > 0 ? 2 : 0);
      planned.note(session, step);
    };
    const RankedOutcome outcome = run(ranked, c, open_fake);
    expect_alike(outcome);
    EXPECT_EQ(outcome.sha256(), ranked.sha256());
    expect_planned_calls(planned);
    EXPECT_GT(groups(), 20);
  }
}

// Where NCCL refuses to join, as it does two ranks with one GPU, MPI carries all.
TEST_F(CudaRanks, GoOnWithoutNcclWhereItRefuses) {
  RankedRun ranked(ClipKind::kGlobal);
  fake_nccl::fail("ncclCommInitRankConfig");
  const RankedOutcome outcome = run(ranked, {.ranks = 2, .devices_each = 1}, open_fake);
  expect_alike(outcome);
  EXPECT_EQ(outcome.sha256(), ranked.sha256());
  EXPECT_EQ(groups(), 0);
}

TEST_F(CudaRanks, EndTogetherWhenATransferFails) {
  RankedRun ranked(ClipKind::kGlobal);
  for (const char* call : {"ncclSend", "ncclRecv", "ncclGroupEnd"}) {
    SCOPED_TRACE(call);
    fake_nccl::start();
    fake_nccl::fail(call, 15);
    const RankedOutcome outcome = run(ranked, {.ranks = 2, .devices_each = 1}, open_fake);
    expect_ended(outcome, Exit::kUnavailable, call);
  }
}

}  // namespace
}  // namespace pagoda
