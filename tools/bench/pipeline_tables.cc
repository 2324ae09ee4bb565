// Pipelines of stages, executed on slowed CPU devices (parallel.layout = "pipeline"). Not
// installed.
//
//   pipeline_tables [DIR] [--only idle,memory,paged] [--steps N] [--tiny]
//                                       pages go to a new folder in DIR, removed at the end
//
//   idle   each order with 1 to 16 chunks: a step beside the recurrence of pipeline schedules with
//          the forward and backward that each stage was measured to take, and how long stages idle.
//          Beside it what equal stages would (Piper II-C: (PP - 1) / (M + PP - 1) of a step). The
//          recurrence of breadth first is GPipe's, which takes a stage's layers one behind the
//          other; with layers dealt in turns, later stages begin sooner.
//   memory of each stage, in each order: most bytes of pages in its device's slots, planned with
//          even routing, and as the pager counted them when it took the slots
//   paged  the orders with equal small budgets: seconds and bytes read and written in a step
//
// --tiny shows in seconds that the program works; its figures say nothing.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/testing/plan/pipeline_recurrence.h"
#include "tools/bench/measured_run.h"

namespace pagoda {
namespace {

constexpr Throttle kSlow{8, 8};

struct Setting {
  std::string directory;
  std::unique_ptr<Storage> storage;
  int steps = 3;
  bool tiny = false;
  int files = 0;
};

struct Order {
  const char* name;
  PipelineOrder order;
};
constexpr Order kOrders[] = {{"gpipe", PipelineOrder::kGpipe},
                             {"1f1b", PipelineOrder::kOneForwardOneBackward},
                             {"breadth first", PipelineOrder::kBreadthFirst}};

RandomModel model_of(const Setting& setting, int64_t layers) {
  const int64_t d = setting.tiny ? 64 : 256;
  return {.layers = layers,
          .hidden_size = d,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = d / 8,
          .experts = 16,
          .experts_per_token = 2,
          .expert_size = 2 * d,
          .vocab_size = 512,
          .initializer_range = 0.02};
}

HfFolder random_model(const Setting& setting, const std::string& name, int64_t layers) {
  const std::string folder = setting.directory + "/" + name;
  CHECK(std::filesystem::create_directory(folder), "%s exists", folder.c_str());
  return make_random_model(folder, model_of(setting, layers));
}

SessionOptions options_of(Setting& setting, int stages, PipelineOrder order, int64_t chunks,
                          int64_t row_tokens) {
  SessionOptions options = roomy_options(
      setting.directory + "/store", strf("run-%d", ++setting.files), chunks, row_tokens, false);
  options.optimizer_threads = 1;
  options.devices.assign(static_cast<size_t>(stages), DeviceSetup{1, kSlow});
  options.size.sums.chunks = chunks;
  options.stages = stages;
  options.pipeline_order = order;
  options.size.pages_expert_sums = options.size.sums.pages_expert_sums(stages > 1);
  options.deal_attention(stages);
  return options;
}

// The end of a step whose stages take what they were measured to take.
double recurrence_s(const MeasuredRun& run, const Order& order, int64_t chunks) {
  std::vector<StageSeconds> stages;
  const double passes = static_cast<double>(run.steps()) * static_cast<double>(chunks);
  for (int d = 0; d < run.session().shape().devices; ++d) {
    const auto& of = run.times().devices()[static_cast<size_t>(d)].phase_s;
    stages.push_back({of[static_cast<size_t>(Phase::kForward)] / passes,
                      of[static_cast<size_t>(Phase::kBackward)] / passes});
  }
  const bool alternates = order.order == PipelineOrder::kOneForwardOneBackward;
  const std::vector<double> ends_s = pipeline_ends_s(
      alternates ? PipelineOrder::kOneForwardOneBackward : PipelineOrder::kGpipe, stages, chunks);
  return *std::max_element(ends_s.begin(), ends_s.end());
}

void idle(Setting& setting) {
  const int stages = 2;
  const int64_t layers = setting.tiny ? 2 : 4;
  const HfFolder folder = random_model(setting, "idle", layers);
  std::printf(
      "\nIdle: %d stages of cpu/8, %lld layers\n"
      "  order          chunks   s/step  recurrence   ratio   idle %%  recurrence %%  formula %%\n",
      stages, (long long)layers);
  for (const int64_t chunks : {1, 2, 4, 8, 16}) {
    if (setting.tiny && chunks > 2) break;
    for (const Order& order : kOrders) {
      MeasuredRun run(folder, setting.storage.get(),
                      options_of(setting, stages, order.order, chunks, setting.tiny ? 16 : 128));
      run.measure(setting.steps);
      double busy_s = 0;
      for (const double of_stage : run.busy_s()) busy_s += of_stage / stages;
      const double end_s = recurrence_s(run, order, chunks);
      const auto m = static_cast<double>(chunks);
      std::printf("  %-14s %6lld  %7.4f    %8.4f  %6.3f   %6.1f        %6.1f     %6.1f\n",
                  order.name, (long long)chunks, run.step_s(), end_s, run.step_s() / end_s,
                  100 * (1 - busy_s / run.step_s()), 100 * (1 - busy_s / end_s),
                  100 * (stages - 1) / (m + stages - 1));
      std::fflush(stdout);
    }
  }
}

// Nothing pages: what is in slots is what a stage needs.
void memory(Setting& setting) {
  const int stages = 2;
  const int64_t layers = setting.tiny ? 2 : 8, chunks = setting.tiny ? 2 : 8;
  const HfFolder folder = random_model(setting, "memory", layers);
  std::printf(
      "\nMemory: %d stages, %lld layers, %lld chunks, most bytes of pages on a device\n"
      "  order          stage       planned      executed\n",
      stages, (long long)layers, (long long)chunks);
  for (const Order& order : kOrders) {
    MeasuredRun run(folder, setting.storage.get(),
                    options_of(setting, stages, order.order, chunks, setting.tiny ? 16 : 128));
    run.measure(1);
    const EvenStep even = simulate_even(run.session(), MachineProfile());
    for (int d = 0; d < stages; ++d) {
      const int64_t executed = run.session().pager().peak_bytes(Place::on_device(d));
      std::printf("  %-14s %5d  %12lld  %12lld\n", order.name, d,
                  (long long)even.peak_on_device[static_cast<size_t>(d)], (long long)executed);
    }
    std::fflush(stdout);
  }
}

// In budgets that are the least of an order: those which take a chunk through a stage at a time
// need more, as the sums of all of its layers wait side by side.
void paged(Setting& setting) {
  const int stages = 2;
  const int64_t layers = 4, chunks = setting.tiny ? 2 : 8;
  const HfFolder folder = random_model(setting, "paged", layers);
  std::vector<MemoryPlan> least;
  for (const Order& order : kOrders) {
    least.push_back(
        need(Session::plan(folder.config(), options_of(setting, stages, order.order, chunks,
                                                       setting.tiny ? 16 : 64))));
  }
  const int64_t device =
      std::ranges::max(least, {}, &MemoryPlan::min_device_bytes).min_device_bytes;
  const int64_t host = std::ranges::max(least, {}, &MemoryPlan::min_host_bytes).min_host_bytes;
  const auto mb = [](int64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  std::printf(
      "\nPaged: %d stages of cpu/8, %lld layers, %lld chunks, %.1f MB on a device and %.1f in the "
      "host\n  order            s/step   MB read   MB written   least on a device, in the host\n",
      stages, (long long)layers, (long long)chunks, mb(device), mb(host));
  for (size_t i = 0; i < std::size(kOrders); ++i) {
    SessionOptions options =
        options_of(setting, stages, kOrders[i].order, chunks, setting.tiny ? 16 : 64);
    options.device_bytes = device;
    options.host_bytes = host;
    MeasuredRun run(folder, setting.storage.get(), options);
    run.measure(setting.steps);
    std::printf("  %-14s %8.4f  %8.1f     %8.1f   %17.1f  %11.1f\n", kOrders[i].name, run.step_s(),
                mb(run.read_bytes()), mb(run.written_bytes()), mb(least[i].min_device_bytes),
                mb(least[i].min_host_bytes));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  using namespace pagoda;
  Setting setting;
  std::string directory = ".", only = "idle,memory,paged";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      setting.tiny = true;
      setting.steps = 1;
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
      setting.steps = std::max(1, std::atoi(argv[++i]));
    } else if (argv[i][0] != '-') {
      directory = argv[i];
    } else {
      std::fprintf(stderr, "usage: pipeline_tables [DIR] [--only TABLES] [--steps N] [--tiny]\n");
      return 2;
    }
  }
  setting.directory = directory + strf("/pipeline-tables-%d", static_cast<int>(getpid()));
  std::filesystem::create_directories(setting.directory);
  setting.storage = need(open_storage(IoKind::kAuto, setting.directory));
  if (only.find("idle") != std::string::npos) idle(setting);
  if (only.find("memory") != std::string::npos) memory(setting);
  if (only.find("paged") != std::string::npos) paged(setting);
  setting.storage.reset();
  std::filesystem::remove_all(setting.directory);
}
