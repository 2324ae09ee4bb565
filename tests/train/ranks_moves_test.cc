// Experts that exchange homes between steps: the run ends in the bits of one process whose experts
// stay, whatever moves, on whatever ranks and devices; and so it does when a move fails, or when
// the run is killed behind one.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>

#include "plan/exchange/home_moves.h"
#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

std::vector<int> homes_of(const RunShape& shape) {
  std::vector<int> homes;
  for (const RecordShape& record : shape.records) homes.push_back(record.device);
  return homes;
}

// Moves experts behind each step: those that balance the rows of the steps so far, and some that do
// not, so that experts also go back and forth. All ranks take the same ones.
class Mover {
 public:
  explicit Mover(int at_random = 3, bool balances = true)
      : at_random_(at_random), balances_(balances) {}

  Status operator()(Trainer& trainer, RankGroup& group) {
    const RunShape& shape = trainer.session().shape();
    const std::vector<double> row_s(static_cast<size_t>(shape.devices), 1e-6);
    std::vector<HomeSwap> swaps;
    for (int64_t l = 0; l < shape.num_layers && balances_; ++l) {
      if (!shape.is_moe[static_cast<size_t>(l)]) continue;
      for (const HomeSwap& swap : balancing_swaps(shape, l, trainer.row_means(), row_s)) {
        swaps.push_back(swap);
      }
    }
    std::mt19937_64 random(static_cast<uint64_t>(trainer.steps_done()));
    for (int i = 0; i < at_random_;) {
      const auto record = [&] { return static_cast<int64_t>(random() % shape.records.size()); };
      const HomeSwap swap{record(), record()};
      if (swap.a == swap.b || !may_exchange(shape, swap)) continue;
      swaps.push_back(swap);
      ++i;
    }
    const std::vector<int> before = homes_of(shape);
    RETURN_IF_ERROR(trainer.exchange_homes(swaps));
    const std::vector<int> after = homes_of(shape);
    if (group.rank() != 0) return Status();
    for (size_t r = 0; r < before.size(); ++r) {
      moved_ += before[r] != after[r];
      crossed_ += shape.rank_of(before[r]) != shape.rank_of(after[r]);
    }
    homes_ = after;
    return Status();
  }

  int64_t moved() const { return moved_; }      // experts to other devices
  int64_t crossed() const { return crossed_; }  // and to other ranks
  const std::vector<int>& homes() const { return homes_; }

 private:
  int at_random_;
  bool balances_;
  int64_t moved_ = 0, crossed_ = 0;
  std::vector<int> homes_;
};

// Rows are counted, and nothing moves but what the test moves.
void count_rows(RunConfig& config) { config.parallel.migrate_steps = 1000; }

std::vector<std::string> page_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("pages-")) found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct Way {
  int ranks, devices_each;
  bool smallest;
  PlaceKind place;
  Sharing sharing = Sharing::kRows;
};

// Three legs: two on the same ranks, whose second goes on with the homes of the first, and one on
// others, where experts have new homes.
void expect_same_bits(RankedTrainers& run, const Way& way, uint64_t seed) {
  SCOPED_TRACE(strf("%d x %d%s%s", way.ranks, way.devices_each, way.smallest ? ", smallest" : "",
                    way.place == PlaceKind::kHome ? ", at home" : ""));
  run.begin();
  const std::string& folder = run.tiny().config().train.output_dir;
  Mover mover;
  RunLeg leg{way.ranks, way.devices_each};
  leg.smallest = way.smallest;
  leg.seed = seed;
  leg.until = 2;
  leg.configure = [&](RunConfig& config, int) {
    count_rows(config);
    config.parallel.place = way.place;
    config.parallel.sharing = way.sharing;
  };
  leg.stepped = std::ref(mover);
  LegOutcome outcome = run.run(leg);
  expect_ok(outcome);
  if (testing::Test::HasFailure()) return;
  EXPECT_GT(mover.moved(), 0);
  EXPECT_EQ(mover.crossed() > 0, way.ranks > 1);
  const std::vector<std::string> stores = page_files(folder);

  std::mutex mutex;
  leg.resume = true;
  leg.until = 4;
  leg.stepped = [&](Trainer& trainer, RankGroup& group) {
    if (group.rank() == 0 && trainer.steps_done() == 3 && way.ranks > 1) {
      const std::lock_guard lock(mutex);
      const RunShape& shape = trainer.session().shape();
      const std::vector<int> homes = homes_of(shape);
      for (size_t r = 0; r < homes.size(); ++r) {
        EXPECT_EQ(shape.rank_of(homes[r]), shape.rank_of(mover.homes()[r])) << "record " << r;
      }
    }
    return mover(trainer, group);
  };
  outcome = run.run(leg);
  expect_ok(outcome);
  EXPECT_EQ(page_files(folder), stores) << "the ranks have their stores";

  RunLeg rest{way.ranks == 1 ? 2 : way.ranks - 1, 1};
  rest.resume = true;
  rest.until = 6;
  rest.seed = seed + 1;
  rest.configure = [](RunConfig& config, int) { count_rows(config); };
  rest.stepped = std::ref(mover);
  expect_ok(run.run(rest));
  EXPECT_EQ(run.sha256(), run.expected());
}

TEST(RanksMoves, ChangeNoBit) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(600));
  const Way ways[] = {
      {2, 1, false, PlaceKind::kStep}, {2, 1, true, PlaceKind::kStep},
      {4, 1, true, PlaceKind::kHome},  {4, 1, false, PlaceKind::kStep},
      {2, 2, true, PlaceKind::kStep},  {2, 2, false, PlaceKind::kHome},
      {3, 1, true, PlaceKind::kStep},  {1, 3, true, PlaceKind::kHome},
      {1, 2, false, PlaceKind::kHome},
  };
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    RankedTrainers run(clip);
    uint64_t seed = 20;
    for (const Way& way : ways) {
      seed += 2;
      if (kUnderSanitizer && (seed / 2 + (clip == ClipKind::kGlobal)) % 2 != 0) continue;
      expect_same_bits(run, way, seed);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Experts whose weights travel from their homes, which move. Rows that guests compute load no home.
TEST(RanksMoves, OfExpertsThatAreGuests) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(600));
  RankedTrainers run(ClipKind::kGlobal, 6,
                     [](RunConfig& config) { config.train.expert_shards = 4; });
  uint64_t seed = 60;
  for (const Way& way : {Way{2, 1, true, PlaceKind::kHome, Sharing::kData},
                         Way{4, 1, true, PlaceKind::kStep, Sharing::kData},
                         Way{2, 2, true, PlaceKind::kStep, Sharing::kAuto},
                         Way{1, 3, true, PlaceKind::kHome, Sharing::kData}}) {
    expect_same_bits(run, way, seed += 2);
    if (testing::Test::HasFailure()) return;
  }
  for (const Sharing sharing : {Sharing::kRows, Sharing::kData}) {
    run.begin();
    RunLeg leg{2, 1, true};
    leg.until = 2;
    leg.configure = [&](RunConfig& config, int) {
      count_rows(config);
      config.parallel.sharing = sharing;
    };
    leg.stepped = [&](Trainer& trainer, RankGroup&) {
      double most = 0;
      for (int64_t l = 0; l < trainer.session().shape().num_layers; ++l) {
        for (const double rows : trainer.row_means().of_layer(l)) most = std::max(most, rows);
      }
      EXPECT_EQ(most > 0, sharing == Sharing::kRows);
      return Status();
    };
    expect_ok(run.run(leg));
  }
}

// In zebra only experts of devices that do not attend move.
TEST(RanksMoves, InZebra) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(600));
  RankedTrainers run(ClipKind::kGlobal, 4, [&](RunConfig& config) {
    config.train.chunks = 2;
    config.train.tokens_per_step = 256;
  });
  for (const auto& [ranks, devices_each] : {std::pair(4, 1), std::pair(2, 2), std::pair(3, 1)}) {
    SCOPED_TRACE(strf("%d x %d", ranks, devices_each));
    run.begin();
    Mover mover;
    RunLeg leg{ranks, devices_each};
    leg.smallest = ranks == 4;
    leg.until = 4;
    leg.configure = [](RunConfig& config, int) {
      count_rows(config);
      config.parallel.layout = LayoutKind::kZebra;
      config.parallel.attention_devices = 1;
      config.parallel.offloaded = {"6"};
    };
    leg.stepped = std::ref(mover);
    expect_ok(run.run(leg));
    if (testing::Test::HasFailure()) return;
    EXPECT_GT(mover.moved(), 0);
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

// An expert without state and one with it do not change places, and those alike do.
TEST(RanksMoves, OfFrozenExperts) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, 4, [](RunConfig& c) {
    c.train.freeze = {"*.experts.2.*", "*.experts.3.*"};
  });
  Mover mover(20);
  RunLeg leg{2, 1};
  leg.smallest = true;
  leg.until = 4;
  leg.configure = [](RunConfig& config, int) { count_rows(config); };
  leg.stepped = std::ref(mover);
  expect_ok(run.run(leg));
  EXPECT_GT(mover.crossed(), 0);
  EXPECT_EQ(run.sha256(), run.expected());
}

// What the ranks decide by their clocks is the same on all of them, and changes nothing.
TEST(RanksMoves, AllRanksDecideAlike) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(300));
  RankedTrainers run;
  for (const int ranks : {2, 4}) {
    run.begin();
    RunLeg leg{ranks, 1};
    leg.until = 6;
    leg.configure = [](RunConfig& config, int) { config.parallel.migrate_steps = 2; };
    std::atomic<int> asked = 0;
    leg.stepped = [&](Trainer& trainer, RankGroup& group) {
      ASSIGN_OR_RETURN(const Trainer::Moved moved, trainer.balance_homes());
      asked += trainer.steps_done() % 2 == 0;
      std::string text;
      for (const int home : homes_of(trainer.session().shape())) text += strf("%d ", home);
      ASSIGN_OR_RETURN(const std::vector<std::string> all, group.agree(Status(), text));
      for (const std::string& of_rank : all) EXPECT_EQ(of_rank, all[0]);
      return Status();
    };
    expect_ok(run.run(leg));
    EXPECT_EQ(asked, 3 * ranks);
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

// A checkpoint in the middle of moves, another that is not made, and a kill behind each.
TEST(RanksMoves, AKillBehindAMoveLosesNothing) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(300));
  for (const bool smallest : {false, true}) {
    RankedTrainers run;
    const std::string& folder = run.tiny().config().train.output_dir;
    Mover mover;
    RunLeg leg{2, 1};
    leg.smallest = smallest;
    leg.configure = [](RunConfig& config, int) { count_rows(config); };
    leg.stepped = std::ref(mover);
    leg.until = 2;
    expect_ok(run.run(leg));
    const std::vector<std::string> stores = page_files(folder);
    for (int kills = 0; kills < 3; ++kills) {
      leg.resume = true;
      leg.save = false;
      leg.until = 5;
      leg.seed = 7 + static_cast<uint64_t>(kills);
      expect_ok(run.run(leg));
      EXPECT_EQ(page_files(folder), stores);
      run.forget_last_leg();
    }
    leg.until = 4;
    leg.save = true;
    leg.stepped = [&](Trainer& trainer, RankGroup& group) {
      RETURN_IF_ERROR(mover(trainer, group));
      return trainer.save();  // behind the move
    };
    expect_ok(run.run(leg));
    leg.ranks = 3;
    leg.until = 6;
    expect_ok(run.run(leg));
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

// What each page's content was made by, [page]; 0 where no rank has it. Pages as they are saved.
class Generations {
 public:
  void add(Session& session) {
    const std::lock_guard lock(mutex_);
    for (const PageVersion& version : session.file().versions()) {
      if (version.page >= of_.size()) of_.resize(version.page + 1, 0);
      EXPECT_EQ(of_[version.page], 0u) << "page " << version.page << " is on two ranks";
      of_[version.page] = version.generation;
    }
  }
  const std::vector<uint64_t>& of() const { return of_; }

 private:
  std::mutex mutex_;
  std::vector<uint64_t> of_;
};

// The second step touches the even experts alone, so that others have older weights and state; then
// each even expert exchanges homes with an odd one.
TEST(RanksMoves, KeepGenerations) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(300));
  const auto skips = [](RunConfig& config) { config.optim.untouched = UntouchedKind::kSkip; };
  RankedTrainers run(ClipKind::kGlobal, 2, skips);
  for (const bool smallest : {false, true}) {
    std::vector<uint64_t> stayed, moved;
    for (const bool moves : {false, true}) {
      run.begin();
      RunLeg leg{2, 1};
      leg.smallest = smallest;
      leg.until = 2;
      std::vector<std::vector<int32_t>> even[2];  // [rank][layer] of all tokens of the step
      Generations generations;
      leg.stepped = [&](Trainer& trainer, RankGroup& group) {
        const RunShape& shape = trainer.session().shape();
        auto& mine = even[group.rank()];
        mine.resize(static_cast<size_t>(shape.num_layers));
        for (size_t l = 0; l < mine.size() && trainer.steps_done() == 1; ++l) {
          const int64_t choices =
              shape.microbatches * shape.microbatch_tokens * shape.experts_per_token;
          for (int64_t i = 0; i < choices && shape.is_moe[l]; ++i) {
            mine[l].push_back(static_cast<int32_t>(2 * i % shape.num_experts));
          }
        }
        trainer.session().executor().impose_routing(&mine);
        if (trainer.steps_done() == 1) return Status();
        std::vector<HomeSwap> swaps;
        for (int64_t e = 0; e < shape.num_experts; e += 2) {
          swaps.push_back({shape.expert(0, e), shape.expert(0, e + 1)});
        }
        if (moves) RETURN_IF_ERROR(trainer.exchange_homes(swaps));
        RETURN_IF_ERROR(trainer.save());
        generations.add(trainer.session());
        return Status();
      };
      expect_ok(run.run(leg));
      (moves ? moved : stayed) = generations.of();
    }
    EXPECT_EQ(moved, stayed);
    const std::set<uint64_t> different(stayed.begin(), stayed.end());
    EXPECT_GT(different.size(), 1u) << "all have the same, which would stay the same by chance";
  }
}

// A layer with few experts and one without, for runs that are made again and again.
constexpr const char* kSmallModel = R"({"num_hidden_layers": 2, "num_experts": 8})";

// Experts of the first layer on rank 0, for as many on rank 1.
std::vector<HomeSwap> swaps_of_two(const RunShape& shape, size_t count) {
  std::vector<int64_t> at[2];  // [rank]
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    const int rank = shape.home_rank(shape.expert(0, e));
    if (rank < 2) at[rank].push_back(shape.expert(0, e));
  }
  std::vector<HomeSwap> swaps;
  for (size_t i = 0; i < count; ++i) swaps.push_back({at[0].at(i), at[1].at(i)});
  return swaps;
}

// Every piece that a move sends is lost once, between two of three ranks, for which the third
// waits: all ranks end with that, and the run goes on from its checkpoint, in the same bits. Two
// experts and then one move from either rank, in four pieces each.
TEST(RanksMoves, EachTransferFailsOnce) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(600));
  RankedTrainers run(ClipKind::kGlobal, 3, {}, kSmallModel);
  const int64_t stride = kUnderSanitizer ? 7 : 1;
  int64_t failed = 0;
  for (int64_t piece = 0;; piece += stride) {
    SCOPED_TRACE(strf("piece %lld", (long long)piece));
    run.begin();
    RunLeg leg{3, 1};
    leg.smallest = piece % 2 == 0;
    leg.configure = [](RunConfig& config, int) { count_rows(config); };
    leg.stepped = [](Trainer& trainer, RankGroup&) {
      const size_t count = trainer.steps_done() == 3 ? 1 : 2;
      return trainer.exchange_homes(swaps_of_two(trainer.session().shape(), count));
    };
    leg.until = 1;
    expect_ok(run.run(leg));
    leg.resume = true;
    leg.until = 3;
    leg.fails_piece = piece;
    LegOutcome outcome = run.run(leg);
    const bool none = outcome.ok();
    if (!none) {
      ++failed;
      expect_all_ended(outcome, Exit::kStopped, "did not arrive");
      run.forget_last_leg();
      leg.fails_piece = -1;
      expect_ok(run.run(leg));
    } else {
      EXPECT_LE(outcome.pieces, piece);
    }
    EXPECT_EQ(run.sha256(), run.expected());
    if (none || testing::Test::HasFailure()) break;
  }
  EXPECT_GE(failed, kUnderSanitizer ? 4 : 2 * (2 + 1) * 4);
}

// Two of three ranks exchange an expert for longer than the deadline, while the third waits for
// them. Weights and state go with a number each, so that every one of them sends four pieces.
TEST(RanksMoves, MayTakeLongerThanTheDeadline) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(300));
  constexpr double kPieceS = 0.2, kDeadlineS = 0.4;
  RankedTrainers run(ClipKind::kGlobal, 2);
  RunLeg leg{3, 1};
  leg.until = 2;
  leg.piece_s = kPieceS;
  leg.configure = [](RunConfig& config, int) { count_rows(config); };
  std::atomic<int> moved = 0;
  leg.stepped = [&](Trainer& trainer, RankGroup& group) {
    const RunShape& shape = trainer.session().shape();
    const int64_t first = shape.expert(0, 0);
    int64_t other = first;
    while (shape.home_rank(other) == shape.home_rank(first)) ++other;
    const HomeSwap swap{first, other};
    const int64_t pieces = 2 * 4;
    EXPECT_GT(kPieceS * static_cast<double>(pieces) / 2, kDeadlineS);
    group.set_deadlines(kDeadlineS, 100);
    RETURN_IF_ERROR(trainer.exchange_homes({&swap, 1}));
    group.set_deadlines(0, 0);
    ++moved;
    return Status();
  };
  const LegOutcome outcome = run.run(leg);
  expect_ok(outcome);
  EXPECT_EQ(moved, 2 * 3);
  EXPECT_EQ(outcome.pieces, 2 * 8) << "of other calls";
  EXPECT_EQ(run.sha256(), run.expected());
}

// Each rank has a machine of its own, one of whose calls fails while experts move.
TEST(RanksMoves, EachCallFailsOnce) {
  const Watchdog watchdog("moving homes", std::chrono::seconds(900));
  RankedTrainers run(ClipKind::kGlobal, 3, {}, kSmallModel);
  const int64_t stride = kUnderSanitizer ? 29 : 9;
  int64_t failed = 0;
  for (int faulty = 0; faulty < 2; ++faulty) {
    for (int64_t call = 1 + faulty;; call += stride) {
      SCOPED_TRACE(strf("call %lld of rank %d", (long long)call, faulty));
      run.begin();
      Mover mover(4, false);
      TwoMachines two;
      RunLeg leg = two.leg();
      leg.smallest = true;
      leg.configure = [](RunConfig& config, int) { count_rows(config); };
      leg.stepped = std::ref(mover);
      leg.until = 1;
      expect_ok(run.run(leg));
      leg.resume = true;
      leg.until = 3;
      two.machines[faulty]->inject({.calls = kSimAll, .nth = call});
      LegOutcome outcome = run.run(leg);
      const bool done = two.machines[faulty]->faults() == 0;
      two.machines[faulty]->clear_faults();
      for (const Status& status : outcome.statuses) {
        EXPECT_EQ(status.code(), outcome.status().code()) << status.message();
      }
      if (!outcome.ok()) {
        ++failed;
        run.forget_last_leg();
        two.restart();
        outcome = run.run(leg);
        expect_ok(outcome);
        if (outcome.losses.empty()) continue;  // the last step had been saved
      }
      EXPECT_EQ(run.sha256(), run.expected());
      if (testing::Test::HasFailure()) return;
      if (done) break;
    }
  }
  EXPECT_GT(failed, kUnderSanitizer ? 2 : 20);
}

}  // namespace
}  // namespace pagoda
