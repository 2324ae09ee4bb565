#include "tools/bench/random_token_run.h"

#include <cstring>
#include <fstream>

#include "bench/race/timing.h"
#include "checkpoint/init_folder.h"
#include "device/past_cache.h"
#include "hardware/machine.h"
#include "offload/checksum.h"
#include "train/weights.h"

namespace pagoda {

namespace {

// clang-format off
constexpr const char* kConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": %lld,
  "hidden_size": %lld, "num_hidden_layers": %lld, "num_attention_heads": %lld,
  "num_key_value_heads": %lld, "head_dim": %lld, "intermediate_size": %lld,
  "moe_intermediate_size": %lld, "num_experts": %lld, "num_experts_per_tok": %lld,
  "initializer_range": %g, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.001,
  "max_position_embeddings": 2048, "mlp_only_layers": [], "decoder_sparse_step": 1,
  "attention_bias": false})";
// clang-format on

}  // namespace

HfFolder make_random_model(const std::string& directory, const RandomModel& m) {
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  std::ofstream(directory + "/config.json")
      << strf(kConfig, number(m.vocab_size), number(m.hidden_size), number(m.layers),
              number(m.heads), number(m.kv_heads), number(m.head_dim), number(m.expert_size),
              number(m.expert_size), number(m.experts), number(m.experts_per_token),
              m.initializer_range);
  InitOptions init;
  init.config_path = directory + "/config.json";
  init.out_directory = directory + "/model";
  need(init_folder(init));
  return need(HfFolder::open(init.out_directory));
}

SessionOptions roomy_options(const std::string& directory, const std::string& file_name,
                             int64_t microbatches, int64_t microbatch_tokens, bool eager) {
  SessionOptions options;
  options.size = {microbatches, microbatch_tokens, DType::kBF16, true, {}};
  options.adam = {.weight_decay = 0.1, .clip_by_record = eager};
  options.devices.front().threads = options.optimizer_threads = usable_cores();
  options.directories = {directory};
  options.file_name = file_name;
  options.page_slots = 1;
  options.eager_adam = eager;
  options.keep = false;  // runs that page keep none
  options.device_bytes = options.host_bytes = 8 * kGiB;
  return options;
}

ByteCost measure_bytes(int64_t page_bytes) {
  constexpr int kPages = 24;
  const HostMemory from = need(HostMemory::allocate(kPages * page_bytes));
  const HostMemory to = need(HostMemory::allocate(kPages * page_bytes));
  std::memset(from.data(), 1, static_cast<size_t>(from.bytes()));
  std::memset(to.data(), 2, static_cast<size_t>(to.bytes()));
  std::vector<double> copy_s, check_s;
  uint32_t sum = 0;
  for (int i = 0; i < 3 * kPages; ++i) {
    const int64_t at = i % kPages * page_bytes, away = (i + kPages / 2) % kPages * page_bytes;
    const TimingClock copying;
    copy_past_cache(to.data() + at, from.data() + at, page_bytes);
    copy_s.push_back(copying.finish(page_bytes).seconds / static_cast<double>(page_bytes));
    const TimingClock checking;
    sum ^= crc32c(from.data() + away, page_bytes);
    check_s.push_back(checking.finish(page_bytes).seconds / static_cast<double>(page_bytes));
  }
  CHECK(sum == 0, "72 equal pages have sums that differ");
  return {quantile(copy_s, 0.125), quantile(check_s, 0.125)};
}

RandomTokenRun::RandomTokenRun(const HfFolder& folder, Storage* storage,
                               const SessionOptions& options)
    : session_(need(Session::create(folder.config(), options, storage))),
      ledger_(false, 0, std::vector<int64_t>(session_->table().records.size(), 0)),
      runner_(session_.get(), &ledger_, 1.0) {
  need(load_weights(*weights_of_folder(folder), *session_));
  need(session_->pager().flush());
}

RandomTokenRun::~RandomTokenRun() { session_->remove_files(); }

StepResult RandomTokenRun::step(const StepBatch& batch) {
  // Updates take as long as with a rate above 0, and routing stays that of the first weights.
  StepResult result = need(runner_.train(batch, 0));
  CHECK(!result.skipped);
  return result;
}

}  // namespace pagoda
