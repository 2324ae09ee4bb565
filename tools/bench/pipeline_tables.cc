// Pipelines of stages, executed on slowed CPU devices (parallel.layout = "pipeline"). Not
// installed.
//
//   pipeline_tables [DIR] [--only idle,four,equal,flight,memory,paged] [--steps N] [--tiny]
//                                       pages go to a new folder in DIR, removed at the end
//
//   idle   each order with 1 to 16 chunks: a step beside the recurrence of pipeline schedules with
//          the forward and backward that each stage was measured to take for each chunk, and how
//          long stages idle in both, a stage on average. Beside it what equal stages would (Piper
//          II-C: (PP - 1) / (M + PP - 1) of a step). Idle is what is no stage's forward or
//          backward: where it waits for others, the beginning of a step and its end. `within` is
//          what the stages' streams wait within these, of a step, for routing to be read back, rows
//          to be indexed or weights to be updated; `end`, what the last stage's end is before the
//          step's, whose gradients' norm is taken then. `well`: idle takes at most 1.10 times as
//          long as by the recurrence, or 2 % of a step longer. The recurrence of breadth first is
//          GPipe's, which takes a stage's layers one behind the other; with layers dealt in turns,
//          later stages begin sooner.
//   four   the same of four stages of a smaller model
//   equal  the same of two stages without a head worth mentioning, which are as good as equal;
//          `well`: as long as by the formula instead
//   flight chunks that each stage had in flight at once in a step, by its trace, beside those of
//          the schedule
//   memory of each stage, in each order: most bytes of pages in its device's slots, planned with
//          even routing, and as the pager counted them when it took the slots; and what part of
//          GPipe's the first stage has in 1F1B, which keeps activations of fewer chunks
//   paged  the orders with equal small budgets: seconds and bytes read and written in a step
//
// --tiny shows in seconds that the program works; its figures say nothing.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/testing/plan/chunks_in_flight.h"
#include "tests/testing/plan/pipeline_recurrence.h"
#include "tools/bench/measured_run.h"

namespace pagoda {
namespace {

constexpr Throttle kSlow{8, 8};

// What is trained in stages, of a device each.
struct Staged {
  int stages = 2;
  int64_t layers = 4, hidden_size = 256, vocabulary = 512;
  Throttle slowed = kSlow;
  int64_t experts_per_token = 2, expert_width = 2;  // width: hidden units over the hidden size
  int64_t experts = 16;
};

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

RandomModel model_of(const Setting& setting, const Staged& staged) {
  const int64_t d = setting.tiny ? 64 : staged.hidden_size;
  return {.layers = staged.layers,
          .hidden_size = d,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = d / 8,
          .experts = staged.experts,
          .experts_per_token = staged.experts_per_token,
          .expert_size = staged.expert_width * d,
          .vocab_size = staged.vocabulary,
          .initializer_range = 0.02};
}

HfFolder random_model(const Setting& setting, const std::string& name, const Staged& staged) {
  const std::string folder = setting.directory + "/" + name;
  CHECK(std::filesystem::create_directory(folder), "%s exists", folder.c_str());
  return make_random_model(folder, model_of(setting, staged));
}

SessionOptions options_of(Setting& setting, const Staged& staged, PipelineOrder order,
                          int64_t chunks, int64_t row_tokens) {
  SessionOptions options = roomy_options(
      setting.directory + "/store", strf("run-%d", ++setting.files), chunks, row_tokens, false);
  options.optimizer_threads = 1;
  options.devices.assign(static_cast<size_t>(staged.stages), DeviceSetup{1, staged.slowed});
  options.size.sums.chunks = chunks;
  options.stages = staged.stages;
  options.pipeline_order = order;
  options.size.pages_expert_sums = options.size.sums.pages_expert_sums(staged.stages > 1);
  options.deal_attention(staged.stages);
  return options;
}

// Seconds of steps, added up; those of stages are a stage's on average.
struct Idle {
  double step_s = 0, least_s = 0;  // least: by the recurrence
  double works_s = 0;              // a stage's forwards and backwards
  double within_s = 0, end_s = 0;  // as above

  double idle() const { return (step_s - works_s) / step_s; }  // parts of a step
  double least_idle() const { return (least_s - works_s) / step_s; }
  bool well(double should) const { return idle() <= 1.10 * should || idle() <= should + 0.02; }
};

// Adds a step of the timing. Weights are updated before their first forward, and what a stage does
// for that belongs to it.
void add_step(const MeasuredRun& run, PipelineOrder order, size_t step, Idle& idle) {
  const RunShape& shape = run.session().shape();
  const MeasuredRun::StepEnd& end = run.step_ends()[step];
  std::vector<std::vector<StageSeconds>> parts(end.devices.size());
  int64_t last_us = 0;
  for (size_t d = 0; d < parts.size(); ++d) {
    const auto seconds = [&](int64_t chunk, Phase phase, double TaskTimes::OfRound::*of) {
      const auto at = [&](size_t s) {
        const TaskTimes::OfDevice& device = run.step_ends()[s].devices[d];
        return device.rounds[static_cast<size_t>(chunk)][static_cast<size_t>(phase)].*of;
      };
      return step == 0 ? at(0) : at(step) - at(step - 1);
    };
    const auto both = [&](int64_t chunk, Phase phase) {
      const double between_s = seconds(chunk, phase, &TaskTimes::OfRound::between_s);
      idle.within_s += between_s / static_cast<double>(parts.size());
      return seconds(chunk, phase, &TaskTimes::OfRound::tasks_s) + between_s;
    };
    for (int64_t chunk = 0; chunk < shape.sums.chunks; ++chunk) {
      const double updates_s = both(chunk, Phase::kOptimize);
      parts[d].push_back({updates_s + both(chunk, Phase::kForward), both(chunk, Phase::kBackward)});
      const StageSeconds& part = parts[d].back();
      idle.works_s += (part.forward_s + part.backward_s) / static_cast<double>(parts.size());
    }
    last_us = std::max(last_us, end.devices[d].end_us);
  }
  const bool alternates = order == PipelineOrder::kOneForwardOneBackward;
  const std::vector<double> ends_s = pipeline_ends_s(
      alternates ? PipelineOrder::kOneForwardOneBackward : PipelineOrder::kGpipe, parts);
  idle.least_s += *std::max_element(ends_s.begin(), ends_s.end());
  idle.step_s += run.step_seconds()[step];
  idle.end_s += 1e-6 * static_cast<double>(end.at_us - last_us);
}

// `equal`: idle is held against the formula.
void idle(Setting& setting, const char* name, Staged staged, std::vector<int64_t> chunks,
          bool equal) {
  if (setting.tiny) {
    staged.layers = staged.stages;
    chunks.resize(1);
  }
  const HfFolder folder = random_model(setting, name, staged);
  std::printf(
      "\nIdle: %d stages of cpu/%.0f, %lld layers, hidden size %lld, vocabulary of %lld\n"
      "  order          chunks   s/step  recurrence  idle %%  recurrence %%  formula %%   ratio  "
      "%% more  within %%  end %%  well\n",
      staged.stages, staged.slowed.rest, (long long)staged.layers,
      (long long)model_of(setting, staged).hidden_size, (long long)staged.vocabulary);
  for (const int64_t m : chunks) {
    for (const Order& order : kOrders) {
      MeasuredRun run(folder, setting.storage.get(),
                      options_of(setting, staged, order.order, m, setting.tiny ? 16 : 128));
      run.measure(setting.steps);
      Idle found;
      for (size_t step = 0; step < run.step_ends().size(); ++step) {
        add_step(run, order.order, step, found);
      }
      const double formula =
          static_cast<double>(staged.stages - 1) / static_cast<double>(m + staged.stages - 1);
      const double should = equal ? formula : found.least_idle();
      std::printf(
          "  %-14s %6lld  %7.4f    %8.4f  %6.1f        %6.1f     %6.1f  %6.2f  %6.1f    %6.1f "
          "%6.1f   %s\n",
          order.name, (long long)m, found.step_s / setting.steps, found.least_s / setting.steps,
          100 * found.idle(), 100 * found.least_idle(), 100 * formula, found.idle() / should,
          100 * (found.idle() - should), 100 * found.within_s / found.step_s,
          100 * found.end_s / found.step_s, found.well(should) ? "yes" : "no");
      std::fflush(stdout);
    }
  }
}

// [stage] the most chunks in flight in a step that is taken.
std::vector<int64_t> executed_in_flight(const Setting& setting, const HfFolder& folder,
                                        SessionOptions options) {
  Trace trace;
  options.trace = &trace;
  RandomTokenRun run(folder, setting.storage.get(), options);
  std::mt19937 random(5);
  const StepBatch batch = random_batch(run.session(), random);
  trace.start();
  run.step(batch);
  run.session().executor().synchronize();
  trace.stop();
  const RunShape& shape = run.session().shape();
  std::vector<int64_t> most;
  for (int d = 0; d < shape.devices; ++d) {
    const Trace::Lane lane = trace.lane("streams", strf("compute %d", d));
    most.push_back(traced_in_flight(trace.spans(lane), shape.round_microbatches()));
  }
  return most;
}

void flight(Setting& setting, int stages, const std::vector<int64_t>& chunks) {
  const Staged staged{stages, 2 * stages, 64, 512, {1, 1}};
  const HfFolder folder = random_model(setting, strf("flight-%d", stages), staged);
  std::printf(
      "\nIn flight: %d stages, %lld layers, most chunks of each stage\n"
      "  order          chunks   executed   by schedule\n",
      stages, (long long)staged.layers);
  for (const int64_t m : chunks) {
    for (const Order& order : kOrders) {
      const std::vector<int64_t> executed = executed_in_flight(
          setting, folder, options_of(setting, staged, order.order, m, setting.tiny ? 16 : 64));
      std::vector<int64_t> expected;
      for (int s = 0; s < stages; ++s) {
        expected.push_back(chunks_in_flight(order.order, stages, s, m));
      }
      const auto text = [](const std::vector<int64_t>& all) {
        std::string of_stages;
        for (const int64_t n : all) of_stages += strf("%3lld", (long long)n);
        return of_stages;
      };
      std::printf("  %-14s %6lld  %s  %s   %s\n", order.name, (long long)m, text(executed).c_str(),
                  text(expected).c_str(), executed == expected ? "held" : "NOT HELD");
      std::fflush(stdout);
    }
  }
}

// Nothing pages: what is in slots is what a stage needs. Rows are long and experts few and small,
// so that activations decide it. A stage keeps two pages of a chunk for each of its four layers, of
// 512 tokens with 64 numbers and two choices each, 8 * 512 * (2 * 64 + 4 * 2) = 557,056 bytes, and
// the rows that experts read last, 86,016 bytes. GPipe keeps 16 chunks before the first backward;
// 1F1B keeps two on the first stage and one on the second. The gradients that all orders have at
// the end of a step are 0.9 MB of a stage. Each of eight experts has a row block in each chunk, so
// that every wave in flight has been there whatever the routing is.
void memory(Setting& setting) {
  const Staged staged{.layers = setting.tiny ? 2 : 8,
                      .hidden_size = 64,
                      .vocabulary = 257,
                      .slowed = {1, 1},
                      .expert_width = 1,
                      .experts = 8};
  const int64_t chunks = setting.tiny ? 2 : 16;
  const HfFolder folder = random_model(setting, "memory", staged);
  std::printf(
      "\nMemory: %d stages, %lld layers, %lld chunks, most bytes of pages on a device\n"
      "  order          stage       planned      executed\n",
      staged.stages, (long long)staged.layers, (long long)chunks);
  std::map<PipelineOrder, int64_t> of_first;  // executed on the first stage
  for (const Order& order : kOrders) {
    MeasuredRun run(folder, setting.storage.get(),
                    options_of(setting, staged, order.order, chunks, setting.tiny ? 16 : 512));
    run.measure(1);
    const EvenStep even = simulate_even(run.session(), MachineProfile());
    for (int d = 0; d < staged.stages; ++d) {
      const int64_t executed = run.session().pager().peak_bytes(Place::on_device(d));
      const int64_t planned = even.peak_on_device[static_cast<size_t>(d)];
      if (d == 0) of_first[order.order] = executed;
      std::printf("  %-14s %5d  %12lld  %12lld   %s\n", order.name, d, (long long)planned,
                  (long long)executed, planned == executed ? "held" : "NOT HELD");
    }
    std::fflush(stdout);
  }
  const auto gpipe = static_cast<double>(of_first[PipelineOrder::kGpipe]);
  std::printf("  1f1b has %.2f of gpipe's bytes on the first stage\n",
              static_cast<double>(of_first[PipelineOrder::kOneForwardOneBackward]) / gpipe);
}

// In budgets that are the least of an order: those which take a chunk through a stage at a time
// need more, as the sums of all of its layers wait side by side.
void paged(Setting& setting) {
  const Staged staged;
  const int64_t chunks = setting.tiny ? 2 : 8;
  const HfFolder folder = random_model(setting, "paged", staged);
  std::vector<MemoryPlan> least;
  for (const Order& order : kOrders) {
    least.push_back(
        need(Session::plan(folder.config(), options_of(setting, staged, order.order, chunks,
                                                       setting.tiny ? 16 : 64))));
  }
  const int64_t device =
      std::ranges::max(least, {}, &MemoryPlan::min_device_bytes).min_device_bytes;
  const int64_t host = std::ranges::max(least, {}, &MemoryPlan::min_host_bytes).min_host_bytes;
  const auto mb = [](int64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  std::printf(
      "\nPaged: %d stages of cpu/8, %lld layers, %lld chunks, %.1f MB on a device and %.1f in the "
      "host\n  order            s/step   MB read   MB written   least on a device, in the host\n",
      staged.stages, (long long)staged.layers, (long long)chunks, mb(device), mb(host));
  for (size_t i = 0; i < std::size(kOrders); ++i) {
    SessionOptions options =
        options_of(setting, staged, kOrders[i].order, chunks, setting.tiny ? 16 : 64);
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
  std::string directory = ".", only = "idle,four,equal,flight,memory,paged";
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
  const std::vector<int64_t> all_chunks = {1, 2, 4, 8, 16};
  if (only.find("idle") != std::string::npos) idle(setting, "idle", {}, all_chunks, false);
  if (only.find("four") != std::string::npos) {
    idle(setting, "four", {4, 8, 128, 512, {16, 16}}, {2, 8, 16}, false);
  }
  if (only.find("equal") != std::string::npos) {
    // The least vocabulary there is: a head is a fiftieth of a stage's products.
    const Staged headless{
        .hidden_size = 64, .vocabulary = 257, .experts_per_token = 8, .expert_width = 4};
    idle(setting, "equal", headless, all_chunks, true);
  }
  if (only.find("flight") != std::string::npos) {
    flight(setting, 2, all_chunks);
    flight(setting, 4, all_chunks);
  }
  if (only.find("memory") != std::string::npos) memory(setting);
  if (only.find("paged") != std::string::npos) paged(setting);
  setting.storage.reset();
  std::filesystem::remove_all(setting.directory);
}
