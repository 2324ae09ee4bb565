// What copies of rows cost, and what experts save that read rows where attention left them and add
// what they give to the sums of tokens (HEXA-MoE 3.2, plan.in_place), on one CPU device with all
// its cores and room for everything. Not installed.
//
//   row_copies [DIR] [--rounds N] [--small | --tiny]
//                                       pages go to a new folder in DIR, removed at the end
//
// Three ways take turns on the same step of each model:
//   copied     dispatches copy the rows of an expert to one place; it writes what it gives to
//              another, from which combines add it to the sums; so forward and backward
//   in place   experts read rows where they are, and add what they give to the sums themselves
//   no copies  the copied way's tasks and pages, but dispatches and combines copy and add no rows,
//              and experts add what they give to sums that nobody reads
// The copied way's time over that of no copies is what copies cost: that rows are read and written
// to be copied, and outputs written and read to be combined. The adding is no part of it, since in
// place has to do it, too; nor is looking rows up in an index, which in place does and no copies
// does not.
//
// "MB saved" is what in place does not write: of each choice of a token a row forward and two
// backward, which are not copied, and in either a row that its expert gives. Routing weights are
// gathered in all three ways. The executor counts the bytes of rows, the operators those that are
// left out, and all must be those of a formula.
//
// Without copies experts read what the newest copies left there: as many rows and gradients, of
// other tokens; and sums lack what experts give. That changes values, but not what is computed:
// routing is imposed, random and even, and the learning rate is 0. Each expert has whole row
// blocks, or a part of one, so that all groups have their arrays at the same places, and what was a
// row is read as a row. The losses of copied and in place must be equal in every step, and that
// without copies another.
//
// Below the table stands for each of its rows whether copied over in place is at least 1, and,
// where copies cost at least 5 %, at least 1.05. "not shown": the median is less, but the interval
// that holds the true one in 19 of 20 cases is not. --small halves the models; --tiny shows in
// seconds that the program works, and its figures say nothing.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/race/timing.h"
#include "hardware/machine.h"
#include "kernels/cpu/cpu_ops.h"
#include "tools/bench/random_token_run.h"

namespace pagoda {
namespace {

// Sums for what experts give without copies: of each token one, in which experts find their rows by
// an even routing.
class SpareSums {
 public:
  SpareSums(int64_t tokens, int64_t experts, int64_t experts_per_token, int64_t hidden, int64_t ffn)
      : hidden_(hidden),
        ffn_(ffn),
        rows_of_expert_(tokens * experts_per_token / experts),
        sums_(static_cast<size_t>(tokens * hidden), 0),
        scale_(static_cast<size_t>(tokens * experts_per_token), 0.5f) {
    CHECK(experts % experts_per_token == 0);
    const int64_t apart = experts / experts_per_token;  // tokens from a row to the next
    for (int64_t i = 0; i < tokens * experts_per_token; ++i) {
      const int64_t expert = i / rows_of_expert_;
      const int64_t token = i % rows_of_expert_ * apart + expert % apart;
      each_.push_back(sums_.data() + token * hidden);
    }
  }

  // Whether a product from so many columns to so many is the one that gives outputs, or input
  // gradients.
  bool gives_outputs(int64_t in, int64_t out) const { return in == ffn_ && out == hidden_; }
  bool gives_gradients(int64_t in, int64_t out) const { return in == hidden_ && out == 2 * ffn_; }

  // Where the rows of these experts are added, which come behind those of the call before.
  OutputRows next(std::span<const RowsOfWeight> experts, bool scaled) {
    const int64_t rows = experts.back().first + experts.back().count;
    if (at_ + rows > std::ssize(each_)) at_ = 0;
    for (const RowsOfWeight& of : experts) {  // no two of its rows have one sum
      const int64_t first = at_ + of.first, last = first + of.count - 1;
      CHECK(first / rows_of_expert_ == last / rows_of_expert_ && last < std::ssize(each_));
    }
    const auto found = OutputRows::added(each_.data() + at_, scaled ? scale_.data() : nullptr);
    at_ += rows;
    return found;
  }

 private:
  const int64_t hidden_, ffn_, rows_of_expert_;
  std::vector<float> sums_, scale_;
  std::vector<const void*> each_;  // [choice] the expert's rows behind each other
  int64_t at_ = 0;                 // the next of them
};

// The CPU's operators, whose copies of rows can be left out. What is gathered and scattered in rows
// of one number are routing weights and their gradients, as experts have that work in place.
class OpsThatCopy final : public CpuOps {
 public:
  void gather_row_runs(DType dt, const void* x, const int32_t* rows, std::span<const RowRun> runs,
                       int64_t dim, void* out, Stream& s) override {
    if (spare == nullptr || dim == 1) {
      return CpuOps::gather_row_runs(dt, x, rows, runs, dim, out, s);
    }
    for (const RowRun& run : runs) left_out.copied += run.count * dim * dtype_bytes(dt);
  }
  void scatter_add_row_runs(DType dt, const void* x, const int32_t* rows, const float* scale,
                            std::span<const RowRun> runs, int64_t dim, float* y,
                            Stream& s) override {
    if (spare == nullptr || dim == 1) {
      return CpuOps::scatter_add_row_runs(dt, x, rows, scale, runs, dim, y, s);
    }
    for (const RowRun& run : runs) left_out.combined += run.count * dim * dtype_bytes(dt);
  }
  void grouped_linear(DType dt, InputRows x, std::span<const RowsOfWeight> experts, int64_t in,
                      int64_t out, DType y_dt, OutputRows y, Stream& s) override {
    if (spare != nullptr && spare->gives_outputs(in, out)) y = added(y_dt, experts, out, true);
    CpuOps::grouped_linear(dt, x, experts, in, out, y_dt, y, s);
  }
  void grouped_linear_backward_input(DType dt, InputRows dy, std::span<const RowsOfWeight> experts,
                                     int64_t in, int64_t out, DType dx_dt, OutputRows dx,
                                     Stream& s) override {
    if (spare != nullptr && spare->gives_gradients(in, out)) dx = added(dx_dt, experts, in, false);
    CpuOps::grouped_linear_backward_input(dt, dy, experts, in, out, dx_dt, dx, s);
  }

  SpareSums* spare = nullptr;  // not owned; nullptr: nothing is left out
  struct Bytes {
    int64_t copied = 0, written = 0, combined = 0;
  } left_out;

 private:
  OutputRows added(DType dt, std::span<const RowsOfWeight> experts, int64_t dim, bool scaled) {
    for (const RowsOfWeight& of : experts) left_out.written += of.count * dim * dtype_bytes(dt);
    return spare->next(experts, scaled);
  }
};

OpsThatCopy ops;

}  // namespace

// The linker takes it in place of that of kernels/cpu/cpu_ops.cc.
Ops& cpu_ops() { return ops; }

namespace {

constexpr double kWorthSeeing = 1.05;  // what copies cost, from which on in place should gain it
constexpr int kWarmSteps = 3;          // pages come in the first, updates begin in the second

struct Sizes {
  int64_t hidden, ffn, experts;
};
struct Scale {
  std::vector<Sizes> models;
  std::vector<int64_t> experts_per_token;
  int64_t tokens, microbatch_tokens;  // of a step
  int rounds, steps;                  // of each way in a round
  int64_t layers = 4;
};
const Scale kFull{{{512, 128, 32}, {512, 512, 32}, {256, 1024, 8}}, {1, 2, 4, 8}, 4096, 512, 9, 3};
const Scale kSmall{{{256, 64, 32}, {256, 256, 32}, {128, 512, 8}}, {1, 2, 4, 8}, 1024, 256, 9, 3};
const Scale kTiny{{{64, 32, 8}}, {1, 2}, 256, 64, 1, 1};

enum Way : size_t { kCopied, kInPlace, kNoCopies };
constexpr size_t kWays = 3;

// [layer] (N, k): which tokens an expert has is random, how many is not.
std::vector<std::vector<int32_t>> even_choices(const RunShape& shape) {
  const int64_t tokens = shape.microbatches * shape.microbatch_tokens;
  const int64_t k = shape.experts_per_token, rows = tokens * k / shape.num_experts;
  CHECK(tokens * k % shape.num_experts == 0 && (rows < kRowBlock || rows % kRowBlock == 0),
        "groups of rows would not be alike");
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> choices(static_cast<size_t>(shape.num_layers));
  for (std::vector<int32_t>& of_layer : choices) {
    std::vector<int64_t> places(static_cast<size_t>(tokens));
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random);
    for (const int64_t place : places) {
      for (int64_t j = 0; j < k; ++j) {
        of_layer.push_back(static_cast<int32_t>((place * k + j) % shape.num_experts));
      }
    }
  }
  return choices;
}

SessionOptions options_of(const std::string& directory, const Scale& scale, bool in_place) {
  SessionOptions options =
      roomy_options(directory + "/store", in_place ? "in-place" : "copied",
                    scale.tokens / scale.microbatch_tokens, scale.microbatch_tokens, false);
  options.keep = true;
  options.plan.in_place = in_place;
  return options;
}

// A model, and the three ways to train it.
class RowCopies {
 public:
  RowCopies(const std::string& directory, Storage* storage, const Scale& scale, const Sizes& sizes,
            int64_t experts_per_token)
      : folder_(make_random_model(directory, {.layers = scale.layers,
                                              .hidden_size = sizes.hidden,
                                              .heads = sizes.hidden / 32,
                                              .kv_heads = std::max<int64_t>(1, sizes.hidden / 128),
                                              .head_dim = 32,
                                              .experts = sizes.experts,
                                              .experts_per_token = experts_per_token,
                                              .expert_size = sizes.ffn,
                                              .vocab_size = 512})),
        choices_(scale.layers * scale.tokens * experts_per_token),
        row_bytes_(sizes.hidden * dtype_bytes(DType::kBF16)),
        copied_(folder_, storage, options_of(directory, scale, false)),
        in_place_(folder_, storage, options_of(directory, scale, true)),
        spare_(scale.tokens, sizes.experts, experts_per_token, sizes.hidden, sizes.ffn),
        imposed_(even_choices(copied_.session().shape())) {
    CHECK(in_place_.session().shape().adds_in_place() && !copied_.session().shape().in_place);
    for (RandomTokenRun* run : {&copied_, &in_place_}) {
      run->session().executor().impose_routing(&imposed_);
    }
    std::mt19937 random(3);
    batch_ = random_batch(copied_.session(), random);
    loss_ = copied_.step(batch_).loss;
    for (int i = 0; i < kWarmSteps; ++i) {
      for (size_t way = 0; way < kWays; ++way) step(static_cast<Way>(way));
    }
  }

  // The ways in turn, every second time in the other order. The first step of each finds another's
  // bytes in the caches and does not count.
  void round(int steps) {
    const bool forth = seconds_[0].size() % 2 == 0;
    for (size_t i = 0; i < kWays; ++i) {
      const size_t way = forth ? i : kWays - 1 - i;
      step(static_cast<Way>(way));
      std::vector<double> seconds;
      for (int n = 0; n < steps; ++n) seconds.push_back(step(static_cast<Way>(way)));
      seconds_[way].push_back(quantile(seconds, 0.5));
    }
  }

  const std::vector<double>& seconds(Way way) const { return seconds_[way]; }
  // [round] the copied way's seconds over those of `other`.
  std::vector<double> copied_over(Way other) const {
    std::vector<double> ratios;
    for (size_t i = 0; i < seconds_[other].size(); ++i) {
      ratios.push_back(seconds_[kCopied][i] / seconds_[other][i]);
    }
    return ratios;
  }
  // What in place does not write in a step.
  int64_t saved_bytes() const { return choices_ * (kRead + kGiven) * row_bytes_; }

 private:
  // Rows of a choice of a token in a layer: its expert reads one forward and two backward, and
  // gives one in each.
  static constexpr int64_t kRead = 3, kGiven = 2;

  double step(Way way) {
    RandomTokenRun& run = way == kInPlace ? in_place_ : copied_;
    const Executor::RowBytes before = run.session().executor().row_bytes();
    ops.spare = way == kNoCopies ? &spare_ : nullptr;
    ops.left_out = {};
    const StepResult result = run.step(batch_);
    ops.spare = nullptr;
    check_bytes(way, run.session().executor().row_bytes() - before);
    CHECK(std::isfinite(result.loss) && (result.loss == loss_) == (way != kNoCopies),
          "loss %.17g where it is %.17g with copies", result.loss, loss_);
    return result.forward.wall_s + result.backward.wall_s;
  }

  // The executor counts by tasks, which are there without copies, too; and with the rows that are
  // read the weight of each in the backward.
  void check_bytes(Way way, const Executor::RowBytes& of_step) const {
    const int64_t read = choices_ * (kRead * row_bytes_ + int64_t{sizeof(float)});
    const int64_t given = choices_ * kGiven * row_bytes_;
    const bool in_place = way == kInPlace;
    CHECK(of_step.in_place == (in_place ? read : 0) && of_step.copied == (in_place ? 0 : read));
    CHECK(of_step.added == (in_place ? given : 0) && of_step.combined == (in_place ? 0 : given));
    const int64_t without = way == kNoCopies ? choices_ * row_bytes_ : 0;
    CHECK(ops.left_out.copied == kRead * without);
    CHECK(ops.left_out.written == kGiven * without && ops.left_out.combined == kGiven * without);
  }

  const HfFolder folder_;
  const int64_t choices_, row_bytes_;  // of a step, and of a row
  RandomTokenRun copied_, in_place_;
  SpareSums spare_;
  const std::vector<std::vector<int32_t>> imposed_;
  StepBatch batch_;
  double loss_ = 0;  // with copies
  std::array<std::vector<double>, kWays> seconds_;
};

struct Interval {
  double low = 0, median = 0, high = 0;
};

// Returns r: the r-th least and the r-th greatest of n values have the true median between them in
// at least 19 of 20 cases, whatever the distribution, since each value is above it with the chance
// of a coin. 0: the values are too few to say so.
constexpr int rank_beside_median(int n) {
  double chance = 1;  // exactly `rank` values are below it with this chance
  for (int i = 0; i < n; ++i) chance /= 2;
  int rank = 0;
  for (double tail = chance; 2 * tail <= 0.05; tail += chance) {
    ++rank;
    chance *= static_cast<double>(n - rank + 1) / rank;
  }
  return rank;
}
// Published tables of the sign test have these.
static_assert(rank_beside_median(5) == 0 && rank_beside_median(6) == 1 &&
              rank_beside_median(8) == 1 && rank_beside_median(9) == 2 &&
              rank_beside_median(12) == 3 && rank_beside_median(20) == 6);

Interval median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(rank_beside_median(static_cast<int>(values.size())));
  const double median = quantile(values, 0.5);
  if (rank == 0) return {0, median, HUGE_VAL};
  return {values[rank - 1], median, values[values.size() - rank]};
}

std::string verdict(const Interval& ratio, double least) {
  const char* short_of = ratio.high >= least ? "not shown" : "NOT HELD";
  const char* held = ratio.median >= least ? "held" : short_of;
  return strf("%.3f [%.3f .. %.3f], %s (>= %.2f)", ratio.median, ratio.low, ratio.high, held,
              least);
}

std::string spread(const std::vector<double>& seconds) {
  return strf("%6.3f [%.3f .. %.3f]", quantile(seconds, 0.5), quantile(seconds, 0),
              quantile(seconds, 1));
}

// Prints a row, and returns what should hold of it.
std::string print_row(const RowCopies& trial, const Sizes& sizes, int64_t experts_per_token) {
  const Interval gained = median_interval(trial.copied_over(kInPlace));
  const Interval cost = median_interval(trial.copied_over(kNoCopies));
  std::printf("%6lld %5lld %7lld %4lld  %10.1f  %-25s %-25s %-25s  %15.3f  %16.3f\n",
              (long long)sizes.hidden, (long long)sizes.ffn, (long long)sizes.experts,
              (long long)experts_per_token, 1e-6 * static_cast<double>(trial.saved_bytes()),
              spread(trial.seconds(kCopied)).c_str(), spread(trial.seconds(kInPlace)).c_str(),
              spread(trial.seconds(kNoCopies)).c_str(), gained.median, cost.median);
  std::fflush(stdout);
  std::string found =
      strf("hidden %lld, ffn %lld, top %lld: copied over in place %s", (long long)sizes.hidden,
           (long long)sizes.ffn, (long long)experts_per_token, verdict(gained, 1).c_str());
  if (cost.median >= kWorthSeeing) {
    found += strf("; over no copies %.3f [%.3f .. %.3f], so %s", cost.median, cost.low, cost.high,
                  verdict(gained, kWorthSeeing).c_str());
  }
  return found;
}

void print_table(const std::string& directory, Storage* storage, const Scale& scale) {
  std::printf(
      "%d cores; %s; %lld layers, %lld tokens a step, medians of %d rounds of %d steps\n"
      "%6s %5s %7s %4s  %10s  %-25s %-25s %-25s  %15s  %16s\n",
      usable_cores(), cpu_ops_build().c_str(), (long long)scale.layers, (long long)scale.tokens,
      scale.rounds, scale.steps, "hidden", "ffn", "experts", "top", "MB saved", "copied s/step",
      "in place s/step", "no copies s/step", "copied/in place", "copied/no copies");
  std::vector<std::string> verdicts;
  for (const Sizes& sizes : scale.models) {
    for (const int64_t k : scale.experts_per_token) {
      const std::string folder = strf("%s/%lld-%lld-%lld", directory.c_str(),
                                      (long long)sizes.hidden, (long long)sizes.ffn, (long long)k);
      CHECK(std::filesystem::create_directory(folder), "%s exists", folder.c_str());
      {
        RowCopies trial(folder, storage, scale, sizes, k);
        for (int i = 0; i < scale.rounds; ++i) trial.round(scale.steps);
        verdicts.push_back(print_row(trial, sizes, k));
      }
      std::filesystem::remove_all(folder);
    }
  }
  for (const std::string& of_row : verdicts) std::printf("%s\n", of_row.c_str());
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  using namespace pagoda;
  std::string directory = ".";
  Scale scale = kFull;
  int rounds = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      scale = kTiny;
    } else if (std::strcmp(argv[i], "--small") == 0) {
      scale = kSmall;
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argv[i][0] != '-') {
      directory = argv[i];
    } else {
      std::fprintf(stderr, "usage: row_copies [DIR] [--rounds N] [--small | --tiny]\n");
      return 2;
    }
  }
  if (rounds > 0) scale.rounds = rounds;
  directory += strf("/row-copies-%d", static_cast<int>(getpid()));
  std::filesystem::create_directories(directory);
  std::unique_ptr<Storage> storage = need(open_storage(IoKind::kAuto, directory));
  print_table(directory, storage.get(), scale);
  storage.reset();
  std::filesystem::remove_all(directory);
}
