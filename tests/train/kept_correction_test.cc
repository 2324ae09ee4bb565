// A router's correction moves by the load of experts, or comes out of a run, over checkpoint and
// export, with the bits it came with: in every type of weights and format of state, though its
// record is updated in each step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "tests/testing/files.h"
#include "tests/testing/tiny_run.h"
#include "train/model_input.h"

namespace pagoda {
namespace {

constexpr const char* kGlm = R"({
  "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 272,
  "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 48, "moe_intermediate_size": 24, "n_routed_experts": 12,
  "n_group": 3, "topk_group": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
  "routed_scaling_factor": 1.5, "use_qk_norm": true, "attention_bias": true,
  "rope_theta": 10000.0, "initializer_range": 0.1, "max_position_embeddings": 256})";

const std::string kName = "model.layers.2.mlp.gate.e_score_correction_bias";

std::string bytes_of(const std::string& folder, const std::string& name) {
  auto file = SafetensorsFile::open(folder + "/model.safetensors");
  CHECK(file.ok(), "%s", file.status().message().c_str());
  const SafetensorsEntry* entry = file->find(name);
  CHECK(entry != nullptr, "%s", name.c_str());
  EXPECT_TRUE(!name.ends_with("correction_bias") || entry->dtype == "F32");
  std::string bytes(static_cast<size_t>(entry->bytes), '\0');
  CHECK(file->read(*entry, 0, bytes.data(), entry->bytes).ok());
  return bytes;
}

// Numbers whose last bits no bf16 holds.
std::string odd_numbers() {
  std::string bytes(12 * sizeof(float), '\0');
  for (int e = 0; e < 12; ++e) {
    const float value = 9.87654321f + 0.0123456789f * static_cast<float>(e * e % 7);
    std::memcpy(bytes.data() + static_cast<size_t>(e) * sizeof(float), &value, sizeof(value));
  }
  return bytes;
}

void write_at(const std::string& folder, const std::string& bytes) {
  auto file = SafetensorsFile::open(folder + "/model.safetensors");
  CHECK(file.ok());
  const int64_t at = file->find(kName)->offset;
  std::fstream out(folder + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(at);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(out.good());
}

TEST(KeptCorrection, HasItsBitsAfterTraining) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const StateFormat state : {StateFormat::kFp32, StateFormat::kBf16, StateFormat::k8Bit}) {
      if (dtype == DType::kF32 && state == StateFormat::kBf16) continue;
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", " << state_format_name(state));
      TinyRun run(dtype, kGlm);
      const std::string model = run.config().model.path, want = odd_numbers();
      write_at(model, want);
      run.config().optim.state = state;
      run.use_minimum_budgets();
      auto storage = open_storage(IoKind::kThreads, run.dir().path());
      ASSERT_TRUE(storage.ok()) << storage.status().message();
      const Outcome outcome = run_to_end(run.config(), storage->get());
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
      auto input = open_model(model, run.config().train.output_dir, -1,
                              storage->get());
      ASSERT_TRUE(input.ok()) << input.status().message();
      const std::string out = run.dir().file("out");
      const Status written = export_weights(*input->weights, *input->folder, out);
      ASSERT_TRUE(written.ok()) << written.message();
      EXPECT_TRUE(bytes_of(out, kName) == want);
      for (const char* trained : {"mlp.gate.weight", "mlp.shared_experts.up_proj.weight"}) {
        const std::string name = std::string("model.layers.2.") + trained;
        EXPECT_FALSE(bytes_of(out, name) == bytes_of(model, name)) << name << " stood still";
      }
    }
  }
}

// Starts from these numbers and says, of each expert of layer 2, how often it had fewer tokens than
// the mean of all, less how often it had more.
std::vector<int> train_and_count(const RunConfig& config, Storage* storage) {
  std::vector<int> count(12, 0);
  auto started = Trainer::start(config, false, storage);
  CHECK(started.ok(), "%s", started.status().message().c_str());
  Trainer& trainer = **started;
  while (trainer.steps_done() < config.train.steps) {
    auto result = trainer.step();
    CHECK(result.ok(), "%s", result.status().message().c_str());
    const std::vector<int64_t>& tokens = result->tokens_per_expert[2];
    double mean = 0.0;
    for (const int64_t n : tokens) mean += static_cast<double>(n) / 12.0;
    for (size_t e = 0; e < tokens.size(); ++e) {
      const double above = static_cast<double>(tokens[e]) - mean;
      if (std::abs(above) > 1e-6) count[e] += above < 0 ? 1 : -1;
    }
  }
  CHECK(trainer.save().ok());
  return count;
}

constexpr double kSpeed = 0.01;

// Against the rule of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2) written down in double: after a
// step the correction falls by the speed for an expert with more than the mean, and else rises.
void expect_moved_by_load(TinyRun& run) {
  const std::string model = run.config().model.path, before = odd_numbers();
  write_at(model, before);
  run.config().optim.correction_speed = kSpeed;
  run.use_minimum_budgets();
  auto storage = open_storage(IoKind::kThreads, run.dir().path());
  ASSERT_TRUE(storage.ok()) << storage.status().message();
  const std::vector<int> count = train_and_count(run.config(), storage->get());
  auto input = open_model(model, run.config().train.output_dir, -1, storage->get());
  ASSERT_TRUE(input.ok()) << input.status().message();
  const std::string out = run.dir().file("out");
  ASSERT_TRUE(export_weights(*input->weights, *input->folder, out).ok());
  const std::string after = bytes_of(out, kName);
  int moved = 0;
  for (size_t e = 0; e < 12; ++e) {
    float was = 0, is = 0;
    std::memcpy(&was, before.data() + 4 * e, 4);
    std::memcpy(&is, after.data() + 4 * e, 4);
    // Numbers from 8 to 16 are rounded by 2^-21 at most, once in each step.
    const double slack = 0x1p-21 * static_cast<double>(run.config().train.steps) + 1e-8;
    EXPECT_NEAR(is, was + kSpeed * count[e], slack) << e;
    moved += count[e] != 0;
  }
  EXPECT_GE(moved, 6);
}

TEST(KeptCorrection, MovesByTheLoadOfEachStep) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert, ClipKind::kNone}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", clip " << static_cast<int>(clip));
      TinyRun run(dtype, kGlm);
      run.config().optim.clip = clip;
      expect_moved_by_load(run);
    }
  }
}

// Microbatches go backward one by one there, and each adds to the load.
TEST(KeptCorrection, MovesByTheLoadOfAllMicrobatchesOfAPipeline) {
  TinyRun run(DType::kBF16, kGlm);
  run.config().train.micro_batch_tokens = run.config().data.sequence_len;
  run.config().train.chunks = 2;
  run.config().train.devices = {"cpu*2"};
  run.config().parallel.layout = LayoutKind::kPipeline;
  run.config().parallel.order = PipelineOrder::kOneForwardOneBackward;
  expect_moved_by_load(run);
}

TEST(KeptCorrection, IsNotMovedWhereThereIsNone) {
  TinyRun run;
  run.config().optim.correction_speed = 0.001;
  auto storage = open_storage(IoKind::kThreads, run.dir().path());
  ASSERT_TRUE(storage.ok()) << storage.status().message();
  const Status status = Trainer::start(run.config(), false, storage->get()).status();
  EXPECT_EQ(status.code(), Exit::kUsage);
  EXPECT_NE(status.message().find("optim.correction_speed"), std::string::npos);
}

}  // namespace
}  // namespace pagoda
