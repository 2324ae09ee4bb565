// The gated short convolution against a double-precision reference, its gradients against finite
// differences of that, and token by token against all at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

struct Case {
  std::vector<int32_t> lengths;  // of documents
  int64_t dim, width;
  int64_t tokens() const {
    int64_t all = 0;
    for (const int32_t length : lengths) all += length;
    return all;
  }
  std::vector<int32_t> positions() const {
    std::vector<int32_t> positions;
    for (const int32_t length : lengths) {
      for (int32_t p = 0; p < length; ++p) positions.push_back(p);
    }
    return positions;
  }
  std::string name(DType dt) const {
    return strf("%s, %lld tokens of %lld, width %lld", dtype_name(dt), (long long)tokens(),
                (long long)dim, (long long)width);
  }
};

// Documents shorter than the width, sums over several row blocks, parts of vectors.
const Case kCases[] = {{{1}, 1, 2}, {{5, 1, 2, 17}, 19, 3}, {{40, 3}, 16, 4}, {{300, 230}, 5, 3},
                       {{9, 1}, 3, 64}};

// Row by row; `rounds`: u is rounded to dt, as the op says.
Doubles reference(const Case& c, DType dt, const Doubles& bcx, const Doubles& taps, bool rounds) {
  Doubles out;
  int64_t first = 0;
  for (const int32_t length : c.lengths) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < c.dim; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < c.width; ++j) {
          const int64_t from = t - (c.width - 1) + j;
          if (from < 0) continue;
          const int64_t row = (first + from) * 3 * c.dim;
          double u = bcx[row + i] * bcx[row + 2 * c.dim + i];
          if (rounds && dt == DType::kBF16) u = to_float(bf16_round(static_cast<float>(u)));
          sum += taps[i * c.width + j] * u;
        }
        out.push_back(bcx[(first + t) * 3 * c.dim + c.dim + i] * sum);
      }
    }
    first += length;
  }
  return out;
}

// The sizes of what was added, for tolerances.
Doubles sizes(Doubles values) {
  for (double& v : values) v = std::abs(v);
  return values;
}

struct Tensors {
  Tensors(const Case& c, DType dt)
      : bcx(dt, c.tokens() * 3 * c.dim, 1), taps(dt, c.dim * c.width, 3),
        out(dt, c.tokens() * c.dim, 5), positions(c.positions()) {
    bcx.randomise(11);
    taps.randomise(12);
  }
  void forward(const Case& c, DType dt, Stream& s) {
    cpu_ops().short_conv(dt, positions.data(), bcx.data(), taps.data(), c.tokens(), c.dim, c.width,
                         out.data(), s);
    s.synchronize();
  }
  TestTensor bcx, taps, out;
  std::vector<int32_t> positions;
};

TEST(ShortConv, MatchesReference) {
  for (const Case& c : kCases) {
    for (DType dt : kDTypes) {
      Tensors x(c, dt);
      x.forward(c, dt, test_stream());
      const Doubles want = reference(c, dt, x.bcx.doubles(), x.taps.doubles(), true);
      const Doubles size = reference(c, dt, sizes(x.bcx.doubles()), sizes(x.taps.doubles()), false);
      const double terms = static_cast<double>(c.width) + 3;
      expect_close(c.name(dt), x.out.doubles(), want, [&](size_t i) {
        return 1.01 * rounding_of(dt) * std::abs(want[i]) + terms * kEps32 * size[i] + 1e-30;
      });
    }
  }
}

// In fp32, where u is not rounded; a bf16's gradient differs by its roundings.
TEST(ShortConv, GradientsMatchFiniteDifferences) {
  for (const Case& c : {kCases[0], kCases[1], kCases[2]}) {
    for (DType dt : kDTypes) {
      Tensors x(c, dt);
      TestTensor dout(dt, c.tokens() * c.dim), dbcx(dt, x.bcx.size()),
          dtaps(DType::kF32, x.taps.size());
      dout.randomise(13);
      dbcx.fill(99.0);
      dtaps.fill(0.25);
      cpu_ops().short_conv_backward(dt, x.positions.data(), x.bcx.data(), x.taps.data(),
                                    dout.data(), c.tokens(), c.dim, c.width, dbcx.data(),
                                    dtaps.floats(), test_stream());
      test_stream().synchronize();
      const Doubles bcx = x.bcx.doubles(), taps = x.taps.doubles(), weights = dout.doubles();
      const Doubles by_bcx = finite_differences(bcx, [&](const Doubles& v) {
        return inner(reference(c, dt, v, taps, false), weights);
      });
      Doubles by_taps = finite_differences(taps, [&](const Doubles& v) {
        return inner(reference(c, dt, bcx, v, false), weights);
      });
      for (double& v : by_taps) v += 0.25;
      const double relative = dt == DType::kF32 ? 1e-6 : 2.5 * kEpsBf16;
      const double scale = relative * 8;
      expect_close(c.name(dt) + " dbcx", dbcx.doubles(), by_bcx,
                   [&](size_t i) { return relative * std::abs(by_bcx[i]) + scale; });
      const double sums = scale * std::sqrt(static_cast<double>(c.tokens()));
      expect_close(c.name(dt) + " dtaps", dtaps.doubles(), by_taps,
                   [&](size_t i) { return relative * std::abs(by_taps[i]) + sums; });
    }
  }
}

TEST(ShortConv, SumsOfTapsRunInRowBlocks) {
  const Case& c = kCases[3];
  ASSERT_GT(c.tokens(), 2 * kRowBlock);
  Tensors x(c, DType::kF32);
  TestTensor dout(DType::kF32, c.tokens() * c.dim), dbcx(DType::kF32, x.bcx.size());
  dout.randomise(14);
  const auto gradient = [&](Stream& s) {
    TestTensor dtaps(DType::kF32, x.taps.size());
    dtaps.fill(0.0);
    cpu_ops().short_conv_backward(DType::kF32, x.positions.data(), x.bcx.data(), x.taps.data(),
                                  dout.data(), c.tokens(), c.dim, c.width, dbcx.data(),
                                  dtaps.floats(), s);
    s.synchronize();
    return dtaps;
  };
  expect_same_bits([&](Stream& s) {
    const std::string taps = gradient(s).bits();
    return taps + dbcx.bits();
  });
  const Doubles got = gradient(test_stream()).doubles();
  const std::vector<int32_t> position = x.positions;
  for (int64_t i = 0; i < c.dim; ++i) {
    for (int64_t j = 0; j < c.width; ++j) {
      float all = 0.0f;
      for (int64_t block = 0; block < c.tokens(); block += kRowBlock) {
        float sum = 0.0f;
        for (int64_t t = block; t < std::min(c.tokens(), block + kRowBlock); ++t) {
          const int64_t k = c.width - 1 - j, row = (t - k) * 3 * c.dim + i;
          if (position[t] < k) continue;
          const auto number = [](TestTensor& v, int64_t at) { return v.floats()[at]; };
          sum += number(dout, t * c.dim + i) * number(x.bcx, t * 3 * c.dim + c.dim + i) *
                 (number(x.bcx, row) * number(x.bcx, row + 2 * c.dim));
        }
        all += sum;
      }
      EXPECT_EQ(got[i * c.width + j], all) << i << " " << j;
    }
  }
}

// A call with pieces of the sequences, which are the case's documents.
class Cache {
 public:
  Cache(const Case& c, DType dt, const Tensors& all)
      : c_(c), dt_(dt), all_(all), done_(c.lengths.size()),
        state_(dt, std::ssize(c.lengths) * (c.width - 1) * c.dim) {
    state_.fill(1e30);  // what was never stored would show
  }
  // The next `most` tokens at most, `of_each` of each sequence at most, to their rows of `out`.
  bool call(int64_t most, int64_t of_each, TestTensor& out) {
    std::vector<int32_t> sequence, position;
    std::vector<int64_t> rows;
    int64_t first = 0;
    for (size_t q = 0; q < c_.lengths.size(); first += c_.lengths[q++]) {
      for (int64_t n = 0; n < of_each && done_[q] < c_.lengths[q] && std::ssize(rows) < most; ++n) {
        sequence.push_back(static_cast<int32_t>(q));
        position.push_back(done_[q]);
        rows.push_back(first + done_[q]++);
      }
    }
    const auto n = std::ssize(rows), row = 3 * c_.dim * dtype_bytes(dt_);
    if (n == 0) return false;
    TestTensor bcx(dt_, n * 3 * c_.dim), some(dt_, n * c_.dim);
    for (int64_t t = 0; t < n; ++t) {
      std::memcpy(static_cast<std::byte*>(bcx.data()) + t * row,
                  static_cast<const std::byte*>(all_.bcx.data()) + rows[t] * row,
                  static_cast<size_t>(row));
    }
    cpu_ops().cached_short_conv(dt_, sequence.data(), position.data(), bcx.data(),
                                all_.taps.data(), n, c_.dim, c_.width, state_.data(), some.data(),
                                test_stream());
    test_stream().synchronize();
    for (int64_t i = 0; i < n * c_.dim; ++i) {
      out.set(rows[i / c_.dim] * c_.dim + i % c_.dim, some.get(i));
    }
    return true;
  }

 private:
  const Case& c_;
  DType dt_;
  const Tensors& all_;
  std::vector<int32_t> done_;
  TestTensor state_;
};

TEST(CachedShortConv, HasTheBitsOfAllAtOnce) {
  for (const Case& c : kCases) {
    for (DType dt : kDTypes) {
      Tensors x(c, dt);
      x.forward(c, dt, test_stream());
      const std::pair<int64_t, int64_t> pieces[] = {{1000, 1000}, {1000, 1}, {7, 1000}, {1000, 2}};
      for (const auto& [most, of_each] : pieces) {
        Cache cache(c, dt, x);
        TestTensor out(dt, x.out.size());
        out.fill(-77.0);
        while (cache.call(most, of_each, out)) {
        }
        EXPECT_TRUE(out.bits() == x.out.bits()) << c.name(dt) << " " << most << " " << of_each;
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
