#include "tests/testing/plan/two_ranks.h"

namespace pagoda {

RunShape two_ranks(const std::vector<uint8_t>& is_moe, Sharing sharing) {
  RunShape shape;
  shape.num_layers = static_cast<int64_t>(is_moe.size());
  shape.is_moe = is_moe;
  shape.num_experts = 2;
  shape.hidden_size = 8;
  shape.experts_per_token = 2;
  shape.microbatches = 2;
  shape.microbatch_tokens = 100;
  shape.row_block = 16;
  shape.group_blocks = 8;
  shape.devices = 2;
  shape.device_rank = {0, 1};
  shape.shard_device = {0, 1};
  shape.sums = {1, 2, 2};
  shape.sharing = sharing;
  shape.records = {{1000}};
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({500, l});
    if (is_moe[static_cast<size_t>(l)] == 0) continue;
    for (int e = 0; e < 2; ++e) shape.records.push_back({240, l, e, e});
  }
  shape.records.push_back({1008});
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
  return shape;
}

}  // namespace pagoda
