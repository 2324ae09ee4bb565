#include "tests/testing/plan/random_plan.h"

#include <algorithm>
#include <numeric>

namespace pagoda {

PlacedTask place(Replay& replay, const Task& task) {
  const Replay::Placed placed = replay.place(task);
  return {task,
          {placed.moves.begin(), placed.moves.end()},
          {placed.slots.begin(), placed.slots.end()}};
}

RunShape random_shape(std::mt19937& random, int devices, StageCount stages) {
  const auto pick = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  RunShape shape;
  shape.num_layers = 1 + pick(4);
  shape.num_experts = 2 + pick(8);
  shape.hidden_size = 16 + 16 * pick(4);
  shape.experts_per_token = 1 + pick(2);
  shape.tied_embeddings = pick(2) == 0;
  shape.dtype_bytes = 2 + 2 * pick(2);
  shape.microbatches = 1 + pick(6);
  const auto divisor = [&](int64_t n) { return std::gcd(n, 1 + pick(n)); };
  shape.sums.chunks = divisor(shape.microbatches);
  shape.sums.shards = divisor(shape.microbatches / shape.sums.chunks);
  shape.sums.expert_shards = pick(2) == 0 ? shape.sums.shards : 1;
  shape.microbatch_tokens = 10 + pick(300);
  shape.row_block = 16 << pick(5);
  shape.exchange = static_cast<ExchangeOrder>(shape.microbatch_tokens % 3);
  shape.devices = devices;
  const int count = std::min({stages.most, devices, static_cast<int>(shape.num_layers)});
  shape.stages = divide_into_stages(count, stages.order, shape.num_layers, devices);
  for (int64_t i = 0; i < count * shape.sums.shards && devices > 1; ++i) {
    const auto own = devices_of_stage(static_cast<int>(i / shape.sums.shards), count, devices);
    shape.shard_device.push_back(own.first + static_cast<int>(pick(own.count)));
  }
  const auto home = [&](int64_t layer, int64_t i) {
    const std::vector<int> attending = shape.attending_devices(shape.stage_of(layer));
    return attending[static_cast<size_t>(i) % attending.size()];
  };
  const int64_t table = 20000, dense = 12000, expert = 5000 + 2000 * pick(4);
  shape.records.push_back({.num_elements = table, .device = home(0, 0)});
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    shape.is_moe.push_back(pick(4) != 0);
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({shape.is_moe[l] ? dense : dense + 3000, l});
    shape.records.back().device = home(l, l);
    const DeviceRange own = devices_of_stage(shape.stage_of(l), count, devices);
    if (shape.is_moe[l]) shape.records.back().shared_elements = 2000 * pick(2);
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      shape.records.push_back({expert, l, e, own.first + static_cast<int>(e % own.count)});
    }
  }
  shape.records.push_back(
      {.num_elements = shape.tied_embeddings ? shape.hidden_size : table + shape.hidden_size,
       .device = home(shape.num_layers, shape.tied_embeddings ? 0 : 1)});
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
  return shape;
}

void divide_into_ranks(std::mt19937& random, int ranks, RunShape& shape) {
  for (int d = 0; d < shape.devices; ++d) {
    shape.device_rank.push_back(d < ranks ? d : static_cast<int>(random() % ranks));
  }
  std::sort(shape.device_rank.begin(), shape.device_rank.end());
  // Half of the runs have network cards of unequal rates.
  for (int r = 0; r < ranks && shape.microbatch_tokens % 2 == 0; ++r) {
    shape.network_rates.push_back(1 + 1.5 * (r % 3));
  }
}

void divide_into_copies(int copies, RunShape& shape) {
  shape.copies.count = copies;
  shape.copies.devices.clear();
  shape.copies.seats.assign(static_cast<size_t>(copies),
                            std::vector<int>(shape.records.size(), -1));
  const auto of_stage = [&](int stage) {
    return devices_of_stage(stage, shape.stages.count, shape.devices);
  };
  for (int d = 0; d < shape.devices; ++d) {
    const DeviceRange own = of_stage(shape.stages.of_device(d));
    shape.copies.devices.push_back((d - own.first) * copies / own.count);
  }
  for (size_t r = 0; r < shape.records.size(); ++r) {
    RecordShape& record = shape.records[r];
    if (record.expert < 0) continue;
    const DeviceRange own = of_stage(shape.stage_of(record.layer));
    for (int copy = 0; copy < copies; ++copy) {
      const DeviceRange part = devices_of_stage(copy, copies, own.count);
      shape.copies.seats[static_cast<size_t>(copy)][r] =
          own.first + part.first + static_cast<int>(record.expert % part.count);
    }
    record.device = shape.copies.seats[static_cast<size_t>(record.expert % copies)][r];
  }
}

LayerRouting spread(const std::vector<int64_t>& tokens_per_expert, int64_t microbatches) {
  LayerRouting routing(static_cast<size_t>(microbatches));
  for (int64_t b = 0; b < microbatches; ++b) {
    for (const int64_t tokens : tokens_per_expert) {
      routing[b].push_back(tokens * (b + 1) / microbatches - tokens * b / microbatches);
    }
  }
  return routing;
}

Routing random_routing(std::mt19937& random, const RunShape& shape) {
  Routing routing(shape.microbatches, LayerRouting(shape.num_layers));
  for (auto& layers : routing) {
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      if (!shape.is_moe[l]) continue;
      for (int64_t e = 0; e < shape.num_experts; ++e) {
        const auto most = static_cast<uint64_t>(random() % 2 == 0 ? 3 * shape.row_block : 3);
        layers[l].push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % most));
      }
    }
  }
  return routing;
}

}  // namespace pagoda
