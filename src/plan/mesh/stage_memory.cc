#include "plan/mesh/stage_memory.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/bytes.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

// Sizes are at most kMaxCount, so products of five do not wrap.
using Wide = __int128;

constexpr Wide kMost = std::numeric_limits<int64_t>::max() / 2;

Wide wide_ceil(Wide a, Wide b) { return (a + b - 1) / b; }

// Tokens of one microbatch that a device attends to.
Wide tokens_of_device(int64_t expert, const PipelineBatch& batch) {
  const Wide all = Wide{batch.microbatch_sequences} * batch.sequence_len;
  return batch.of == SequencesOf::kGroup ? all / expert : all;
}

// Activations of one microbatch on one device.
Wide layer_bytes(const LayerCost& layer, int64_t expert, const PipelineBatch& batch,
                 bool flash_attention) {
  const Wide s = batch.sequence_len, all = batch.microbatch_sequences * s;
  const Wide tokens = tokens_of_device(expert, batch);
  const Wide scores = Wide{layer.heads} * (flash_attention ? 2 : 4 * s);
  const Wide rows_bytes = all * layer.experts_per_token * layer.row_bytes;
  return tokens * (layer.token_bytes + scores) +
         (batch.of == SequencesOf::kRank ? rows_bytes : wide_ceil(rows_bytes, expert));
}

Status check_layers(const ModelCost& model, const Mesh& mesh) {
  const auto layers = static_cast<int64_t>(model.layers.size());
  RETURN_IF_ERROR(check_integer("the number of layers", layers));
  if (mesh.pipeline > layers) {
    return Status(Exit::kUsage, strf("PP %lld leaves stages without one of the %lld layers",
                                     (long long)mesh.pipeline, (long long)layers));
  }
  for (const LayerCost& layer : model.layers) {
    if (layer.num_experts % mesh.expert == 0) continue;
    return Status(Exit::kUsage, strf("EP %lld does not divide the %lld experts of a layer",
                                     (long long)mesh.expert, (long long)layer.num_experts));
  }
  return Status();
}

}  // namespace

StageParameters stage_parameters(const ModelCost& model, const Mesh& mesh, int64_t stage) {
  const auto [first, last] =
      stage_layers(static_cast<int64_t>(model.layers.size()), mesh.pipeline, stage);
  StageParameters sum;
  for (int64_t l = first; l < last; ++l) {
    const LayerCost& layer = model.layers[static_cast<size_t>(l)];
    sum.replicated += layer.replicated_parameters;
    sum.experts += layer.num_experts / mesh.expert * layer.expert_parameters;
  }
  const bool is_last = stage == mesh.pipeline - 1;
  if (stage == 0) sum.replicated += model.embedding_parameters;
  if (is_last) sum.replicated += model.head_parameters;
  if (stage == 0 && is_last && model.tied_embeddings) sum.replicated -= model.embedding_parameters;
  return sum;
}

Status check_batch(const PipelineBatch& batch, const Mesh& mesh) {
  RETURN_IF_ERROR(check_integer("PP", mesh.pipeline));
  RETURN_IF_ERROR(check_integer("EP", mesh.expert));
  RETURN_IF_ERROR(check_integer("DP", mesh.data));
  RETURN_IF_ERROR(check_integer("sequence_len", batch.sequence_len));
  RETURN_IF_ERROR(check_integer("microbatch_sequences", batch.microbatch_sequences));
  RETURN_IF_ERROR(check_integer("microbatches", batch.microbatches));
  if (batch.of == SequencesOf::kGroup && batch.microbatch_sequences % mesh.expert != 0) {
    return Status(Exit::kUsage,
                  strf("%lld sequences of a microbatch cannot be divided among EP %lld devices",
                       (long long)batch.microbatch_sequences, (long long)mesh.expert));
  }
  return Status();
}

Result<StageMemory> stage_memory(const ModelCost& model, const Mesh& mesh,
                                 const PipelineBatch& batch, const MemoryOptions& options,
                                 int64_t stage) {
  RETURN_IF_ERROR(check_batch(batch, mesh));
  RETURN_IF_ERROR(check_layers(model, mesh));
  RETURN_IF_ERROR(check_integer("the stage", stage, 0, mesh.pipeline - 1));
  RETURN_IF_ERROR(check_amount("replicated_bytes", options.replicated_bytes));
  RETURN_IF_ERROR(check_amount("expert_bytes", options.expert_bytes));
  StageMemory memory;
  memory.parameters = stage_parameters(model, mesh, stage);
  const auto [first, last] =
      stage_layers(static_cast<int64_t>(model.layers.size()), mesh.pipeline, stage);
  std::vector<Wide> layers;
  for (int64_t l = first; l < last; ++l) {
    layers.push_back(layer_bytes(model.layers[static_cast<size_t>(l)], mesh.expert, batch,
                                 options.flash_attention));
  }
  const Wide microbatch = std::accumulate(layers.begin(), layers.end(), Wide{0});
  const auto [replicated, experts] = memory.parameters;
  const double bytes = static_cast<double>(replicated) * options.replicated_bytes +
                       static_cast<double>(experts) * options.expert_bytes;
  memory.in_flight = most_in_flight(options.schedule, mesh.pipeline, stage, batch.microbatches);
  if (bytes > static_cast<double>(kMost) || microbatch > kMost / memory.in_flight) {
    return Status(Exit::kUsage,
                  strf("stage %lld needs more bytes than can be counted", (long long)stage));
  }
  memory.parameter_bytes = static_cast<int64_t>(std::ceil(bytes));
  memory.microbatch_bytes = static_cast<int64_t>(microbatch);
  memory.layer_bytes.assign(layers.begin(), layers.end());
  memory.input_bytes =
      static_cast<int64_t>(tokens_of_device(mesh.expert, batch) * kValueBytes * model.hidden_size);
  return memory;
}

Result<FullestStage> fullest_stage(const ModelCost& model, const Mesh& mesh,
                                   const PipelineBatch& batch, const MemoryOptions& options) {
  RETURN_IF_ERROR(check_batch(batch, mesh));
  FullestStage fullest;
  for (int64_t stage = 0; stage < mesh.pipeline; ++stage) {
    ASSIGN_OR_RETURN(const StageMemory memory, stage_memory(model, mesh, batch, options, stage));
    if (memory.peak_bytes() > fullest.peak_bytes) fullest = {stage, memory.peak_bytes()};
  }
  return fullest;
}

}  // namespace pagoda
