// What is forecast of a step: that a run in coarser pieces needs, moves and takes what it does in
// fine ones; that a brief run needs as much memory; that no part of a machine does more than it
// can.
#include "plan/forecast/step_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "plan/step/steady_run.h"
#include "tests/testing/plan/random_plan.h"

namespace pagoda {
namespace {

constexpr CoarseLimits kNone{1 << 30, 1 << 30, 1 << 30};

MachineSheet sheet() {
  MachineSheet m;
  m.device.kind = Processor::kGpu;
  m.device.memory = MemorySize::of_bytes(kGiB);
  m.device.peak_tflops = 1;
  m.device.gemm_tflops = 0.8;
  m.device.weight_gb_s = 40;
  m.device.attention_tflops = 0.5;
  m.device.memory_gb_s = 50;
  m.device.launch_us = 1;
  m.host.cores = 4;
  m.host.copy_gb_s = 10;
  m.host.checksum_gb_s = 10;
  m.host.adam_gb_s = 20;
  m.disk.read_gb_s = 3;
  m.disk.write_gb_s = 2;
  return m;
}

// Layers of many experts, whose records follow from its widths.
ModelShape model(int64_t layers, int64_t experts, bool dense_first = false) {
  ModelShape m;
  m.vocab_size = 512;
  m.hidden_size = 64;
  m.is_moe.assign(static_cast<size_t>(layers), 1);
  m.is_moe[0] = !dense_first;
  m.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16, .value_head_dim = 16};
  m.dense_ffn = 256;
  m.num_experts = experts;
  m.experts_per_token = 4;
  m.expert_ffn = 64;
  return m;
}

RunShape shape_of(const ModelShape& m, int64_t microbatches) {
  RunShape shape;
  shape.num_layers = m.num_layers();
  shape.is_moe = m.is_moe;
  shape.num_experts = m.num_experts;
  shape.hidden_size = m.hidden_size;
  shape.experts_per_token = m.experts_per_token;
  shape.records.push_back({m.vocab_size * m.hidden_size});
  for (int64_t l = 0; l < m.num_layers(); ++l) {
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({layer_parameters(m, l).replicated(), l});
    for (int64_t e = 0; e < (m.is_moe[l] ? m.num_experts : 0); ++e) {
      shape.records.push_back({layer_parameters(m, l).expert, l, e});
    }
  }
  shape.records.push_back({m.vocab_size * m.hidden_size + m.hidden_size});
  for (RecordShape& r : shape.records) r.state_bytes = 10 * r.num_elements;
  shape.microbatches = microbatches;
  shape.microbatch_tokens = 512;
  shape.row_block = 64;
  return shape;
}

// Experts go round the devices, and each attends to as many microbatches.
RunShape on_devices(RunShape shape, int devices) {
  shape.devices = devices;
  shape.sums.shards = devices;
  for (int d = 0; d < devices; ++d) shape.shard_device.push_back(d);
  for (RecordShape& r : shape.records) {
    if (r.expert >= 0) r.device = static_cast<int>(r.expert % devices);
  }
  shape.group_blocks = 4;
  return shape;
}

PlannedRun run_of(const RunShape& shape, double device_share, double host_share) {
  PlannedRun run;
  run.shape = shape;
  run.header_bytes = 4096;
  run.sequence_len = 256;
  run.budget.fixed_bytes.assign(static_cast<size_t>(shape.devices), 1 << 20);
  double bytes = 0;
  for (const RecordShape& r : shape.records) bytes += 14.0 * static_cast<double>(r.num_elements);
  const LeastMemory least = least_memory(run);
  run.budget.device_bytes = least.device_bytes + static_cast<int64_t>(device_share * bytes);
  run.budget.host_bytes = least.host_bytes + static_cast<int64_t>(host_share * bytes);
  return run;
}

TEST(CoarseRun, HasTheSameParametersInFewerRecords) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const RunShape fine = random_shape(random, 1);
    EXPECT_EQ(coarseness(fine, kNone), Coarseness());
    const Coarseness c = coarseness(fine, {1, 1, 1});
    const RunShape coarse = coarse_shape(fine, c);
    const auto sum = [](const RunShape& shape, auto member) {
      int64_t all = 0;
      for (const RecordShape& r : shape.records) all += r.*member;
      return all;
    };
    EXPECT_EQ(sum(coarse, &RecordShape::num_elements), sum(fine, &RecordShape::num_elements));
    EXPECT_EQ(sum(coarse, &RecordShape::state_bytes), sum(fine, &RecordShape::state_bytes));
    const SumShape& sums = fine.sums;  // an expert keeps those by shards
    EXPECT_EQ(coarse.microbatches, sums.expert_shards > 1 ? sums.chunks * sums.shards : 1);
    EXPECT_EQ(coarse.microbatches * coarse.microbatch_tokens,
              fine.microbatches * fine.microbatch_tokens);
    EXPECT_EQ(fine.num_experts, coarse.num_experts * c.experts);
    EXPECT_GE(coarse.num_experts, std::min<int64_t>(4, fine.num_experts));
    for (int64_t l = 0; l < fine.num_layers; ++l) {
      const RecordShape& dense = coarse.records[coarse.layer_record[l]];
      EXPECT_EQ(dense.layer, l);
      EXPECT_EQ(dense.expert, -1);
      for (int64_t e = 0; e < (fine.is_moe[l] ? coarse.num_experts : 0); ++e) {
        EXPECT_EQ(coarse.records[coarse.expert(l, e)].expert, e);
      }
    }
    // In-layer pages hold the router's probabilities of all experts, coarse or not.
    const PageTable a(fine), b(coarse);
    const auto layer_buffers = [](const PageTable& pages) {
      int64_t bytes = 0;
      for (const PageTable::Class& cl : pages.classes) {
        bytes += cl.kind == PageKind::kLayerBuffer ? cl.total_bytes() : 0;
      }
      return bytes;
    };
    EXPECT_NEAR(static_cast<double>(layer_buffers(a)), static_cast<double>(layer_buffers(b)),
                3.0 * 4096 * static_cast<double>(fine.microbatches));
  }
}

// Even experts of two copies on two devices each have the seats 0 and 2 and their home at 0, odd
// ones 1, 3 and 3: eight of each, of which four are taken together, as four experts are left.
TEST(CoarseRun, TakesExpertsTogetherThatHaveTheSameSeats) {
  RunShape fine = on_devices(shape_of(model(2, 16), 8), 4);
  fine.sums.expert_shards = 4;
  divide_into_copies(2, fine);
  const Coarseness c = coarseness(fine, {1, 1 << 20, 1 << 20});
  EXPECT_EQ(c.experts, 4);
  const RunShape coarse = coarse_shape(fine, c);
  ASSERT_EQ(coarse.copies.seats.size(), 2u);
  for (int64_t l = 0; l < 2; ++l) {
    for (int64_t e = 0; e < 4; ++e) {
      const int64_t record = coarse.expert(l, e);
      const int odd = static_cast<int>(e % 2);
      EXPECT_EQ(coarse.records[static_cast<size_t>(record)].expert, e);
      EXPECT_EQ(coarse.records[static_cast<size_t>(record)].device, 3 * odd);
      EXPECT_EQ(coarse.seat_of(record, 0), odd);
      EXPECT_EQ(coarse.seat_of(record, 1), 2 + odd);
    }
  }
  // Blocks are of a cell: 8 x 512 x 4 / 16 rows of an expert in four, of 256, so four blocks of 64.
  EXPECT_EQ(coarseness(fine, {1 << 20, 1 << 20, 1}).blocks, 4);
}

// The run with all of its layers so many times, one after the other.
RunShape repeated(const RunShape& shape, int64_t times, PipelineOrder order) {
  RunShape longer = shape;
  longer.is_moe.clear();
  longer.layer_record.clear();
  longer.num_layers = times * shape.num_layers;
  longer.records = {shape.records.front()};
  for (int64_t i = 0; i < times; ++i) {
    for (const RecordShape& of : shape.records) {
      if (of.layer < 0) continue;
      if (of.expert < 0) {
        longer.layer_record.push_back(std::ssize(longer.records));
        longer.is_moe.push_back(shape.is_moe[of.layer]);
      }
      longer.records.push_back(of);
      longer.records.back().layer += i * shape.num_layers;
    }
  }
  longer.records.push_back(shape.records.back());
  longer.stages =
      divide_into_stages(shape.stages.count, order, longer.num_layers, shape.devices);
  for (RecordShape& record : longer.records) {  // at home in their stages
    if (record.layer < 0) continue;
    const int stage = longer.stage_of(record.layer);
    const DeviceRange own = devices_of_stage(stage, shape.stages.count, shape.devices);
    const std::vector<int> attending = longer.attending_devices(stage);
    const auto at = static_cast<size_t>(longer.stages.ordinal(record.layer));
    record.device = record.expert < 0 ? attending[at % attending.size()]
                                      : own.first + static_cast<int>(record.expert % own.count);
  }
  const std::vector<int> last = longer.attending_devices(longer.stage_of(longer.num_layers));
  longer.records.back().device = last[longer.tied_embeddings ? 0 : 1 % last.size()];
  return longer;
}

RunShape random_run(std::mt19937& random, uint64_t copies_in) {
  const auto order = static_cast<PipelineOrder>(random() % 3);
  const int devices = 1 + static_cast<int>(random() % 5);
  const int stages = random() % 2 == 0 ? 1 : 2;
  RunShape shape = random_shape(random, devices, {.most = stages, .order = order});
  shape = repeated(shape, 1 + random() % 5, order);
  if (devices > 1 && random() % 2 == 0) {
    divide_into_ranks(random, 1 + static_cast<int>(random() % std::min(3, devices)), shape);
  }
  const bool divides = shape.sums.shards > 1 && devices / shape.stages.count > 1;
  if (divides && random() % copies_in == 0) {
    shape.sums.expert_shards = shape.sums.shards;
    divide_into_copies(2, shape);
  }
  return shape;
}

// Runs of ranks that have fewer layers.
struct CutRuns {
  int64_t all = 0, of_stages = 0, of_copies = 0;
};

// The brief run of each rank needs as much as the run.
void expect_brief_needs(RunShape shape, CutRuns& cut) {
  PlannedRun run;
  run.header_bytes = 4096;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    shape.rank = rank;
    run.shape = shape;
    run.budget.fixed_bytes.assign(static_cast<size_t>(shape.own_devices().count), 0);
    const LeastSlots whole = least_slots(shape, PageTable(shape), 4096);
    const LeastMemory least = least_memory(run);
    EXPECT_EQ(least.on_device, whole.device_bytes);
    EXPECT_EQ(least.device_bytes,
              *std::max_element(whole.device_bytes.begin(), whole.device_bytes.end()));
    EXPECT_EQ(least.host_bytes, whole.host_bytes);
    const bool fewer = brief_shape(shape).num_layers < shape.num_layers;
    cut.all += fewer;
    cut.of_stages += fewer && shape.stages.several();
    cut.of_copies += fewer && shape.copies.several();
  }
}

// Whatever the layers, stages, copies, chunks, devices and ranks.
TEST(CoarseRun, BriefOnesOfManyLayersNeedAsMuchMemory) {
  CutRuns cut;
  for (uint32_t seed = 1; seed <= 640; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    expect_brief_needs(random_run(random, 2), cut);
  }
  EXPECT_GT(cut.all, 50);
  EXPECT_GT(cut.of_stages, 10);
  EXPECT_GT(cut.of_copies, 5);
}

// A rank with one shard has buffers of several microbatches all the same.
TEST(CoarseRun, BriefOnesOfOneShardPassTwoMicrobatches) {
  CutRuns cut;
  for (const int64_t microbatches : {2, 4, 6}) {
    SCOPED_TRACE(testing::Message() << microbatches << " microbatches");
    RunShape shape = on_devices(shape_of(model(3, 8), microbatches), 2);
    shape.device_rank = {0, 1};
    expect_brief_needs(std::move(shape), cut);
  }
}

// So do those of four chunks in zebra's order, whose rows stay on their devices: each has them of
// its own stage's layers.
TEST(CoarseRun, BriefOnesOfZebraKeepAsManyRows) {
  CutRuns cut;
  for (uint32_t seed = 1; seed <= 320; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    RunShape shape = random_run(random, 1);
    shape.zebra = true;
    shape.sums.chunks = 4;
    shape.microbatches = 4 * shape.sums.shards;
    shape.kept_rows = seed % 3 == 0 ? 0 : 1 + static_cast<int64_t>(random() % 500);
    for (RecordShape& record : shape.records) record.shared_elements = 0;  // all layers are alike
    expect_brief_needs(std::move(shape), cut);
  }
  EXPECT_GT(cut.all, 50);
  EXPECT_GT(cut.of_stages, 10);
  EXPECT_GT(cut.of_copies, 5);
}

// Whatever the number of layers, microbatches and devices.
TEST(CoarseRun, BriefOnesNeedAsMuchMemory) {
  for (uint32_t seed = 1; seed <= 240; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    PlannedRun run;
    run.shape = random_shape(random, 1 + static_cast<int>(random() % 3));
    run.shape.options.whole_layers = random() % 4 == 0;
    run.shape.options.padded_experts = random() % 4 == 0;
    run.shape.eager_adam = random() % 2 == 0;
    run.header_bytes = 4096;
    run.budget.fixed_bytes.assign(static_cast<size_t>(run.shape.devices), 0);
    run.budget.device_bytes = run.budget.host_bytes = kGiB;
    const MemoryPlan whole =
        plan_memory(run.shape, PageTable(run.shape), run.budget, 4096).take();
    const LeastMemory least = least_memory(run);
    EXPECT_EQ(least.on_device, whole.min_on_device);
    EXPECT_EQ(least.device_bytes, whole.min_device_bytes);
    EXPECT_EQ(least.host_bytes, whole.min_host_bytes);
  }
}

// Fine ones are exact: the slots and bytes of a plan, and of a settled run.
TEST(StepForecast, OfASmallRunIsItsPlan) {
  for (const double device : {0.02, 0.2, 2.0}) {
    for (const double host : {0.05, 0.4, 2.0}) {
      SCOPED_TRACE(testing::Message() << device << " " << host);
      const ModelShape m = model(3, 8, true);
      const PlannedRun run = run_of(shape_of(m, 3), device, host);
      auto forecast = forecast_step(run, m, sheet(), kFinePlan);
      ASSERT_TRUE(forecast.ok()) << forecast.status().message();
      EXPECT_EQ(forecast->coarseness, Coarseness());
      const PageTable pages(run.shape);
      const MemoryPlan memory = plan_memory(run.shape, pages, run.budget, 4096).take();
      EXPECT_EQ(forecast->least.device_bytes, memory.min_device_bytes);
      EXPECT_EQ(forecast->least.host_bytes, memory.min_host_bytes);
      EXPECT_EQ(forecast->device_bytes, memory.device_slot_bytes[0] + (1 << 20));
      EXPECT_EQ(forecast->host_bytes, memory.host_slot_bytes);
      EXPECT_EQ(forecast->whole_device_bytes, memory.whole_device_bytes);
      const StepPlan plan(run.shape, pages, {.state_on_device = memory.state_on_device});
      EXPECT_EQ(forecast->traffic, steady_step(plan, memory.classes));
      EXPECT_LE(forecast->device_peak.device_bytes, memory.device_slot_bytes[0]);
      EXPECT_LE(forecast->host_peak.host_bytes, memory.host_slot_bytes);
    }
  }
}

// Takes the 64 experts of a layer one by one and together. The times agree within a tenth, and the
// drive's bytes within what lent memory can save: three for each byte (host division: a page of
// weights is read in the backward, and read and written by the next update), and one more for bytes
// that are read once.
TEST(StepForecast, OfCoarsePiecesIsThatOfFineOnes) {
  struct Limits {
    const char* name;
    CoarseLimits limits;
  };
  const Limits all[] = {{"blocks", {1 << 20, 1 << 20, 1}},
                        {"microbatches", {1 << 20, 2, 1 << 20}},
                        {"2 experts", {4 * 32, 1 << 20, 1 << 20}},
                        {"4 experts and all", {4 * 16, 4, 1}}};
  for (const double device : {0.1, 0.3}) {
    for (const double host : {0.1, 0.5, 2.0}) {
      const ModelShape m = model(4, 64);
      const PlannedRun run = run_of(shape_of(m, 8), device, host);
      auto fine = forecast_step(run, m, sheet(), kNone);
      ASSERT_TRUE(fine.ok()) << fine.status().message();
      for (const Limits& l : all) {
        auto coarse = forecast_step(run, m, sheet(), l.limits);
        ASSERT_TRUE(coarse.ok()) << coarse.status().message();
        if (device > 0.2) {
          EXPECT_NE(coarse->coarseness, Coarseness()) << l.name;
        }
        const double time = coarse->step_s() / fine->step_s() - 1;
        const auto bytes = [](const StepForecast& f) {
          return static_cast<double>(f.traffic.fetch.bytes + f.traffic.write_back.bytes);
        };
        PlannedRun lent = run;
        lent.shape = coarse_shape(run.shape, coarse->coarseness);
        const LeastMemory more = least_memory(lent);
        const auto most = static_cast<double>(
            4 * (more.device_bytes - fine->least.device_bytes + more.host_bytes -
                 fine->least.host_bytes));
        const double disk = bytes(*coarse) - bytes(*fine);
        std::printf("device %.2f host %.2f %-18s time %+.3f, disk %+.2f MB of %.2f (bound %.2f), "
                    "upload %+.3f\n",
                    device, host, l.name, time, disk * 1e-6, bytes(*fine) * 1e-6, most * 1e-6,
                    static_cast<double>(coarse->traffic.upload.bytes) /
                            static_cast<double>(fine->traffic.upload.bytes) - 1);
        EXPECT_LE(std::abs(time), 0.1) << l.name;
        EXPECT_LE(std::abs(disk), most) << l.name;
        EXPECT_EQ(coarse->least.device_bytes, fine->least.device_bytes);
      }
    }
  }
}

// The same for several devices, whose experts that are taken together have one home, also in
// copies. The coarsest have four waves a layer, of which one's exchange is not hidden: times agree
// within a sixth.
TEST(StepForecast, OfCoarsePiecesIsThatOfFineOnesOnSeveralDevices) {
  const CoarseLimits all[] = {
      {1 << 20, 4, 1 << 20}, {4 * 32, 1 << 20, 1 << 20}, {4 * 16, 4, 64}};
  MachineSheet box = sheet();
  box.link.gb_s = 5;
  box.link.latency_us = 5;
  for (const auto& [devices, copies] : {std::pair(2, 1), std::pair(4, 1), std::pair(4, 2)}) {
    for (const double host : {0.1, 2.0}) {
      box.device.count = devices;
      const ModelShape m = model(4, 64);
      RunShape shape = on_devices(shape_of(m, 8), devices);
      if (copies > 1) {
        shape.sums.expert_shards = devices;
        divide_into_copies(copies, shape);
      }
      const PlannedRun run = run_of(shape, 0.1, host);
      auto fine = forecast_step(run, m, box, kNone);
      ASSERT_TRUE(fine.ok()) << fine.status().message();
      EXPECT_EQ(fine->coarseness, Coarseness());
      ASSERT_EQ(fine->device_busy_s.size(), static_cast<size_t>(devices));
      EXPECT_GT(fine->busy_s(Resource::kLinks), 0);
      for (const CoarseLimits& limits : all) {
        auto coarse = forecast_step(run, m, box, limits);
        ASSERT_TRUE(coarse.ok()) << coarse.status().message();
        EXPECT_NE(coarse->coarseness, Coarseness());
        const double time = coarse->step_s() / fine->step_s() - 1;
        std::printf(
            "%d devices, %d copies, host %.1f, %lld experts %lld microbatches %lld blocks: "
            "time %+.3f, links %+.3f\n",
            devices, copies, host, (long long)coarse->coarseness.experts,
            (long long)coarse->coarseness.microbatches, (long long)coarse->coarseness.blocks, time,
            coarse->busy_s(Resource::kLinks) / fine->busy_s(Resource::kLinks) - 1);
        EXPECT_LE(std::abs(time), 1.0 / 6);
        EXPECT_EQ(coarse->least.device_bytes, fine->least.device_bytes);
      }
    }
  }
}

// Two stages of two devices each, through which four chunks go: a group has a chunk's rows, also of
// coarse blocks.
TEST(StepForecast, OfCoarseBlocksIsThatOfFineOnesByChunks) {
  const ModelShape m = model(4, 16);
  RunShape shape = on_devices(shape_of(m, 16), 4);
  shape.stages = divide_into_stages(2, PipelineOrder::kBreadthFirst, 4, 4);
  shape.sums = {4, 2, 1};
  for (RecordShape& r : shape.records) {
    const int stage = shape.stage_of(r.layer);
    r.device = 2 * stage + static_cast<int>(r.expert > 0 ? r.expert % 2 : 0);
  }
  shape.records.back().device = 2 * shape.stage_of(4);
  shape.group_blocks = 16;
  MachineSheet box = sheet();
  box.device.count = 4;
  box.link.gb_s = 5;
  box.link.latency_us = 5;
  const PlannedRun run = run_of(shape, 2.0, 2.0);
  auto fine = forecast_step(run, m, box, kNone);
  ASSERT_TRUE(fine.ok()) << fine.status().message();
  auto coarse = forecast_step(run, m, box, {1 << 20, 1 << 20, 1});
  ASSERT_TRUE(coarse.ok()) << coarse.status().message();
  EXPECT_EQ(coarse->coarseness.blocks, 8);  // of 512 x 16 x 4 / 16 = 2,048 rows a fourth
  std::printf("by chunks: fine %.5f s, coarse %.5f s\n", fine->step_s(), coarse->step_s());
  EXPECT_NEAR(coarse->step_s(), fine->step_s(), 0.1 * fine->step_s());
}

TEST(StepForecast, NoPartDoesMoreThanItCan) {
  for (const double device : {0.02, 0.3, 2.0}) {
    const ModelShape m = model(3, 16);
    MachineSheet cpu = sheet();
    cpu.device.kind = Processor::kCpu;
    for (const MachineSheet& machine : {sheet(), cpu}) {
      auto f = forecast_step(run_of(shape_of(m, 2), device, 0.2), m, machine, kFinePlan);
      ASSERT_TRUE(f.ok());
      EXPECT_NEAR(f->step_s(), f->simulated.step_s.back(), 1e-9);
      for (const PhaseForecast& phase : {f->forward, f->backward}) {
        EXPECT_GT(phase.seconds, 0);
        for (const double busy_s : phase.busy_s) EXPECT_LE(busy_s, phase.seconds * (1 + 1e-9));
      }
      EXPECT_GT(f->busy_s(Resource::kCompute), 0);
      EXPECT_LE(f->busy_s(f->bottleneck()), f->step_s());
    }
  }
}

// A part that is twice as fast never makes a step of the same tasks slower by more than the order
// of what shares a resource can.
TEST(StepForecast, FasterPartsHelp) {
  const ModelShape m = model(3, 16);
  const PlannedRun run = run_of(shape_of(m, 2), 0.05, 0.1);
  const double before = forecast_step(run, m, sheet(), kFinePlan)->step_s();
  const auto with = [&](auto change) {
    MachineSheet faster = sheet();
    change(faster);
    return forecast_step(run, m, faster, kFinePlan)->step_s();
  };
  EXPECT_LT(with([](MachineSheet& s) { s.disk.read_gb_s *= 2, s.disk.write_gb_s *= 2; }), before);
  EXPECT_LE(with([](MachineSheet& s) { s.host.copy_gb_s *= 2; }), before * 1.0001);
  EXPECT_LE(with([](MachineSheet& s) { s.device.gemm_tflops *= 2; }), before * 1.0001);
  EXPECT_LE(with([](MachineSheet& s) { s.disk.drives = 2; }), before * 0.99);
}

TEST(StepForecast, SaysWhatDoesNotFit) {
  const ModelShape m = model(3, 16);
  PlannedRun run = run_of(shape_of(m, 2), 0, 0);
  EXPECT_TRUE(forecast_step(run, m, sheet(), kFinePlan).ok());
  run.budget.device_bytes += -1;
  EXPECT_EQ(forecast_step(run, m, sheet(), kFinePlan).status().code(), Exit::kDeviceMemory);
  run.budget.device_bytes += 1;
  --run.budget.host_bytes;
  EXPECT_EQ(forecast_step(run, m, sheet(), kFinePlan).status().code(), Exit::kHostMemory);
}

}  // namespace
}  // namespace pagoda
