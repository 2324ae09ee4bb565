// Transfers between GPUs of two ranks by NCCL. The GPUs and NCCL are made up (fake_cuda.h,
// fake_nccl.h), the ranks are threads: calls go in the order of the plan, and an error stops no
// lane of any rank.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/bytes.h"
#include "device/gpus.h"
#include "parallel/gpus/nccl_link.h"
#include "plan/step/rank_part.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/ranks/fake_nccl.h"
#include "tests/testing/memory_network.h"
#include "tests/testing/plan/planned_case.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr int64_t kArena = 8 * kMiB;
constexpr int64_t kHalf = kArena / 2;  // what is sent, then what is received

// Rank 0 has GPUs 0 and 1, rank 1 has GPU 2.
class CudaNcclLink : public testing::Test {
 protected:
  CudaNcclLink() {
    fake_cuda::start({.gpus = 3});
    fake_nccl::start();
  }
  ~CudaNcclLink() override {
    fake_cuda::slow_down(0, 0);
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
    EXPECT_EQ(fake_nccl::open_communicators(), 0);
  }

  // One rank: its GPUs, their lanes and the link. Members end in this order, from the last.
  struct Rank {
    std::unique_ptr<MpiCommunicator> all;
    struct Gpu {
      std::unique_ptr<Device> device;
      std::unique_ptr<Stream> out, in, in1;
    };
    std::map<int, Gpu> gpus;
    Status created;
    std::unique_ptr<NcclLink> link;

    Gpu& of(int device) { return gpus.at(device); }
    void synchronize() {
      for (auto& [device, gpu] : gpus) {
        for (const auto& lane : {&gpu.out, &gpu.in, &gpu.in1}) (*lane)->synchronize();
      }
    }
  };
  static Rank join(MemoryNetwork& network, int rank, double deadline_s) {
    Rank r;
    r.all = MpiCommunicator::join([&network, rank] { return network.carrier(rank); }, 0).take();
    std::vector<Device*> devices(3, nullptr);
    for (const int d : rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{2}) {
      Rank::Gpu& gpu = r.gpus[d];
      gpu.device = open_gpu(d, {kArena, 1}).take();
      gpu.out = gpu.device->make_stream("out", WorkKind::kLink);
      gpu.in = gpu.device->make_stream("in", WorkKind::kLink);
      gpu.in1 = gpu.device->make_stream("in lane 1", WorkKind::kLink);
      devices[static_cast<size_t>(d)] = gpu.device.get();
    }
    auto link = NcclLink::create(*r.all, fake_nccl::calls(), devices, {0, 0, 1}, deadline_s);
    r.created = link.status();
    if (link.ok()) r.link = link.take();
    return r;
  }
  // Runs `act` as each rank.
  template <typename Act>
  static void run(const Act& act, double deadline_s = 0) {
    MemoryNetwork network(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        Rank me = join(network, rank, deadline_s);
        act(rank, me);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  const Watchdog watchdog_{"transfers", std::chrono::seconds(120)};
};

int rank_of(int device) { return device == 2 ? 1 : 0; }

// Rounds of random transfers in the order in which they are issued.
struct Traffic {
  struct Row {
    Transfer transfer;
    bool begins_round = false;
    std::vector<std::byte> sent, arrived;
  };
  std::vector<Row> rows;
  std::map<std::pair<int, int>, Link::Count> counts;
  std::map<int, std::vector<std::string>> calls;  // [device]

  explicit Traffic(int rounds) {
    std::mt19937 random(5);
    const std::pair<int, int> pairs[] = {{0, 2}, {2, 0}, {1, 2}, {2, 1}};
    for (int round = 0; round < rounds; ++round) {
      std::vector<size_t> of_round = {random() % 4};
      // What goes the other way, or to or from the other GPU, may be in the same round.
      if (round % 3 > 0) of_round.push_back(of_round[0] ^ 1);
      if (round % 3 > 1) of_round.push_back(of_round[0] < 2 ? 3 : 1);
      std::map<int, std::vector<std::string>> group;
      for (size_t i = 0; i < of_round.size(); ++i) {
        const auto [from, to] = pairs[of_round[i]];
        const bool large = random() % 8 == 0;
        const int64_t bytes =
            random() % 9 == 0 ? 0 : static_cast<int64_t>(random() % (large ? kHalf / 2 : 50'000));
        Link::Count& count = counts[{from, to}];
        Row& row = rows.emplace_back();
        row.transfer = {count.transfers, from, to, bytes, bytes / 7};
        row.begins_round = i == 0;
        count.add(row.transfer);
        for (int64_t b = 0; b < bytes; ++b) row.sent.push_back(std::byte(random() >> 7 & 255));
        row.arrived.resize(row.sent.size());
        if (bytes == 0) continue;
        group[from].push_back(strf("send %lld to %d", (long long)bytes, to));
        group[to].push_back(strf("receive %lld from %d", (long long)bytes, from));
      }
      for (const auto& [device, in_between] : group) {
        auto& all = calls[device];
        all.push_back("start");
        all.insert(all.end(), in_between.begin(), in_between.end());
        all.push_back("end");
      }
    }
    for (int device = 0; device < 3; ++device) {
      for (const char* call : {"finalize", "destroy"}) calls[device].push_back(call);
    }
  }
};

// The sources of a round are overwritten as soon as they may be, the target is read before the next
// transfer.
TEST_F(CudaNcclLink, BytesArriveWholeInTheOrderOfTheRounds) {
  fake_cuda::slow_down(5, 200);
  Traffic traffic(60);
  run([&](int rank, Rank& me) {
    ASSERT_TRUE(me.link) << me.created.message();
    std::vector<std::shared_ptr<void>> pins;
    std::map<int, std::vector<Event>> sent;  // [device] in this round
    for (Traffic::Row& row : traffic.rows) {
      if (row.begins_round) {
        if (&row != &traffic.rows.front()) me.link->end_round();
        for (auto& [device, events] : sent) me.of(device).out->wait(when_all(events));
        sent.clear();
      }
      const Transfer& transfer = row.transfer;
      const bool sends = rank_of(transfer.from) == rank;
      Rank::Gpu& gpu = me.of(sends ? transfer.from : transfer.to);
      auto& content = sends ? row.sent : row.arrived;
      pins.push_back(gpu.device->pin(content.data(), std::ssize(content)));
      if (sends) {
        std::vector<Event>& events = sent[transfer.from];
        std::byte* source = gpu.device->arena() + std::ssize(events) * (kHalf / 2);
        gpu.out->copy(source, content.data(), transfer.bytes);
        events.push_back(me.link->send(transfer, source, *gpu.out));
      } else {
        std::byte* target = gpu.device->arena() + kHalf;
        me.link->receive(transfer, target, *gpu.in);
        gpu.in->copy(content.data(), target, transfer.bytes);
      }
    }
    me.link->end_round();
    me.synchronize();
    EXPECT_TRUE(me.link->status().ok()) << me.link->status().message();
    EXPECT_TRUE(me.link->check_rounds().ok());
    for (const auto& [pair, count] : me.link->counts()) {
      EXPECT_EQ(rank_of(pair.second), rank);
      EXPECT_TRUE(count == traffic.counts.at(pair));
    }
  });
  for (size_t i = 0; i < traffic.rows.size(); ++i) {
    EXPECT_TRUE(traffic.rows[i].sent == traffic.rows[i].arrived) << "transfer " << i;
  }
  for (int device = 0; device < 3; ++device) {
    EXPECT_EQ(fake_nccl::log(device), traffic.calls[device]) << device;
  }
}

// A rank's part of a step, as far as transfers wait for it: each task waits for its lane and for
// whoever used its pages, and does nothing.
class EmptyStep {
 public:
  EmptyStep(const RunShape& shape, const PageTable& pages) : shape_(shape), pages_(pages) {}

  template <typename R>
  void run(const TaskList& all, R& me) {
    const std::vector<bool> ends = transfer_rounds(shape_, pages_, all);
    for (size_t i = 0; i < all.size(); ++i) {
      if (ends[i]) me.link->end_round();
      if (runs_here(shape_, all[i]) && all[i].lane != Lane::kCompute) run(all[i], me);
    }
    me.link->end_round();
  }

 private:
  template <typename R>
  void run(const Task& task, R& me) {
    auto& gpu = me.of(task.device);
    Stream& lane = task.lane == Lane::kOut   ? *gpu.out
                   : task.lane == Lane::kIn1 ? *gpu.in1
                                             : *gpu.in;
    for (const PageUse& use : task.used()) lane.wait(used_[{task.device, use.page}]);
    Event done;
    const bool crosses = shape_.rank_of(task.device) != shape_.rank_of(task.peer);
    if (task.kind == TaskKind::kSend && crosses) {
      const Transfer transfer = next(task.device, task.peer, task.bytes);
      done = me.link->send(transfer, gpu.device->arena(), lane);
    } else if (task.kind == TaskKind::kReceive && crosses) {
      const Transfer transfer = next(task.peer, task.device, task.bytes);
      me.link->receive(transfer, gpu.device->arena() + kHalf, lane);
      done = lane.record();
    } else {
      done = lane.record();
    }
    for (const PageUse& use : task.used()) used_[{task.device, use.page}] = done;
  }
  Transfer next(int from, int to, int64_t bytes) {
    EXPECT_LE(bytes, kHalf);
    return {numbers_[{from, to}]++, from, to, bytes};
  }

  const RunShape& shape_;
  const PageTable& pages_;
  std::map<std::pair<int, PageId>, Event> used_;  // [device, page] by whoever was the last
  std::map<std::pair<int, int>, int64_t> numbers_;
};

std::vector<std::string> without_rounds(std::vector<std::string> calls) {
  std::erase_if(calls, [](const std::string& call) {
    return !call.starts_with("send") && !call.starts_with("receive");
  });
  return calls;
}

// Both ranks run their parts of random steps: NCCL is called as the list of all ranks has it, and
// every transfer ends.
TEST_F(CudaNcclLink, CallsGoInTheOrderOfThePlan) {
  int64_t groups = 0, transfers = 0, by_lane = 0;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    RunShape shape = random_shape(random, 3);
    shape.device_rank = {0, 0, 1};
    // Device 2 takes from both others at a time.
    if (seed % 2 == 0) {
      shape.exchange = ExchangeOrder::kRounds;
      shape.network_rates = {10, 20};
    }
    StepKind kind;
    kind.group_blocks = 2;
    kind.apply_to(shape);
    const Routing routing = random_routing(random, shape);
    fake_nccl::start();
    std::map<int, std::vector<std::string>> planned;  // [device]
    run([&](int rank, Rank& me) {
      ASSERT_TRUE(me.link) << me.created.message();
      RunShape own = shape;
      own.rank = rank;
      const PageTable pages(own);
      const auto devices = static_cast<size_t>(own.own_devices().count);
      const MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(devices, 12345)};
      const MemoryPlan memory = plan_memory(own, pages, budget, 4096).take();
      own = seated(own, memory);
      DryRun dry_run(own, pages, memory.classes, memory.state_on_device,
                     Ledger(false, 0, std::vector<int64_t>(own.records.size(), 0)));
      EmptyStep step(own, pages);
      dry_run.train(routing, [&](const StepPiece& piece) {
        step.run(piece.all_tasks(), me);
        for (const Task& task : piece.all_tasks()) {
          if (rank == 1 || rank_of(task.device) == rank_of(task.peer) || task.bytes == 0) continue;
          const auto bytes = static_cast<long long>(task.bytes);
          if (task.kind == TaskKind::kSend) {
            planned[task.device].push_back(strf("send %lld to %d", bytes, task.peer));
          } else if (task.kind == TaskKind::kReceive) {
            planned[task.device].push_back(strf("receive %lld from %d", bytes, task.peer));
            by_lane += task.lane == Lane::kIn1;
          }
        }
      });
      me.synchronize();
      EXPECT_TRUE(me.link->status().ok()) << me.link->status().message();
      EXPECT_TRUE(me.link->check_rounds().ok());
    });
    for (int device = 0; device < 3; ++device) {
      const std::vector<std::string> calls = fake_nccl::log(device);
      EXPECT_EQ(without_rounds(calls), planned[device]) << device;
      groups += std::count(calls.begin(), calls.end(), "start");
      transfers += std::ssize(planned[device]);
    }
  }
  EXPECT_GT(transfers, 100);
  EXPECT_GT(by_lane, 0);
  EXPECT_LT(groups, transfers);
}

// What went wrong is found when ranks compare, and then all that is under way ends.
TEST_F(CudaNcclLink, ARankWithAnotherOrderIsFound) {
  run([&](int rank, Rank& me) {
    ASSERT_TRUE(me.link);
    const auto transfer = [&](int from, int to, int64_t bytes) {
      Rank::Gpu& gpu = me.of(rank_of(from) == rank ? from : to);
      if (rank_of(from) == rank) {
        me.link->send({0, from, to, bytes}, gpu.device->arena(), *gpu.out);
      } else {
        me.link->receive({0, from, to, bytes}, gpu.device->arena() + kHalf, *gpu.in);
      }
      me.link->end_round();
    };
    transfer(0, 2, 64);
    ASSERT_TRUE(me.link->check_rounds().ok());
    if (rank == 0) transfer(2, 0, 64);
    transfer(1, 2, 64);
    if (rank == 1) transfer(2, 0, 64);
    const Status found = me.link->check_rounds();
    EXPECT_EQ(found.code(), Exit::kInternal);
    EXPECT_EQ(found.message(),
              "ranks 0 and 1 have other transfers with each other, or in other rounds; please "
              "report this");
    me.link->give_up(found);
    me.synchronize();
    ASSERT_TRUE(me.all->barrier().ok());
  });
}

// Each rank sends to the other, 3 MiB: what comes are 9s before, and zeros in the end.
class CudaNcclFault : public CudaNcclLink {
 protected:
  // `acts`: what a rank does instead, once the other one waits. Returns what each rank's link says.
  template <typename Act>
  std::array<Status, 2> exchange(const Act& act, bool second_waits, double deadline_s = 0) {
    std::array<Status, 2> found;
    Event waits = Event::make();
    run(
        [&](int rank, Rank& me) {
          ASSERT_TRUE(me.link) << me.created.message();
          const int own = rank == 0 ? 0 : 2, other = 2 - own;
          Rank::Gpu& gpu = me.of(own);
          std::vector<std::byte> content(static_cast<size_t>(3 * kMiB), std::byte{9});
          const auto pin = gpu.device->pin(content.data(), std::ssize(content));
          std::byte* target = gpu.device->arena() + kHalf;
          gpu.in->copy(target, content.data(), std::ssize(content));
          const bool takes_part = rank == 0 || second_waits;
          if (takes_part) {
            const Transfer out{0, own, other, 3 * kMiB, 0, "send L1"};
            gpu.out->wait(me.link->send(out, gpu.device->arena(), *gpu.out));
            me.link->receive({0, other, own, 3 * kMiB, 0, "receive L1"}, target, *gpu.in);
            me.link->end_round();
          }
          if (rank == 0) waits.signal();
          waits.wait();
          act(rank, me);
          if (takes_part) {
            gpu.in->copy(content.data(), target, std::ssize(content));
            me.synchronize();
            EXPECT_TRUE(content == std::vector<std::byte>(content.size())) << rank;
          }
          while (me.link->status().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          found[static_cast<size_t>(rank)] = me.link->status();
          given_up_by_[static_cast<size_t>(rank)] = me.link->given_up_by();
          EXPECT_TRUE(me.all->barrier().ok());
        },
        deadline_s);
    return found;
  }
  std::array<int, 2> given_up_by_{-2, -2};
};

TEST_F(CudaNcclFault, AnErrorOfACallEndsAllRanks) {
  const std::pair<const char*, int> calls[] = {
      {"ncclGroupStart", 2}, {"ncclSend", 0}, {"ncclRecv", 1}, {"ncclGroupEnd", 2}};
  for (const auto& [call, before] : calls) {
    SCOPED_TRACE(call);
    fake_nccl::start();
    fake_nccl::fail(call, before);
    for (const Status& status : exchange([](int, Rank&) {}, true)) {
      EXPECT_EQ(status.code(), Exit::kUnavailable);
      EXPECT_NE(status.message().find(std::string(" of 2: ") + call + ": unhandled system error"),
                std::string::npos)
          << status.message();
    }
  }
}

TEST_F(CudaNcclFault, AnErrorWhileTransfersAreUnderWayEndsAllRanks) {
  const auto found = exchange(
      [](int rank, Rank&) {
        if (rank == 0) fake_nccl::break_down();
      },
      false);
  for (const Status& status : found) {
    EXPECT_EQ(status.message(),
              "rank 0 of 2: NCCL: remote process exited; start all processes again");
  }
  EXPECT_EQ(given_up_by_, (std::array{-1, 0}));
}

TEST_F(CudaNcclFault, ASilentRankEndsAllAfterTheDeadline) {
  const auto found = exchange([](int, Rank&) {}, false, 0.05);
  for (const Status& status : found) {
    EXPECT_EQ(status.code(), Exit::kStopped);
    EXPECT_NE(
        status.message().find("may have been silent for 0.05 s: round 0 of NCCL does not end, "
                              "with transfer 0 from 0 to 2 (send L1)"),
        std::string::npos)
        << status.message();
  }
  EXPECT_EQ(given_up_by_, (std::array{-1, 0}));
}

TEST_F(CudaNcclFault, ARankThatGivesUpEndsTheOthersTransfers) {
  const auto found = exchange(
      [](int rank, Rank& me) {
        if (rank == 1) me.link->give_up(Status(Exit::kDiverged, "not finite"));
      },
      false);
  for (const Status& status : found) EXPECT_EQ(status.message(), "not finite");
  EXPECT_EQ(given_up_by_, (std::array{1, -1}));
  EXPECT_EQ(fake_nccl::log(0).back(), "abort");
}

TEST_F(CudaNcclLink, AllRanksGetTheErrorOfOneThatCannotJoin) {
  for (const char* call : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclGroupStart"}) {
    SCOPED_TRACE(call);
    fake_nccl::start();
    fake_nccl::fail(call, 0);
    run([&](int, Rank& me) {
      EXPECT_FALSE(me.link);
      EXPECT_EQ(me.created.code(), Exit::kUnavailable);
      EXPECT_NE(me.created.message().find(call), std::string::npos) << me.created.message();
    });
  }
}

// What was neither sent nor received when the link ends keeps no lane waiting: transfers of a round
// that has not ended, and those that are not ready.
TEST_F(CudaNcclLink, ARoundThatHasNotBegunStopsNobody) {
  run([&](int rank, Rank& me) {
    ASSERT_TRUE(me.link);
    if (rank == 1) return;
    Event ready = Event::make();
    Rank::Gpu& other = me.of(1);
    other.out->wait(ready);
    const Event sent = me.link->send({0, 1, 2, 64}, other.device->arena(), *other.out);
    me.link->end_round();
    Rank::Gpu& gpu = me.of(0);
    gpu.out->wait(me.link->send({0, 0, 2, 64}, gpu.device->arena(), *gpu.out));
    me.link->receive({0, 2, 0, 64}, gpu.device->arena() + kHalf, *gpu.in);
    me.link.reset();
    sent.wait();
    ready.signal();
    me.synchronize();
  });
}

TEST_F(CudaNcclLink, ALaneReceivesOnceInARound) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(run([&](int rank, Rank& me) {
                 if (rank == 0) {
                   EXPECT_TRUE(me.all->barrier().ok());
                   return;
                 }
                 Rank::Gpu& gpu = me.of(2);
                 me.link->receive({0, 0, 2, 64}, gpu.device->arena(), *gpu.in);
                 me.link->receive({0, 1, 2, 64}, gpu.device->arena(), *gpu.in);
               }),
               "a lane receives twice in a round");
}

}  // namespace
}  // namespace pagoda
