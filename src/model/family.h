// One row for each family of models, with all that sets it apart. Config parsing, the tensor table
// and folders read these rows; nothing else asks which family a model belongs to.
//
// Names, defaults and rules are those of Transformers 5.23 (models/FAMILY/, conversion_mapping.py).
#pragma once

#include <cstdint>
#include <string>

namespace pagoda {

// The root mean square norm on queries and keys: none, one of head_dim values that every head
// shares, or one over all heads together.
enum class QkNorm : uint8_t { kNone, kPerHead, kFullWidth };

// Says when "sliding_window" bounds the keys that a query sees.
enum class WindowRule : uint8_t {
  kNever,  // the key is ignored
  kAlways,
  kSwitched,     // if "use_sliding_window" is true
  kPerLayer,     // kSwitched, in the layers that "layer_types" names, or else in every other one of
                 // the first "max_window_layers"
  kAlternating,  // in the layers that "layer_types" names, or else in every other one
  kLate,  // in the layers that "layer_types" names, or else from layer "max_window_layers" on
};

// An expert that every token visits, in each layer with experts.
enum class SharedExpert : uint8_t {
  kNone,
  kGated,  // behind a sigmoid gate; "shared_expert_intermediate_size" is its width
  kPlain,  // added as it is; "n_shared_experts" times an expert's width is its own
};

// Says which layers have no experts.
enum class DenseLayers : uint8_t {
  kNone,
  kListed,  // those that "mlp_only_layers" and "decoder_sparse_step" leave out
  kFirst,   // the first ones; FamilySpec::first_dense names their number
  kTyped,   // those that "mlp_layer_types" calls "dense"; without it the first
};

struct FamilySpec {
  const char* model_type = "";     // config.json's "model_type"
  bool dense = false;              // no experts: only what `pagoda upcycle` starts from
  QkNorm qk_norm = QkNorm::kNone;
  bool hidden_qk_norm = false;     // a norm of kFullWidth is as long as "hidden_size", too
  bool qk_norm_switched = false;   // it is there if "use_qk_norm" says so, default false
  const char* qkv_bias = "";       // the key that says whether q, k and v have biases; "": no
  bool qkv_bias_default = true;
  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): "kv_lora_rank",
  // "q_lora_rank" and the three sizes of heads are read instead of those of other attention.
  bool latent = false;
  bool rope_interleave = false;    // the key of that name says whether neighbours rotate; else yes
  bool output_bias = false;        // where q, k and v have biases, the output projection has one
  bool sinks = false;              // AttentionShape's (kernels/ops.h)
  SharedExpert shared_expert = SharedExpert::kNone;
  int64_t shared_experts_default = 1;  // 0: the file must say
  DenseLayers dense_layers = DenseLayers::kNone;
  const char* first_dense = "first_k_dense_replace";
  int64_t first_dense_default = 0;
  // "layer_types" says of each layer whether it attends or is a gated short convolution of
  // "conv_L_cache" tokens (default 3).
  bool convolutions = false;
  const char* num_experts = "num_experts";
  bool local_experts = true;       // "num_local_experts" is another name of that
  bool always_renormalises = false;  // chosen weights sum to 1, whatever "norm_topk_prob" says
  bool never_renormalises = false;   // chosen weights are left alone, whatever it says
  bool norm_topk_prob = false;       // its default, where it decides
  bool scaled_router = false;      // "routed_scaling_factor" is read
  // DeepSeek-V3's router (arXiv 2412.19437, section 2.1.2): scores are sigmoids; a correction for
  // each expert, which only the choice takes.
  bool sigmoid_router = false;
  bool router_bias = false;        // one number for each expert
  const char* correction_switch = "";  // the key that may say there is none; "": there always is
  bool expert_groups = false;      // "n_group" and "topk_group" are read
  int64_t groups_default = 1, chosen_groups_default = 1;
  double scale_default = 1.0;      // of "routed_scaling_factor"
  // "topk_method" says whether groups are chosen: by their best expert ("group_limited_greedy"), or
  // not at all ("greedy", the default).
  bool groups_by_best = false;
  float least_sum = 1e-20f;        // RouterShape's (kernels/ops.h)
  // Experts have biases, and their SwiGLU has "swiglu_alpha" and "swiglu_limit". Files have them
  // stacked only, transposed, with gate and up in turn, or else in MXFP4 as
  // "quantization_config" says.
  bool limited_experts = false;
  // "embedding_multiplier", "attention_multiplier", "residual_multiplier" and "logits_scaling" are
  // read; the defaults are 1 (Granite).
  bool multipliers = false;
  bool balance_loss = true;        // "router_aux_loss_coef" is read; else the coefficient is 0
  // It is 0 unless "output_router_logits" is true, which is refused without balance_loss.
  bool balance_loss_switched = false;
  // How much of a head is rotated if "partial_rotary_factor" does not say; 0: all, and it is not
  // read.
  double partial_rotary_factor = 0.0;
  bool rotary_dim = false;           // "rotary_dim" may say so too, in numbers
  const char* rope_parameters = "";  // JSON that is taken where config.json has none
  // Layers behind the last one predict further tokens. They are not trained; tensors of as many as
  // "num_nextn_predict_layers" (default 1) or "num_mtp_layers" says may be in the files.
  bool next_token_layers = false;
  WindowRule window = WindowRule::kAlways;
  // Whether these keys are read; only one value of each is implemented. Else they are ignored.
  bool attention_bias = false, mlp_bias = false, clip_qkv = false, router_jitter_noise = false;
  // Defaults for keys that config.json lacks. A null key is not absent: it means no window, or as
  // many heads of keys as of queries.
  int64_t num_kv_heads = 0;     // 0: as many as queries
  int64_t head_dim = 0;         // 0: "hidden_size" / "num_attention_heads"
  int64_t sliding_window = 0;   // 0: none
  int64_t max_position_embeddings = 0;
  int64_t pad_token_id = -1;    // -1: none
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6, rope_theta = 1e4, router_aux_loss_coef = 0.001;

  const char* expert_ffn = "moe_intermediate_size";  // names the width of one expert
  const char* norm_eps = "rms_norm_eps";
  const char* tied = "tie_word_embeddings";  // or another key that says the same, read first

  // Tensor names behind "model.layers.N." in per-expert files; expert e's follow "EXPERTS.e.".
  const char* norm1 = "input_layernorm.weight";
  const char* norm2 = "post_attention_layernorm.weight";
  const char* q_norm = "self_attn.q_norm.weight";
  const char* k_norm = "self_attn.k_norm.weight";
  const char* output = "self_attn.o_proj.weight";
  const char* mlp = "mlp.";  // of dense layers; fused files name experts and router behind it
  const char* router = "mlp.gate.weight";
  const char* correction = "mlp.gate.e_score_correction_bias";
  const char* shared = "mlp.shared_expert.";
  const char* experts = "mlp.experts";
  // What files have behind `mlp`, if they have all experts of a layer stacked, as fused files do;
  // "": one by one.
  const char* stacked_gate_up = "";
  const char* stacked_down = "";
  const char* gate = "gate_proj.weight";
  const char* up = "up_proj.weight";
  const char* down = "down_proj.weight";
  const char* final_norm = "model.norm.weight";
  // In fused files, behind `mlp`: (E, d), and (E); "": as in others.
  const char* fused_router = "gate.weight";
  const char* fused_correction = "";
};

// Names in fused files behind FamilySpec::mlp; expert tensors are stacked along a first dimension.
inline constexpr const char* kFusedGateUp = "experts.gate_up_proj";  // (E, 2 ffn, d)
inline constexpr const char* kFusedDown = "experts.down_proj";       // (E, d, ffn)
// What files of a family with limited experts have, beside biases: (E, d, 2 ffn) and (E, ffn, d),
// or in MXFP4, whose rows are not transposed, (E, 2 ffn, d / 32, 16) and (E, d, ffn / 32, 16) of
// bytes. gate and up take turns in the dimension of 2 ffn.
inline constexpr const char* kBiasEnding = "_bias";      // (E, 2 ffn), (E, d)
inline constexpr const char* kBlocksEnding = "_blocks";  // two numbers in a byte
inline constexpr const char* kScalesEnding = "_scales";  // without the last dimension

// nullptr when there is no such family. Kimi-K2 is a DeepSeek-V3 by another name.
const FamilySpec* find_family(const std::string& model_type);

// "mixtral, olmoe, ...": the families with experts, or the dense ones.
std::string family_names(bool dense);

}  // namespace pagoda
