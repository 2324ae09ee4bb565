// Layouts that are found for published models whose first layer has no experts, on two and on three
// kinds of devices: the tasks of each rank keep every rule of the validator.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/step/rank_part.h"
#include "preview/layout_search.h"
#include "tests/preview/published_configs.h"
#include "tests/testing/files.h"
#include "tests/testing/plan/dry_run.h"
#include "tests/testing/plan/random_plan.h"
#include "tests/testing/plan/validator.h"

namespace pagoda {
namespace {

// The first three layers.
ModelSizes top_of(const std::string& name) {
  std::string text = get_file(configs("models/" + name + ".json"));
  const std::string key = "\"num_hidden_layers\": ";
  const size_t at = text.find(key) + key.size();
  text.replace(at, text.find(',', at) - at, "3");
  return parse_model_sizes(text, name).take();
}

ClusterSheet two_kinds() { return read_cluster_sheet(configs("clusters/a40-v100.toml")).take(); }

// One rank of a run: its plan, and what its residency makes of it.
class Rank {
 public:
  Rank(const PlannedRun& run, const RoomOfRanks& room) : shape_(with_room(run, room)) {
    budget_ = room.of(run.budget);
    header_bytes_ = run.header_bytes;
    memory_ = plan_memory(shape_, pages_, budget_, header_bytes_, DivisionEffort::kQuick).take();
  }
  const MemoryPlan& memory() const { return memory_; }

  // Checks so many steps, and returns the first fault.
  std::string check(const Routing& routing, int steps) {
    shape_ = seated(shape_, memory_);
    const Residency start = all_on_disk(shape_, pages_, memory_.classes);
    Replay replay(&pages_, start);
    PlanValidator validator(&shape_, &pages_, memory_, budget_, header_bytes_, start);
    DryRun run(shape_, pages_, memory_.classes, memory_.state_on_device,
               Ledger(false, 0, std::vector<int64_t>(shape_.records.size(), 0)));
    for (int step = 0; step < steps; ++step) {
      validator.begin_step();
      run.train(routing, [&](const StepPiece& piece) {
        foresee(piece, replay);
        for (const Task& task : piece.all_tasks()) {
          if (!runs_here(shape_, task)) {
            validator.see(task);
            continue;
          }
          const PlacedTask placed = place(replay, with_own_places(shape_, task));
          validator.check(task, placed.moves, placed.slots);
        }
      });
      validator.end_step(true);
    }
    return first_fault(validator.faults());
  }

 private:
  static RunShape with_room(const PlannedRun& run, const RoomOfRanks& room) {
    RunShape shape = run.shape;
    shape.in_place = shape.in_place && room.in_place;
    return shape;
  }

  RunShape shape_;
  PageTable pages_{shape_};
  MemoryBudget budget_;
  int64_t header_bytes_ = 0;
  MemoryPlan memory_;
};

// Every expert of a layer with experts has as many rows.
Routing even_routing(const RunShape& shape) {
  const int64_t rows = shape.microbatch_tokens * shape.experts_per_token / shape.num_experts;
  LayerRouting layers(static_cast<size_t>(shape.num_layers));
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (shape.is_moe[static_cast<size_t>(l)] == 0) continue;
    layers[static_cast<size_t>(l)].assign(static_cast<size_t>(shape.num_experts), rows);
  }
  return Routing(static_cast<size_t>(shape.microbatches), layers);
}

void expect_valid(const ModelSizes& model, const SearchedLayout& layout,
                  const ClusterSheet& cluster) {
  SCOPED_TRACE(layout.text());
  auto planned = planned_ranks(model, layout.configs, cluster);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  std::vector<std::unique_ptr<Rank>> ranks;
  const auto plan = [&](const RoomOfRanks& room) {
    ranks.clear();
    for (const PlannedRun& run : *planned) ranks.push_back(std::make_unique<Rank>(run, room));
  };
  const auto all = [&](bool MemoryPlan::*has_room) {
    return std::ranges::all_of(ranks, [&](const auto& rank) { return rank->memory().*has_room; });
  };
  plan({});
  RoomOfRanks room{all(&MemoryPlan::state_on_device), all(&MemoryPlan::weights_travel)};
  plan(room);
  room.in_place = all(&MemoryPlan::in_place);
  plan(room);
  const RunShape& shape = planned->front().shape;
  EXPECT_EQ(shape.is_moe.front(), 0);
  EXPECT_EQ(shape.moe_layers(), shape.num_layers - 1);
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r]->check(even_routing(shape), 2), "") << "rank " << r;
  }
}

TEST(PublishedLayouts, OnTwoAndThreeKindsKeepEveryRule) {
  const std::pair<ClusterSheet, const char*> cases[] = {{two_kinds(), "deepseek-v2-lite"},
                                                        {three_kinds(), "glm-4.5-air"}};
  for (const auto& [cluster, name] : cases) {
    SCOPED_TRACE(testing::Message() << name << " on " << cluster.nodes.size() << " nodes");
    const ModelSizes model = top_of(name);
    const LayoutSearch found =
        search_layouts(model, rows_of(16, 4096, cluster), cluster, kSearchPlan);
    ASSERT_FALSE(found.runs.empty());
    const auto is_zebra = [](const SearchedLayout& run) { return run.configs.front().zebra(); };
    const auto zebra = std::ranges::find_if(found.runs, is_zebra);
    ASSERT_NE(zebra, found.runs.end());
    expect_valid(model, *zebra, cluster);
    const auto other = std::ranges::find_if_not(found.runs, is_zebra);
    ASSERT_NE(other, found.runs.end());
    expect_valid(model, *other, cluster);
  }
}

}  // namespace
}  // namespace pagoda
