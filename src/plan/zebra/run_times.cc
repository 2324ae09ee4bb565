#include "plan/zebra/run_times.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "plan/step/pages.h"
#include "plan/sums/sum_plan.h"

namespace pagoda {
namespace {

constexpr double kNever = 1e9;  // seconds; what does not fit comes last

}  // namespace

double RunTimes::of_microbatches(std::initializer_list<TaskKind> kinds, int device) const {
  double of_one = 0;
  for (const TaskKind kind : kinds) {
    of_one += seconds(kind, device, static_cast<double>(shape_.microbatch_tokens));
  }
  return of_one * static_cast<double>(attended_[static_cast<size_t>(device)]);
}

// A chunk's experts are computed together.
double RunTimes::of_experts(TaskKind kind, int device, int64_t experts) const {
  if (experts == 0) return 0;
  double of_expert = 0;  // of what its copy attends to
  for (int d = 0; d < shape_.devices; ++d) {
    const bool same = shape_.copies.of_device(d) == shape_.copies.of_device(device);
    if (same) of_expert += rows() * static_cast<double>(attended_[static_cast<size_t>(d)]);
  }
  const double blocks = std::ceil(of_expert / static_cast<double>(shape_.row_block));
  const Cost& cost = cost_of(kind, device);
  return cost.start_s +
         static_cast<double>(experts) * (cost.fixed_s * blocks + cost.unit_s * of_expert);
}

// Seconds that an expert's backward takes beyond of_experts(), the mean of all chunks: each but the
// first adds to its gradient. An expert is taken to have one task in a chunk.
double RunTimes::adding_s(int device, int64_t layer) const {
  Task task;
  task.kind = TaskKind::kExpertBackward;
  task.device = static_cast<uint8_t>(device);
  task.record = shape_.expert(layer, 0);
  const auto chunks = static_cast<double>(shape_.rounds());
  return profile_.adding_s(task, shape_) * (chunks - 1) / chunks;
}

double RunTimes::bytes_of(int device, bool experts, bool states) const {
  double bytes = 0;
  for (int64_t r = 0; r < std::ssize(shape_.records); ++r) {
    const RecordShape& record = shape_.records[static_cast<size_t>(r)];
    const bool here = experts ? record.expert >= 0 && shape_.has_seat(device, r)
                              : record.expert < 0 && shape_.computes_with(device, r);
    if (!here) continue;
    bytes += static_cast<double>(record.num_elements * shape_.dtype_bytes);
    if (states && record.device == device) bytes += static_cast<double>(record.state_bytes);
  }
  return bytes;
}

bool RunTimes::all_stays(const std::vector<double>& besides) const {
  for (int d = 0; d < shape_.devices && !rooms_.empty(); ++d) {
    const double more = besides.empty() ? 0 : besides[static_cast<size_t>(d)];
    const double all = bytes_of(d, false, true) + bytes_of(d, true, true) + more;
    if (rooms_[static_cast<size_t>(d)].device_bytes < all) return false;
  }
  return true;
}

// How long what a layer's experts need comes and goes for a chunk. Unless all stays on the devices,
// weights come once a step, after their update, and gradients go. Chunks of a layer follow each
// other closely, and two layers are on their way: where the weights of two have no room beside the
// sums of gradients, which all layers share, chunks read them again; where those of all have none,
// the backward does. Every layer is taken to have as many experts there.
PassSeconds RunTimes::paging_s(int device, int64_t experts, int64_t layer) const {
  if (all_stays_ || experts == 0) return {};
  const WeightRoom& room = rooms_[static_cast<size_t>(device)];
  if (room.device_bytes < 0) return {kNever, kNever};
  const RecordShape& expert = shape_.records[static_cast<size_t>(shape_.expert(layer, 0))];
  const int64_t sums = shape_.pages_expert_sums() ? PageTable::expert_sum_pages(shape_) : 0;
  const auto sum_bytes = static_cast<double>(experts * sums * expert.num_elements) * sizeof(float);
  const double held = std::max(0.0, room.device_bytes - bytes_of(device, false, false) - sum_bytes);
  const auto of_layer = static_cast<double>(experts * expert.num_elements * shape_.dtype_bytes);
  const double of_all = bytes_of(device, true, false);
  const auto beyond = [](double wanted, double has) { return std::max(0.0, 1 - has / wanted); };
  const double of_chunk = 1 / static_cast<double>(shape_.rounds());
  const double again = beyond(2 * of_layer, held);
  const double away = beyond(of_all, held);
  const double forward = of_layer * std::max(of_chunk, again);
  const double backward = of_layer * std::max(away * of_chunk, again);
  // What is not in host memory either; the devices of a rank share its drives.
  const double of_drive = away > 0 ? beyond(of_all, held + room.host_bytes) / away : 0;
  const auto sharing = static_cast<double>(shape_.devices_of(shape_.rank_of(device)).count);
  const double upload_s =
      std::max(profile_.upload.unit_s, of_drive * sharing * profile_.read.unit_s);
  return {forward * upload_s,
          std::max(backward * upload_s, of_layer * of_chunk * profile_.download.unit_s)};
}

// From when a device has sent so many bytes until another has them.
double RunTimes::moved_s(int from, int to, double bytes) const {
  if (shape_.rank_of(from) != shape_.rank_of(to)) return profile_.network.seconds(bytes);
  return profile_.wire.seconds(bytes) + seconds(TaskKind::kReceive, to, bytes);
}

// What the busiest device puts together, the longest way of any pair's rows or the busiest network
// card, and what arrives at the busiest and is put in its place. `beside`: to experts of devices
// that attend, or else of others. `back`: from the experts to where the tokens are.
double RunTimes::transfer(const std::vector<int64_t>& experts, bool beside, bool back,
                          double row_bytes) const {
  std::vector<double> sent_s(experts.size(), 0), placed_s(experts.size(), 0);
  std::vector<uint8_t> takes;  // [device]
  for (int d = 0; d < shape_.devices; ++d) {
    takes.push_back(experts[static_cast<size_t>(d)] > 0 && shape_.attends(d) == beside);
  }
  double way_s = 0;
  std::map<std::pair<int, bool>, double> bytes_of_card;  // [rank or device, it leaves]
  // [device] of other ranks
  std::vector<double> receivers(experts.size(), 0), senders(experts.size(), 0);
  const auto card = [&](int device) {
    return shape_.shares_cards ? shape_.rank_of(device) : device;
  };
  for (int home = 0; home < shape_.devices; ++home) {
    for (int seat = 0; seat < shape_.devices; ++seat) {
      const double of_one = rows() * static_cast<double>(attended_[static_cast<size_t>(home)]);
      const double moved = of_one * static_cast<double>(experts[static_cast<size_t>(seat)]);
      const bool same = shape_.copies.of_device(home) == shape_.copies.of_device(seat);
      if (home == seat || !same || moved == 0 || takes[static_cast<size_t>(seat)] == 0) continue;
      const int from = back ? seat : home, to = back ? home : seat;
      const double bytes = moved * row_bytes;
      sent_s[static_cast<size_t>(from)] +=
          seconds(back ? TaskKind::kPackRows : TaskKind::kDispatch, from, moved);
      placed_s[static_cast<size_t>(to)] +=
          seconds(back ? TaskKind::kCombine : TaskKind::kPlaceRows, to, moved);
      if (shape_.rank_of(from) != shape_.rank_of(to)) {
        bytes_of_card[{card(from), true}] += bytes;
        bytes_of_card[{card(to), false}] += bytes;
        ++receivers[static_cast<size_t>(from)];
        ++senders[static_cast<size_t>(to)];
        continue;
      }
      way_s = std::max(way_s, profile_.wire.seconds(bytes));
      placed_s[static_cast<size_t>(to)] += seconds(TaskKind::kReceive, to, bytes);
    }
  }
  for (const auto& [of, bytes] : bytes_of_card) {
    way_s = std::max(way_s, profile_.network.seconds(bytes));
  }
  // While a card sends one partner's rows, those of the next are put together, and others' placed.
  for (size_t d = 0; d < senders.size(); ++d) {
    sent_s[d] /= std::max(1.0, receivers[d]);
    placed_s[d] /= std::max(1.0, senders[d]);
  }
  return *std::ranges::max_element(sent_s) + way_s + *std::ranges::max_element(placed_s);
}

// From the last gradient of a dense record until its sum over devices is at its home, by the steps
// of the sum (plan/sums/sum_plan.h), and the home has finished it.
double RunTimes::dense_sum_s(int64_t record) const {
  const RecordShape& dense = shape_.records[static_cast<size_t>(record)];
  if (!dense.trains()) return 0;
  const auto elements = static_cast<double>(dense.num_elements);
  const double bytes = elements * sizeof(float);
  const int stage = shape_.stage_of_record(record);
  const SumPlan plan = plan_sums(shape_.sums, shape_.shards_of(stage), shape_.microbatches,
                                 dense.device, shape_.rounds() > 1);
  std::map<int, double> at_s;  // [device]
  for (const SumStep& step : plan.steps) {
    if (step.kind == SumStep::Kind::kAdd) {
      at_s[step.device] += seconds(TaskKind::kAddSums, step.device, elements);
    } else if (step.kind == SumStep::Kind::kMove) {
      const double there_s = at_s[step.device] + seconds(TaskKind::kSend, step.device, 0) +
                             moved_s(step.device, step.to, bytes);
      at_s[step.to] = std::max(at_s[step.to], there_s);
    }
  }
  const auto trained = static_cast<double>(dense.trained_elements());
  return at_s[dense.device] + seconds(TaskKind::kGradient, dense.device, trained);
}

// What the busiest device that does not attend takes to finish the gradients of its experts of a
// layer. Each copy but the one with the home sends its sum once, and the home adds it.
double RunTimes::experts_sum_s(int64_t layer) const {
  std::vector<double> sums_s(static_cast<size_t>(shape_.devices), 0);
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    const int64_t record = shape_.expert(layer, e);
    const RecordShape& expert = shape_.records[static_cast<size_t>(record)];
    if (!expert.trains()) continue;
    const auto elements = static_cast<double>(expert.num_elements);
    const int home = expert.device;
    double& of_home = sums_s[static_cast<size_t>(home)];
    for (int copy = 0; copy < shape_.copies.count; ++copy) {
      const int seat = shape_.seat_of(record, copy);
      if (seat == home) continue;
      of_home += moved_s(seat, home, elements * sizeof(float)) +
                 seconds(TaskKind::kAddSums, home, elements);
    }
    of_home += seconds(TaskKind::kGradient, home, static_cast<double>(expert.trained_elements()));
  }
  for (int d = 0; d < shape_.devices; ++d) {
    if (sums_s[static_cast<size_t>(d)] > 0 && shape_.attends(d)) sums_s[static_cast<size_t>(d)] = 0;
  }
  return *std::ranges::max_element(sums_s);
}

SumTimes RunTimes::sums() const {
  SumTimes sums;
  sums.experts_wait = shape_.copies.several();
  for (int64_t l = 0; l < shape_.num_layers; ++l) {
    const int64_t record = shape_.layer_record[static_cast<size_t>(l)];
    sums.layer_s = std::max(sums.layer_s, dense_sum_s(record));
    if (shape_.is_moe[static_cast<size_t>(l)] == 0) continue;
    sums.experts_s = std::max(sums.experts_s, experts_sum_s(l));
  }
  sums.head_s = dense_sum_s(shape_.head());
  sums.embedding_s = dense_sum_s(shape_.embedding());
  return sums;
}

// How long a chunk's rows are on their way from stage to stage: those of the busiest device.
double RunTimes::boundary_s() {
  begin_layer(0);
  const int64_t tokens = *std::ranges::max_element(attended_) * shape_.microbatch_tokens;
  const auto bytes = static_cast<double>(tokens * shape_.hidden_size * shape_.dtype_bytes);
  return shape_.ranks() > 1 ? profile_.network.seconds(bytes) : profile_.wire.seconds(bytes);
}

ChunkTimes RunTimes::of(int64_t layer) {
  begin_layer(layer);
  const bool moe = shape_.is_moe[static_cast<size_t>(layer)] != 0;
  std::vector<int64_t> experts(static_cast<size_t>(shape_.devices), 0);
  for (int64_t e = 0; e < shape_.num_experts && moe; ++e) {
    for (int copy = 0; copy < shape_.copies.count; ++copy) {
      ++experts[static_cast<size_t>(shape_.seat_of(shape_.expert(layer, e), copy))];
    }
  }
  ChunkTimes times;
  times.faster.attention = PassSeconds();
  times.slower.experts = PassSeconds();
  int attending = 0;
  for (int d = 0; d < shape_.devices; ++d) {
    if (shape_.stages.of_device(d) != shape_.stage_of(layer)) continue;
    const int64_t own = experts[static_cast<size_t>(d)];
    const PassSeconds paging_s = this->paging_s(d, own, layer);
    PassSeconds of_experts = {this->of_experts(TaskKind::kExpert, d, own),
                              this->of_experts(TaskKind::kExpertBackward, d, own)};
    if (own > 0) of_experts.backward_s += static_cast<double>(own) * adding_s(d, layer);
    of_experts = {std::max(paging_s.forward_s, of_experts.forward_s),
                  std::max(paging_s.backward_s, of_experts.backward_s)};
    const auto raise = [](PassSeconds& most, const PassSeconds& by) {
      most = {std::max(most.forward_s, by.forward_s), std::max(most.backward_s, by.backward_s)};
    };
    if (!shape_.attends(d)) {
      raise(*times.slower.experts, of_experts);
      continue;
    }
    using enum TaskKind;
    ++attending;
    const double forward_s = moe ? of_microbatches({kAttention, kRoute, kResidual}, d)
                                 : of_microbatches({kAttention, kDenseMlp}, d);
    const double backward_s =
        of_microbatches({kAttentionBackward, moe ? kRouteBackward : kDenseMlpBackward}, d);
    raise(*times.faster.attention, {forward_s, backward_s});
    times.faster.head_s = std::max(times.faster.head_s, of_microbatches({kHead}, d));
    times.faster.replay_s = std::max(times.faster.replay_s, of_microbatches({kRouteReplay}, d));
    if (own == 0) continue;
    if (!times.faster.experts) times.faster.experts = PassSeconds();
    raise(*times.faster.experts, of_experts);
  }
  times.faster_exchange = attending > 1;
  times.one_card = shape_.ranks() > 1;
  const auto row = static_cast<double>(shape_.hidden_size * shape_.dtype_bytes);
  const double scale = sizeof(float);
  const double again = shape_.kept_rows > 0 ? 0 : row;
  const auto there = [&](bool beside) {
    return PassSeconds{transfer(experts, beside, false, row),
                       transfer(experts, beside, false, again + row + scale)};
  };
  const auto back = [&](bool beside) {
    return PassSeconds{transfer(experts, beside, true, row),
                       transfer(experts, beside, true, row + scale)};
  };
  times.to_experts = there(false);
  times.to_attention = back(false);
  times.to_faster_experts = there(true);
  times.from_faster_experts = back(true);
  return times;
}

int64_t rows_to_keep(const RunShape& shape, const std::vector<WeightRoom>& rooms) {
  constexpr double kPartOfGroup = 1.125;  // its groups have room for a few blocks more
  if (rooms.empty()) return 0;
  const int64_t kept = shape.most_round_blocks() * shape.row_block;
  std::vector<double> bytes(rooms.size(), 0);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::vector<uint8_t> computes(rooms.size(), 0);
    for (int64_t e = 0; e < shape.num_experts && shape.is_moe[static_cast<size_t>(l)]; ++e) {
      for (int copy = 0; copy < shape.copies.count; ++copy) {
        computes[static_cast<size_t>(shape.seat_of(shape.expert(l, e), copy))] = 1;
      }
    }
    const auto rows = kPartOfGroup * static_cast<double>(shape.rounds() * kept);
    const auto row_bytes = static_cast<double>(shape.hidden_size * shape.dtype_bytes);
    for (size_t d = 0; d < bytes.size(); ++d) bytes[d] += computes[d] * rows * row_bytes;
  }
  return RunTimes(shape, {}, rooms).all_stays(bytes) ? kept : 0;
}

ActionTimes run_times(const RunShape& shape, const MachineProfile& profile,
                      const std::vector<WeightRoom>& rooms) {
  ActionTimes times;
  std::vector<ChunkTimes> layers;
  RunTimes of_run(shape, profile, rooms);
  for (int64_t l = 0; l < shape.num_layers; ++l) layers.push_back(of_run.of(l));
  times.of = [layers](int32_t layer, int32_t) { return layers[static_cast<size_t>(layer)]; };
  times.chunks = static_cast<int32_t>(shape.rounds());
  times.sums = of_run.sums();
  return times;
}

}  // namespace pagoda
