// Prints what moving experts between processes brings and costs (train/work_balance.h), on routing
// that is imposed: skewed, drifting from one rank's experts to another's, and even. Each run is
// made with homes that stay and with homes that move, on devices of one speed. It fails if experts
// move though routing is even. Not installed.
//
//   mpirun -n RANKS moves_study [--tiny] [--slow S] [--steps N] [--every E]
//
// S: devices are cpu/S, so that RANKS / S of the machine's cores are busy (default: RANKS);
// E: parallel.migrate_steps. --tiny tries the program on a model of no size. Each process has a
// folder of its own under TMPDIR.
//
// Piper's formula is that of its Table IV: 48 d d_ffn bytes an expert (16 a parameter) over the
// rate of an all-to-all. Ours keeps weights and state in 12 bytes a parameter; both are over the
// rate that the run itself measured.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_link.h"
#include "tests/testing/tiny_run.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr double kFavour = 6;  // times the tokens of another expert

struct Settings {
  double slow = 0;
  int64_t steps = 64, every = 8;
  int64_t layers = 4, experts = 32, hidden = 128, ffn = 384;
  int64_t tokens = 1024, microbatch_tokens = 128;

  double expert_parameters() const { return 3.0 * static_cast<double>(hidden * ffn); }
};

// Devices that mostly sleep are of one speed also beside other work, and rows are so few that
// little more or less of them is chance.
constexpr Settings kTiny = {.slow = 8,
                            .steps = 6,
                            .every = 2,
                            .layers = 2,
                            .experts = 16,
                            .hidden = 32,
                            .ffn = 48,
                            .tokens = 128,
                            .microbatch_tokens = 32};

std::string model_of(const Settings& settings) {
  return strf(R"({"hidden_size": %lld, "num_hidden_layers": %lld, "num_attention_heads": 4,
      "head_dim": 32, "moe_intermediate_size": %lld, "num_experts": %lld, "mlp_only_layers": []})",
              (long long)settings.hidden, (long long)settings.layers, (long long)settings.ffn,
              (long long)settings.experts);
}

enum class Kind : uint8_t { kSkewed, kDrifting, kEven };

// How many times the tokens of another expert an expert has in a step: half of rank 0's are
// favoured, and with drift from the middle of the run on half of rank 1's, step by step over two
// intervals.
double favour(Kind kind, const Settings& settings, int64_t step, int64_t expert, int ranks) {
  const int64_t middle = settings.steps / 2;
  double drifted = static_cast<double>(step - middle) / static_cast<double>(2 * settings.every);
  drifted = kind == Kind::kDrifting ? std::clamp(drifted, 0.0, 1.0) : 0;
  if (kind == Kind::kEven || expert / ranks % 2 != 0 || expert % ranks > 1) return 1;
  const double part = expert % ranks == 0 ? 1 - drifted : drifted;
  return 1 + part * (kFavour - 1);
}

using Choices = std::vector<std::vector<int32_t>>;  // [layer] (N, k)

// The same on all ranks, in every run.
Choices choices_of(Kind kind, const Settings& settings, int64_t step, const RunShape& shape) {
  Choices choices(static_cast<size_t>(shape.num_layers));
  std::vector<double> weights;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    weights.push_back(favour(kind, settings, step, e, shape.ranks()));
  }
  for (size_t l = 0; l < choices.size(); ++l) {
    std::mt19937 random(static_cast<uint32_t>(1000 * step) + static_cast<uint32_t>(l));
    std::discrete_distribution<int32_t> expert(weights.begin(), weights.end());
    for (int64_t t = 0; t < shape.microbatches * shape.microbatch_tokens; ++t) {
      const auto first = std::ssize(choices[l]);
      while (std::ssize(choices[l]) < first + shape.experts_per_token) {
        const int32_t drawn = expert(random);
        const auto of_token = choices[l].begin() + first;
        if (std::find(of_token, choices[l].end(), drawn) == choices[l].end()) {
          choices[l].push_back(drawn);
        }
      }
    }
  }
  return choices;
}

struct Step {
  double step_s = 0, imbalance = 0;  // the busiest rank's rows over the mean
  Trainer::Moved moved;              // behind it
};

double imbalance_of(const RunShape& shape, const StepResult& result) {
  double busiest = 0, all = 0;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const std::vector<int64_t>& rows = result.tokens_per_expert[static_cast<size_t>(l)];
    std::vector<double> of_rank(static_cast<size_t>(shape.ranks()), 0);
    for (int64_t e = 0; e < std::ssize(rows); ++e) {
      of_rank[static_cast<size_t>(shape.home_rank(shape.expert(l, e)))] +=
          static_cast<double>(rows[static_cast<size_t>(e)]);
    }
    busiest += *std::max_element(of_rank.begin(), of_rank.end());
    for (const double rows_of : of_rank) all += rows_of;
  }
  return busiest * shape.ranks() / all;
}

Result<std::vector<Step>> run(const RunConfig& config, Kind kind, const Settings& settings,
                              RankGroup& ranks) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                   open_storage(IoKind::kThreads, config.train.output_dir));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::start(config, false, storage.get(), nullptr, &ranks));
  std::vector<Step> steps;
  while (trainer->steps_done() < settings.steps) {
    Session& session = trainer->session();
    const Choices choices = choices_of(kind, settings, trainer->steps_done(), session.shape());
    session.executor().impose_routing(&choices);
    RETURN_IF_ERROR(ranks.agree(Status()));
    const int64_t began_us = monotonic_us();
    ASSIGN_OR_RETURN(const StepResult result, trainer->step());
    Step& step = steps.emplace_back();
    step.step_s = 1e-6 * static_cast<double>(monotonic_us() - began_us);
    step.imbalance = imbalance_of(session.shape(), result);
    ASSIGN_OR_RETURN(step.moved, trainer->balance_homes());
  }
  return steps;
}

// The mean of [begin, end).
template <typename Value>
double mean(const std::vector<Step>& steps, size_t begin, size_t end, const Value& value) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += value(steps[i]);
  return sum / static_cast<double>(end - begin);
}

void print_runs(const char* name, const Settings& settings, const std::vector<Step>& stay,
                const std::vector<Step>& move) {
  std::printf(
      "\n%s\n  steps       imbalance      ms a step        moved behind it: experts     "
      "MB   ms; expected, Piper's\n              stay  move     stay    move\n",
      name);
  const auto every = static_cast<size_t>(settings.every);
  const auto step_ms = [](const Step& step) { return 1e3 * step.step_s; };
  const auto imbalance = [](const Step& step) { return step.imbalance; };
  for (size_t begin = 0; begin + every <= move.size(); begin += every) {
    const size_t end = begin + every;
    std::printf("  %3zu to %3zu  %5.2f %5.2f  %7.1f %7.1f", begin + 1, end,
                mean(stay, begin, end, imbalance), mean(move, begin, end, imbalance),
                mean(stay, begin, end, step_ms), mean(move, begin, end, step_ms));
    const Trainer::Moved& moved = move[end - 1].moved;
    const auto swaps = static_cast<double>(moved.moves.swaps.size());
    if (swaps > 0) {
      const double rate = static_cast<double>(moved.moves.bytes) / 2 / moved.moves.move_s;
      std::printf("  %24.0f  %7.2f  %6.1f; %6.1f, %6.1f", 2 * swaps,
                  1e-6 * static_cast<double>(moved.moves.bytes), 1e3 * moved.took_s,
                  1e3 * moved.moves.move_s, 1e3 * swaps * 16 * settings.expert_parameters() / rate);
    }
    std::printf("\n");
  }
  double saved_s = 0, moves_s = 0;
  int64_t first = -1, paid = -1;
  for (size_t i = 0; i < move.size(); ++i) {
    if (first >= 0) saved_s += stay[i].step_s - move[i].step_s;
    if (!move[i].moved.moves.swaps.empty()) {
      moves_s += move[i].moved.took_s;
      if (first < 0) first = static_cast<int64_t>(i) + 1;
      paid = -1;
    }
    if (first >= 0 && paid < 0 && saved_s >= moves_s) paid = static_cast<int64_t>(i) + 1;
  }
  if (first < 0) {
    std::printf("  nothing moved\n");
    return;
  }
  std::printf(
      "  moves took %.1f ms in all, %.2f %% of the steps, and steps behind the first took "
      "%.1f ms less; paid for good %s\n",
      1e3 * moves_s,
      100 * moves_s / mean(move, 0, move.size(), [](const Step& s) { return s.step_s; }) /
          static_cast<double>(move.size()),
      1e3 * saved_s, paid < 0 ? "never" : strf("at step %lld", (long long)paid).c_str());
}

// The same on all ranks.
bool has_moved(const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(),
                     [](const Step& step) { return !step.moved.moves.swaps.empty(); });
}

Status study(const Settings& settings, MpiCommunicator& all) {
  RankGroup ranks(&all,
                  [&](std::vector<LinkEnd> ends, Trace* trace) -> Result<std::unique_ptr<Link>> {
                    ASSIGN_OR_RETURN(std::unique_ptr<MpiLink> link,
                                     MpiLink::create(all, std::move(ends), 60, trace));
                    return std::unique_ptr<Link>(std::move(link));
                  });
  TinyRun tiny(DType::kBF16, tiny_with(model_of(settings).c_str()).c_str());
  RunConfig& config = tiny.config();
  const double slow = settings.slow > 0 ? settings.slow : all.size();
  config.train.devices = {strf("cpu/%g", slow)};
  config.train.threads = config.train.optimizer_threads = 1;
  config.train.tokens_per_step = settings.tokens;
  config.train.micro_batch_tokens = settings.microbatch_tokens;
  config.train.steps = settings.steps + 1;  // the last one decides nothing
  config.train.save_steps = 0;
  config.optim.schedule = ScheduleKind::kConstant;
  config.memory.device = config.memory.host = MemorySize::of_bytes(256 * kMiB);
  config.parallel.place = PlaceKind::kHome;
  if (all.rank() == 0) {
    std::printf(
        "%d ranks of cpu/%g, %lld layers of %lld experts of %lld x %lld, %lld tokens a step, "
        "looked at every %lld steps\n",
        all.size(), slow, (long long)settings.layers, (long long)settings.experts,
        (long long)settings.hidden, (long long)settings.ffn, (long long)settings.tokens,
        (long long)settings.every);
  }
  const std::pair<Kind, const char*> kinds[] = {
      {Kind::kSkewed, "skewed: half of rank 0's experts have six times the tokens of others"},
      {Kind::kDrifting, "drifting: from the middle on it becomes half of rank 1's"},
      {Kind::kEven, "even: experts alike"}};
  for (const auto& [kind, name] : kinds) {
    std::vector<Step> of[2];
    for (const bool moves : {false, true}) {
      tiny.new_run();
      config.parallel.migrate_steps = moves ? settings.every : 0;
      ASSIGN_OR_RETURN(of[moves], run(config, kind, settings, ranks));
    }
    if (all.rank() == 0) print_runs(name, settings, of[0], of[1]);
    std::fflush(stdout);
    if (kind == Kind::kEven && has_moved(of[1])) {
      return Status(Exit::kInternal, "experts moved, though routing is even");
    }
  }
  return Status();
}

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) settings = kTiny;
  }
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--slow") == 0) settings.slow = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--steps") == 0) settings.steps = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--every") == 0) settings.every = std::atoll(argv[i + 1]);
  }
  return settings;
}

int run_program(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  set_log_quiet(true);
  Result<std::unique_ptr<MpiCommunicator>> joined = join_processes(60);
  const Status ended = joined.ok() ? study(settings, *joined.value()) : joined.status();
  if (!ended.ok()) std::fprintf(stderr, "moves_study: %s\n", ended.message().c_str());
  return static_cast<int>(ended.code());
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_program(argc, argv); }
