#include <vector>

#include "kernels/cpu/cpu_ops.h"

namespace pagoda {

void CpuOps::index_rows(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
                        const int64_t* first, int32_t* rows, int32_t* choices, Stream& s) {
  CHECK(tokens >= 0 && k > 0 && num_experts > 0);
  s.enqueue([=, next = std::vector<int64_t>(first, first + num_experts + 1)]() mutable {
    for (int64_t choice = 0; choice < tokens * k; ++choice) {
      const int64_t at = next[experts[choice]]++;
      rows[at] = static_cast<int32_t>(choice / k);
      choices[at] = static_cast<int32_t>(choice);
    }
  });
}

}  // namespace pagoda
