#include "gguf/gguf_architecture.h"

#include <cmath>
#include <string>

#include "base/log.h"

namespace pagoda {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.model_type = "mixtral", .name = "llama", .permutes = true, .expert_ffn = false},
    {.model_type = "olmoe",
     .name = "olmoe",
     .norms = GgufNorms::kNever,
     .expert_ffn = false,
     .shares_keys = false},
    {.model_type = "qwen2_moe", .name = "qwen2moe", .norms = GgufNorms::kNever},
    {.model_type = "qwen3_moe", .name = "qwen3moe"},
    {.model_type = "glm4_moe",
     .name = "glm4moe",
     .norms = GgufNorms::kAsTold,
     .norm2 = "post_attention_norm",
     .dense_first = true},
    {.model_type = "lfm2_moe", .name = "lfm2moe", .dense_first = true, .convolutions = true},
    {.model_type = "deepseek_v2",
     .name = "deepseek2",
     .norms = GgufNorms::kNever,
     .dense_first = true,
     .latent = true},
    {.model_type = "deepseek_v3",
     .name = "deepseek2",
     .norms = GgufNorms::kAsTold,
     .dense_first = true,
     .latent = true},
    {.model_type = "gpt_oss", .name = "gpt-oss", .norm2 = "post_attention_norm", .windows = true},
    {.model_type = "granitemoe",
     .name = "granitemoe",
     .permutes = true,
     .expert_ffn = false,
     .granite = true},
    {.model_type = "dots1",
     .name = "dots1",
     .norms = GgufNorms::kAsTold,
     .dense_first = true,
     .shares_keys = false},
    {.model_type = "minimax_m2", .name = "minimax-m2"},
};

Status cannot(const ModelConfig& c, const std::string& why) {
  return Status(Exit::kBadData,
                strf("this %s cannot be written as GGUF: %s; export it as a Hugging "
                     "Face folder, which llama.cpp's converter reads",
                     c.family->model_type, why.c_str()));
}

bool slides_in_turn(const ModelConfig& c) {
  for (int64_t l = 0; l < c.num_layers; ++l) {
    if ((c.window_of(l) > 0) != (l % 2 == 0)) return false;
  }
  return true;
}

Status check_gpt_oss(const ModelConfig& c) {
  constexpr double kSlope = 1.702, kLimit = 7.0;
  if (c.swiglu_slope != kSlope || c.swiglu_limit != kLimit || !c.qkv_bias) {
    return cannot(c, "llama.cpp has gpt-oss with biases, and its own limit and slope of SwiGLU");
  }
  const Rotation& r = c.rotation;
  if (r.factor > 0.0 && (r.fast_turns != 32.0 || r.slow_turns != 1.0)) {
    return cannot(c, "its YaRN has a \"beta_fast\" or \"beta_slow\" of its own");
  }
  // Llama 3's mix has no size.
  if (r.factor > 0.0 && std::abs(r.size - (0.1 * std::log(r.factor) + 1.0)) > 1e-6) {
    return cannot(c, "its rotary embedding is scaled in another way than by plain YaRN");
  }
  return slides_in_turn(c) ? Status()
                           : cannot(c, "in llama.cpp every other layer of gpt-oss has a window");
}

// llama.cpp b11739, src/models/deepseek2.cpp.
Status check_latent(const ModelConfig& c) {
  constexpr double kLatentEps = 1e-6;
  const bool lite =
      c.num_layers == 26 || c.num_layers == 27 || (c.num_layers == 48 && c.vocab_size == 128256);
  if (lite != (c.query_rank == 0)) {
    return cannot(c, strf("llama.cpp takes a model of %lld layers for one %s a latent of queries",
                          (long long)c.num_layers, lite ? "without" : "with"));
  }
  if (c.rms_norm_eps != kLatentEps) {
    return cannot(c, "its \"rms_norm_eps\" is not that of its latents' norms, 1e-6");
  }
  if (!c.rope_neighbours) return cannot(c, "what is rotated are not neighbours");
  const Rotation& r = c.rotation;
  if (r.factor > 0.0 && (r.by_turns || !r.whole_pairs || r.size != 1.0 || r.factor < 1.0 ||
                         r.fast_turns != 32.0 || r.slow_turns != 1.0)) {
    return cannot(c, "its rotary embedding is scaled in another way than DeepSeek's");
  }
  return Status();
}

Status check_convolutions(const ModelConfig& c) {
  if (c.routed_scaling_factor != 1.0) {
    return cannot(c, "llama.cpp does not scale the weights of its experts");
  }
  return c.num_heads * c.head_dim == c.hidden_size
             ? Status()
             : cannot(c, "its heads are not as long together as \"hidden_size\"");
}

Status check_computed_alike(const ModelConfig& c, const GgufArchitecture& a) {
  const int64_t dense = c.num_layers - c.num_moe_layers();
  for (int64_t l = 0; l < dense; ++l) {
    if (!a.dense_first || c.is_moe_layer(l)) {
      return cannot(c, "it has layers without experts where llama.cpp knows nothing of them");
    }
  }
  if (!a.shares_keys && c.num_kv_heads != c.num_heads) {
    return cannot(c, "it has fewer heads of keys than of queries");
  }
  if (c.expert_groups > 1) return cannot(c, "experts are chosen by groups");
  if (c.family->sigmoid_router && !c.router_correction) {
    return cannot(c, "the choice of experts has no correction");
  }
  if (a.latent) return check_latent(c);
  if (a.windows) return check_gpt_oss(c);
  if (c.rotation.factor > 0.0) return cannot(c, "its rotary embedding is scaled");
  for (int64_t l = 0; l < c.num_layers; ++l) {
    if (c.window_of(l) > 0 && c.window_of(l) < c.max_position_embeddings) {
      return cannot(c, "its layers slide, and llama.cpp's see everything");
    }
  }
  return a.convolutions ? check_convolutions(c) : Status();
}

}  // namespace

Result<GgufArchitecture> architecture_of(const ModelConfig& c) {
  std::string known;
  for (const GgufArchitecture& a : kArchitectures) {
    known += (known.empty() ? "" : ", ") + std::string(a.model_type);
    if (a.model_type != std::string(c.family->model_type)) continue;
    const bool norms = a.norms == GgufNorms::kAlways;
    if (a.norms != GgufNorms::kAsTold && c.norm_topk_prob != norms) {
      return cannot(c, strf("llama.cpp %s the weights of a token's experts, and the model %s "
                            "(\"norm_topk_prob\")",
                            norms ? "norms" : "does not norm", norms ? "does not" : "does"));
    }
    RETURN_IF_ERROR(check_computed_alike(c, a));
    return a;
  }
  return cannot(c, "its family is none of " + known);
}

std::string computed_nearly(const ModelConfig& c) {
  if (c.rotation.factor <= 0.0 || c.rotation.by_turns || c.rotation.whole_pairs) return "";
  return "llama.cpp rounds where YaRN's mix begins and ends, and this model does not "
         "(\"truncate\"): "
         "its logits will be a little other ones there";
}

}  // namespace pagoda
