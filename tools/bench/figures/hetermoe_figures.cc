#include "tools/bench/figures/hetermoe_figures.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/sheet_file.h"
#include "tests/testing/hetermoe/paper_runs.h"
#include "tests/testing/plan/served_layers.h"

namespace pagoda {
namespace {

// A setup of the paper's Table 1.
ClusterSheet cluster_of(const char* setup) {
  return read_cluster_sheet(strf("configs/clusters/hetermoe-%s.toml", setup)).take();
}

double rate(const MaybeStep& step) { return step ? step->tokens_per_s() : 0; }

// How many times as fast as `other` zebra is; "-" where that does not run.
std::string over(double zebra, double other) {
  return other > 0 ? strf("%.2f", zebra / other) : "-";
}

// What runs of a setup do with sequences of one length. EP (Ideal) is a rate alone.
struct Compared {
  int64_t sequence_len = 0;
  ZebraSteps zebra;
  MaybeStep algorithm_1;
  MaybeStep equal, by_speed, disaggregated, pipeline;
  double ideal = 0;  // tokens a second

  // The fastest zebra: with the planner's experts on the faster devices, Algorithm 1's, or none.
  const MaybeStep& best() const {
    const MaybeStep& planned =
        rate(zebra.planned) > rate(zebra.plain) ? zebra.planned : zebra.plain;
    return rate(algorithm_1) > rate(planned) ? algorithm_1 : planned;
  }
};

Compared compare_zebra(const PaperSetup& setup, int64_t sequence_len) {
  Compared all;
  all.sequence_len = sequence_len;
  all.zebra = zebra_steps(setup, sequence_len);
  const MaybeStep& plain = all.zebra.plain;
  if (plain) all.algorithm_1 = algorithm_1_step(setup, sequence_len, *plain);
  all.ideal = ideal_tokens_per_s(setup, sequence_len);
  return all;
}

Compared compare_all(const PaperSetup& setup, int64_t sequence_len) {
  Compared all = compare_zebra(setup, sequence_len);
  all.equal = expert_parallel_step(setup, sequence_len);
  all.by_speed = expert_parallel_step(setup, sequence_len, ShareKind::kMeasured);
  all.disaggregated = disaggregated_step(setup, sequence_len);
  all.pipeline = pipeline_step(setup, sequence_len);
  return all;
}

// The models on the setups of Table 1, where all ways divide their experts evenly. The paper names
// D1 and W1 on O1 and W2 on O2.
struct SetupRow {
  const char* setup;
  PaperModel model;
  int64_t faster, slower;
  std::vector<int64_t> lengths;  // in 1024 tokens
};
const std::vector<SetupRow>& setup_rows() {
  static const std::vector<SetupRow> rows = {
      {"o1", kMixtralD1, 6, 6, {4, 8, 16, 20, 32}}, {"o1", kMixtralW1, 6, 6, {4, 16, 24, 32}},
      {"o2", kMixtralW2, 4, 8, {4, 16, 32}},        {"o3", kMixtralD2, 6, 3, {4, 16, 32}},
      {"c1", kMixtralD1, 2, 6, {4, 16, 32}},        {"c2", kMixtralD3, 2, 8, {4, 16, 32}}};
  return rows;
}

struct RowResult {
  const SetupRow& row;
  PaperSetup setup;
  std::vector<Compared> by_length;
};

// Speed-ups of one testbed over the sequences' lengths.
struct Speedups {
  // At 4K, 16K and 32K: over EP, and the part of EP's step in which its slower devices compute.
  Speedup equal_at[3], equal_busy[3];
  Speedup equal, disaggregated, ideal, ideal_beyond_4k, pipeline;
  Speedup busy_4k;  // the part of zebra's step in which its slower devices compute

  void note(const RowResult& of, const Compared& all);
  void print(const char* testbed) const;
  void print_reasons() const;
};

void Speedups::note(const RowResult& of, const Compared& all) {
  const double zebra = rate(all.best());
  const auto add = [&](Speedup& mean, double other) {
    if (zebra > 0 && other > 0) mean.note(zebra / other);
  };
  const int64_t k = all.sequence_len / 1024;
  for (size_t i = 0; i < 3; ++i) {
    if (k != std::array{4, 16, 32}[i] || !all.equal) continue;
    add(equal_at[i], rate(all.equal));
    equal_busy[i].note(busy_shares(of.setup, *all.equal).slower);
  }
  if (k == 4 && all.best()) busy_4k.note(busy_shares(of.setup, *all.best()).slower);
  add(equal, rate(all.equal));
  add(disaggregated, rate(all.disaggregated));
  add(ideal, all.ideal);
  if (k > 4) add(ideal_beyond_4k, all.ideal);
  add(pipeline, rate(all.pipeline));
}

void Speedups::print(const char* testbed) const {
  std::printf(
      "  %s: over EP %.2f at 4K, %.2f at 16K, %.2f at 32K, %.2f on average; DistEP %.2f; EP "
      "(Ideal) %.2f, %.2f at most; a pipeline %.2f, %.2f at most\n",
      testbed, equal_at[0].mean, equal_at[1].mean, equal_at[2].mean, equal.mean, disaggregated.mean,
      ideal.mean, ideal.most, pipeline.mean, pipeline.most);
}

void Speedups::print_reasons() const {
  std::printf(
      "    EP: its slower devices compute %.0f, %.0f and %.0f %% of its step at 4K, 16K and 32K, "
      "as "
      "all wait for each other at every exchange and rows come\n    again for the backward; if "
      "nothing but these devices held it up, zebra would have %.2f, %.2f and %.2f times its rate. "
      "The paper's EP is between the two.\n    EP (Ideal): beyond 4K zebra has %.2f times its rate "
      "on average. At 4K zebra's slower devices compute %.0f %% of its step, as Asym-EA moves few "
      "experts (below).\n",
      100 * equal_busy[0].mean, 100 * equal_busy[1].mean, 100 * equal_busy[2].mean,
      equal_at[0].mean * equal_busy[0].mean, equal_at[1].mean * equal_busy[1].mean,
      equal_at[2].mean * equal_busy[2].mean, ideal_beyond_4k.mean, 100 * busy_4k.mean);
}

void print_compared(const RowResult& of, const Compared& all) {
  const MaybeStep& zebra = all.best();
  std::printf("  %s  %-16s %3lldK", of.row.model.name, of.setup.cluster.cluster.name.c_str(),
              (long long)(all.sequence_len / 1024));
  if (!zebra) {
    std::printf("  too few sequences for zebra\n");
    return;
  }
  const auto print = [&](double other) {
    std::printf("  %9s", over(zebra->tokens_per_s(), other).c_str());
  };
  for (const MaybeStep* step : {&all.equal, &all.by_speed, &all.disaggregated}) print(rate(*step));
  print(all.ideal);
  print(rate(all.pipeline));
  const BusyShares busy = busy_shares(of.setup, *zebra);
  std::printf("  %5.1f  %2lld  %3.0f / %3.0f / %3.0f\n", 100 * zebra->forecast.mfu(),
              (long long)zebra->config.train.chunks, 100 * busy.faster, 100 * busy.slower,
              100 * busy.network);
}

void print_overall(const std::vector<RowResult>& results) {
  std::printf(
      "\nHeterMoE, Figures 7, 8 and 9: how many times as fast as each way zebra is, with Asym-EA; "
      "its MFU, its number of\nmicrobatches R, and the %% of a step in which a faster device, a "
      "slower one and a network card are busy.\n  assumes: the machines' sheets in configs/, "
      "layers computed again, and the most tokens a step that all but pipelines have\n  on their "
      "devices: ");
  for (const RowResult& of : results) {
    std::printf("%s%s on %s %lld", &of == &results.front() ? "" : ", ", of.row.model.name,
                of.setup.cluster.cluster.name.c_str(), (long long)of.setup.tokens);
  }
  std::printf(
      "\n  model       devices           rows         EP   by speed     DistEP  EP (Ideal)  "
      "pipeline  MFU %%   R  busy %%\n");
  Speedups a40, l40s;
  for (const RowResult& of : results) {
    for (const Compared& all : of.by_length) {
      print_compared(of, all);
      (of.row.setup[0] == 'o' ? a40 : l40s).note(of, all);
    }
  }
  a40.print("A40 and V100");
  std::printf(
      "  the paper: over EP 1.22 at 4K, 1.67 at 16K, 1.89 at 32K; DistEP 1.82; EP (Ideal) 1.18, "
      "1.38 at most; a pipeline 1.28, 1.47 at most\n");
  a40.print_reasons();
  l40s.print("L40S and T4");
  std::printf("  the paper: over EP 2.89 on average; DistEP 1.96; EP (Ideal) 1.17, 1.25 at most\n");
  l40s.print_reasons();
}

// What Asym-EA can gain at most, by hand: of the parts of a step A and E in which devices of each
// kind compute without it, x of the experts moves so that both end together, and experts take
// `ratio` as long on the faster kind: E (1 - x) = A + x E ratio N / M.
double bound_of(const PaperSetup& setup, const BusyShares& plain) {
  const double ratio = setup.cluster.nodes.back().device.gemm_tflops /
                       setup.cluster.nodes.front().device.gemm_tflops *
                       static_cast<double>(setup.slower()) / static_cast<double>(setup.faster);
  const double moved = (plain.slower - plain.faster) / (plain.slower * (1 + ratio));
  return moved > 0 ? 1 / (1 - moved) : 1;
}

// The paper's gains and busy shares, where it gives them: Figure 12 and Table 3.
std::string paper_gain(const SetupRow& row, int64_t k) {
  const bool deep = row.model.layers == kMixtralD1.layers;
  if (k == 4) return deep ? "1.14" : "1.20";
  return !deep && k == 24 ? "1.04" : "";
}
std::string paper_busy(const SetupRow& row, int64_t k) {
  if (row.model.layers != kMixtralD1.layers) return "";
  if (k == 8) return "55 / 89, 83 / 78";
  return k == 16 ? "77 / 89, 86 / 84" : "";
}

void print_asym_row(const RowResult& of, const Compared& all) {
  if (!all.zebra.plain || !all.disaggregated) return;
  const int64_t k = all.sequence_len / 1024;
  const PaperStep& plain = *all.zebra.plain;
  const BusyShares apart = busy_shares(of.setup, *all.disaggregated);
  const BusyShares alone = busy_shares(of.setup, plain);
  const BusyShares with = busy_shares(of.setup, *all.best());
  const int64_t rows = 2 * plain.forecast.tokens / plain.config.train.chunks / of.row.model.experts;
  std::printf("  %s  %4lldK  %8lld  %5.2f  %7.2f  %11s  %5s  %2.0f / %2.0f  %2.0f / %2.0f",
              of.row.model.name, (long long)k, (long long)rows, bound_of(of.setup, alone),
              rate(all.zebra.planned) / plain.tokens_per_s(),
              over(rate(all.algorithm_1), plain.tokens_per_s()).c_str(),
              paper_gain(of.row, k).c_str(), 100 * apart.faster, 100 * apart.slower,
              100 * alone.faster, 100 * alone.slower);
  std::printf("  %2.0f / %2.0f   %4.2f   %s\n", 100 * with.faster, 100 * with.slower,
              alone.faster / alone.slower, paper_busy(of.row, k).c_str());
}

void print_asym_ea(const std::vector<RowResult>& results) {
  constexpr int64_t kFewTokens = 196'608, kShort = 4096;
  std::printf(
      "\nHeterMoE, Figure 12 and Table 3, on 6 A40 and 6 V100: the rows that an expert has of a "
      "microbatch; what Asym-EA gains over zebra without it: at most, by hand,\nif experts move "
      "until both kinds compute equally long; as planned; and with Algorithm 1's experts. %% of "
      "the "
      "step in which the faster and the slower devices compute:\nDistEP, zebra alone, with "
      "Asym-EA; the quotient of the second; and the paper's last two.\n"
      "  model        rows  expert's  bound  planned  Algorithm 1  paper   DistEP    alone     "
      "with   A / E   paper's\n");
  for (const RowResult& of : results) {
    if (std::string(of.row.setup) != "o1") continue;
    for (const Compared& all : of.by_length) print_asym_row(of, all);
    PaperSetup few = of.setup;
    few.tokens = kFewTokens;
    const ZebraSteps zebra = zebra_steps(few, kShort);
    if (!zebra.plain) continue;
    std::printf(
        "  %s  with %lld tokens a step, %lld rows an expert: %.2f as planned at 4K\n",
        of.row.model.name, (long long)kFewTokens,
        (long long)(2 * kFewTokens / zebra.plain->config.train.chunks / of.row.model.experts),
        rate(zebra.planned) / zebra.plain->tokens_per_s());
  }
  std::printf(
      "  Why Asym-EA gains less: a device that attends computes its experts between attention of "
      "two "
      "microbatches, and waits there for rows from the others that attend, which come\n"
      "  through the same network card, behind those for slower devices. The planner simulates a "
      "run "
      "without such experts, too, and takes the faster one. Algorithm 1's are simulated\n"
      "  all the same. The paper does not tell its batches.\n"
      "  Why devices are busy otherwise: the paper has attention take 55 / 89 = 0.62 of the "
      "experts' time at 8K and 77 / 89 = 0.87 at 16K, here A / E. The rate of an A40's\n  "
      "attention, half its peak, is assumed in its sheet; the paper gives no time of it.\n");
}

void print_ratios() {
  constexpr int64_t kLengths[] = {4, 12, 20, 32};
  std::printf(
      "\nHeterMoE, Figure 10: Mixtral-D1 on 4 A40 and 2 to 8 V100, 4 experts for each of these: "
      "zebra's rate over that of EP (Ideal), in parentheses without Asym-EA\n"
      "  rows    ");
  const ClusterSheet cluster = cluster_of("o2");
  std::vector<PaperSetup> setups;
  for (int slower = 2; slower <= 8; ++slower) {
    std::printf("          4:%d", slower);
    setups.push_back(paper_setup(with_experts(kMixtralD1, 4 * slower), cluster, 4, slower));
  }
  std::printf("\n");
  for (const int64_t k : kLengths) {
    std::printf("  %7lldK", (long long)k);
    for (const PaperSetup& setup : setups) {
      const Compared all = compare_zebra(setup, 1024 * k);
      std::printf("  %5s (%s)", over(rate(all.best()), all.ideal).c_str(),
                  over(rate(all.zebra.plain), all.ideal).c_str());
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  std::printf(
      "  the paper: 4K 1.03 at 4:2, 0.76 at 4:3, at most 1.10 at 4:7; 12K at most 1.22 at 4:5; 20K "
      "and 32K at 4:4 as fast as EP (Ideal) at 4:8\n"
      "  Why otherwise at 4K: Asym-EA moves few experts in steps of this size (Figure 12 above), "
      "so "
      "4:2, where the paper has 1.03 with it, has less; at 4:3, where the paper cannot use it\n  "
      "either, zebra has more than the paper's 0.76.\n");
}

void print_equal_devices() {
  constexpr int64_t kLengths[] = {4, 12, 20, 32};
  const PaperModel model = with_experts(kMixtralD1, 8);
  const ClusterSheet both = cluster_of("o1");
  const auto of = [&](const MachineSheet& node, int64_t count) {
    ClusterSheet equal = both;
    equal.nodes.assign(static_cast<size_t>(count), node);
    return paper_setup(model, equal);
  };
  PaperSetup zebra = paper_setup(model, both, 2, 2);
  std::vector<PaperSetup> equal = {
      of(both.nodes.front(), 4), of(both.nodes.back(), 4),
      of(read_machine_sheet("configs/machines/gpu-2xa100-80gb.toml").take(), 1)};
  for (const PaperSetup& setup : equal) zebra.tokens = std::min(zebra.tokens, setup.tokens);
  for (PaperSetup& setup : equal) setup.tokens = zebra.tokens;
  std::printf(
      "\nHeterMoE, Figure 11: Mixtral-D1 with 8 experts, %lld tokens a step: the rate of EP on "
      "equal devices over that of zebra on 2 A40 and 2 V100\n"
      "  rows      4 A40  4 V100  2 A100\n",
      (long long)zebra.tokens);
  std::vector<Speedup> means(equal.size());
  for (const int64_t k : kLengths) {
    std::printf("  %7lldK", (long long)k);
    const double with = rate(compare_zebra(zebra, 1024 * k).best());
    for (size_t i = 0; i < equal.size(); ++i) {
      const double rate_there = rate(expert_parallel_step(equal[i], 1024 * k));
      if (with > 0 && rate_there > 0) means[i].note(rate_there / with);
      std::printf(" %7s", over(rate_there, with).c_str());
    }
    std::printf("\n");
  }
  std::printf(
      "  on average %.2f, %.2f and %.2f; at most %.2f, %.2f and %.2f\n  the paper: 4 A40 1.05 on "
      "average, 1.01 to 1.02 at 12K to 20K; 4 V100 0.60, 0.84 at 4K and 0.52 at 32K; 2 A100 1.14 "
      "and 1.20 at most\n",
      means[0].mean, means[1].mean, means[2].mean, means[0].most, means[1].most, means[2].most);
  std::printf(
      "  Why otherwise: 2 A100 have 2 x 312 / (4 x 149.7) = 1.04 times the peak of 4 A40, and %.2f "
      "times their rate here (the paper's 1.14 / 1.05 = 1.09), since half of their rows stay where "
      "they are\n  and the others have PCIe at 22 GB/s, but of 4 A40 a quarter stays and the "
      "others "
      "have 11.2 GB/s. By the sheets scores take 75 / 19 = 3.9 times as long on a V100 as on an "
      "A40 "
      "at\n  all lengths; in Figure 2a attention comes to 3.7 at 64K. The paper does not show it "
      "for "
      "models as narrow as these, in which scores are most of attention sooner.\n",
      means[2].mean / means[0].mean);
}

}  // namespace

void print_hetermoe_figures() {
  std::vector<RowResult> results;
  for (const SetupRow& row : setup_rows()) {
    RowResult& of = results.emplace_back(
        RowResult{row, paper_setup(row.model, cluster_of(row.setup), row.faster, row.slower), {}});
    for (const int64_t k : row.lengths) of.by_length.push_back(compare_all(of.setup, 1024 * k));
  }
  print_overall(results);
  print_asym_ea(results);
  print_ratios();
  print_equal_devices();
}

}  // namespace pagoda
