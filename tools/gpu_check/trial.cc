#include "tools/gpu_check/trial.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "base/random.h"

namespace pagoda::check {
namespace {

constexpr int64_t kGuard = 256;
constexpr std::byte kGuardByte{0x5a};

int64_t bytes_of(Kind kind) {
  switch (kind) {
    case Kind::kF64: return 8;
    case Kind::kBF16: return 2;
    case Kind::kU8: return 1;
    default: return 4;
  }
}

void set(Tensor& t, int64_t i, double v) {
  std::byte* place = t.before.data() + i * bytes_of(t.kind);
  if (t.kind == Kind::kBF16) {
    const bf16 value = bf16_round(static_cast<float>(v));
    std::memcpy(place, &value, 2);
  } else {
    const float value = static_cast<float>(v);
    std::memcpy(place, &value, 4);
  }
}

// The stream and the threads of the reference.
Stream& reference_stream() {
  static std::unique_ptr<Stream> stream =
      make_host_stream({"reference"}, std::make_shared<ThreadPool>(2));
  return *stream;
}

}  // namespace

double value_at(const Tensor& t, const std::vector<std::byte>& bytes, int64_t i) {
  const std::byte* place = bytes.data() + i * bytes_of(t.kind);
  const auto as = [&]<typename T>(T value) {
    std::memcpy(&value, place, sizeof value);
    return value;
  };
  switch (t.kind) {
    case Kind::kF32: return static_cast<double>(as(float{}));
    case Kind::kBF16: return static_cast<double>(to_float(as(bf16{})));
    case Kind::kI32: return as(int32_t{});
    case Kind::kU8: return as(uint8_t{});
    default: return as(double{});
  }
}

Tensor& Trial::add(Kind kind, int64_t n, int64_t offset) {
  Tensor& t = tensors_.emplace_back();
  t.kind = kind;
  t.n = n;
  t.before.resize(static_cast<size_t>(n * bytes_of(kind)));
  t.at = align_up(used_ + kGuard, kGuard) + offset * bytes_of(kind);
  used_ = t.at + t.size() + kGuard;
  CHECK(used_ <= candidate_.bytes, "a case needs more than %lld bytes",
        static_cast<long long>(candidate_.bytes));
  return t;
}

Tensor& Trial::random(DType dt, int64_t n, uint64_t seed, double scale, int64_t offset) {
  Tensor& t = add(kind_of(dt), n, offset);
  for (int64_t i = 0; i < n; ++i) {
    set(t, i, scale * static_cast<double>(random_normal(seed, RandomPurpose::kTest, 0,
                                                        static_cast<uint64_t>(i))));
  }
  return t;
}

Tensor& Trial::filled(DType dt, int64_t n, double value) {
  Tensor& t = add(kind_of(dt), n, 0);
  for (int64_t i = 0; i < n; ++i) set(t, i, value);
  return t;
}

Tensor& Trial::numbers(DType dt, const std::vector<double>& values) {
  Tensor& t = add(kind_of(dt), static_cast<int64_t>(values.size()), 0);
  for (int64_t i = 0; i < t.n; ++i) set(t, i, values[static_cast<size_t>(i)]);
  return t;
}

Tensor& Trial::ints(std::vector<int32_t> values) {
  Tensor& t = add(Kind::kI32, static_cast<int64_t>(values.size()), 0);
  std::memcpy(t.before.data(), values.data(), t.before.size());
  return t;
}

Tensor& Trial::bytes(std::vector<uint8_t> values) {
  Tensor& t = add(Kind::kU8, static_cast<int64_t>(values.size()), 0);
  std::memcpy(t.before.data(), values.data(), t.before.size());
  return t;
}

Tensor& Trial::doubles(std::vector<double> values) {
  Tensor& t = add(Kind::kF64, static_cast<int64_t>(values.size()), 0);
  std::memcpy(t.before.data(), values.data(), t.before.size());
  return t;
}

void Trial::run(const std::function<void(Ops& ops, const At& at, Stream& s)>& call) {
  run([&](const At& at, Stream& s) { call(cpu_ops(), at, s); },
      [&](const At& at, Stream& s) { call(*candidate_.ops, at, s); });
}

void Trial::run(const std::function<void(const At& at, Stream& s)>& reference,
                const std::function<void(const At& at, Stream& s)>& tried) {
  for (Tensor& t : tensors_) t.want = t.before;
  reference([](const Tensor& t) { return Pointer{const_cast<std::byte*>(t.want.data())}; },
            reference_stream());
  reference_stream().synchronize();
  try_once(tried, false);
  try_once(tried, true);
}

void Trial::try_once(const std::function<void(const At& at, Stream& s)>& tried, bool second) {
  Stream& s = *candidate_.stream;
  std::vector<std::byte> image(static_cast<size_t>(used_), kGuardByte);
  for (const Tensor& t : tensors_) {
    if (t.size() > 0) std::memcpy(image.data() + t.at, t.before.data(), t.before.size());
  }
  s.copy(candidate_.memory, image.data(), used_);
  s.synchronize();
  candidate_.before_run(second);
  tried([&](const Tensor& t) { return Pointer{candidate_.memory + t.at}; }, s);
  s.copy(image.data(), candidate_.memory, used_);
  s.synchronize();
  for (Tensor& t : tensors_) {
    std::vector<std::byte> got(image.begin() + t.at, image.begin() + t.at + t.size());
    if (second && got != t.got) fail("other bits when it ran again");
    t.got = std::move(got);
    std::fill_n(image.begin() + t.at, t.size(), kGuardByte);
  }
  for (std::byte byte : image) {
    if (byte != kGuardByte) return fail("written outside the tensors");
  }
}

void Trial::expect_same(const std::string& what, const Tensor& t) {
  if (t.got == t.want) return;
  expect_close(what + " (to the bit)", t, [](int64_t) { return 0.0; });
  if (faults_.empty()) fail(what + ": other bits of equal value");
}

void Trial::expect_close(const std::string& what, const Tensor& t,
                         const std::function<double(int64_t)>& tolerance) {
  int64_t outside = 0, worst = 0;
  double worst_ratio = 0.0;
  for (int64_t i = 0; i < t.n; ++i) {
    const double got = value_at(t, t.got, i), wanted = want(t, i);
    if (got == wanted || (std::isnan(got) && std::isnan(wanted))) continue;
    const double difference = std::abs(got - wanted);
    const double ratio = std::isfinite(difference) ? difference / tolerance(i) : INFINITY;
    if (ratio <= 1.0) continue;
    ++outside;
    if (ratio <= worst_ratio) continue;
    worst_ratio = ratio;
    worst = i;
  }
  if (outside == 0) return;
  fail(strf(
      "%s: %lld of %lld elements outside, the worst %lld: got %.9g, want %.9g, tolerance %.3g",
      what.c_str(), static_cast<long long>(outside), static_cast<long long>(t.n),
      static_cast<long long>(worst), value_at(t, t.got, worst), want(t, worst), tolerance(worst)));
}

}  // namespace pagoda::check
