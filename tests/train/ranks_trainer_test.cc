// Trainers on several ranks: checkpoints of all of them, resumed by as many or by others, end in
// the bits of one process (tests/testing/ranks/ranked_trainers.h).
#include <gtest/gtest.h>

#include <filesystem>

#include "parallel/host_name.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

// Files whose names begin with "pages-", in a folder and those inside it.
std::vector<std::string> page_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("pages-")) found.push_back(name);
  }
  return found;
}

TEST(RanksTrainer, ResumedOnOtherRanks) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    RankedTrainers run(clip);
    // Ranks and devices of three legs.
    const std::vector<std::vector<std::pair<int, int>>> ways = {
        {{1, 1}, {1, 1}, {1, 1}}, {{2, 1}, {2, 1}, {2, 1}}, {{4, 1}, {2, 2}, {3, 1}},
        {{1, 1}, {3, 1}, {1, 2}}, {{2, 2}, {4, 1}, {2, 2}}, {{3, 1}, {1, 1}, {4, 1}},
    };
    uint64_t seed = 0;
    for (const auto& way : ways) {
      ++seed;
      if ((seed + (clip == ClipKind::kGlobal)) % 2 != 0) continue;  // each way with one clipping
      if (kUnderSanitizer && seed != 3 && seed != 4) continue;
      run.begin();
      std::string text;
      for (size_t i = 0; i < way.size(); ++i) {
        RunLeg leg{way[i].first, way[i].second};
        leg.smallest = (i + seed) % 2 == 0;
        leg.resume = i > 0;
        leg.until = 2 * static_cast<int64_t>(i + 1);
        leg.seed = 10 * seed + i + 1;
        text += strf(" %d x %d%s", leg.ranks, leg.devices_each, leg.smallest ? " smallest" : "");
        SCOPED_TRACE(text);
        const LegOutcome outcome = run.run(leg);
        expect_ok(outcome);
        if (testing::Test::HasFailure()) return;
        EXPECT_EQ(outcome.saved_step, leg.until);
        if (leg.ranks > 1) {
          EXPECT_GT(outcome.arrived.rows, 0);
        }
        for (const Paging& paging : outcome.paging) {
          if (leg.smallest) expect_paged(paging);
        }
        // Each rank has one store, and those that were left are gone.
        const std::string& folder = run.tiny().config().train.output_dir;
        EXPECT_EQ(page_files(folder).size(), static_cast<size_t>(leg.ranks));
        EXPECT_FALSE(std::filesystem::exists(folder + "/MOVING"));
      }
      EXPECT_EQ(run.sha256(), run.expected()) << text;
    }
  }
}

// Stages of ranks of a device each, of which the first and the third compute with embedding and
// head. The second, which has most memory, computes with neither: it has the layers between, or in
// zebra experts.
struct TablesCase {
  ClipKind clip = ClipKind::kGlobal;
  bool tied = false, zebra = false;
  PipelineOrder order = PipelineOrder::kBreadthFirst;
  bool smallest = false;  // budgets of devices

  int ranks() const { return zebra ? 4 : 3; }
  RunLeg leg() const {
    RunLeg leg{ranks(), 1};
    leg.configure = [this](RunConfig& config, int rank) {
      config.parallel.layout = zebra ? LayoutKind::kZebra : LayoutKind::kPipeline;
      config.parallel.stages = zebra ? 2 : 3;
      config.parallel.order = order;
      if (zebra) config.parallel.attention_devices = 1;
      if (rank == 1) config.memory.host = MemorySize::of_bytes(2 * config.host_bytes());
    };
    return leg;
  }
};

// Ranks whose tables would be at home there and lack a byte for that.
struct FullRanks {
  std::vector<int64_t> least_host, least_device;  // [rank] with the tables at the ends
  int embedding = 0, head = 0;                    // the ranks that have them at home

  void lower(const TablesCase& c, RunConfig& config, int rank) const {
    const bool full = rank == 0 || (rank == 2 && !c.tied);
    const auto r = static_cast<size_t>(rank);
    if (full) config.memory.host = MemorySize::of_bytes(least_host[r] - 1);
    const int64_t more = rank == 1 ? kMiB : 0;
    if (c.smallest) config.memory.device = MemorySize::of_bytes(least_device[r] + more);
  }
  // Notes what the run has.
  std::function<Status(Trainer&, RankGroup&)> look() {
    return [this](Trainer& trainer, RankGroup& group) {
      const RunShape& shape = trainer.session().shape();
      const auto rank = static_cast<size_t>(group.rank());
      least_host[rank] = trainer.session().memory().min_host_bytes;
      least_device[rank] = trainer.session().memory().min_device_bytes;
      if (rank > 0) return Status();
      embedding = shape.home_rank(shape.embedding());
      head = shape.home_rank(shape.head());
      return Status();
    };
  }
};

// Four steps: two with the tables at home on the second rank, one more in the same stores, and one
// with the tables at home at their ends again.
void expect_tables_move(RankedTrainers& run, const TablesCase& c) {
  FullRanks at_ends{std::vector<int64_t>(4), std::vector<int64_t>(4)};
  RunLeg leg = c.leg();
  leg.until = 2;
  leg.started = at_ends.look();
  run.begin();
  const LegOutcome ends = run.run(leg);
  expect_ok(ends);
  EXPECT_EQ(at_ends.embedding, 0);
  EXPECT_EQ(at_ends.head, 2);
  FullRanks now = at_ends;
  const FullRanks full = at_ends;
  leg.started = now.look();
  leg.configure = [&](RunConfig& config, int rank) {
    c.leg().configure(config, rank);
    full.lower(c, config, rank);
  };
  const auto expect_away = [&] {
    EXPECT_EQ(now.embedding, 1);
    EXPECT_EQ(now.head, c.tied ? 2 : 1);
  };
  run.begin();
  const LegOutcome away = run.run(leg);
  expect_ok(away);
  expect_away();
  // One rank more gets the weights of a table in each step, two bytes a number, and one more sum in
  // fp32 goes to the home.
  constexpr int64_t kTable = 272 * 32, kHead = kTable + 32;
  const int64_t numbers = c.tied ? kTable : kTable + kHead;
  EXPECT_EQ(away.arrived.other_bytes - ends.arrived.other_bytes, 2 * (2 + 4) * numbers);
  const std::string& folder = run.tiny().config().train.output_dir;
  const std::vector<std::string> stores = page_files(folder);
  leg.resume = true;
  leg.until = 3;
  expect_ok(run.run(leg));
  expect_away();
  EXPECT_EQ(page_files(folder), stores);
  leg.until = 4;
  leg.configure = c.leg().configure;
  expect_ok(run.run(leg));
  EXPECT_EQ(now.embedding, 0);
  EXPECT_EQ(now.head, 2);
  EXPECT_NE(page_files(folder), stores);
  EXPECT_EQ(run.sha256(), run.expected());
}

TEST(RanksTrainer, TablesAreAtHomeWhereMemoryHasRoom) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  int number = -1;
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    for (const bool tied : {false, true}) {
      ++number;
      if (kUnderSanitizer && (!tied || clip != ClipKind::kGlobal)) continue;
      RankedTrainers run(
          clip, 4,
          [](RunConfig& config) {
            config.train.chunks = 2;
            config.train.shards = 2;
          },
          tied ? R"({"num_hidden_layers": 6, "num_experts": 8, "tie_word_embeddings": true})"
               : R"({"num_hidden_layers": 6, "num_experts": 8})");
      // Each pair of a clipping, tied tables or not, an order and budgets; zebra with each of them.
      for (const int i : {number % 3, (number + 1) % 3}) {
        TablesCase c{clip, tied, i == 1, static_cast<PipelineOrder>((i + tied) % 3)};
        c.smallest = (i + tied + (clip == ClipKind::kGlobal)) % 2 == 0;
        SCOPED_TRACE(strf("clip %d, tied %d, zebra %d, order %d, smallest %d",
                          static_cast<int>(clip), tied, c.zebra, static_cast<int>(c.order),
                          c.smallest));
        expect_tables_move(run, c);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Four steps on two and then three ranks, and on two of two devices and then one of them, give the
// bits of one process.
void expect_alike_on_any_ranks(RankedTrainers& run) {
  const std::vector<std::vector<std::pair<int, int>>> ways = {{{2, 1}, {3, 1}}, {{2, 2}, {1, 2}}};
  for (const auto& way : ways) {
    run.begin();
    for (size_t i = 0; i < way.size(); ++i) {
      RunLeg leg{way[i].first, way[i].second};
      leg.smallest = i == 0;
      leg.resume = i > 0;
      leg.until = 2 * static_cast<int64_t>(i + 1);
      leg.seed = 7 + i;
      expect_ok(run.run(leg));
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(run.sha256(), run.expected()) << way[0].first << " ranks at first";
  }
}

// Every rank counts the tokens of all, and a correction's home is wherever its layer's is.
TEST(RanksTrainer, CorrectionsMoveAlikeOnAnyRanks) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  RankedTrainers run(
      ClipKind::kGlobal, 4, [](RunConfig& c) { c.optim.correction_speed = 0.01; },
      R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe",
                         "n_routed_experts": 24})");
  expect_alike_on_any_ranks(run);
}

TEST(RanksTrainer, LossesOfRoutersAreAlikeOnAnyRanks) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  RankedTrainers run(ClipKind::kGlobal, 4, [](RunConfig& c) {
    c.optim.balance_loss = 0.2;
    c.optim.z_loss = 0.1;
  });
  expect_alike_on_any_ranks(run);
}

// What is frozen has no state that a new home would be given.
TEST(RanksTrainer, FrozenTensorsStayOnAnyRanks) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  RankedTrainers run(ClipKind::kGlobal, 4, [](RunConfig& c) {
    c.train.freeze = {"router", "embed", "*.experts.2.*"};
  });
  expect_alike_on_any_ranks(run);
}

// Experts that do not train have no gradient, of which guests have no part.
TEST(RanksTrainer, GuestsOfFrozenExpertsAreAlikeOnAnyRanks) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  const char* const all[] = {"*.experts.2.*", "experts"};
  for (const char* frozen : fewer_when_sanitized(all, 2)) {
    RankedTrainers run(ClipKind::kGlobal, 4, [&](RunConfig& c) {
      c.train.freeze = {frozen};
      c.train.expert_shards = 4;
      c.parallel.sharing = Sharing::kData;
    });
    expect_alike_on_any_ranks(run);
  }
}

// A run that is killed behind its checkpoint goes on from that with weights that travel in place of
// rows, or rows in place of weights, and is killed and goes on again.
TEST(RanksTrainer, AKilledRunGoesOnWithAnotherSharing) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  RankedTrainers run(
      ClipKind::kGlobal, 6, [](RunConfig& config) { config.train.expert_shards = 4; },
      R"({"num_experts": 4, "moe_intermediate_size": 8})");
  constexpr Sharing kWays[][3] = {{Sharing::kData, Sharing::kRows, Sharing::kAuto},
                                  {Sharing::kRows, Sharing::kData, Sharing::kRows},
                                  {Sharing::kAuto, Sharing::kData, Sharing::kData}};
  for (const auto& way : kWays) {
    run.begin();
    RunLeg leg{2, 2, true};
    for (int64_t i = 0; i < 3; ++i) {
      const Sharing sharing = way[i];
      SCOPED_TRACE(testing::Message() << "leg " << i << ", sharing " << static_cast<int>(sharing));
      leg.configure = [&](RunConfig& config, int) { config.parallel.sharing = sharing; };
      leg.until = 2 * (i + 1);
      leg.save = true;
      const LegOutcome outcome = run.run(leg);
      expect_ok(outcome);
      EXPECT_EQ(outcome.arrived.guest_weights > 0, sharing != Sharing::kRows);
      EXPECT_EQ(outcome.arrived.guest_sums > 0, sharing != Sharing::kRows);
      EXPECT_EQ(outcome.arrived.rows > 0, sharing != Sharing::kData);
      leg.resume = true;
      ++leg.seed;
      if (i == 2) continue;
      leg.save = false;
      leg.until += 1;
      expect_ok(run.run(leg));
      run.forget_last_leg();
      ++leg.ranks;
      leg.devices_each = 1;
    }
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

// Moved to other ranks and killed before the next checkpoint: the old stores are those of the saved
// step, and what the move made is gone after the next start.
TEST(RanksTrainer, AMoveThatIsKilledLosesNothing) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  RankedTrainers run;
  const std::string& folder = run.tiny().config().train.output_dir;
  RunLeg leg{2, 1};
  leg.until = 2;
  expect_ok(run.run(leg));
  const std::vector<std::string> saved = page_files(folder);
  ASSERT_EQ(saved.size(), 2u);
  for (const int ranks : {3, 1, 4}) {
    leg = {ranks, 1};
    leg.resume = true;
    leg.until = 2;
    leg.save = false;
    leg.seed = static_cast<uint64_t>(ranks);
    expect_ok(run.run(leg));
    const std::vector<std::string> now = page_files(folder);
    EXPECT_EQ(now.size(), 2u + static_cast<size_t>(ranks)) << "old and new ones";
    for (const std::string& name : saved) EXPECT_EQ(std::ranges::count(now, name), 1);
    EXPECT_TRUE(std::filesystem::exists(folder + "/MOVING"));
  }
  leg = {2, 1};
  leg.resume = true;
  leg.until = 6;
  expect_ok(run.run(leg));
  EXPECT_EQ(page_files(folder), saved) << "those ranks had their stores all the time";
  EXPECT_FALSE(std::filesystem::exists(folder + "/MOVING"));
  EXPECT_EQ(run.sha256(), run.expected());
}

// Killed when the new checkpoint is there, before the old stores are removed: the next start
// removes these. What a forged mark names elsewhere stays.
TEST(RanksTrainer, OldStoresGoAfterTheNewCheckpointOnly) {
  RankedTrainers run;
  const std::string& folder = run.tiny().config().train.output_dir;
  RunLeg leg{2, 1};
  leg.until = 2;
  expect_ok(run.run(leg));
  const std::string old = page_files(folder)[0];
  const std::string elsewhere = run.tiny().dir().file(old);
  put_file(elsewhere, "another's");
  leg.resume = true;
  leg.until = 4;
  leg.ranks = 3;
  expect_ok(run.run(leg));
  put_file(folder + "/store/" + old, "left");
  put_file(folder + "/MOVING", "store/" + old + "\n" + elsewhere + "\n");
  leg.until = 6;
  expect_ok(run.run(leg));
  EXPECT_EQ(page_files(folder).size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
  EXPECT_FALSE(std::filesystem::exists(folder + "/MOVING"));
  EXPECT_EQ(run.sha256(), run.expected());
}

// The ranks' machines come in another order, with their disks, and the first such start is killed
// before it saves.
TEST(RanksTrainer, StoresOfOneAnothersMachines) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  RankedTrainers run;
  const auto disk = [&](int rank) { return run.tiny().dir().file(strf("disk-%d", rank)); };
  const auto exchange = [&] {  // what rank 0 had is on the disk of rank 2 now
    const std::string aside = run.tiny().dir().file("aside");
    std::filesystem::rename(disk(0), aside);
    for (int rank = 0; rank < 2; ++rank) std::filesystem::rename(disk(rank + 1), disk(rank));
    std::filesystem::rename(aside, disk(2));
  };
  RunLeg leg{3, 1};
  leg.configure = [&](RunConfig& config, int rank) { config.memory.disk = {disk(rank)}; };
  leg.until = 2;
  expect_ok(run.run(leg));
  exchange();
  leg.resume = true;
  leg.save = false;
  for (int times = 0; times < 2; ++times) {
    expect_ok(run.run(leg));
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(page_files(disk(rank)).size(), 2u);
  }
  leg.save = true;
  leg.until = 4;
  expect_ok(run.run(leg));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(page_files(disk(rank)).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(run.tiny().config().train.output_dir + "/MOVING"));
  const std::string lost = page_files(disk(1))[0];
  exchange();
  std::filesystem::rename(disk(0), disk(3));  // where no rank looks
  expect_all_ended(run.run(leg), Exit::kNoCheckpoint, lost);
  std::filesystem::rename(disk(3), disk(0));
  leg.until = 6;
  expect_ok(run.run(leg));
  EXPECT_EQ(run.sha256(), run.expected());
}

TEST(RanksTrainer, AStoreThatIsNotThereOrDamaged) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  RankedTrainers run;
  const std::string& folder = run.tiny().config().train.output_dir;
  RunLeg leg{3, 1};
  leg.until = 2;
  expect_ok(run.run(leg));
  const std::string name = page_files(folder)[1];
  const std::string path = folder + "/store/" + name, aside = run.tiny().dir().file("aside");
  leg.resume = true;
  leg.until = 6;
  for (const int ranks : {2, 3}) {
    leg.ranks = ranks;
    std::filesystem::rename(path, aside);
    const LegOutcome outcome = run.run(leg);
    expect_all_ended(outcome, Exit::kNoCheckpoint, name);
    EXPECT_NE(outcome.status().message().find(host_name()), std::string::npos);
    std::filesystem::rename(aside, path);
  }
  std::filesystem::copy_file(path, aside);
  std::string bytes = get_file(path);
  for (size_t at = 80 << 10; at < bytes.size(); at += 4096) bytes[at] ^= 1;  // in all pages
  put_file(path, bytes);
  leg.ranks = 2;
  const LegOutcome corrupt = run.run(leg);
  expect_all_ended(corrupt, Exit::kIoError, " is corrupt: ");
  EXPECT_NE(corrupt.status().message().find(": " + host_name() + ": page "), std::string::npos);
  EXPECT_NE(corrupt.status().message().find(path), std::string::npos);
  std::filesystem::copy_file(aside, path, std::filesystem::copy_options::overwrite_existing);
  expect_ok(run.run(leg));
  EXPECT_EQ(run.sha256(), run.expected());
}

TEST(RanksTrainer, RanksThatDiffer) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  RankedTrainers run;
  RunLeg leg{3, 1};
  leg.until = 2;
  const std::string other = run.tiny().dir().file("other.jsonl");
  put_file(other, "{\"text\": \"something else, and enough of it to fill a row or two\"}\n");
  leg.configure = [&](RunConfig& config, int rank) {
    if (rank != 2) return;
    config.data.path = {other};
    config.train.output_dir += "-of-rank-2";
  };
  expect_all_ended(run.run(leg), Exit::kMismatch, "rank 2 has another training data");
  run.begin();
  leg.configure = [&](RunConfig& config, int rank) {
    if (rank == 1) config.memory.device = MemorySize::of_bytes(4096);
  };
  expect_all_ended(run.run(leg), Exit::kDeviceMemory, "rank 1: ");
  // The lower of two counts.
  for (const int lower : {1, 2}) {
    run.begin();
    leg.configure = [&](RunConfig& config, int rank) {
      if (rank == lower) config.memory.device = MemorySize::of_bytes(4096);
      if (rank == 3 - lower) config.memory.host = MemorySize::of_bytes(4096);
    };
    expect_all_ended(run.run(leg), lower == 1 ? Exit::kDeviceMemory : Exit::kHostMemory,
                     "rank 1: ");
  }
  run.begin();
  leg.configure = [&](RunConfig& config, int rank) {
    if (rank == 1) config.memory.disk = {"/proc/no-such-folder"};
  };
  expect_all_ended(run.run(leg), Exit::kCannotCreate, "rank 1: ");
  EXPECT_EQ(page_files(run.tiny().config().train.output_dir).size(), 0u) << "nothing is left";
}

// Rank 1's experts alone grow beyond all bounds, in one step or by steps that are skipped: all
// ranks end with its error, and the run goes on from the checkpoint before.
TEST(RanksTrainer, ARankThatDivergesEndsAll) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    RankedTrainers run(clip, 12);
    for (const double rate : {1e18, 1e38}) {
      if (kUnderThreadSanitizer && (rate < 1e20) == (clip == ClipKind::kGlobal)) continue;
      SCOPED_TRACE(strf("%g", rate));
      run.begin();
      RunLeg leg{3, 1};
      leg.until = 12;
      leg.save = false;
      leg.configure = [&](RunConfig& config, int rank) {
        if (rank == 1) config.optim.learning_rate = rate;
      };
      expect_all_ended(run.run(leg), Exit::kDiverged, "optim.learning_rate");
      run.forget_last_leg();
      leg.configure = {};
      leg.resume = leg.save = true;
      expect_ok(run.run(leg));
      EXPECT_EQ(run.sha256(), run.expected());
    }
  }
}

// One layer with two experts, the embedding and the head.
constexpr const char* kFiveRecords = R"({
  "num_hidden_layers": 1, "num_experts": 2, "mlp_only_layers": []})";

TEST(RanksTrainer, EachRankKeepsARecord) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, 2, {}, kFiveRecords);
  RunLeg leg{6, 1};
  leg.until = 2;
  expect_all_ended(run.run(leg), Exit::kUsage, "there are 6 ranks, and the model has 5 records");
  EXPECT_EQ(page_files(run.tiny().config().train.output_dir).size(), 0u) << "nothing is left";
  run.begin();
  leg.ranks = 5;
  expect_ok(run.run(leg));
  EXPECT_EQ(run.sha256(), run.expected());
}

// All ways, or every second.
void expect_zebra_over_ranks(RankedTrainers& run, uint64_t stride) {
  struct Way {
    int ranks, devices_each;
    int64_t attend;         // devices; 0: half of them
    const char* offloaded;  // experts
  };
  const Way ways[] = {{2, 1, 0, "0"}, {4, 1, 0, "6"},  {2, 2, 0, "0"}, {4, 1, 1, "6"},
                      {4, 1, 3, "0"}, {2, 2, 1, "24"}, {3, 1, 2, "6"}};
  uint64_t seed = 0;
  for (const Way& way : ways) {
    ++seed;
    if (seed % stride != 1 % stride || (kUnderSanitizer && seed % 3 != 1)) continue;
    SCOPED_TRACE(strf("%d x %d, %lld attend, %s offloaded", way.ranks, way.devices_each,
                      (long long)way.attend, way.offloaded));
    run.begin();
    RunLeg leg{way.ranks, way.devices_each};
    leg.smallest = seed % 2 == 0;
    leg.seed = seed;
    leg.until = 2;
    leg.configure = [&](RunConfig& config, int) {
      config.parallel.layout = LayoutKind::kZebra;
      config.parallel.attention_devices = way.attend;
      config.parallel.offloaded = {way.offloaded};
    };
    const LegOutcome outcome = run.run(leg);
    expect_ok(outcome);
    if (testing::Test::HasFailure()) return;
    const bool all_stay = std::string(way.offloaded) == "24";  // with those that attend, on rank 0
    EXPECT_EQ(outcome.arrived.rows > 0, !all_stay);
    if (leg.smallest) expect_paged(outcome.paging[0]);
    RunLeg rest{seed % 2 == 0 ? 1 : 3, 1};
    rest.resume = true;
    rest.until = 4;
    expect_ok(run.run(rest));
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

// Attention on some ranks' devices, experts on those of others; resumed elsewhere and otherwise.
TEST(RanksTrainer, ZebraOverRanks) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(600));
  const int64_t all[] = {4, 1};
  for (const int64_t expert_shards : fewer_when_sanitized(all, 2)) {
    RankedTrainers run(ClipKind::kGlobal, 4, [&](RunConfig& config) {
      config.train.chunks = 2;
      config.train.tokens_per_step = 256;  // four microbatches a chunk
      config.train.expert_shards = expert_shards;
    });
    expect_zebra_over_ranks(run, expert_shards == 1 ? 1 : 2);
  }
}

}  // namespace
}  // namespace pagoda
