// Patterns of train.freeze on the tables of real configurations.
#include "model/frozen_tensors.h"

#include <gtest/gtest.h>

#include <set>

#include "checkpoint/hf_folder.h"

namespace pagoda {
namespace {

TensorTable table_of(const std::string& golden) {
  auto folder = HfFolder::open(std::string(PAGODA_GOLDEN_DIR) + "/" + golden);
  CHECK(folder.ok(), "%s", folder.status().message().c_str());
  return folder->table();
}

std::set<std::string> frozen_names(const TensorTable& table,
                                   const std::vector<std::string>& patterns) {
  auto frozen = freeze_tensors(table, patterns);
  CHECK(frozen.ok(), "%s", frozen.status().message().c_str());
  std::set<std::string> names;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    if (frozen->has(static_cast<int64_t>(t))) names.insert(table.tensors[t].name);
  }
  return names;
}

using Names = std::set<std::string>;

TEST(FrozenTensors, WordsAreWhatTensorsAreFor) {
  const TensorTable qwen = table_of("qwen3_moe_tiny");
  EXPECT_EQ(frozen_names(qwen, {"router"}),
            (Names{"model.layers.0.mlp.gate.weight", "model.layers.2.mlp.gate.weight"}));
  EXPECT_EQ(frozen_names(qwen, {"embed"}), Names{"model.embed_tokens.weight"});
  EXPECT_EQ(frozen_names(qwen, {"head"}), Names{"lm_head.weight"});
  EXPECT_EQ(frozen_names(qwen, {"mlp"}),
            (Names{"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
                   "model.layers.1.mlp.down_proj.weight"}));
  EXPECT_EQ(frozen_names(qwen, {"experts"}).size(), 2u * 8 * 3);
  EXPECT_EQ(frozen_names(qwen, {"norms"}).size(), 3u * 2 + 1);
  EXPECT_EQ(frozen_names(qwen, {"attention"}).size(), 3u * 6) << "with norms of queries and keys";
  const TensorTable shared = table_of("qwen2_moe");
  for (const std::string& name : frozen_names(shared, {"shared"})) {
    EXPECT_NE(name.find("shared_expert"), std::string::npos) << name;
  }
  EXPECT_EQ(frozen_names(shared, {"shared"}).size() % 4, 0u) << "a gate and three matrices a layer";
}

TEST(FrozenTensors, NamesMayHaveStars) {
  const TensorTable qwen = table_of("qwen3_moe_tiny");
  EXPECT_EQ(
      frozen_names(qwen, {"*.1.self_attn.?_proj.weight"}),
      (Names{"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
             "model.layers.1.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight"}));
  EXPECT_EQ(frozen_names(qwen, {"model.layers.0.mlp.experts.3.*", "lm*weight"}).size(), 4u);
}

TEST(FrozenTensors, StateEndsWithTheLastTensorThatTrains) {
  const TensorTable qwen = table_of("qwen3_moe_tiny");
  auto router = freeze_tensors(qwen, {"router"});
  ASSERT_TRUE(router.ok());
  EXPECT_EQ(router->elements, 2 * 8 * 32);
  for (int64_t r = 0; r < std::ssize(qwen.records); ++r) {
    const RecordSpec& record = qwen.records[static_cast<size_t>(r)];
    const bool routes = record.kind == RecordKind::kLayer && record.layer != 1;
    EXPECT_EQ(router->trained(qwen, r), record.num_elements - (routes ? 8 * 32 : 0))
        << record.name();
  }
  auto keys = freeze_tensors(qwen, {"*.k_proj.weight", "experts"});
  ASSERT_TRUE(keys.ok());
  for (int64_t r = 0; r < std::ssize(qwen.records); ++r) {
    const RecordSpec& record = qwen.records[static_cast<size_t>(r)];
    const bool expert = record.kind == RecordKind::kExpert;
    EXPECT_EQ(keys->trained(qwen, r), expert ? 0 : record.num_elements) << record.name();
  }
}

TEST(FrozenTensors, WhatNamesNothingIsRefused) {
  const TensorTable qwen = table_of("qwen3_moe_tiny");
  struct Wrong {
    std::vector<std::string> patterns;
    const char* part;
  };
  for (const Wrong& wrong :
       {Wrong{{"ruoter"}, "did you mean \"router\"?"}, Wrong{{"router", "shared"}, "\"shared\""},
        Wrong{{"model.embed_token.weight"}, "did you mean \"model.embed_tokens.weight\"?"},
        Wrong{{"model.layers.7.*"}, "no tensor"}, Wrong{{"*"}, "nothing to train"}}) {
    const Status refused = freeze_tensors(qwen, wrong.patterns).status();
    EXPECT_EQ(refused.code(), Exit::kUsage);
    EXPECT_NE(refused.message().find(wrong.part), std::string::npos) << refused.message();
  }
  EXPECT_FALSE(freeze_tensors(table_of("glm4_moe"), {"*e_score_correction_bias"}).ok())
      << "it is not trained in any case";
}

}  // namespace
}  // namespace pagoda
