// Prints what moving work between devices brings and costs (train/work_balance.h). Not installed.
//
//   mpirun -n RANKS moves_study [--tiny] [--slow S] [--steps N] [--every E] [--hidden H]
//       [--tokens T]
//   moves_study --slowed [--tiny] [--hidden H]
//
// Moving experts between processes, on routing that is imposed: skewed, drifting from one rank's
// experts to another's, and even, where experts are to stay. Each run is made with homes that stay
// and with homes that move, on devices of one speed. S: devices are cpu/S, so that RANKS / S of the
// machine's cores are busy (default: RANKS); E: parallel.migrate_steps; T: a step's tokens; H: the
// model's hidden size, experts' is three times as much. Experts must take most of a step, or
// nothing is won: where products are fast, H and T are to be larger.
//
// What a move takes stands beside what was expected of it, and beside Piper's Table IV: its busiest
// rank sends or receives 48 d d_ffn bytes an expert (16 a parameter; a run has 12, as gradients
// stay) at the rate of an all-to-all, which is measured before the runs, alone, with messages of
// that size. The verdict is by what moves took: the dearest one, over the steps until the next
// look, is to take less than 5 % of each.
//
// --slowed: moving tokens and rows within a process, by parallel.shares = "measured". One of two
// devices becomes three times as slow in the middle of a run, as by others' load: it is to have
// within 10 % of the share that is even then at most five steps later. It fails if losses, weights
// or states are not those of a run in which no device becomes slower.
//
// --tiny tries the program on a model of no size. Each process has a folder of its own under
// TMPDIR.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_link.h"
#include "plan/exchange/expert_migration.h"
#include "plan/machine/device_speeds.h"
#include "tests/testing/tiny_run.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr double kFavour = 6;  // times the tokens of another expert
constexpr int64_t kMicrobatches = 8;

struct Settings {
  bool slowed = false;
  double slow = 0;
  int64_t steps = 64, every = 8;
  int64_t layers = 4, experts = 32, hidden = 128, ffn = 384;
  int64_t tokens = 1024;
  // --slowed: a device becomes slower behind a step.
  int64_t slowed_at = 20, slowed_steps = 40, shards = 40;

  int64_t piper_bytes() const { return 48 * hidden * ffn; }  // of an expert
  // Holds half of all experts' states, and what a step takes: of a device, or of a host.
  MemorySize room() const {
    return MemorySize::of_bytes(64 * kMiB + 36 * hidden * ffn * layers * experts / 2);
  }
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
                            .tokens = 256,
                            .slowed_at = 4,
                            .slowed_steps = 12,
                            .shards = 16};

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
  MigrationCost piper;               // by Piper's formula
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

// The ranks of the experts of all layers.
ExpertDevices homes_of(const RunShape& shape) {
  ExpertDevices homes;
  for (const RecordShape& record : shape.records) {
    if (record.expert >= 0) homes.push_back(shape.rank_of(record.device));
  }
  return homes;
}

// How many bytes a second each rank sends, and receives, in an all-to-all of such messages, one to
// each other rank: the median of some.
Result<double> all_to_all_rate(int64_t bytes, MpiCommunicator& all, RankGroup& ranks) {
  constexpr size_t kRounds = 9;
  if (ranks.alone()) return 1.0;  // nothing leaves it
  const auto others = static_cast<size_t>(all.size() - 1), size = static_cast<size_t>(bytes);
  std::vector<std::byte> leaving(size), arriving(others * size);
  std::vector<OutgoingPiece> out;
  std::vector<IncomingPiece> in;
  for (int rank = 0; rank < all.size(); ++rank) {
    if (rank == all.rank()) continue;
    in.push_back({rank, arriving.data() + in.size() * size, bytes});
    out.push_back({rank, leaving.data(), bytes});
  }
  std::vector<double> rates;
  while (rates.size() < kRounds) {
    RETURN_IF_ERROR(all.barrier());
    const int64_t began_us = monotonic_us();
    RETURN_IF_ERROR(all.exchange(out, in));
    ASSIGN_OR_RETURN(const int64_t took_us,
                     ranks.most(std::max<int64_t>(1, monotonic_us() - began_us)));
    rates.push_back(1e6 * static_cast<double>(arriving.size()) / static_cast<double>(took_us));
  }
  std::sort(rates.begin(), rates.end());
  return rates[kRounds / 2];
}

// `rate`: all_to_all_rate().
Result<std::vector<Step>> run(const RunConfig& config, Kind kind, const Settings& settings,
                              double rate, RankGroup& ranks) {
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
    const ExpertDevices homes = homes_of(session.shape());
    ASSIGN_OR_RETURN(step.moved, trainer->balance_homes());
    if (step.moved.moves.swaps.empty()) continue;
    ASSIGN_OR_RETURN(step.piper, migration_cost(homes, homes_of(session.shape()), ranks.size(),
                                                settings.piper_bytes(), rate));
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

// What all moves took and brought, and whether the dearest was cheap enough.
void print_moves(const Settings& settings, const std::vector<Step>& stay,
                 const std::vector<Step>& move) {
  double saved_s = 0, moves_s = 0, steps_s = 0, dearest = 0;
  int64_t first = -1, paid = -1;
  for (size_t i = 0; i < move.size(); ++i) {
    steps_s += move[i].step_s;
    if (first >= 0) saved_s += stay[i].step_s - move[i].step_s;
    if (!move[i].moved.moves.swaps.empty()) {
      moves_s += move[i].moved.took_s;
      const size_t next = std::min(move.size(), i + 1 + static_cast<size_t>(settings.every));
      const auto step_s = [](const Step& step) { return step.step_s; };
      const double until_next_s =
          next > i + 1 ? mean(move, i + 1, next, step_s) : mean(move, 0, i + 1, step_s);
      dearest = std::max(
          dearest, move[i].moved.took_s / (until_next_s * static_cast<double>(settings.every)));
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
      "%.1f ms less; paid for good %s\n"
      "  the dearest move took %.2f %% of each step until the next look: %s (< %.0f %%)\n",
      1e3 * moves_s, 100 * moves_s / steps_s, 1e3 * saved_s,
      paid < 0 ? "never" : strf("at step %lld", (long long)paid).c_str(), 100 * dearest,
      dearest < kMostShare ? "held" : "NOT HELD", 100 * kMostShare);
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
    const Step& last = move[end - 1];
    if (!last.moved.moves.swaps.empty()) {
      std::printf("  %24lld  %7.2f  %6.1f; %6.1f, %6.1f", (long long)last.piper.moved_experts,
                  1e-6 * static_cast<double>(last.moved.moves.bytes), 1e3 * last.moved.took_s,
                  1e3 * last.moved.moves.move_s, 1e3 * last.piper.seconds);
    }
    std::printf("\n");
  }
  print_moves(settings, stay, move);
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
  config.train.micro_batch_tokens = settings.tokens / kMicrobatches;
  config.train.steps = settings.steps + 1;  // the last one decides nothing
  config.train.save_steps = 0;
  config.optim.schedule = ScheduleKind::kConstant;
  config.memory.device = config.memory.host = settings.room();
  config.parallel.place = PlaceKind::kHome;
  ASSIGN_OR_RETURN(const double rate, all_to_all_rate(settings.piper_bytes(), all, ranks));
  if (all.rank() == 0) {
    std::printf(
        "%d ranks of cpu/%g, %lld layers of %lld experts of %lld x %lld, %lld tokens a step, "
        "looked at every %lld steps; an all-to-all of messages of %.2f MB, alone: %.0f MB/s\n",
        all.size(), slow, (long long)settings.layers, (long long)settings.experts,
        (long long)settings.hidden, (long long)settings.ffn, (long long)settings.tokens,
        (long long)settings.every, 1e-6 * static_cast<double>(settings.piper_bytes()), 1e-6 * rate);
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
      ASSIGN_OR_RETURN(of[moves], run(config, kind, settings, rate, ranks));
    }
    if (all.rank() == 0) print_runs(name, settings, of[0], of[1]);
    if (all.rank() == 0 && kind == Kind::kEven) {
      std::printf("  experts stay: %s\n", has_moved(of[1]) ? "NOT HELD" : "held");
    }
    std::fflush(stdout);
  }
  return Status();
}

constexpr double kSpeed = 4, kSlowed = 12;  // times as slow as the CPU
// What is even by these speeds: of both as fast, and of one three times as slow as the other.
constexpr double kEvenBefore = 1.0 / 2, kEvenAfter = 1.0 / 4;

// What the device that becomes slower has of a step.
struct SlowedStep {
  double tokens = 0, rows = 0;  // of all that are attended to, and of experts
  double step_s = 0;
};
struct SlowedRun {
  std::vector<SlowedStep> steps;
  std::string sha256;  // of losses, weights and states
};

// The second of two devices' part of what both have; `of_device` takes turns with them.
double part_of_second(const std::vector<int64_t>& of_device) {
  int64_t both[2] = {0, 0};
  for (size_t i = 0; i < of_device.size(); ++i) both[i % 2] += of_device[i];
  return static_cast<double>(both[1]) / static_cast<double>(both[0] + both[1]);
}

// Behind step `slowed_at` the second device becomes slower.
Result<SlowedRun> run_slowed(const RunConfig& config, const Settings& settings, int64_t slowed_at) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                   open_storage(IoKind::kThreads, config.train.output_dir));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::start(config, false, storage.get()));
  SlowedRun outcome;
  std::vector<double> losses;
  while (trainer->steps_done() < settings.slowed_steps) {
    Executor& executor = trainer->session().executor();
    const RunShape& shape = trainer->session().shape();
    CHECK(shape.devices == 2 && !shape.seat_speeds.empty(), "experts would stay where they are");
    if (trainer->steps_done() >= slowed_at) executor.throttle(1, {kSlowed, kSlowed});
    SlowedStep& step = outcome.steps.emplace_back();
    step.tokens = part_of_second(attended_tokens(shape, shape.shard_device));
    std::vector<int64_t> rows = executor.expert_rows();
    const int64_t began_us = monotonic_us();
    ASSIGN_OR_RETURN(const StepResult result, trainer->step());
    step.step_s = 1e-6 * static_cast<double>(monotonic_us() - began_us);
    losses.push_back(result.loss);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = executor.expert_rows()[i] - rows[i];
    step.rows = part_of_second(rows);
    ASSIGN_OR_RETURN(const bool pays, trainer->measure_shares());
    if (!pays) continue;
    RETURN_IF_ERROR(trainer->save());
    RETURN_IF_ERROR(trainer->deal_again());
  }
  outcome.sha256 = outcome_hash(*trainer, losses);
  return outcome;
}

void print_slowed(const Settings& settings, const std::vector<SlowedStep>& steps) {
  std::printf("  step   ms   its tokens   its rows of experts   even by speed\n");
  int64_t within = -1;  // the first step of those behind which all are
  for (int64_t i = settings.slowed_at - 3; i < std::ssize(steps); ++i) {
    const SlowedStep& step = steps[static_cast<size_t>(i)];
    const bool slowed = i >= settings.slowed_at;
    std::printf("  %4lld %6.0f %10.3f %15.3f %19.3f\n", (long long)i + 1, 1e3 * step.step_s,
                step.tokens, step.rows, slowed ? kEvenAfter : kEvenBefore);
    const bool near = std::abs(step.tokens - kEvenAfter) <= 0.1 * kEvenAfter;
    if (!slowed || !near) within = -1;
    if (slowed && near && within < 0) within = i;
  }
  if (within < 0) {
    std::printf("  its tokens are not within 10 %% of what is even: NOT HELD (<= 5 steps)\n");
    return;
  }
  const int64_t steps_after = within - settings.slowed_at;
  std::printf("  its tokens are within 10 %% of what is even after %lld steps: %s (<= 5 steps)\n",
              (long long)steps_after, steps_after <= 5 ? "held" : "NOT HELD");
}

// Budgets in which a device has room for its share of either deal, and not for all experts: these
// have their seats by speed.
void set_slowed(const Settings& settings, TinyRun& tiny) {
  RunConfig& config = tiny.config();
  config.train.threads = config.train.optimizer_threads = 1;
  config.train.shards = settings.shards;
  config.train.micro_batch_tokens = config.data.sequence_len;
  config.train.tokens_per_step = settings.shards * config.train.micro_batch_tokens;
  config.train.steps = config.train.save_steps = 1000;  // a deal in the last one pays
  config.optim.schedule = ScheduleKind::kConstant;
  config.memory.device = config.memory.host = settings.room();
  config.train.devices = {strf("cpu/%g", kSpeed), strf("cpu/%g", kSlowed)};
  tiny.use_minimum_budgets();
  config.memory.device = MemorySize::of_bytes(config.device_bytes() / 8 * 9);
  config.memory.host = settings.room();
  config.train.devices = {strf("cpu/%g*2", kSpeed)};
  config.parallel.shares = ShareKind::kMeasured;
}

Status study_slowed(const Settings& settings) {
  TinyRun tiny(DType::kBF16, tiny_with(model_of(settings).c_str()).c_str());
  set_slowed(settings, tiny);
  std::printf(
      "two devices of cpu/%g, %lld layers of %lld experts of %lld x %lld, %lld tokens a step in "
      "%lld shards; behind step %lld the second one becomes cpu/%g\n",
      kSpeed, (long long)settings.layers, (long long)settings.experts, (long long)settings.hidden,
      (long long)settings.ffn, (long long)tiny.config().train.tokens_per_step,
      (long long)settings.shards, (long long)settings.slowed_at, kSlowed);
  ASSIGN_OR_RETURN(const SlowedRun alike,
                   run_slowed(tiny.config(), settings, settings.slowed_steps));
  tiny.new_run();
  ASSIGN_OR_RETURN(const SlowedRun slowed, run_slowed(tiny.config(), settings, settings.slowed_at));
  print_slowed(settings, slowed.steps);
  if (slowed.sha256 != alike.sha256) {
    return Status(Exit::kInternal,
                  "its losses, weights or states are not those of a run in which "
                  "no device becomes slower");
  }
  std::printf(
      "  its losses, weights and states are those of a run in which no device becomes "
      "slower (%s)\n",
      slowed.sha256.c_str());
  return Status();
}

Status study_joined(const Settings& settings) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> joined, join_processes(60));
  return study(settings, *joined);
}

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) settings = kTiny;
  }
  for (int i = 1; i < argc; ++i) {
    settings.slowed = settings.slowed || std::strcmp(argv[i], "--slowed") == 0;
  }
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--slow") == 0) settings.slow = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--steps") == 0) settings.steps = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--every") == 0) settings.every = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--tokens") == 0) settings.tokens = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--hidden") != 0) continue;
    settings.hidden = std::atoll(argv[i + 1]);
    settings.ffn = 3 * settings.hidden;
  }
  return settings;
}

int run_program(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  set_log_quiet(true);
  const Status ended = settings.slowed ? study_slowed(settings) : study_joined(settings);
  if (!ended.ok()) std::fprintf(stderr, "moves_study: %s\n", ended.message().c_str());
  return static_cast<int>(ended.code());
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_program(argc, argv); }
