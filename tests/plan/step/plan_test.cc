// Plans and budgets without a device: the order a plan promises, when weights go up, and that the
// printed minimum is enough and no more.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "plan/memory/memory_plan.h"
#include "plan/step/pinning.h"
#include "plan/step/replay.h"
#include "tests/testing/plan/random_plan.h"

namespace pagoda {
namespace {

constexpr int64_t kHeaderBytes = 4096;

RunShape small_shape(int devices) {
  RunShape shape;
  shape.num_layers = 3;
  shape.is_moe = {1, 0, 1};
  shape.num_experts = 5;
  shape.hidden_size = 64;
  shape.experts_per_token = 2;
  shape.dtype_bytes = 2;
  shape.microbatches = 2;
  shape.microbatch_tokens = 300;
  shape.row_block = 256;
  shape.devices = devices;
  shape.records.push_back({10000});
  for (int64_t l = 0; l < 3; ++l) {
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({20000, l});
    for (int64_t e = 0; e < (shape.is_moe[l] ? 5 : 0); ++e) {
      shape.records.push_back({9000, l, e, static_cast<int>(e % devices)});
    }
  }
  shape.records.push_back({10064});
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
  return shape;
}

TaskList step(const StepPlan& plan, const std::vector<int64_t>& tokens_per_expert) {
  TaskList tasks;
  const RunShape& shape = plan.shape();
  const LayerRouting routing = spread(tokens_per_expert, shape.microbatches);
  for (size_t r = 0; r < shape.records.size(); ++r) plan.adam(r, 1, false, tasks);
  plan.embed(all_microbatches(shape), tasks);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    plan.forward_attention(l, all_microbatches(shape), tasks);
    if (!shape.is_moe[l]) continue;
    plan.forward_experts(l, all_microbatches(shape), routing, tasks);
    plan.residual(l, all_microbatches(shape), tasks);
  }
  plan.head(all_microbatches(shape), tasks);
  for (int64_t l = shape.num_layers - 1; l >= 0; --l) {
    if (shape.is_moe[l]) plan.backward_experts(l, all_microbatches(shape), routing, tasks);
    plan.backward_attention(l, all_microbatches(shape), tasks);
  }
  plan.embed_backward(all_microbatches(shape), tasks);
  return tasks;
}

// How often each page is fetched from disk, with these slots.
std::map<PageId, int> fetches_of(const RunShape& shape, const PageTable& pages,
                                 const TaskList& tasks, const std::vector<SlotClass>& classes) {
  Replay replay(&pages, all_on_disk(shape, pages, classes));
  std::map<PageId, int> fetches;
  for (const Task& task : tasks) {
    for (const Move& move : replay.place(task).moves) {
      fetches[move.page] += move.kind == Move::Kind::kFetch;
    }
  }
  return fetches;
}

class Plans : public testing::TestWithParam<int> {};

TEST_P(Plans, MinimumBudgetIsEnoughAndNoMore) {
  const RunShape shape = small_shape(GetParam());
  const PageTable pages(shape);
  MemoryBudget budget{0, 0, std::vector<int64_t>(shape.devices, 12345)};
  const auto refused = plan_memory(shape, pages, budget, kHeaderBytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Exit::kDeviceMemory);
  budget.device_bytes = budget.host_bytes = kGiB;
  const auto roomy = plan_memory(shape, pages, budget, kHeaderBytes);
  ASSERT_TRUE(roomy.ok());
  EXPECT_TRUE(roomy.value().state_on_device);
  budget.device_bytes = roomy.value().min_device_bytes;
  budget.host_bytes = roomy.value().min_host_bytes;
  auto tight = plan_memory(shape, pages, budget, kHeaderBytes);
  ASSERT_TRUE(tight.ok()) << tight.status().message();
  EXPECT_FALSE(tight->state_on_device);
  const StepPlan plan(shape, pages, {});
  // Aborts if there are too few slots.
  fetches_of(shape, pages, step(plan, {300, 0, 1, 256, 643}), tight->classes);
  for (int d = 0; d < shape.devices; ++d) {
    EXPECT_LE(12345 + tight->device_slot_bytes[d], budget.device_bytes.of(d));
  }
  EXPECT_LE(tight->host_slot_bytes, budget.host_bytes);
  budget.device_bytes += -1;
  EXPECT_EQ(plan_memory(shape, pages, budget, kHeaderBytes).status().code(),
            Exit::kDeviceMemory);
  budget.device_bytes += 1;
  --budget.host_bytes;
  EXPECT_EQ(plan_memory(shape, pages, budget, kHeaderBytes).status().code(),
            Exit::kHostMemory);
}

// Each device may have just what it needs; a byte less is refused, and the device named.
TEST_P(Plans, EachDeviceHasAMinimumOfItsOwn) {
  const RunShape shape = small_shape(GetParam());
  const PageTable pages(shape);
  MemoryBudget budget{kGiB, kGiB, {}};
  for (int d = 0; d < shape.devices; ++d) {
    budget.fixed_bytes.push_back(10000 + 777 * d);
    budget.device_names.push_back(strf("cuda:%d", 7 - d));
  }
  const MemoryPlan roomy = plan_memory(shape, pages, budget, kHeaderBytes).take();
  const std::vector<int64_t> least = roomy.min_on_device;
  ASSERT_EQ(std::ssize(least), shape.devices);
  EXPECT_EQ(*std::max_element(least.begin(), least.end()), roomy.min_device_bytes);
  EXPECT_EQ(*std::max_element(roomy.whole_on_device.begin(), roomy.whole_on_device.end()),
            roomy.whole_device_bytes);
  budget.device_bytes = DeviceBudget(least);
  const MemoryPlan tight = plan_memory(shape, pages, budget, kHeaderBytes).take();
  for (int d = 0; d < shape.devices; ++d) {
    EXPECT_LE(budget.fixed_bytes[d] + tight.device_slot_bytes[d], least[d]);
    std::vector<int64_t> less = least;
    less[d] -= 1;
    budget.device_bytes = DeviceBudget(less);
    const auto refused = plan_memory(shape, pages, budget, kHeaderBytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Exit::kDeviceMemory);
    const bool named = refused.status().message().find(strf("on device %d (cuda:%d)", d, 7 - d)) !=
                       std::string::npos;
    EXPECT_EQ(named, shape.devices > 1) << refused.status().message();
  }
  budget.device_bytes = DeviceBudget(roomy.whole_on_device);
  EXPECT_TRUE(plan_memory(shape, pages, budget, kHeaderBytes)->state_on_device);
  budget.device_bytes += -1;
  EXPECT_FALSE(plan_memory(shape, pages, budget, kHeaderBytes)->state_on_device);
}

// A group's weights are there at once, and so is room for its rows on their way: no more, no less.
TEST(Groups, NeedTheirExpertsAtOnceAndNoMore) {
  constexpr int64_t kFixed = 12345;
  const auto least = [&](int64_t group_blocks) {
    RunShape shape = small_shape(1);
    shape.group_blocks = group_blocks;
    const PageTable pages(shape);
    MemoryBudget budget{kGiB, kGiB, {kFixed}};
    const MemoryPlan roomy = plan_memory(shape, pages, budget, kHeaderBytes).take();
    budget.device_bytes = roomy.min_device_bytes;
    budget.host_bytes = roomy.min_host_bytes;
    const MemoryPlan tight = plan_memory(shape, pages, budget, kHeaderBytes).take();
    const StepPlan plan(shape, pages, {});
    // Aborts if there are too few slots.
    for (const std::vector<int64_t>& tokens :
         {std::vector<int64_t>{300, 0, 1, 256, 643}, {1, 1, 1, 1, 1}, {5, 900, 290, 4, 1}}) {
      fetches_of(shape, pages, step(plan, tokens), tight.classes);
    }
    budget.device_bytes += -1;
    EXPECT_EQ(plan_memory(shape, pages, budget, kHeaderBytes).status().code(),
              Exit::kDeviceMemory);
    int64_t exchange = 0;
    for (const PageTable::Class& c : pages.classes) {
      const bool rows = c.kind == PageKind::kInbound || c.kind == PageKind::kOutbound;
      exchange += rows * c.page_bytes;
    }
    const int64_t weights = pages.pages[pages.weights(shape.expert(0, 0))].bytes;
    return std::pair{roomy.min_device_bytes - exchange, weights};
  };
  const auto [alone, weights] = least(1);
  EXPECT_EQ(least(2).first, alone + weights);
  EXPECT_EQ(least(4).first, alone + 3 * weights);
  EXPECT_EQ(least(16).first, alone + 4 * weights) << "a layer has five experts";
}

// Checks each microbatch's rows expert by expert; one task hands out those of the whole group.
TEST(Groups, HandOutAndCombineEachMicrobatchOnce) {
  RunShape shape = small_shape(1);
  shape.group_blocks = 16;
  const StepPlan plan(shape, PageTable(shape), {});
  const LayerRouting routing = spread({300, 0, 1, 256, 643}, shape.microbatches);
  TaskList tasks;
  plan.forward_experts(0, all_microbatches(shape), routing, tasks);
  std::map<TaskKind, int> count;
  std::map<std::pair<TaskKind, int32_t>, int64_t> rows;
  for (const Task& task : tasks) {
    ++count[task.kind];
    rows[{task.kind, task.microbatch}] += task.rows;
  }
  EXPECT_EQ(count[TaskKind::kDispatch], 2);
  EXPECT_EQ(count[TaskKind::kExpert], 4) << "of the experts with tokens, together";
  EXPECT_EQ(count[TaskKind::kCombine], 2);
  for (const int32_t b : {0, 1}) {
    int64_t all = 0;
    for (const int64_t tokens : routing[static_cast<size_t>(b)]) all += tokens;
    EXPECT_EQ((rows[{TaskKind::kDispatch, b}]), all);
    EXPECT_EQ((rows[{TaskKind::kCombine, b}]), all);
  }
}

// Until an expert's gradient is taken, no other of the device's experts computes into its place.
TEST(Groups, GradientsKeepTheirPlaceUntilTheyAreTaken) {
  for (const int64_t group_blocks : {1, 2, 3, 16}) {
    for (const int devices : {1, 2}) {
      RunShape shape = small_shape(devices);
      shape.group_blocks = group_blocks;
      const StepPlan plan(shape, PageTable(shape), {});
      TaskList tasks;
      plan.backward_experts(0, all_microbatches(shape),
                            spread({300, 600, 1, 256, 643}, shape.microbatches), tasks);
      std::map<std::pair<int, int>, int64_t> holder;  // [a device's place] its record
      int taken = 0;
      for (const Task& task : tasks) {
        if (task.expert < 0) continue;
        const std::pair<int, int> place{task.device, task.gradient};
        if (task.kind == TaskKind::kExpertBackward) {
          EXPECT_LT(task.gradient, std::min<int64_t>(group_blocks, shape.num_experts));
          EXPECT_EQ(holder.contains(place), !task.first);
          EXPECT_EQ(holder.try_emplace(place, task.record).first->second, task.record);
        } else if (task.kind == TaskKind::kGradient) {
          EXPECT_EQ(holder[place], task.record);
          holder.erase(place);
          ++taken;
        }
      }
      EXPECT_EQ(taken, 5);
      EXPECT_TRUE(holder.empty());
    }
  }
}

// Layer-major order: with one device slot for experts, each expert's weights are still fetched once
// forward and once backward, whatever the number of microbatches and blocks.
TEST_P(Plans, ExpertWeightsAreReadOncePerDirection) {
  const RunShape shape = small_shape(GetParam());
  const PageTable pages(shape);
  MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(shape.devices, 0)};
  auto roomy = plan_memory(shape, pages, budget, kHeaderBytes);
  ASSERT_TRUE(roomy.ok());
  budget.device_bytes = roomy->min_device_bytes;
  budget.host_bytes = roomy->min_host_bytes;
  auto tight = plan_memory(shape, pages, budget, kHeaderBytes);
  ASSERT_TRUE(tight.ok());
  const StepPlan plan(shape, pages, {});
  const std::vector<int64_t> tokens = {300, 100, 1, 256, 543};
  TaskList tasks;
  for (const Task& task : step(plan, tokens)) {
    if (task.kind != TaskKind::kAdam) tasks.push_back(task);
  }
  const auto fetches = fetches_of(shape, pages, tasks, tight->classes);
  for (int64_t l : {0, 2}) {
    for (int64_t e = 0; e < 5; ++e) {
      const auto at = fetches.find(pages.weights(shape.expert(l, e)));
      EXPECT_LE(at == fetches.end() ? 0 : at->second, 2) << "layer " << l << " expert " << e;
    }
  }
}

TEST_P(Plans, CombinesAreInExpertOrderAndCoverEveryRow) {
  const RunShape shape = small_shape(GetParam());
  const StepPlan plan(shape, PageTable(shape), {});
  const LayerRouting routing = spread({300, 0, 1, 256, 643}, shape.microbatches);
  std::map<int32_t, int32_t> newest;  // [microbatch] the expert that was combined last
  int64_t rows = 0;
  TaskList tasks;
  plan.forward_experts(0, all_microbatches(shape), routing, tasks);
  for (const Task& task : tasks) {
    if (task.kind != TaskKind::kCombine) continue;
    EXPECT_LE(newest[task.microbatch], task.expert);
    EXPECT_LE(task.expert, task.last_expert);
    newest[task.microbatch] = task.last_expert;
    rows += task.rows;
  }
  EXPECT_EQ(rows, 1200);
}

// The forward gives up a microbatch's normed rows with the last task that reads them, and its sum
// with the residual; the backward has the gradient of the residual stream from head to embedding.
TEST_P(Plans, InLayerBuffersLiveAsLongAsTheyAreRead) {
  const RunShape shape = small_shape(GetParam());
  const PageTable pages(shape);
  const StepPlan plan(shape, pages, {});
  std::map<PageId, bool> lives;
  std::map<PageId, int> ended;
  for (const Task& task : step(plan, {300, 0, 1, 256, 643})) {
    for (const PageUse& use : task.used()) {
      if (pages.classes[pages.pages[use.page].slot_class].kind != PageKind::kLayerBuffer) continue;
      EXPECT_EQ(lives[use.page], use.access != Access::kCreate) << "page " << use.page;
      lives[use.page] = !use.last;
      ended[use.page] += use.last;
    }
  }
  for (int64_t b = 0; b < shape.microbatches; ++b) {
    // Two layers with experts, forward and backward.
    EXPECT_EQ(ended[pages.normed(0, b)], 4);
    EXPECT_EQ(ended[pages.sum(0, b)], 4);
    EXPECT_EQ(ended[pages.dresidual(0, b)], 1);
  }
  for (const auto& [page, alive] : lives) EXPECT_FALSE(alive) << "page " << page;
}

// More microbatches in a step need no more room for pages.
TEST_P(Plans, MinimumDoesNotGrowWithTheStep) {
  RunShape shape = small_shape(GetParam());
  const MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(shape.devices, 0)};
  std::optional<int64_t> few;
  for (int64_t microbatches : {4, 8, 64}) {
    shape.microbatches = microbatches;
    auto memory = plan_memory(shape, PageTable(shape), budget, kHeaderBytes);
    ASSERT_TRUE(memory.ok());
    if (!few) few = memory->min_device_bytes;
    EXPECT_EQ(memory->min_device_bytes, *few) << microbatches << " microbatches";
  }
}

// What is beyond an expert's own rows is computed, and no more: it is not handed out twice, and an
// expert without tokens makes no gradient.
TEST_P(Plans, PaddedExpertsComputeAsManyRowsAsTheBusiest) {
  RunShape shape = small_shape(GetParam());
  shape.options.padded_experts = true;
  const StepPlan plan(shape, PageTable(shape), {});
  const std::vector<int64_t> tokens = {300, 0, 1, 256, 643};
  TaskList forward, backward;
  const LayerRouting routing = spread(tokens, shape.microbatches);
  plan.forward_experts(0, all_microbatches(shape), routing, forward);
  plan.backward_experts(0, all_microbatches(shape), routing, backward);
  for (const auto& [tasks, kind] : {std::pair{&forward, TaskKind::kExpert},
                                    {&backward, TaskKind::kExpertBackward}}) {
    std::vector<int64_t> rows(5, 0), computed(5, 0), finished(5, 0);
    std::vector<int64_t> next_row = {0, 300, 300, 301, 557};
    for (const Task& task : *tasks) {
      if (task.kind != kind) continue;
      const auto e = static_cast<size_t>(task.expert);
      EXPECT_EQ(task.first, computed[e] == 0);
      EXPECT_EQ(task.first_row, next_row[e]);
      EXPECT_LE(task.rows + task.padding, shape.row_block);
      next_row[e] += task.rows;
      rows[e] += task.rows;
      computed[e] += task.rows + task.padding;
      finished[e] += task.last;
      EXPECT_EQ(task.last, computed[e] == 643 && tokens[e] > 0);
    }
    EXPECT_EQ(rows, tokens);
    EXPECT_EQ(computed, std::vector<int64_t>(5, 643));
    EXPECT_EQ(finished, (std::vector<int64_t>{1, 0, 1, 1, 1}));
  }
  std::vector<int64_t> gradients;
  for (const Task& task : backward) {
    if (task.kind == TaskKind::kGradient && task.expert >= 0) gradients.push_back(task.expert);
  }
  EXPECT_EQ(gradients, (std::vector<int64_t>{0, 2, 3, 4}));
}

INSTANTIATE_TEST_SUITE_P(Devices, Plans, testing::Values(1, 2, 3));

// Records of experts that had tokens, of each layer and device the first ones, as many as half the
// slots of their weights there.
std::set<int64_t> experts_that_had_tokens(const RunShape& shape, const PageTable& pages,
                                          const std::vector<SlotClass>& classes,
                                          const Routing& last) {
  std::set<int64_t> records;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::vector<int32_t> taken(shape.devices, 0);
    if (!shape.is_moe[l]) continue;
    const std::vector<int64_t> tokens = tokens_per_expert(layer_routing(last, l));
    for (size_t e = 0; e < tokens.size(); ++e) {
      const int64_t record = shape.expert(l, static_cast<int64_t>(e));
      const int device = shape.records[record].device;
      const SlotClass& slots = classes[pages.pages[pages.weights(record)].slot_class];
      if (tokens[e] == 0 || taken[device] == slots.device_slots[device] / 2) continue;
      ++taken[device];
      records.insert(record);
    }
  }
  return records;
}

// A run's tasks of each step up to its head. Every step has its own routing.
struct Forwards {
  Forwards(std::mt19937& random, bool eager)
      : shape(random_shape(random, static_cast<int>(1 + random() % 3))), pages(shape) {
    shape.eager_adam = eager;
    MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(shape.devices, 0)};
    const MemoryPlan roomy = plan_memory(shape, pages, budget, kHeaderBytes).take();
    budget.device_bytes = roomy.min_device_bytes + static_cast<int64_t>(random() % 100000);
    budget.host_bytes = roomy.min_host_bytes + static_cast<int64_t>(random() % 400000);
    memory = plan_memory(shape, pages, budget, kHeaderBytes).take();
    DryRun run(shape, pages, memory.classes, memory.state_on_device,
               Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0)));
    for (int step = 0; step < 4; ++step) {
      routings.push_back(random_routing(random, shape));
      TaskList& forward = forwards.emplace_back();
      bool done = false;
      run.train(routings.back(), [&](const StepPiece& piece) {
        if (!done) forward.insert(forward.end(), piece.tasks.begin(), piece.tasks.end());
        done = done || piece.wait == StepPiece::Wait::kForwardDone;
      });
    }
  }
  RunShape shape;
  PageTable pages;
  MemoryPlan memory;
  std::vector<Routing> routings;
  std::vector<TaskList> forwards;
};

// Weights of experts that are expected go up as soon as the host has updated them, those of the
// first layer too, and all that are expected are asked for, once.
TEST(StepSchedule, WeightsGoUpRightAfterTheirUpdates) {
  int updates[2] = {0, 0}, first_layer = 0, asked = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const bool eager = seed % 4 == 0;
    const Forwards run(random, eager);
    for (size_t step = 1; step < run.forwards.size(); ++step) {
      const TaskList& tasks = run.forwards[step];
      const std::set<int64_t> expected = experts_that_had_tokens(
          run.shape, run.pages, run.memory.classes, run.routings[step - 1]);
      std::multiset<int64_t> prefetched;
      for (size_t i = 0; i < tasks.size(); ++i) {
        const bool guess = tasks[i].kind == TaskKind::kPrefetch;
        if (guess && tasks[i].phase == Phase::kForward) prefetched.insert(tasks[i].record);
        const bool update = tasks[i].kind == TaskKind::kAdam && tasks[i].on_host;
        if (!update || !expected.contains(tasks[i].record)) continue;
        ASSERT_LT(i + 1, tasks.size());
        EXPECT_EQ(tasks[i + 1].kind, TaskKind::kPrefetch) << "record " << tasks[i].record;
        EXPECT_EQ(tasks[i + 1].record, tasks[i].record);
        ++updates[eager];
        first_layer += tasks[i].layer == 0;
      }
      EXPECT_EQ(prefetched, std::multiset<int64_t>(expected.begin(), expected.end()));
      asked += static_cast<int>(expected.size());
    }
  }
  EXPECT_GT(updates[false], 1000);
  EXPECT_EQ(updates[true], 0) << "eager updates are over by then";
  EXPECT_GT(first_layer, 200);
  EXPECT_GT(asked, updates[false]);
}

// The hottest of each layer and device, no more than leave slots to take turns in, none without
// tokens.
TEST(Pinning, HottestExpertsOfEachLayerWithinRoom) {
  const RunShape shape = small_shape(1);
  const PageTable pages(shape);
  const auto weights = [&](int64_t layer, int64_t expert) {
    return pages.weights(shape.expert(layer, expert));
  };
  const std::vector<std::vector<int64_t>> tokens = {{5, 9, 0, 9, 1}, {}, {0, 0, 7, 0, 0}};
  std::vector<SlotClass> slots(pages.classes.size(), SlotClass{{10}, 10});
  const auto pinned = [&](double share) {
    const std::vector<PageId> list = pinned_weights(shape, pages, slots, tokens, share);
    return std::set<PageId>(list.begin(), list.end());
  };
  EXPECT_EQ(pinned(0.0), std::set<PageId>());
  EXPECT_EQ(pinned(0.2), (std::set<PageId>{weights(0, 1), weights(2, 2)}));
  EXPECT_EQ(pinned(0.5), (std::set<PageId>{weights(0, 1), weights(0, 3), weights(2, 2)}));
  for (SlotClass& c : slots) c.device_slots = {4};
  EXPECT_EQ(pinned(1.0), (std::set<PageId>{weights(0, 1), weights(0, 3)})) << "two take turns";
  for (SlotClass& c : slots) c.device_slots = {1};
  EXPECT_EQ(pinned(1.0), std::set<PageId>());
}

// Each device has its own share and its own room.
TEST(Pinning, DevicesPinTheirOwnExperts) {
  const RunShape shape = small_shape(2);
  const PageTable pages(shape);
  const std::vector<std::vector<int64_t>> tokens = {{9, 1, 8, 2, 7}, {}, {}};
  const std::vector<SlotClass> slots(pages.classes.size(), SlotClass{{3, 10}, 10});
  const std::vector<PageId> pinned = pinned_weights(shape, pages, slots, tokens, 1.0);
  const std::set<PageId> expected = {pages.weights(shape.expert(0, 0)),
                                     pages.weights(shape.expert(0, 3)),
                                     pages.weights(shape.expert(0, 1))};
  EXPECT_EQ(std::set<PageId>(pinned.begin(), pinned.end()), expected);
}

}  // namespace
}  // namespace pagoda
