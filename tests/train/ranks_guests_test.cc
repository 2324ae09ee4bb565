// Weights that travel to guests on other ranks, in runs: a layer ahead of their use and kept until
// the backward where devices have room for layers of them, as often as counted by hand from what
// routing chose, in the bits of one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "tests/testing/plan/dry_run.h"
#include "tests/testing/ranks/ranked_run.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = 3, kLayers = 4, kExpert = 3 * 24 * 32, kValue = 2, kFloat = 4;
constexpr const char* kModel = R"({"num_hidden_layers": 4, "mlp_only_layers": []})";

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
  Expected(const RankedCase& c, int64_t guest_layers)
      : ranks_(static_cast<size_t>(c.ranks)),
        devices_(static_cast<size_t>(c.ranks * c.devices_each)),
        guest_layers_(guest_layers),
        guesses_(guest_layers > 0 && c.plan.prefetch) {}

  void add(const Routing& routing) {
    std::vector<Came> step(kLayers);
    for (size_t l = 0; l < kLayers; ++l) {
      Came& came = step[l];
      came.guests = came.forward = guests_of(routing, l);
      if (guesses_ && !before_.empty()) came.ahead = before_[l].guests;
      came.forward.insert(came.ahead.begin(), came.ahead.end());
      weights += std::ssize(came.forward);
      sums += std::ssize(came.guests);
      ahead += l > 0 ? std::ssize(came.ahead) : 0;
    }
    for (int64_t l = 0; l < kLayers; ++l) add_backward(step, l);
    before_ = std::move(step);
  }

  int64_t weights = 0, sums = 0;
  int64_t ahead = 0;  // of weights, before experts of the layer that computes before theirs

 private:
  Guests guests_of(const Routing& routing, size_t layer) const {
    Guests guests;
    const size_t of_device = routing.size() / devices_, of_rank = devices_ / ranks_;
    for (size_t b = 0; b < routing.size(); ++b) {
      const size_t device = b / of_device;
      for (size_t e = 0; e < routing[b][layer].size(); ++e) {
        const bool far = device / of_rank != e % devices_ / of_rank;
        if (far && routing[b][layer][e] > 0) guests.insert({e, device});
      }
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
  bool prefetch = true;
};

// An expert's weights have a page of 8 KiB. On two devices it is twelve of each layer that come
// from the other rank, and by turns there are two pages: two layers take 22 more, and four 46, of
// which a third of the memory must have room.
constexpr GuestCase kCases[] = {
    {"by turns", 0, 0},
    {"of two layers", 3 * 22 * 8 * kKiB, 2},
    {"of two layers, nothing ahead", 3 * 22 * 8 * kKiB, 2, false},
    {"of all layers", 3 * 46 * 8 * kKiB, 4},
    {"of all layers, and all is on the devices", -1, 4},
};

void expect_guests(RankedRun& run, const GuestCase& of, int ranks, int devices_each,
                   ClipKind clip) {
  RankedCase c{ranks, devices_each, of.more_bytes >= 0};
  c.more_bytes = std::max<int64_t>(0, of.more_bytes);
  c.place = PlaceKind::kHome;
  c.plan.prefetch = of.prefetch;
  c.clip = clip;
  std::unique_ptr<Planned> planned;  // of rank 0
  Expected expected(c, of.guest_layers);
  c.loaded = [&](Session& session) {
    EXPECT_EQ(session.shape().guest_layers, of.guest_layers);
    EXPECT_EQ(session.shape().sharing, Sharing::kData);
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
  if (testing::Test::HasFailure()) return;
  EXPECT_EQ(outcome.sha256(), run.sha256());
  EXPECT_EQ(outcome.arrived.rows, 0);
  EXPECT_EQ(outcome.arrived.guest_weights, expected.weights * kExpert * kValue);
  // Several devices of a rank may add what they have before it leaves.
  const int64_t sums = expected.sums * kExpert * kFloat;
  EXPECT_LE(outcome.arrived.guest_sums, sums);
  EXPECT_TRUE(outcome.arrived.guest_sums == sums || devices_each > 1);
  EXPECT_EQ(planned->weights, expected.weights);
  EXPECT_EQ(planned->ahead, expected.ahead);
  EXPECT_EQ(expected.ahead > 0, of.guest_layers > 0 && of.prefetch);
  if (of.more_bytes != 0) return;
  for (const Paging& paging : outcome.paging) expect_paged(paging);
}

class RanksGuests : public testing::TestWithParam<ClipKind> {};

TEST_P(RanksGuests, ComeAheadAndStay) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  RankedRun run(GetParam(), DType::kBF16, tiny_with(kModel).c_str(), 32, kSteps, Sharing::kData);
  for (const GuestCase& of : kCases) {
    SCOPED_TRACE(of.what);
    expect_guests(run, of, 2, 1, GetParam());
    if (testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Clip, RanksGuests,
                         testing::Values(ClipKind::kGlobal, ClipKind::kPerExpert));

// Three quarters of a layer's experts come to each of four ranks, and half of them to both devices
// of each of two.
TEST(RanksGuestsOfMore, ComeAheadAndStay) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  RankedRun run(ClipKind::kGlobal, DType::kBF16, tiny_with(kModel).c_str(), 32, kSteps,
                Sharing::kData);
  expect_guests(run, {"of two layers", 3 * 22 * 8 * kKiB, 2}, 2, 2, ClipKind::kGlobal);
  expect_guests(run, {"of two layers", 3 * 34 * 8 * kKiB, 2}, 4, 1, ClipKind::kGlobal);
  expect_guests(run, {"all is on the devices", -1, 4}, 4, 1, ClipKind::kGlobal);
}

}  // namespace
}  // namespace pagoda
