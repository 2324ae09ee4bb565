// Prefixes of the International System as factors: sheets are in GB/s, tflops and microseconds,
// code counts in bytes, operations and seconds.
#pragma once

namespace pagoda {

inline constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;

}  // namespace pagoda
