// What a search prints for a run file is a run that trains, to the bits of one device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/run_file.h"
#include "preview/layout_search.h"
#include "tests/preview/published_configs.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

// The settings with those of a run file's text in their place.
RunConfig with_text(RunConfig config, const std::string& text) {
  const auto all = [](const Option&) { return true; };
  OptionTable table;
  config.declare(table);
  CLI::App app{"test"};
  add_option_flags(app, table, all);
  std::vector<std::string> no_flags;
  app.parse(no_flags);
  const Status loaded = load_run_file(app, table, "printed", text, all);
  CHECK(loaded.ok(), "%s", loaded.message().c_str());
  return config;
}

TEST(FoundLayout, ZebrasSectionTrainsTheBitsOfOneDevice) {
  constexpr int kMostTrained = 3;
  TinyRun run;
  RunConfig& config = run.config();
  config.data.sequence_len = config.train.micro_batch_tokens = 16;
  config.train.tokens_per_step = 12 * 16;
  config.train.steps = config.train.save_steps = 2;
  config.train.devices = {"cpu", "cpu/1:3", "cpu/1:3"};
  const ModelSizes model = read_model_sizes(config.model.path).take();
  ClusterSheet cluster;
  cluster.network.gb_s = 1;
  cluster.nodes = {machine("cpu-2-cores")};
  const LayoutSearch found = search_layouts(model, {&config, 1}, cluster, kCoarsePlan);
  int trained = 0;
  for (const SearchedLayout& layout : found.runs) {
    const RunConfig& planned = layout.configs.front();
    if (!planned.zebra() || trained == kMostTrained) continue;
    ++trained;
    const std::string section = layout.section({&config, 1});
    SCOPED_TRACE(section);
    run.new_run();
    const RunConfig printed = with_text(run.config(), section);
    EXPECT_TRUE(printed.zebra());
    EXPECT_EQ(printed.parallel.attention_devices, planned.parallel.attention_devices);
    EXPECT_EQ(printed.offloaded(), planned.offloaded());
    EXPECT_EQ(printed.lags(), planned.lags());
    EXPECT_EQ(printed.stages(), planned.stages());
    ASSERT_TRUE(printed.validate().ok()) << printed.validate().message();
    SimStorage of_zebra(1);
    const Outcome zebra = run_to_end(printed, &of_zebra);
    ASSERT_TRUE(zebra.status.ok()) << zebra.status.message();
    EXPECT_EQ(zebra.losses.size(), 2u);
    EXPECT_FALSE(zebra.sent_bytes.empty());
    run.new_run();
    RunConfig alone = run.config();
    alone.train.devices = {"cpu"};
    alone.train.micro_batch_tokens = printed.train.micro_batch_tokens;
    alone.train.chunks = printed.sums().chunks;
    alone.train.shards = printed.sums().shards;
    alone.train.expert_shards = printed.sums().expert_shards;
    SimStorage of_one(2);
    const Outcome one = run_to_end(alone, &of_one);
    ASSERT_TRUE(one.status.ok()) << one.status.message();
    EXPECT_EQ(zebra.sha256, one.sha256);
  }
  EXPECT_GT(trained, 0);
}

}  // namespace
}  // namespace pagoda
