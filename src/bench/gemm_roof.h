// T_roof of `pagoda bench gemm`: the rates of the processor and the memory by themselves, on the
// threads that multiply experts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bench/gemm_experts.h"
#include "bench/race/timing.h"

namespace pagoda {

class GemmRoof {
 public:
  enum class Part : uint8_t { kMultiply, kRead, kWrite };
  static constexpr int kParts = 3;

  // Both outlive it.
  GemmRoof(const Experts& experts, Stream& stream) : experts_(experts), stream_(stream) {}

  // Measures once to warm up, then for 50 ms or more: products of registers by each instruction
  // that the processor has, reads of all weights, or writes of all gradients.
  void measure(Part part);

  // The rate of the last measure(): operations or bytes in a second, for kMultiply those of the
  // best instruction; 0 if no kernel works on registers.
  double rate(Part part) const;
  // The rates of kMultiply in the order of block_kernels().
  std::vector<double> register_rates() const;
  // The least time for forward and backward of all experts with `tokens` rows. REQUIRES: kRead and
  // kWrite were measured.
  Timing timing(int64_t tokens) const;

 private:
  const Experts& experts_;
  Stream& stream_;
  std::array<Timing, kParts> timings_{};
  std::vector<Timing> registers_;  // one for each kernel; the best is the timing of kMultiply
};

}  // namespace pagoda
