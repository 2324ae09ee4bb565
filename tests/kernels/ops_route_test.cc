// The router and the loss against double references, gradients against finite differences of those.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

Ops& ops() { return cpu_ops(); }

Doubles softmax(const double* x, int64_t n) {
  const double highest = *std::max_element(x, x + n);
  Doubles p(n);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += p[i] = std::exp(x[i] - highest);
  for (double& v : p) v /= sum;
  return p;
}

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

struct RouteCase {
  int64_t tokens, num_experts, k;
  bool renormalise;
  bool sigmoid = false;
  float scale = 1.0f;
  int64_t groups = 1, groups_chosen = 1;
  bool corrected = false, by_best = false;
  float least_sum = 1e-20f;
  RouterShape shape() const {
    RouterShape shape;
    shape.num_experts = num_experts;
    shape.k = k;
    shape.renormalise = renormalise;
    shape.sigmoid = sigmoid;
    shape.scale = scale;
    shape.groups = groups;
    shape.groups_chosen = groups_chosen;
    shape.group_by_best = by_best;
    shape.least_sum = least_sum;
    return shape;
  }
  Doubles scores(const double* logits) const {
    Doubles p = softmax(logits, num_experts);
    for (int64_t e = 0; sigmoid && e < num_experts; ++e) p[e] = logistic(logits[e]);
    return p;
  }
};

struct RouteRun {
  explicit RouteRun(const RouteCase& c, DType dt = DType::kF32)
      : logits(DType::kF32, c.tokens * c.num_experts),
        probs(DType::kF32, c.tokens * c.num_experts),
        weights(DType::kF32, c.tokens * c.k),
        correction(dt, 3 * c.num_experts),
        experts(c.tokens * c.k),
        counts(c.num_experts, -1),
        prob_sums(c.num_experts, -1.0) {}
  TestTensor logits, probs, weights, correction;
  std::vector<int32_t> experts, counts;
  std::vector<double> prob_sums;
  std::vector<uint8_t> padding;  // empty: none
  std::string bits() const {
    return probs.bits() + weights.bits() +
           std::string(reinterpret_cast<const char*>(experts.data()), experts.size() * 4) +
           std::string(reinterpret_cast<const char*>(counts.data()), counts.size() * 4) +
           std::string(reinterpret_cast<const char*>(prob_sums.data()), prob_sums.size() * 8);
  }
};

void route(const RouteCase& c, bool replay, RouteRun& r, Stream& s) {
  ops().route(c.shape(), r.logits.floats(), r.correction.dtype(),
              c.corrected ? r.correction.data() : nullptr,
              r.padding.empty() ? nullptr : r.padding.data(), c.tokens, replay, r.probs.floats(),
              r.experts.data(), r.weights.floats(), r.counts.data(), r.prob_sums.data(), s);
  s.synchronize();
}

const RouteCase kRouteCases[] = {
    {0, 4, 2, true}, {1, 1, 1, true}, {7, 5, 5, false}, {300, 16, 2, true}, {33, 130, 8, false}};

// Numbers of [0, n) from the one with the largest merit on, equal ones as they come.
std::vector<int32_t> ranking(const Doubles& merit) {
  std::vector<int32_t> order(merit.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return merit[a] > merit[b]; });
  return order;
}

// The choice, as the description of the router says it.
std::vector<int32_t> chosen_of(const RouteCase& c, const Doubles& merit) {
  const int64_t size = c.num_experts / c.groups;
  Doubles sums;
  for (int64_t g = 0; c.groups > 1 && g < c.groups; ++g) {
    Doubles group(merit.begin() + g * size, merit.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    sums.push_back(c.by_best ? group[0] : group[0] + group[1]);
  }
  std::vector<int32_t> groups = ranking(sums);
  groups.resize(std::min<size_t>(groups.size(), c.groups_chosen));
  std::vector<int32_t> chosen;
  for (const int32_t e : ranking(merit)) {
    const auto group = static_cast<int32_t>(e / size);
    const bool there =
        c.groups == 1 || std::find(groups.begin(), groups.end(), group) != groups.end();
    if (there && static_cast<int64_t>(chosen.size()) < c.k) chosen.push_back(e);
  }
  return chosen;
}

void check_route(const RouteCase& c, DType dt = DType::kF32, uint64_t seed = 51) {
  RouteRun r(c, dt);
  r.logits.randomise(seed, 2.0);
  r.correction.randomise(seed + 1, 0.3);
  route(c, false, r, test_stream());
  std::vector<int32_t> counts(c.num_experts, 0);
  const Doubles logits = r.logits.doubles(), parts = r.correction.doubles();
  Doubles sums(c.num_experts, 0.0), probs, weights;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const Doubles p = c.scores(&logits[t * c.num_experts]);
    Doubles merit = p;
    for (int64_t e = 0; c.corrected && e < c.num_experts; ++e) {
      merit[e] += parts[e] + parts[c.num_experts + e] + parts[2 * c.num_experts + e];
    }
    const std::vector<int32_t> order = chosen_of(c, merit);
    double sum = c.least_sum, all = 0.0;
    for (int64_t j = 0; j < c.k; ++j) sum += p[order[j]];
    for (int64_t j = 0; j < c.k; ++j) {
      EXPECT_EQ(r.experts[t * c.k + j], order[j]) << "token " << t << " choice " << j;
      ++counts[order[j]];
      weights.push_back(c.scale * (c.renormalise ? p[order[j]] / sum : p[order[j]]));
    }
    for (const double score : p) all += score;
    for (int64_t e = 0; e < c.num_experts; ++e) sums[e] += p[e] / all;
    probs.insert(probs.end(), p.begin(), p.end());
  }
  EXPECT_EQ(r.counts, counts);
  // An exponential and a division: 1e-6 relative.
  const auto relative = [](const Doubles& want) {
    return [&want](size_t i) { return 1e-6 * std::abs(want[i]) + 1e-30; };
  };
  expect_close("probs", r.probs.doubles(), probs, relative(probs));
  expect_close("weights", r.weights.doubles(), weights, relative(weights));
  expect_close("prob sums", r.prob_sums, sums, relative(sums));
}

TEST(Route, MatchesReference) {
  for (const RouteCase& c : kRouteCases) check_route(c);
}

// Seeds whose tokens all have clear winners in double: near-ties are rounding's to decide.
TEST(Route, SigmoidsCorrectionsGroupsAndScaleMatchReference) {
  std::mt19937 random(7);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const auto up_to = [&](uint32_t most) { return static_cast<int64_t>(1 + random() % most); };
    RouteCase c{up_to(40), 1, 1, random() % 2 == 0, random() % 4 != 0};
    c.groups = up_to(6);
    const int64_t size = 1 + up_to(20);
    c.num_experts = c.groups * size;
    c.groups_chosen = up_to(static_cast<uint32_t>(c.groups));
    c.k = up_to(static_cast<uint32_t>(std::min<int64_t>(9, size * c.groups_chosen)));
    c.scale = random() % 2 == 0 ? 1.0f : 2.5f;
    c.corrected = random() % 4 != 0;
    c.by_best = random() % 4 == 0;
    c.least_sum = seed % 3 == 0 ? 0.5f : 1e-20f;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << c.num_experts << " experts, "
                                    << c.groups_chosen << " of " << c.groups << " groups");
    check_route(c, random() % 2 == 0 ? DType::kF32 : DType::kBF16, 100 * seed);
  }
}

// The correction chooses and weighs nothing: here the last three experts win by it.
TEST(Route, CorrectionIsNotInTheWeights) {
  RouteCase c{4, 8, 3, false, true};
  c.corrected = true;
  RouteRun r(c);
  r.logits.randomise(61);
  for (int64_t e = 0; e < 24; ++e) r.correction.set(e, e >= 5 && e < 8 ? 2.0 * e : 0.0);
  route(c, false, r, test_stream());
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t j = 0; j < 3; ++j) {
      const int64_t e = 7 - j;
      EXPECT_EQ(r.experts[t * 3 + j], e);
      EXPECT_NEAR(r.weights.get(t * 3 + j), logistic(r.logits.get(t * 8 + e)), 1e-6);
    }
  }
}

// Experts 0 and 1 tie with 4 and 5, group 0 with group 1; the lowest wins, as among experts.
TEST(Route, TiesOfGroupsGoToTheLowest) {
  RouteCase c{1, 6, 2, true, true};
  c.groups = 3;
  c.groups_chosen = 1;
  RouteRun r(c);
  const double logits[] = {1, 2, 0, 0, 2, 1};
  for (int64_t i = 0; i < 6; ++i) r.logits.set(i, logits[i]);
  route(c, false, r, test_stream());
  EXPECT_EQ(r.experts, (std::vector<int32_t>{1, 0}));
}

// Three parts make an fp32 number: two corrections that differ in the last bit still choose.
TEST(Route, CorrectionsHaveAllBitsOfFp32) {
  RouteCase c{1, 4, 1, true, true};
  c.corrected = true;
  const float low = 12.3456789f, high = std::nextafter(low, 20.0f);
  for (DType dt : kDTypes) {
    RouteRun r(c, dt);
    for (int64_t e = 0; e < 4; ++e) {
      float rest = e == 2 ? high : low;
      for (int64_t part = 0; part < 3; ++part) {
        const float upper = std::bit_cast<float>(std::bit_cast<uint32_t>(rest) & 0xffff0000u);
        r.correction.set(part * 4 + e, upper);
        rest -= upper;
      }
      EXPECT_EQ(rest, 0.0f);
      r.logits.set(e, -100.0);
    }
    route(c, false, r, test_stream());
    EXPECT_EQ(r.experts[0], 2) << dtype_name(dt);
  }
}

// Each moves by the speed towards equal loads, in double; the parts are numbers of bf16.
TEST(Route, CorrectionsMoveAgainstTheLoad) {
  constexpr int64_t kExperts = 37;
  constexpr float kSpeed = 0.001f;
  for (DType dt : kDTypes) {
    TestTensor whole(DType::kF32, kExperts), parts(dt, 3 * kExperts);
    whole.randomise(81);
    std::vector<int32_t> load;
    int64_t total = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      load.push_back(static_cast<int32_t>(10 + e % 3 - 1));  // 9, 10 and 11
      if (e == kExperts - 1) load.back() = 10;
      total += load.back();
      float rest = static_cast<float>(whole.get(e));
      for (int64_t part = 0; part < 3; ++part) {
        const float upper = std::bit_cast<float>(std::bit_cast<uint32_t>(rest) & 0xffff0000u);
        parts.set(part * kExperts + e, upper);
        rest -= upper;
      }
    }
    ASSERT_EQ(total, 10 * kExperts);
    ops().move_correction(dt, load.data(), total, kExperts, kSpeed, parts.data(), test_stream());
    test_stream().synchronize();
    for (int64_t e = 0; e < kExperts; ++e) {
      const double sign = load[e] < 10 ? 1.0 : load[e] > 10 ? -1.0 : 0.0;
      const double want = whole.get(e) + sign * static_cast<double>(kSpeed);
      double sum = 0.0;
      for (int64_t part = 0; part < 3; ++part) {
        const auto value = static_cast<float>(parts.get(part * kExperts + e));
        EXPECT_EQ(to_float(bf16_round(value)), value) << e;
        sum += value;
      }
      EXPECT_EQ(sum, static_cast<double>(static_cast<float>(want))) << e << " " << dtype_name(dt);
    }
  }
}

TEST(Route, TiesGoToTheLowestExpert) {
  const RouteCase c{2, 6, 3, true};
  RouteRun r(c);
  const double logits[] = {1, 3, 3, 0, 3, 3, 0, 0, 0, 0, 0, 0};
  for (int64_t i = 0; i < 12; ++i) r.logits.set(i, logits[i]);
  route(c, false, r, test_stream());
  EXPECT_EQ(r.experts, (std::vector<int32_t>{1, 2, 4, 0, 1, 2}));
}

TEST(Route, ReplayKeepsTheChoice) {
  const RouteCase c{5, 8, 2, true};
  RouteRun r(c);
  r.logits.randomise(52);
  for (int32_t i = 0; i < 10; ++i) r.experts[i] = (i * 3) % 8;
  const std::vector<int32_t> imposed = r.experts;
  route(c, true, r, test_stream());
  EXPECT_EQ(r.experts, imposed);
  for (int64_t t = 0; t < c.tokens; ++t) {
    const double a = r.probs.get(t * 8 + imposed[t * 2]);
    const double b = r.probs.get(t * 8 + imposed[t * 2 + 1]);
    EXPECT_NEAR(r.weights.get(t * 2), a / (a + b), 1e-6);
    EXPECT_NEAR(r.weights.get(t * 2) + r.weights.get(t * 2 + 1), 1.0, 1e-6);
  }
}

TEST(Route, ThreadsAndAliasingDoNotMatter) {
  const RouteCase c{700, 24, 3, true};
  expect_same_bits([&](Stream& s) {
    RouteRun r(c);
    r.logits.randomise(53);
    route(c, false, r, s);
    const std::string apart = r.bits();
    RouteRun in_place(c);
    in_place.logits.randomise(53);
    ops().route(c.shape(), in_place.logits.floats(), DType::kF32, nullptr, nullptr, c.tokens, false,
                in_place.logits.floats(), in_place.experts.data(), in_place.weights.floats(),
                in_place.counts.data(), in_place.prob_sums.data(), s);
    s.synchronize();
    EXPECT_EQ(in_place.logits.bits() == r.probs.bits(), true) << "in place differs";
    return apart;
  });
}

double log_sum(const double* x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i]);
  return std::log(sum);
}

TEST(Route, LogSumsAndTheirSquares) {
  constexpr int64_t kTokens = 300, kExperts = 21;
  TestTensor logits(DType::kF32, kTokens * kExperts), sums(DType::kF32, kTokens);
  logits.randomise(62);
  for (int64_t e = 0; e < kExperts; ++e)
    logits.set(7 * kExperts + e, 500.0 + static_cast<double>(e));
  std::vector<uint8_t> padding;
  for (int64_t t = 0; t < kTokens; ++t) padding.push_back(t % 5 == 2);
  for (const bool padded : {false, true}) {
    double squares = -1.0, want_squares = 0.0;
    ops().log_sums(logits.floats(), padded ? padding.data() : nullptr, kTokens, kExperts,
                   sums.floats(), &squares, test_stream());
    test_stream().synchronize();
    for (int64_t t = 0; t < kTokens; ++t) {
      Doubles row(kExperts);
      const double shift = t == 7 ? 500.0 : 0.0;
      for (int64_t e = 0; e < kExperts; ++e) row[e] = logits.get(t * kExperts + e) - shift;
      const double want = shift + log_sum(row.data(), kExperts);
      // The sum is off by 1e-6 of it at most, and the result is rounded twice.
      EXPECT_NEAR(sums.get(t), want, 2e-6 + 2e-7 * std::abs(want)) << t;
      if (!padded || padding[t] == 0) want_squares += want * want;
    }
    EXPECT_NEAR(squares / want_squares, 1.0, 1e-6);
  }
}

// Loss = sum of weights times dweights plus sum of shares times aux_grad, choices fixed, plus the
// tokens' squared log sums times half of z_slope.
double route_loss(const RouteCase& c, const Doubles& logits, const std::vector<int32_t>& experts,
                  const Doubles& dweights, const Doubles& aux, double z_slope) {
  double loss = 0.0;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const Doubles p = c.scores(&logits[t * c.num_experts]);
    double sum = c.least_sum, all = 0.0;
    for (int64_t j = 0; j < c.k; ++j) sum += p[experts[t * c.k + j]];
    for (int64_t j = 0; j < c.k; ++j) {
      const double w = p[experts[t * c.k + j]] / (c.renormalise ? sum : 1.0);
      loss += c.scale * w * dweights[t * c.k + j];
    }
    for (const double score : p) all += score;
    for (int64_t e = 0; e < c.num_experts; ++e) loss += p[e] / all * aux[e];
    const double log_of_all = log_sum(&logits[t * c.num_experts], c.num_experts);
    loss += z_slope / 2 * log_of_all * log_of_all;
  }
  return loss;
}

TEST(Route, GradientMatchesFiniteDifferences) {
  for (const RouteCase& c :
       {RouteCase{6, 5, 2, true}, RouteCase{6, 5, 2, false}, RouteCase{3, 20, 4, true},
        RouteCase{2, 3, 3, true}, RouteCase{5, 6, 3, true, true, 2.5f, 3, 2, true},
        RouteCase{5, 6, 2, false, true, 1.5f, 1, 1, true},
        RouteCase{5, 6, 2, true, true, 1.0f, 1, 1, true, false, 0.5f},
        RouteCase{4, 8, 2, true, false, 2.0f}}) {
    for (DType dt : kDTypes) {
      RouteRun r(c);
      r.logits.randomise(54);
      route(c, false, r, test_stream());
      TestTensor dweights(DType::kF32, c.tokens * c.k), aux(DType::kF32, c.num_experts);
      TestTensor dlogits(dt, c.tokens * c.num_experts);
      dweights.randomise(55);
      aux.randomise(56);
      const float z_slope = c.sigmoid ? 0.0f : 0.7f;
      TestTensor log_sums(DType::kF32, c.tokens);
      double squares = 0.0;
      ops().log_sums(r.logits.floats(), nullptr, c.tokens, c.num_experts, log_sums.floats(),
                     &squares, test_stream());
      ops().route_backward(dt, c.shape(), r.probs.floats(), r.experts.data(), r.weights.floats(),
                           dweights.floats(), aux.floats(), c.sigmoid ? nullptr : log_sums.floats(),
                           z_slope, c.tokens, dlogits.data(), test_stream());
      test_stream().synchronize();
      const Doubles want = finite_differences(r.logits.doubles(), [&](const Doubles& x) {
        return route_loss(c, x, r.experts, dweights.doubles(), aux.doubles(), z_slope);
      });
      // Terms are at most a few units large and cancel; fp32 leaves 1e-6 of them.
      expect_close(strf("dlogits %s", dtype_name(dt)), dlogits.doubles(), want, [&](size_t i) {
        return 1.01 * rounding_of(dt) * std::abs(want[i]) + 5e-6;
      });
    }
  }
}

// Some tokens are padding: the others must come out as if those were not there.
TEST(Route, PaddingIsNotThere) {
  const RouteCase c{200, 9, 3, true};
  RouteRun r(c), apart({150, 9, 3, true});
  r.logits.randomise(58);
  std::vector<int32_t> place(c.tokens, -1);  // of each token without the padding
  int32_t kept = 0;
  for (int64_t t = 0; t < c.tokens; ++t) {
    r.padding.push_back(t % 4 == 1);
    if (r.padding.back()) continue;
    for (int64_t e = 0; e < 9; ++e) apart.logits.set(kept * 9 + e, r.logits.get(t * 9 + e));
    place[t] = kept++;
  }
  for (const bool replay : {false, true}) {
    if (replay) r.padding.clear();  // the choices tell
    route(c, replay, r, test_stream());
    route({150, 9, 3, true}, replay, apart, test_stream());
    EXPECT_EQ(r.counts, apart.counts);
    EXPECT_EQ(r.prob_sums, apart.prob_sums) << "the same terms in the same order";
    for (int64_t i = 0; i < c.tokens * 3; ++i) {
      const int32_t mine = place[i / 3];
      EXPECT_EQ(r.experts[i], mine < 0 ? -1 : apart.experts[mine * 3 + i % 3]);
      EXPECT_EQ(r.weights.get(i), mine < 0 ? 0.0 : apart.weights.get(mine * 3 + i % 3));
    }
  }
  std::vector<int64_t> first(10, 0);
  for (int64_t e = 0; e < 9; ++e) first[e + 1] = first[e] + r.counts[e];
  std::vector<int32_t> rows(600, -7), choices(600, -7), rows_apart(450), choices_apart(450);
  ops().index_rows(r.experts.data(), 200, 3, 9, first.data(), rows.data(), choices.data(),
                   test_stream());
  ops().index_rows(apart.experts.data(), 150, 3, 9, first.data(), rows_apart.data(),
                   choices_apart.data(), test_stream());
  TestTensor dweights(DType::kF32, 600), aux(DType::kF32, 9), dlogits(DType::kF32, 1800);
  dweights.randomise(59);
  aux.randomise(60);
  dlogits.randomise(61);
  TestTensor log_sums(DType::kF32, 200);
  double squares = 0.0;
  ops().log_sums(r.logits.floats(), nullptr, 200, 9, log_sums.floats(), &squares, test_stream());
  ops().route_backward(DType::kF32, c.shape(), r.probs.floats(), r.experts.data(),
                       r.weights.floats(), dweights.floats(), aux.floats(), log_sums.floats(), 0.5f,
                       200, dlogits.data(), test_stream());
  test_stream().synchronize();
  for (int64_t i = 0; i < 600; ++i) {
    EXPECT_EQ(i < 450 ? place[rows[i]] : rows[i], i < 450 ? rows_apart[i] : -7) << "row " << i;
  }
  int64_t zeros = 0;
  for (int64_t i = 0; i < 1800; ++i) {
    if (place[i / 9] < 0) {
      EXPECT_EQ(dlogits.get(i), 0.0) << "token " << i / 9;
    }
    zeros += dlogits.get(i) == 0.0;
  }
  EXPECT_EQ(zeros, 450) << "only padding has no gradient";
}

TEST(Route, IndexRowsSortsChoicesByExpert) {
  const RouteCase c{300, 7, 2, true};
  RouteRun r(c);
  r.logits.randomise(57);
  route(c, false, r, test_stream());
  std::vector<int64_t> first(c.num_experts + 1, 0);
  for (int64_t e = 0; e < c.num_experts; ++e) first[e + 1] = first[e] + r.counts[e];
  std::vector<int32_t> rows(c.tokens * c.k, -1), choices(c.tokens * c.k, -1);
  ops().index_rows(r.experts.data(), c.tokens, c.k, c.num_experts, first.data(), rows.data(),
                   choices.data(), test_stream());
  test_stream().synchronize();
  for (int64_t e = 0; e < c.num_experts; ++e) {
    for (int64_t i = first[e]; i < first[e + 1]; ++i) {
      EXPECT_EQ(r.experts[choices[i]], e);
      EXPECT_EQ(choices[i] / c.k, rows[i]);
      if (i == first[e]) continue;
      EXPECT_LT(rows[i - 1], rows[i]) << "tokens in order, each once";
    }
  }
}

// ---- cross-entropy ----

struct LossCase {
  int64_t n, vocab;
};

struct LossRun {
  LossRun(DType dt, const LossCase& c)
      : logits(DType::kF32, c.n * c.vocab), weight(DType::kF32, c.n), dlogits(dt, c.n * c.vocab) {
    logits.randomise(61, 3.0);
    weight.randomise(62);
    for (int64_t t = 0; t < c.n; ++t) {
      target.push_back(static_cast<int32_t>(t % 4 == 3 ? -1 : t * 31 % c.vocab));
    }
  }
  TestTensor logits, weight, dlogits;
  std::vector<int32_t> target;
  double loss = 0.5;  // added to
};

double loss_reference(const LossCase& c, const LossRun& r, const Doubles& logits, double* size) {
  double loss = 0.0;
  if (size) *size = 0.5;
  for (int64_t t = 0; t < c.n; ++t) {
    if (r.target[t] < 0) continue;
    const double* row = &logits[t * c.vocab];
    const double highest = *std::max_element(row, row + c.vocab);
    double sum = 0.0;
    for (int64_t i = 0; i < c.vocab; ++i) sum += std::exp(row[i] - highest);
    const double term = r.weight.get(t) * (highest + std::log(sum) - row[r.target[t]]);
    loss += term;
    if (size) *size += std::abs(term);
  }
  return loss;
}

void check_loss(DType dt, const LossCase& c) {
  constexpr float kScale = 0.125f;
  LossRun r(dt, c);
  ops().cross_entropy(dt, r.logits.floats(), r.target.data(), r.weight.floats(), c.n, c.vocab,
                      kScale, r.dlogits.data(), &r.loss, test_stream());
  test_stream().synchronize();
  double size = 0.0;
  const double want = 0.5 + loss_reference(c, r, r.logits.doubles(), &size);
  EXPECT_NEAR(r.loss, want, 1e-6 * size);
  double only_loss = 0.5;
  ops().cross_entropy(dt, r.logits.floats(), r.target.data(), r.weight.floats(), c.n, c.vocab,
                      kScale, nullptr, &only_loss, test_stream());
  test_stream().synchronize();
  EXPECT_EQ(only_loss, r.loss);
  Doubles gradient(c.n * c.vocab, 0.0);
  for (int64_t t = 0; t < c.n; ++t) {
    if (r.target[t] < 0) continue;
    const Doubles logits = r.logits.doubles();
    const Doubles p = softmax(&logits[t * c.vocab], c.vocab);
    for (int64_t i = 0; i < c.vocab; ++i) {
      gradient[t * c.vocab + i] = (p[i] - (i == r.target[t])) * r.weight.get(t) * kScale;
    }
  }
  // exp(x - lse) with lse rounded to fp32: |lse| eps, about 1e-6 relative to p; then p - 1 cancels.
  expect_close("dlogits", r.dlogits.doubles(), gradient, [&](size_t i) {
    return (1.01 * rounding_of(dt) + 3e-6) * std::abs(gradient[i]) +
           (r.target[i / c.vocab] == static_cast<int64_t>(i) % c.vocab ? 3e-6 : 1e-30);
  });
  if (c.n * c.vocab > 200) return;
  const Doubles numeric = finite_differences(r.logits.doubles(), [&](const Doubles& x) {
    return kScale * loss_reference(c, r, x, nullptr);
  });
  expect_close("reference gradient", gradient, numeric, [](size_t) { return 1e-8; });
}

TEST(CrossEntropy, MatchesReference) {
  for (DType dt : kDTypes) {
    for (const LossCase& c : {LossCase{0, 3}, LossCase{1, 1}, LossCase{6, 17}, LossCase{3, 9001}}) {
      check_loss(dt, c);
    }
  }
}

TEST(CrossEntropy, ThreadsAndAliasingDoNotMatter) {
  const LossCase c{90, 1000};
  expect_same_bits([&](Stream& s) {
    LossRun r(DType::kF32, c);
    ops().cross_entropy(DType::kF32, r.logits.floats(), r.target.data(), r.weight.floats(), c.n,
                        c.vocab, 1.0f, r.dlogits.data(), &r.loss, s);
    double again = 0.5;
    ops().cross_entropy(DType::kF32, r.logits.floats(), r.target.data(), r.weight.floats(), c.n,
                        c.vocab, 1.0f, r.logits.data(), &again, s);
    s.synchronize();
    EXPECT_EQ(again, r.loss);
    EXPECT_EQ(r.logits.bits() == r.dlogits.bits(), true) << "in place differs";
    return r.dlogits.bits() + std::string(reinterpret_cast<const char*>(&r.loss), 8);
  });
}

TEST(CrossEntropy, NonFiniteLogitsShow) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    LossRun r(DType::kF32, {2, 40});
    r.logits.set(50, bad);
    ops().cross_entropy(DType::kF32, r.logits.floats(), r.target.data(), r.weight.floats(), 2, 40,
                        1.0f, nullptr, &r.loss, test_stream());
    test_stream().synchronize();
    EXPECT_FALSE(std::isfinite(r.loss));
  }
}

}  // namespace
}  // namespace pagoda
