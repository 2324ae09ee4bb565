// The root promise over meshes of stages, devices and ranks: a run file's chunks and shards have
// one hash on however many stages of however many devices, all alike or in zebra some that attend
// and others with the experts, in one copy or two, as one process or as ranks, in each order and
// exchange (between two ranks of two devices in each copy of a stage; in rounds, with network cards
// of unequal rates), with budgets of which some page and some do not, with transfers that are late,
// and resumed on the same mesh, on another number of stages, or on other ranks. What a run exports
// at its end has the weights of one device's export, and its loss on held-out text. Rows have every
// pair of these; started with --full-product, the program runs every combination.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <tuple>

#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/sha256.h"
#include "tests/testing/watchdog.h"
#include "tests/train/pairwise.h"
#include "train/model_input.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = 2;
constexpr int kMostRanks = 8, kMostOfOneDevice = 6;

enum Factor {
  kStages,
  kEach,
  kOrder,
  kDivision,
  kBudget,
  kLater,
  kClip,
  kExpertShards,
  kTied,
  kExchange,
  kZebra,
  kCopies,
};
// Devices of a stage: up to four that share its experts, in one copy or two.
constexpr int kEachOf[] = {1, 2, 3, 4, 6, 8};
const Levels kCounts = {4, std::size(kEachOf), 3, 4, 3, 4, 2, 2, 2, 3, 2, 2};
enum Division { kOneRank, kRankPerStage, kRankPerTwoDevices, kRankPerDevice, kDivisions };
constexpr ExchangeSetting kExchanges[] = {ExchangeSetting::kAuto, ExchangeSetting::kRounds,
                                          ExchangeSetting::kHalo};
enum Budget { kAmple, kSmallest, kSmallestButOne };
enum Later { kNotResumed, kResumed, kOtherStages, kOtherRanks };

struct Mesh {
  int stages = 1, each = 1, order = 0, division = kOneRank, exchange = 0;
  bool zebra = false;
  int copies = 1;
  bool is_valid() const {
    if (each < (zebra ? 2 : 1) * copies) return false;
    if (division == kOneRank) return true;
    if (division == kRankPerDevice && each == 1) return false;  // a rank for each stage
    if (division == kRankPerTwoDevices && each != 4 && !has_nodes()) return false;
    return ranks() > 1 && ranks() <= (division == kRankPerDevice ? kMostOfOneDevice : kMostRanks);
  }
  // Rows of each copy go between two nodes of two devices each, which are ranks.
  bool has_nodes() const { return division == kRankPerTwoDevices && each == 4 * copies; }
  int devices() const { return stages * each; }
  int ranks() const {
    switch (division) {
      case kOneRank:
        return 1;
      case kRankPerStage:
        return stages;
      case kRankPerTwoDevices:
        return devices() / 2;
      default:
        return devices();
    }
  }
  std::string text() const {
    return strf("%d stages of %d, order %d, exchange %d, %s, %d copies, on %d ranks", stages, each,
                order, exchange, zebra ? "zebra" : "all alike", copies, ranks());
  }
};

Mesh mesh_of(const Levels& row) {
  return {row[kStages] + 1, kEachOf[row[kEach]], row[kOrder],     row[kDivision],
          row[kExchange],   row[kZebra] == 1,    row[kCopies] + 1};
}

// Where a run goes on that began on the mesh.
Mesh later_mesh(Mesh mesh, int later, bool by_shards) {
  if (later == kOtherStages) {
    mesh.stages = mesh.stages % 4 + 1;
    mesh.order = (mesh.order + 1) % 3;
    mesh.zebra = !mesh.zebra && mesh.each >= 2 * mesh.copies;
    if (by_shards && mesh.each >= 4) mesh.copies = 3 - mesh.copies;
    if (!mesh.is_valid()) mesh.division = kOneRank;
  } else if (later == kOtherRanks) {
    do {
      mesh.division = (mesh.division + 1) % kDivisions;
    } while (!mesh.is_valid());
  }
  return mesh;
}

bool is_valid(const Levels& row) {
  const Mesh mesh = mesh_of(row);
  const bool by_shards = row[kExpertShards] == 1;
  if (mesh.stages == 1 && row[kOrder] > 0) return false;
  if (mesh.copies > 1 && !by_shards) return false;
  if (row[kExchange] > 0 && !mesh.has_nodes()) return false;
  if (!mesh.is_valid()) return false;
  if (row[kLater] == kOtherRanks &&
      later_mesh(mesh, kOtherRanks, by_shards).ranks() == mesh.ranks()) {
    return false;
  }
  return row[kBudget] != kSmallestButOne || mesh.ranks() > 1;
}

std::string text_of(const Levels& row) {
  std::string text = mesh_of(row).text() + "; levels";
  for (const int level : row) text += strf(" %d", level);
  return text;
}

// What a run leaves to others: of its newest checkpoint, the weights that an export writes, and the
// loss on held-out text.
struct Left {
  std::string weights;  // their SHA-256
  double loss = 0;
};

std::string exported_weights(const std::string& run) {
  const std::unique_ptr<Storage> storage = open_storage(IoKind::kThreads, run).take();
  const auto model = open_model("", run, -1, storage.get());
  CHECK(model.ok(), "%s", model.status().message().c_str());
  Sha256 sha;
  std::vector<float> weights;
  const std::vector<RecordSpec>& records = model.value().folder->table().records;
  for (size_t r = 0; r < records.size(); ++r) {
    weights.resize(static_cast<size_t>(records[r].num_elements));
    const Status read = model.value().weights->read_record(static_cast<int64_t>(r), weights.data());
    CHECK(read.ok(), "%s", read.message().c_str());
    sha.add(weights.data(), weights.size() * sizeof(float));
  }
  return sha.hex();
}

// A run of one kind on every mesh.
class Runs {
 public:
  explicit Runs(const Levels& row)
      : trainers_(
            row[kClip] == 0 ? ClipKind::kGlobal : ClipKind::kPerExpert, kSteps,
            [&](RunConfig& config) {
              config.train.tokens_per_step = 8 * config.train.micro_batch_tokens;
              config.train.chunks = 2;
              config.train.shards = 4;
              config.train.expert_shards = row[kExpertShards] == 0 ? 1 : 4;
              config.data.eval_path = config.data.path.front();
              config.train.eval_batches = 3;
            },
            row[kTied] == 0 ? R"({"num_hidden_layers": 5, "num_experts": 12})"
                            : R"({"num_hidden_layers": 5, "num_experts": 12,
                              "tie_word_embeddings": true})") {
    RunLeg alone;
    alone.until = kSteps;
    go(alone);
    expected_ = left();
    begin();
  }

  void begin() { trainers_.begin(); }
  LegOutcome go(RunLeg leg) {
    leg.stepped = [this, &leg](Trainer& trainer, RankGroup& group) -> Status {
      if (trainer.steps_done() < leg.until) return Status();
      ASSIGN_OR_RETURN(const double loss, trainer.evaluate());
      if (group.rank() == 0) loss_ = loss;
      return Status();
    };
    LegOutcome outcome = trainers_.run(leg);
    arrived_ = outcome.arrived;
    return outcome;
  }
  const RankThreads::Arrived& arrived() const { return arrived_; }  // in the last leg
  void expect_promise() {
    EXPECT_EQ(trainers_.sha256(), trainers_.expected());
    EXPECT_EQ(left().weights, expected_.weights);
    EXPECT_EQ(left().loss, expected_.loss);
  }

 private:
  Left left() { return {exported_weights(trainers_.tiny().config().train.output_dir), loss_}; }

  RankedTrainers trainers_;
  RankThreads::Arrived arrived_;
  double loss_ = 0;
  Left expected_;  // of one device
};

Runs& runs_of(const Levels& row) {
  static std::map<std::tuple<int, int, int>, std::unique_ptr<Runs>> known;
  auto& runs = known[{row[kClip], row[kExpertShards], row[kTied]}];
  if (!runs) runs = std::make_unique<Runs>(row);
  return *runs;
}

// Rows went between nodes in the order that was asked for. By HALO they leave for a device with the
// place of the one that sends them, and else for the one that wants them.
void expect_exchanged(const RankThreads::Arrived& arrived, ExchangeSetting exchange) {
  EXPECT_GT(arrived.rows, 0);
  EXPECT_EQ(arrived.in_turn > 0, exchange == ExchangeSetting::kRounds);
  EXPECT_EQ(arrived.to_other_places == 0, exchange == ExchangeSetting::kHalo);
}

void run_leg(Runs& runs, const Mesh& mesh, RunLeg leg, int budget) {
  SCOPED_TRACE(mesh.text());
  leg.ranks = mesh.ranks();
  leg.devices_each = mesh.devices() / mesh.ranks();
  leg.smallest = budget != kAmple;
  leg.ample_rank = budget == kSmallestButOne && leg.ranks > 1 ? leg.ranks - 1 : -1;
  leg.configure = [&](RunConfig& config, int rank) {
    // Every other stage is slower, and has fewer of the five layers.
    const bool slower = mesh.division == kRankPerStage && rank % 2 == 1;
    if (slower) config.train.devices = {strf("cpu/3*%d", leg.devices_each)};
    config.parallel.layout = mesh.zebra ? LayoutKind::kZebra : LayoutKind::kPipeline;
    config.parallel.stages = mesh.stages;
    config.parallel.copies = mesh.copies;
    config.parallel.order = static_cast<PipelineOrder>(mesh.order);
    config.parallel.exchange = kExchanges[mesh.exchange];
    for (int r = 0; r < leg.ranks && leg.ranks > 1 && mesh.exchange == 1; ++r) {
      config.parallel.network_gb_s.push_back(r % 2 == 0 ? "10" : "27.5");
    }
  };
  const LegOutcome outcome = runs.go(leg);
  for (const Status& status : outcome.statuses) ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(outcome.saved_step, leg.until);
  if (leg.ranks > 1) {
    EXPECT_GT(outcome.arrived.rows + outcome.arrived.other_bytes, 0) << "nothing travelled";
  }
  if (mesh.has_nodes()) expect_exchanged(outcome.arrived, kExchanges[mesh.exchange]);
  if (leg.smallest) expect_paged(outcome.paging[0]);
}

void expect_promise(const Levels& row, uint64_t number) {
  SCOPED_TRACE(text_of(row));
  Runs& runs = runs_of(row);
  runs.begin();
  const Mesh mesh = mesh_of(row);
  RunLeg leg;
  leg.until = row[kLater] == kNotResumed ? kSteps : kSteps / 2;
  leg.seed = 2 * number + 1;
  run_leg(runs, mesh, leg, row[kBudget]);
  if (row[kLater] != kNotResumed && !testing::Test::HasFailure()) {
    leg.until = kSteps;
    leg.seed = 2 * number + 2;
    leg.resume = true;
    run_leg(runs, later_mesh(mesh, row[kLater], row[kExpertShards] == 1), leg,
            row[kBudget] == kAmple ? kSmallest : kAmple);
  }
  if (!testing::Test::HasFailure()) runs.expect_promise();
}

TEST(StagesPromise, OneHash) {
  const Watchdog watchdog("stages", std::chrono::seconds(all_combinations ? 14400 : 900));
  const std::vector<Levels> rows = rows_of_table(kCounts, is_valid);
  if (!all_combinations) {
    EXPECT_LE(rows.size(), 60u);
  }
  run_rows(rows, kUnderSanitizer ? 10 : 1, expect_promise);
}

// A device sends what it has for both devices of the other node in one message by HALO.
TEST(StagesPromise, HaloSendsAsManyRowsInFewerMessages) {
  const Watchdog watchdog("exchanges", std::chrono::seconds(300));
  Runs& runs = runs_of(Levels(kCounts.size(), 0));
  std::vector<RankThreads::Arrived> arrived;
  for (int exchange = 0; exchange < kCounts[kExchange]; ++exchange) {
    runs.begin();
    RunLeg leg;
    leg.until = 1;
    const Mesh mesh{.stages = 2, .each = 4, .division = kRankPerTwoDevices, .exchange = exchange};
    run_leg(runs, mesh, leg, kAmple);
    if (testing::Test::HasFailure()) return;
    arrived.push_back(runs.arrived());
  }
  for (const RankThreads::Arrived& in_order : arrived) EXPECT_EQ(in_order.rows, arrived[0].rows);
  EXPECT_EQ(arrived[1].messages(), arrived[0].messages()) << "a parcel ends once in any rounds";
  EXPECT_LT(arrived[2].messages(), arrived[0].messages());
}

}  // namespace

}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_table(argc, argv); }
