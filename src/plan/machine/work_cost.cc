#include "plan/machine/work_cost.h"

#include "base/si_units.h"

namespace pagoda {
namespace {

constexpr double kValue = 2, kSum = 4;  // bytes of an activation, and of what is summed in fp32

// Products with all three weights of an MLP in its backward.
double products(double again) { return 2 + again * 2 / 3; }

void add_attention(const LayerCost& layer, const WorkSizes& sizes, double again, LayerWork& work) {
  const auto width = static_cast<double>(layer.score_width);
  const auto parameters = static_cast<double>(layer.attention_parameters);
  const double scores = 2 * width * (sizes.sequence_len + 1) / 2;
  const double bytes = kValue * (4 * sizes.hidden_size + 3 * width);
  const double weights = parameters * sizes.weight_bytes;
  work.attention = {2 * parameters, scores, bytes, weights};
  work.attention_backward = {(4 + 2 * again) * parameters, (2.5 + again) * scores,
                             (2 + again) * bytes, (2 + again) * weights};
}

void add_dense(const LayerCost& layer, const WorkSizes& sizes, double again, LayerWork& work) {
  const double d = sizes.hidden_size, weight = sizes.weight_bytes;
  const auto dense = static_cast<double>(layer.feed_forward_parameters);
  work.dense_mlp = {2 * dense, 0, 8 * d, dense * weight};
  work.dense_mlp_backward = {2 * products(again) * dense, 0, 24 * d,
                             products(again) * dense * weight};
}

void add_route(const LayerCost& layer, const WorkSizes& sizes, double again, LayerWork& work) {
  const double d = sizes.hidden_size, weight = sizes.weight_bytes;
  const auto router = static_cast<double>(layer.router_parameters);
  const auto shared = static_cast<double>(layer.feed_forward_parameters);
  work.route = {2 * (router + shared), 0, 12 * d, (router + shared) * weight};
  work.route_replay = {2 * router, 0, 12 * d, router * weight};
  work.route_backward = {4 * router + 2 * products(again) * shared, 0, 24 * d,
                         (2 * router + products(again) * shared) * weight};
}

void add_rows(const LayerCost& layer, const WorkSizes& sizes, double again, LayerWork& work) {
  const double d = sizes.hidden_size;
  const auto f = static_cast<double>(layer.expert_ffn);
  const auto parameters = static_cast<double>(layer.expert_parameters);
  const double weights = parameters * sizes.weight_bytes;
  work.dispatch = {.bytes = 2 * kValue * d};
  work.dispatch_backward = {.bytes = 4 * kValue * d};
  work.combine = {.bytes = (kValue + 2 * kSum) * d};
  work.added = {.bytes = (2 * kSum - kValue) * d};  // sums, in place of what is written
  work.expert = {2 * parameters, 0, kValue * (2 * d + 3 * f), weights};
  const double backward = 4 * parameters + 4 * again * d * f;
  const double read = (4 + 2 * again) / 3 * weights;
  work.expert_backward = {backward, 0, kValue * (4 * d + 5 * f), read + kSum * parameters};
}

}  // namespace

LayerWork layer_work(const LayerCost& layer, const WorkSizes& sizes, double again) {
  LayerWork work;
  add_attention(layer, sizes, again, work);
  work.residual = {.bytes = (2 * kValue + kSum) * sizes.hidden_size};
  work.index = {.bytes = 16};
  if (layer.num_experts == 0) {
    add_dense(layer, sizes, again, work);
  } else {
    add_route(layer, sizes, again, work);
    add_rows(layer, sizes, again, work);
  }
  return work;
}

TableWork table_work(double parameters, const WorkSizes& sizes) {
  const double d = sizes.hidden_size, weight = sizes.weight_bytes;
  const double logits = parameters / d * (kSum + weight);
  TableWork work;
  work.embed = {.bytes = 2 * kValue * d};
  work.embed_backward = {.bytes = 2 * kSum * d};
  work.loss = {2 * parameters, 0, logits, parameters * weight};
  work.head = {6 * parameters, 0, 2 * logits, 3 * parameters * weight};
  return work;
}

Work gradient_work(const WorkSizes& sizes) { return {.bytes = kSum + sizes.weight_bytes}; }

Work sums_work() { return {.bytes = 3 * kSum}; }

double update_bytes(const WorkSizes& sizes, double state_bytes) {
  return 3 * sizes.weight_bytes + 2 * state_bytes;
}

double WorkClock::score_s(double flops) const {
  const double rate = sheet_.device.attention_tflops * kTera * sequence_len_ /
                      (sequence_len_ + sheet_.device.attention_half_tokens);
  return flops / rate;
}

Cost WorkClock::cost(const Work& work, double together, double launches) const {
  const MachineSheet::Device& d = sheet_.device;
  Cost cost;
  cost.cores = cores();
  cost.unit_s = work.flops / (d.gemm_tflops * kTera) + score_s(work.score_flops) +
                work.bytes / (d.memory_gb_s * kGiga);
  cost.fixed_s =
      together * work.weight_bytes / (d.weight_gb_s * kGiga) + launches * kMicro * d.launch_us;
  return cost;
}

Cost WorkClock::device_updates(double bytes, double launches) const {
  Cost adam = cost({.bytes = bytes}, 0, launches);
  const double measured = sheet_.gpu() ? sheet_.device.adam_gb_s : 0;
  if (measured > 0) adam.unit_s = bytes / (measured * kGiga);
  return adam;
}

Cost WorkClock::host_updates(double bytes) const {
  return {0, bytes / (sheet_.host.adam_gb_s * kGiga), sheet_.host.cores};
}

Cost WorkClock::copy() const {
  const double cores = sheet_.gpu() ? 0 : 1;  // the thread that copies
  return {0, 1 / (sheet_.host.copy_gb_s * kGiga), cores};
}

Cost WorkClock::link(double gb_s, double latency_us) {
  return {kMicro * latency_us, 1 / (gb_s * kGiga), 0};
}

}  // namespace pagoda
