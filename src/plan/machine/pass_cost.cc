#include "plan/machine/pass_cost.h"

#include <algorithm>
#include <cmath>

namespace pagoda {
namespace {

constexpr double kRowBlock = 256, kGpuGroupBlocks = 16;

TokenPass operator+(const TokenPass& a, const TokenPass& b) {
  return {a.token + b.token, a.once + b.once};
}

}  // namespace

PassClock::PassClock(const MachineSheet& sheet, const ModelCost& model, int64_t sequence_len)
    : sheet_(sheet),
      model_(model),
      sizes_{static_cast<double>(model.hidden_size), static_cast<double>(sequence_len)},
      clock_(sheet, static_cast<double>(sequence_len)) {}

TokenPass PassClock::pass(const Work& forward, const Work& backward) const {
  const Cost there = cost(forward), back = cost(backward);
  return {{there.unit_s, back.unit_s}, {there.fixed_s, back.fixed_s}};
}

TokenPass PassClock::tokens(const LayerCost& layer, bool again) const {
  const LayerWork work = layer_work(layer, sizes_, again ? 1 : 0);
  const TokenPass attention = pass(work.attention, work.attention_backward);
  if (layer.num_experts == 0) return attention + pass(work.dense_mlp, work.dense_mlp_backward);
  TokenPass index = pass(work.index, work.index);
  index.token = index.token * static_cast<double>(layer.experts_per_token);
  const Cost replay = cost(work.route_replay), residual = cost(work.residual);
  const TokenPass rest = {{residual.unit_s, replay.unit_s}, {residual.fixed_s, replay.fixed_s}};
  return attention + pass(work.route, work.route_backward) + index + rest;
}

RowPass PassClock::copies(const LayerCost& layer) const {
  const LayerWork work = layer_work(layer, sizes_, 0);
  const TokenPass both =
      pass(work.dispatch, work.dispatch_backward) + pass(work.combine, work.combine);
  RowPass pass;
  pass.row = both.token;
  pass.copy = both.once;
  return pass;
}

RowPass PassClock::experts(const LayerCost& layer, bool again, double columns) const {
  LayerWork work = layer_work(layer, sizes_, again ? 1 : 0);
  // Whole rows go in and come out of a part of an expert; all else is in proportion.
  const double whole = 2 * kValueBytes * sizes_.hidden_size;
  const auto part = [&](Work& of, double rows_bytes) {
    of.flops *= columns;
    of.weight_bytes *= columns;
    of.bytes = rows_bytes + (of.bytes - rows_bytes) * columns;
  };
  part(work.expert, whole);
  part(work.expert_backward, 2 * whole);
  const Cost forward = clock_.cost(work.expert, 1, 0);
  const Cost backward = clock_.cost(work.expert_backward, 1, 0);
  const double launch_s = clock_.cost({}, 0, 1).fixed_s;
  RowPass pass;
  pass.row = {forward.unit_s, backward.unit_s};
  pass.group = {launch_s, launch_s};
  pass.reading = {forward.fixed_s, backward.fixed_s};
  return pass;
}

GroupedRows PassClock::grouped(double rows, double experts) const {
  const double group_blocks = sheet_.gpu() ? kGpuGroupBlocks : 1;
  const double chosen = std::min(experts, std::ceil(rows));  // experts that have rows
  if (chosen == 0) return {};
  const double blocks = std::ceil(rows / chosen / kRowBlock);  // of an expert
  const double readings = chosen * std::ceil(blocks / group_blocks);
  const double together = std::max(1.0, std::floor(group_blocks / blocks));  // experts in a group
  const double copies = chosen * (rows / chosen / kRowBlock / group_blocks + 1) / together;
  return {rows, std::ceil(readings / together), readings, copies};
}

TokenPass PassClock::embedding() const {
  if (model_.embedding_parameters == 0) return {};
  const TableWork work = table_work(static_cast<double>(model_.embedding_parameters), sizes_);
  return pass(work.embed, work.embed_backward);
}

TokenPass PassClock::head() const {
  if (model_.embedding_parameters == 0) return {};
  const Cost head = cost(table_work(static_cast<double>(model_.embedding_parameters), sizes_).head);
  return {{head.unit_s, 0}, {head.fixed_s, 0}};
}

}  // namespace pagoda
