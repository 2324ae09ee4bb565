// Weights that travel to guests on other ranks, in runs: a layer ahead of their use and kept until
// the backward where devices have room for layers of them, as often as counted by hand from what
// routing chose, in the bits of one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "tests/testing/plan/dry_run.h"
#include "tests/testing/ranks/ranked_run.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = 3, kLayers = 4, kValue = 2, kFloat = 4;

// A model whose experts' weights travel where a device has so many rows.
struct Travelling {
  Sharing sharing;
  const char* model;
  int64_t elements;         // of an expert
  int64_t rows, rows_kept;  // at least; of layers whose weights stay until the backward
};
constexpr Travelling kAlways = {
    Sharing::kData, R"({"num_hidden_layers": 4, "mlp_only_layers": []})", 3 * 24 * 32, 1, 1};
// Weights have 768 x 8 bytes with their gradient, or 768 x 6, and a row 5 x 32 x 2 + 8. Of 256
// rows in a step an expert has about 32 of either of two devices.
constexpr Travelling kByBytes = {Sharing::kAuto,
                                 R"({"num_hidden_layers": 4, "mlp_only_layers": [],
                                    "num_experts": 4, "moe_intermediate_size": 8})",
                                 3 * 8 * 32, 19, 15};

// The guests of a layer that have rows: experts, and devices of other ranks than their homes.
using Guests = std::set<std::pair<size_t, size_t>>;

// What comes for the layer's forward of a step, and which of it ahead.
struct Came {
  Guests guests, forward, ahead;
};

// Counts what a case should move, from the routing alone. Devices attend to as many microbatches,
// and have experts by turns.
class Expected {
 public:
  Expected(const Travelling& model, const RankedCase& c, int64_t guest_layers)
      : model_(model),
        ranks_(static_cast<size_t>(c.ranks)),
        devices_(static_cast<size_t>(c.ranks * c.devices_each)),
        guest_layers_(guest_layers),
        guesses_(guest_layers > 0 && c.plan.prefetch && c.plan.send_ahead) {}

  void add(const Routing& routing) {
    std::vector<Came> step(kLayers);
    for (size_t l = 0; l < kLayers; ++l) {
      Came& came = step[l];
      came.guests = came.forward = guests_of(routing, l);
      if (guesses_ && !before_.empty()) came.ahead = before_[l].guests;
      came.forward.insert(came.ahead.begin(), came.ahead.end());
      weights += std::ssize(came.forward);
      for_nothing += std::ssize(came.forward) - std::ssize(came.guests);
      sums += std::ssize(came.guests);
      ahead += l > 0 ? std::ssize(came.ahead) : 0;
    }
    for (int64_t l = 0; l < kLayers; ++l) add_backward(step, l);
    before_ = std::move(step);
  }

  int64_t weights = 0, sums = 0;
  int64_t ahead = 0;  // of weights, before experts of the layer that computes before theirs
  int64_t for_nothing = 0;  // of weights

 private:
  Guests guests_of(const Routing& routing, size_t layer) const {
    std::map<std::pair<size_t, size_t>, int64_t> rows;  // [expert, device]
    const size_t of_device = routing.size() / devices_, of_rank = devices_ / ranks_;
    for (size_t b = 0; b < routing.size(); ++b) {
      const size_t device = b / of_device;
      for (size_t e = 0; e < routing[b][layer].size(); ++e) {
        const bool far = device / of_rank != e % devices_ / of_rank;
        if (far) rows[{e, device}] += routing[b][layer][e];
      }
    }
    const bool stay = static_cast<int64_t>(layer) >= kLayers - guest_layers_;
    Guests guests;
    for (const auto& [guest, count] : rows) {
      if (count >= (stay ? model_.rows_kept : model_.rows)) guests.insert(guest);
    }
    return guests;
  }
  // Weights are still there unless those of the same expert of a layer so many further on have
  // come.
  void add_backward(const std::vector<Came>& step, int64_t layer) {
    const auto l = static_cast<size_t>(layer);
    const int64_t other = layer + guest_layers_;
    for (const auto& guest : step[l].guests) {
      const bool kept =
          guest_layers_ > 0 &&
          (other >= kLayers || !step[static_cast<size_t>(other)].forward.contains(guest));
      weights += !kept;
      ahead += !kept && guesses_;
    }
  }

  const Travelling model_;
  size_t ranks_, devices_;
  int64_t guest_layers_;
  bool guesses_;
  std::vector<Came> before_;
};

// What the plan of a rank has, beside its run.
struct Planned {
  explicit Planned(Session& session)
      : run(session.shape(), session.pages(), session.memory().classes,
            session.memory().state_on_device,
            Ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0))) {}

  void step(const Routing& routing) {
    TaskList tasks;
    run.train(routing, [&](const StepPiece& piece) {
      tasks.insert(tasks.end(), piece.all_tasks().begin(), piece.all_tasks().end());
    });
    for (auto task = tasks.begin(); task != tasks.end(); ++task) {
      if (task->kind != TaskKind::kReceivePage || task->expert < 0) continue;
      ++weights;
      const auto next = std::find_if(task, tasks.end(), [](const Task& other) {
        return other.kind == TaskKind::kExpert || other.kind == TaskKind::kExpertBackward;
      });
      ahead += next->layer != task->layer;
    }
  }

  DryRun run;
  int64_t weights = 0, ahead = 0;
};

struct GuestCase {
  const char* what;
  int64_t more_bytes;  // than the smallest budgets; -1: all that there is
  int64_t guest_layers;
  bool prefetch = true, send_ahead = true;
};

// An expert's weights have a page of 8 KiB. On two devices it is twelve of each layer that come
// from the other rank, and by turns there are two pages: two layers take 22 more, and four 46, of
// which a third of the memory must have room.
constexpr GuestCase kCases[] = {
    {"by turns", 0, 0},
    {"of two layers", 3 * 22 * 8 * kKiB, 2},
    {"of two layers, nothing ahead", 3 * 22 * 8 * kKiB, 2, false},
    {"of two layers, nothing sent ahead", 3 * 22 * 8 * kKiB, 2, true, false},
    {"of all layers", 3 * 46 * 8 * kKiB, 4},
    {"of all layers, and all is on the devices", -1, 4},
};

// Returns how many weights came for nothing.
int64_t expect_guests(const Travelling& model, RankedRun& run, const GuestCase& of, int ranks,
                      int devices_each, ClipKind clip) {
  RankedCase c{ranks, devices_each, of.more_bytes >= 0};
  c.more_bytes = std::max<int64_t>(0, of.more_bytes);
  c.place = PlaceKind::kHome;
  c.plan.prefetch = of.prefetch;
  c.plan.send_ahead = of.send_ahead;
  c.clip = clip;
  std::unique_ptr<Planned> planned;  // of rank 0
  Expected expected(model, c, of.guest_layers);
  c.loaded = [&](Session& session) {
    EXPECT_EQ(session.shape().guest_layers, of.guest_layers);
    EXPECT_EQ(session.shape().sharing, model.sharing);
    EXPECT_EQ(session.memory().state_on_device, of.more_bytes < 0);
    if (session.shape().rank == 0) planned = std::make_unique<Planned>(session);
  };
  c.stepped = [&](Session& session, const StepResult& step) {
    if (session.shape().rank != 0) return;
    planned->step(step.routing);
    expected.add(step.routing);
  };
  const RankedOutcome outcome = run.on(c);
  expect_alike(outcome);
  if (testing::Test::HasFailure()) return 0;
  EXPECT_EQ(outcome.sha256(), run.sha256());
  EXPECT_EQ(outcome.arrived.rows > 0, model.sharing == Sharing::kAuto);
  EXPECT_EQ(outcome.arrived.guest_weights, expected.weights * model.elements * kValue);
  // Several devices of a rank may add what they have before it leaves.
  const int64_t sums = expected.sums * model.elements * kFloat;
  EXPECT_LE(outcome.arrived.guest_sums, sums);
  EXPECT_TRUE(outcome.arrived.guest_sums == sums || devices_each > 1);
  EXPECT_EQ(planned->weights, expected.weights);
  EXPECT_EQ(planned->ahead, expected.ahead);
  EXPECT_EQ(expected.ahead > 0, of.guest_layers > 0 && of.prefetch && of.send_ahead);
  for (const Paging& paging : outcome.paging) {
    if (of.more_bytes == 0) expect_paged(paging);
  }
  return expected.for_nothing;
}

class RanksGuests : public testing::TestWithParam<ClipKind> {};

TEST_P(RanksGuests, ComeAheadAndStay) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  RankedRun run(GetParam(), DType::kBF16, tiny_with(kAlways.model).c_str(), 32, kSteps,
                kAlways.sharing);
  for (const GuestCase& of : kCases) {
    SCOPED_TRACE(of.what);
    expect_guests(kAlways, run, of, 2, 1, GetParam());
    if (testing::Test::HasFailure()) return;
  }
}

// Weights that came ahead and are not worth their bytes in this step have come for nothing. Two
// experts of each layer are the other rank's, in pages of 4 KiB, of which by turns there are two.
TEST_P(RanksGuests, ComeAheadWhereTheyHadFewerBytesThanRows) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  RankedRun run(GetParam(), DType::kBF16, tiny_with(kByBytes.model).c_str(), 32, kSteps,
                kByBytes.sharing);
  int64_t for_nothing = 0;
  for (const GuestCase& of :
       {GuestCase{"by turns", 0, 0}, GuestCase{"of two layers", 3 * 2 * 4 * kKiB, 2},
        GuestCase{"of two layers, nothing ahead", 3 * 2 * 4 * kKiB, 2, false},
        GuestCase{"of all layers", 3 * 6 * 4 * kKiB, 4}}) {
    SCOPED_TRACE(of.what);
    for_nothing += expect_guests(kByBytes, run, of, 2, 1, GetParam());
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(for_nothing, 0) << "every guess was right";
}

INSTANTIATE_TEST_SUITE_P(Clip, RanksGuests,
                         testing::Values(ClipKind::kGlobal, ClipKind::kPerExpert));

// Three quarters of a layer's experts come to each of four ranks, and half of them to both devices
// of each of two.
TEST(RanksGuestsOfMore, ComeAheadAndStay) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  RankedRun run(ClipKind::kGlobal, DType::kBF16, tiny_with(kAlways.model).c_str(), 32, kSteps,
                kAlways.sharing);
  const auto expect = [&](const GuestCase& of, int ranks, int devices_each) {
    expect_guests(kAlways, run, of, ranks, devices_each, ClipKind::kGlobal);
  };
  expect({"of two layers", 3 * 22 * 8 * kKiB, 2}, 2, 2);
  expect({"of two layers", 3 * 34 * 8 * kKiB, 2}, 4, 1);
  expect({"all is on the devices", -1, 4}, 4, 1);
}

}  // namespace
}  // namespace pagoda
