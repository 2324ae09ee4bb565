// Fits a sheet's numbers to measurements: times of products by rows, and rates of attention by
// length.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "bench/attention_trial.h"
#include "bench/gemm_experts.h"
#include "plan/machine/machine_profile.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

inline constexpr ExpertShape kSheetExperts{2048, 1024, 1024};
inline constexpr std::array<int64_t, 4> kSheetRows = {16, 128, 512, 1024};
inline constexpr AttentionBenchShape kSheetAttention{8, 2, 128, 4096};
inline constexpr std::array<int64_t, 3> kSheetLengths = {256, 1024, 4096};

// `samples`: seconds of an expert of kSheetExperts, forward and backward, by rows. Sets gemm_tflops
// from the time of a row, and weight_gb_s from the time that is left without rows, in which weights
// are read twice and an fp32 gradient is added to.
void fit_products(std::span<const CostSample> samples, MachineSheet::Device& device);

// Operations a second of attention over documents of a length, forward and backward, as attention
// counts them (tile_products.h).
struct AttentionRates {
  int64_t length = 0;
  double forward = 0, backward = 0;
};
// Fits 1 / rate as a line over 1 / length: sets the rate of long sequences, and the length that has
// half of it.
void fit_attention(std::span<const AttentionRates> rates, MachineSheet::Device& device);

}  // namespace pagoda
