// A tiny training run with everything in it: dense and MoE layers, documents of odd lengths, lazy
// updates, clipping, checkpoints. For tests that compare whole runs bit by bit.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "train/trainer.h"

namespace pagoda {

inline constexpr const char* kTinyConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 272,
  "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 24,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.1, "max_position_embeddings": 256, "mlp_only_layers": [1],
  "decoder_sparse_step": 1, "attention_bias": false})";

// kTinyConfig with the keys of a JSON object in place of its own.
std::string tiny_with(const char* changes);

// Model and text on disk, and the configuration of a run with room for everything.
class TinyRun {
 public:
  explicit TinyRun(DType dtype = DType::kBF16, const char* model_config = kTinyConfig);

  RunConfig& config() { return config_; }
  const RunConfig& config() const { return config_; }
  const TempDir& dir() const { return dir_; }

  // The next run writes to a folder of its own.
  void new_run();

  // Budgets the plan names as the smallest that would do.
  void use_minimum_budgets();

 private:
  TempDir dir_;
  RunConfig config_;
  int runs_ = 0;
};

// train.devices: `count` CPU devices.
std::vector<std::string> cpus(int64_t count);

// How much a session's steps paged; loading, saving and looking at the result page too.
struct Paging {
  int64_t fetches = 0, evictions = 0, write_backs = 0;

  static Paging so_far(Session& session);
  Paging operator-(const Paging& before) const;
};
// A run that is meant to page did.
void expect_paged(const Paging& paging);

// What a run leaves behind: hash over losses, weights and state, and how much the steps of its last
// trainer paged, sent from device to device, and read and summed of experts' rows.
struct Outcome {
  Status status;
  std::string sha256;
  std::vector<double> losses;
  Paging paging;
  std::map<std::pair<int, int>, int64_t> sent_bytes = {};  // [from, to]
  Executor::RowBytes row_bytes = {};
};
// Experts read rows in place if `reads`, and if `adds` they add to sums what they give.
void expect_in_place(const Executor::RowBytes& bytes, bool reads, bool adds);

// Hash of the run's weights and optimizer state after paying all updates, and of `losses`.
std::string outcome_hash(Trainer& trainer, const std::vector<double>& losses);

// Runs to the end; with `stop_at` >= 0 the run is saved and ended after that many steps, then
// resumed by a new trainer.
Outcome run_to_end(const RunConfig& config, Storage* storage, int64_t stop_at = -1);

}  // namespace pagoda
