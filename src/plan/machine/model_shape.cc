#include "plan/machine/model_shape.h"

#include <algorithm>

#include "plan/refusals.h"

namespace pagoda {
namespace {

// Every size is at most kMaxCount, so no sum below wraps.
using Wide = __int128;

Wide latent_projections(const AttentionSizes& a, Wide d) {
  const Wide queries = Wide{a.heads} * a.head_dim;
  const Wide from = a.query_rank > 0 ? Wide{a.query_rank} * (d + 1 + queries) : d * queries;
  const Wide keys_and_values = Wide{a.heads} * (a.head_dim - a.rope_head_dim + a.value_head_dim);
  return from + d * (a.kv_rank + a.rope_head_dim) + Wide{a.kv_rank} * (1 + keys_and_values);
}

Wide grouped_projections(const AttentionSizes& a, Wide d) {
  const Wide width =
      Wide{a.heads} * a.head_dim + Wide{a.kv_heads} * (a.head_dim + a.value_head_dim);
  return width * (d + a.qkv_bias);
}

Wide attention_parameters(const AttentionSizes& a, Wide d) {
  const Wide in = a.latent() ? latent_projections(a, d) : grouped_projections(a, d);
  const Wide out = d * (Wide{a.heads} * a.value_head_dim + a.output_bias);
  return in + out + a.query_norm + a.key_norm + (a.sinks ? a.heads : 0);
}

// [b | c | x], taps and what the result is projected with.
Wide conv_parameters(const ModelShape& shape) {
  const Wide d = shape.hidden_size;
  return d * (4 * d + shape.conv_width);
}

Wide expert_parameters(const ModelShape& shape) {
  const Wide d = shape.hidden_size, f = shape.expert_ffn;
  return 3 * d * f + (shape.expert_bias ? 2 * f + d : 0);
}

Wide shared_parameters(const ModelShape& shape) {
  const Wide d = shape.hidden_size;
  return 3 * d * shape.shared_ffn + (shape.shared_gate ? d : 0);
}

Wide router_parameters(const ModelShape& shape) {
  return Wide{shape.num_experts} *
         (Wide{shape.hidden_size} + shape.router_bias + shape.router_correction);
}

int64_t moe_layers(const ModelShape& shape) {
  return shape.num_layers() - std::count(shape.is_moe.begin(), shape.is_moe.end(), 0);
}

Wide total_parameters(const ModelShape& shape) {
  const Wide d = shape.hidden_size, moe = moe_layers(shape);
  const Wide conv = shape.conv_layers();
  const Wide mixed = (shape.num_layers() - conv) * attention_parameters(shape.attention, d) +
                     conv * conv_parameters(shape);
  const Wide with_experts = shape.num_experts * expert_parameters(shape) +
                            shared_parameters(shape) + router_parameters(shape);
  const Wide dense = 3 * d * shape.dense_ffn;
  return mixed + shape.num_layers() * 2 * d + moe * with_experts +
         (shape.num_layers() - moe) * dense +
         d * shape.vocab_size * (shape.tied_embeddings ? 1 : 2) + d;
}

Status refuse(const char* why) { return Status(Exit::kUsage, why); }

Status check_latent(const AttentionSizes& a) {
  RETURN_IF_ERROR(check_integer("kv_rank", a.kv_rank));
  RETURN_IF_ERROR(check_integer("query_rank", a.query_rank, 0));
  RETURN_IF_ERROR(check_integer("rope_head_dim", a.rope_head_dim, 1, a.head_dim));
  if (a.kv_heads != a.heads) return refuse("latent attention has as many kv_heads as heads");
  if (a.qkv_bias || a.output_bias) return refuse("latent attention with biases is not known");
  return Status();
}

Status check_attention(const AttentionSizes& a) {
  RETURN_IF_ERROR(check_integer("heads", a.heads));
  RETURN_IF_ERROR(check_integer("kv_heads", a.kv_heads));
  RETURN_IF_ERROR(check_integer("head_dim", a.head_dim));
  RETURN_IF_ERROR(check_integer("value_head_dim", a.value_head_dim));
  RETURN_IF_ERROR(check_integer("query_norm", a.query_norm, 0));
  RETURN_IF_ERROR(check_integer("key_norm", a.key_norm, 0));
  if (a.heads % a.kv_heads != 0) return refuse("heads is not a multiple of kv_heads");
  if (a.kv_rank != 0) return check_latent(a);
  if (a.query_rank != 0 || a.rope_head_dim != 0) {
    return refuse("query_rank and rope_head_dim are latent attention's, which has a kv_rank");
  }
  return Status();
}

Status check_experts(const ModelShape& shape) {
  RETURN_IF_ERROR(check_integer("num_experts", shape.num_experts));
  RETURN_IF_ERROR(
      check_integer("experts_per_token", shape.experts_per_token, 1, shape.num_experts));
  RETURN_IF_ERROR(check_integer("expert_ffn", shape.expert_ffn));
  RETURN_IF_ERROR(check_integer("shared_ffn", shape.shared_ffn, 0));
  if (shape.shared_gate && shape.shared_ffn == 0) {
    return refuse("shared_gate without shared_ffn: there is nothing for it to weigh");
  }
  return Status();
}

Status check_no_experts(const ModelShape& shape) {
  if (shape.num_experts != 0 || shape.experts_per_token != 0 || shape.expert_ffn != 0 ||
      shape.shared_ffn != 0 || shape.shared_gate) {
    return refuse("sizes of experts are given, but no layer of is_moe has any");
  }
  return Status();
}

Status check_convolutions(const ModelShape& shape) {
  if (shape.is_conv.empty() && shape.conv_width == 0) return Status();
  if (std::ssize(shape.is_conv) != shape.num_layers()) {
    return refuse("is_conv is not of as many layers as is_moe");
  }
  return check_integer("conv_width", shape.conv_width, 2);
}

}  // namespace

int64_t ModelShape::conv_layers() const {
  return std::ssize(is_conv) - std::count(is_conv.begin(), is_conv.end(), 0);
}

Status check_model(const ModelShape& shape) {
  RETURN_IF_ERROR(check_integer("vocab_size", shape.vocab_size));
  RETURN_IF_ERROR(check_integer("hidden_size", shape.hidden_size));
  RETURN_IF_ERROR(check_integer("the number of layers", shape.num_layers()));
  RETURN_IF_ERROR(check_attention(shape.attention));
  RETURN_IF_ERROR(check_convolutions(shape));
  const int64_t moe = moe_layers(shape);
  RETURN_IF_ERROR(moe > 0 ? check_experts(shape) : check_no_experts(shape));
  if (moe < shape.num_layers()) {
    RETURN_IF_ERROR(check_integer("dense_ffn", shape.dense_ffn));
  }
  if (total_parameters(shape) > kMaxParameters) {
    return refuse("the model has more parameters than can be counted in bytes");
  }
  return Status();
}

LayerParameters layer_parameters(const ModelShape& shape, int64_t layer) {
  CHECK(layer >= 0 && layer < shape.num_layers());
  LayerParameters count;
  count.attention = static_cast<int64_t>(
      shape.convolves(layer) ? conv_parameters(shape)
                             : attention_parameters(shape.attention, shape.hidden_size));
  count.norms = 2 * shape.hidden_size;
  if (!shape.is_moe[static_cast<size_t>(layer)]) {
    count.feed_forward = 3 * shape.hidden_size * shape.dense_ffn;
    return count;
  }
  count.router = static_cast<int64_t>(router_parameters(shape));
  if (shape.router_correction) count.router += shape.num_experts * (kCorrectionParts - 1);
  count.feed_forward = static_cast<int64_t>(shared_parameters(shape));
  count.expert = static_cast<int64_t>(expert_parameters(shape));
  return count;
}

std::vector<ModelRecord> model_records(const ModelShape& shape) {
  const int64_t table = shape.vocab_size * shape.hidden_size;
  std::vector<ModelRecord> records = {{RecordKind::kEmbedding, -1, -1, table}};
  for (int64_t l = 0; l < shape.num_layers(); ++l) {
    const LayerParameters parameters = layer_parameters(shape, l);
    records.push_back({RecordKind::kLayer, l, -1, parameters.replicated()});
    const int64_t experts = shape.is_moe[static_cast<size_t>(l)] ? shape.num_experts : 0;
    for (int64_t e = 0; e < experts * shape.parts.count(); ++e) {
      const bool whole = shape.parts.count() == 1;
      const int64_t of_part = 3 * shape.hidden_size * shape.parts.columns_at(e, shape.expert_ffn);
      records.push_back({RecordKind::kExpert, l, e, whole ? parameters.expert : of_part});
    }
  }
  records.push_back(
      {RecordKind::kHead, -1, -1, shape.hidden_size + (shape.tied_embeddings ? 0 : table)});
  return records;
}

ParameterCount count_parameters(const ModelShape& shape) {
  ParameterCount count;
  count.total = static_cast<int64_t>(total_parameters(shape));
  const int64_t idle = shape.num_experts - shape.experts_per_token;
  count.active =
      count.total - moe_layers(shape) * idle * static_cast<int64_t>(expert_parameters(shape));
  return count;
}

}  // namespace pagoda
