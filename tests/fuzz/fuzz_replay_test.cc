// Every fuzz target on its seeds and on changed copies of them, without libFuzzer: a fault ends the
// program. What the search with libFuzzer found comes again as tests of the code that was mended.
#include <gtest/gtest.h>

#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/mutation.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

constexpr uint64_t kMutations = kUnderSanitizer ? 1000 : 2000;  // a target

class FuzzReplay : public testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzReplay, SeedsAndChangedCopiesOfThem) {
  const std::vector<std::string> seeds = GetParam().seeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) GetParam().run(seed);
  GetParam().run("");
  for (uint64_t n = 0; n < kMutations; ++n) GetParam().run(mutated(seeds, n));
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay, testing::ValuesIn(fuzz_targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace pagoda
