// Changed copies of good inputs, the same ones in every run: what the replay among the tests has in
// place of libFuzzer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pagoda {

// The `n`th: one of the seeds with one to four changes, each to some bits, a byte, a number, a
// stretch that goes, comes twice or comes from another seed, or the end. REQUIRES: seeds.
std::string mutated(const std::vector<std::string>& seeds, uint64_t n);

}  // namespace pagoda
