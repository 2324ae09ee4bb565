// The router, its gradient and the re-index vector.
#include <cmath>

#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

struct Routing {
  int64_t tokens, experts, k;
  bool renormalise;
  bool sigmoid = false;
  int64_t groups = 1, groups_chosen = 1;
  bool corrected = false, by_best = false;
  RouterShape shape() const {
    RouterShape shape;
    shape.num_experts = experts;
    shape.k = k;
    shape.renormalise = renormalise;
    shape.sigmoid = sigmoid;
    shape.scale = sigmoid ? 2.5f : 1.0f;
    shape.groups = groups;
    shape.groups_chosen = groups_chosen;
    shape.group_by_best = by_best;
    return shape;
  }
};

std::string named(const char* op, const Routing& r) {
  return strf("%s %lld tokens, %lld of %lld experts%s, %lld of %lld groups", op,
              static_cast<long long>(r.tokens), static_cast<long long>(r.k),
              static_cast<long long>(r.experts), r.sigmoid ? " by sigmoids" : "",
              static_cast<long long>(r.groups_chosen), static_cast<long long>(r.groups));
}

void add_route(DType dt, const Routing& r, bool padded, bool replay,
               std::vector<OpCase>& cases) {
  cases.push_back({named(replay ? "route (replay)" : "route", r), [=](Trial& t) {
    std::vector<uint8_t> marks(static_cast<size_t>(r.tokens), 0);
    std::vector<int32_t> given(static_cast<size_t>(r.tokens * r.k), 5);
    for (int64_t i = 0; i < r.tokens; ++i) {
      if (padded && i % 5 == 2) marks[static_cast<size_t>(i)] = 1;
      for (int64_t j = 0; j < r.k; ++j) {
        given[static_cast<size_t>(i * r.k + j)] =
            padded && i % 5 == 2 ? -1 : static_cast<int32_t>((i * 3 + j) % r.experts);
      }
    }
    Tensor &logits = t.random(DType::kF32, r.tokens * r.experts, 51, 2.0);
    Tensor& correction = t.random(dt, 3 * r.experts, 56, 0.3);
    Tensor &padding = t.bytes(marks), &experts = t.ints(given);
    Tensor &probs = t.filled(DType::kF32, r.tokens * r.experts);
    Tensor& weights = t.filled(DType::kF32, r.tokens * r.k);
    Tensor& counts = t.ints(std::vector<int32_t>(static_cast<size_t>(r.experts), 9));
    Tensor& sums = t.doubles(std::vector<double>(static_cast<size_t>(r.experts), 9.0));
    t.run([&](Ops& ops, const At& at, Stream& s) {
      const uint8_t* pads = padded ? static_cast<uint8_t*>(at(padding)) : nullptr;
      const void* corrections = r.corrected ? static_cast<void*>(at(correction)) : nullptr;
      ops.route(r.shape(), at(logits), dt, corrections, pads, r.tokens, replay, at(probs),
                at(experts), at(weights), at(counts), at(sums), s);
    });
    t.expect_same("experts", experts);
    t.expect_same("counts", counts);
    // An exponential (3e-7 each side), a sum of positive terms, a reciprocal.
    const double relative = 1e-6 + 2 * static_cast<double>(r.experts) * kEps32;
    t.expect_close("probs", probs, [&](int64_t i) { return relative * want(probs, i); });
    t.expect_close("weights", weights, [&](int64_t i) { return 3 * relative * want(weights, i); });
    t.expect_close("sums", sums, [&](int64_t i) { return relative * want(sums, i); });
  }});
}

void add_backward(DType dt, const Routing& r, std::vector<OpCase>& cases) {
  cases.push_back({named("route_backward", r), [=](Trial& t) {
    const int64_t all = r.tokens * r.experts;
    // A sum of sigmoids is far from 0.
    std::vector<double> sigmoids;
    for (int64_t i = 0; i < all; ++i) sigmoids.push_back(0.1 + 0.8 * double((i * i) % 97) / 97);
    Tensor& probs = r.sigmoid ? t.numbers(DType::kF32, sigmoids)
                              : t.random(DType::kF32, all, 52, 0.1);
    Tensor& dweights = t.random(DType::kF32, r.tokens * r.k, 53);
    Tensor &weights = t.random(DType::kF32, r.tokens * r.k, 54), &aux =
        t.random(DType::kF32, r.experts, 55);
    std::vector<int32_t> given;
    for (int64_t i = 0; i < r.tokens * r.k; ++i) {
      const int64_t token = i / r.k;
      given.push_back(token % 7 == 3 ? -1
                                     : static_cast<int32_t>((token * 3 + i % r.k) % r.experts));
    }
    Tensor &experts = t.ints(given), &dlogits = t.filled(dt, all);
    Tensor& log_sums = t.random(DType::kF32, r.tokens, 57);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      const float* sums = r.sigmoid ? nullptr : static_cast<float*>(at(log_sums));
      ops.route_backward(dt, r.shape(), at(probs), at(experts), at(weights), at(dweights), at(aux),
                         sums, 0.25f, r.tokens, at(dlogits), s);
    });
    // p (d - sum p d): the sum of E products in two orders. d has a quotient by a sum of k
    // probabilities, which here may nearly cancel.
    t.expect_close("dlogits", dlogits, [&](int64_t i) {
      const int64_t token = i / r.experts;
      double sum = 0.0, largest = 0.0;
      for (int64_t j = 0; j < r.k; ++j) {
        const int32_t e = given[static_cast<size_t>(token * r.k + j)];
        if (e >= 0) sum += before(probs, token * r.experts + e);
      }
      for (int64_t j = 0; j < r.k; ++j) {
        largest = std::max(largest, std::abs(before(dweights, token * r.k + j)));
      }
      const double d = 5.0 + largest * 20.0 / (r.renormalise ? std::abs(sum) : 1.0);
      const double inner = static_cast<double>(r.experts + 8) * kEps32 * 0.5 *
                           static_cast<double>(r.experts) * d;
      return 2.02 * rounding_of(dt) * std::abs(want(dlogits, i)) +
             std::abs(before(probs, i)) * inner + 1e-30;
    });
  }});
}

void add_log_sums(const Routing& r, bool padded, std::vector<OpCase>& cases) {
  cases.push_back(
      {named("log_sums", r), [=](Trial& t) {
         std::vector<uint8_t> marks(static_cast<size_t>(r.tokens), 0);
         for (int64_t i = 2; i < r.tokens; i += 5) marks[static_cast<size_t>(i)] = padded;
         Tensor &logits = t.random(DType::kF32, r.tokens * r.experts, 58, 2.0),
                &padding = t.bytes(marks);
         Tensor& sums = t.filled(DType::kF32, r.tokens);
         Tensor& squares = t.doubles({9.0});
         t.run([&](Ops& ops, const At& at, Stream& s) {
           ops.log_sums(at(logits), at(padding), r.tokens, r.experts, at(sums), at(squares), s);
         });
         // An exponential (3e-7 each side), a sum of positive terms, a logarithm and a sum.
         const double relative = 1e-6 + static_cast<double>(r.experts) * kEps32;
         t.expect_close("sums", sums,
                        [&](int64_t i) { return relative + 2 * kEps32 * std::abs(want(sums, i)); });
         t.expect_close("squares", squares, [&](int64_t i) {
           return 1e-3 * relative + 20 * relative * want(squares, i);
         });
       }});
}

void add_index(const Routing& r, int skew, std::vector<OpCase>& cases) {
  cases.push_back({named("index_rows", r), [=](Trial& t) {
    std::vector<int32_t> given;
    std::vector<int64_t> count(static_cast<size_t>(r.experts), 0), first;
    for (int64_t i = 0; i < r.tokens * r.k; ++i) {
      int32_t e = static_cast<int32_t>((i * i + 5 * i) % r.experts);
      if (skew == 1) e = static_cast<int32_t>(r.experts / 2);  // all on one, the others empty
      if (skew == 2 && i % 3 == 1) e = -1;
      given.push_back(e);
      if (e >= 0) ++count[static_cast<size_t>(e)];
    }
    int64_t next = 0;
    for (int64_t c : count) {
      first.push_back(next);
      next += c + 2;  // room between experts
    }
    Tensor &experts = t.ints(given), &rows = t.ints(std::vector<int32_t>(size_t(next), -7));
    Tensor& choices = t.ints(std::vector<int32_t>(size_t(next), -7));
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.index_rows(at(experts), r.tokens, r.k, r.experts, first.data(), at(rows), at(choices), s);
    });
    t.expect_same("rows", rows);
    t.expect_same("choices", choices);
  }});
}

void add_correction(DType dt, int64_t experts, std::vector<OpCase>& cases) {
  const std::string name = strf("move_correction %s %lld", dtype_name(dt), (long long)experts);
  cases.push_back({name, [=](Trial& t) {
                     std::vector<int32_t> loads;
                     for (int64_t e = 0; e < experts; ++e)
                       loads.push_back(static_cast<int32_t>(e * e % 5));
                     int64_t total = 0;
                     for (const int32_t load : loads) total += load;
                     Tensor &parts = t.random(dt, 3 * experts, 21), &load = t.ints(loads);
                     t.run([&](Ops& ops, const At& at, Stream& s) {
                       ops.move_correction(dt, at(load), total, experts, 0.001f, at(parts), s);
                     });
                     t.expect_same("parts", parts);
                   }});
}

}  // namespace

std::vector<OpCase> route_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
    for (int64_t experts : {1, 40, 256}) add_correction(dt, experts, cases);
  }
  for (const Routing& r : {Routing{1, 1, 1, false}, {9, 8, 2, true}, {300, 40, 4, false},
                           {20, 130, 8, true}, {0, 4, 2, true}, {40, 24, 3, true, true, 1, 1, true},
                           {70, 256, 8, true, true, 8, 4, true}, {30, 140, 5, false, true, 70, 9},
                           {9, 66, 2, true, false, 3, 2, true},
                           {50, 48, 4, false, false, 6, 2, false, true}}) {
    for (DType dt : kDTypes) {
      add_route(dt, r, false, false, cases);
      if (dt != DType::kF32) continue;  // the others take no correction
      add_route(dt, r, true, false, cases);
      add_route(dt, r, true, true, cases);
    }
    for (DType dt : kDTypes) add_backward(dt, r, cases);
    for (bool padded : {false, true}) add_log_sums(r, padded, cases);
    for (int skew : {0, 1, 2}) add_index(r, skew, cases);
  }
  return cases;
}

}  // namespace pagoda::check
