// Runs with frozen tensors, as the built program makes them: what is said, what stays, what is
// refused.
#include <filesystem>

#include "checkpoint/safetensors.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

class FreezeTest : public RunTest {
 protected:
  static std::string bytes_of(const std::string& folder, const std::string& tensor) {
    auto file = SafetensorsFile::open(folder + "/model.safetensors");
    CHECK(file.ok(), "%s", file.status().message().c_str());
    const SafetensorsEntry* entry = file->find(tensor);
    CHECK(entry != nullptr, "no %s", tensor.c_str());
    std::string bytes(static_cast<size_t>(entry->bytes), '\0');
    CHECK(file->read(*entry, 0, bytes.data(), entry->bytes).ok());
    return bytes;
  }
};

TEST_F(FreezeTest, WhatIsFrozenIsExportedAsItCame) {
  const std::string out = dir_.file("run"), tuned = dir_.file("tuned");
  Flags f = flags("run");
  f["train.freeze"] = "experts";
  f["optim.weight_decay"] = "0.5";
  const ProcessResult result = run(train(f, {"--train.freeze", "router"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("frozen: "), std::string::npos) << result.err;
  ASSERT_EQ(run({"export", "--checkpoint", out, "--out", tuned}).code, 0);
  for (const char* stays :
       {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.experts.1.down_proj.weight"}) {
    EXPECT_EQ(bytes_of(tuned, stays) == bytes_of(dir_.file("model"), stays), true) << stays;
  }
  for (const char* moves :
       {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"}) {
    EXPECT_EQ(bytes_of(tuned, moves) == bytes_of(dir_.file("model"), moves), false) << moves;
  }
  EXPECT_EQ(run({"ckpt", "verify", out}).code, 0);
}

TEST_F(FreezeTest, WhatNamesNothingIsRefusedBeforeAnythingIsWritten) {
  const std::string out = dir_.file("run");
  Flags f = flags("run");
  f["train.freeze"] = "ruoter";
  expect_refused(run(train(f)), 2, {"train.freeze has \"ruoter\"", "did you mean \"router\"?"});
  f["train.freeze"] = "*";
  expect_refused(run(train(f)), 2, {"train.freeze", "nothing to train"});
  f["train.freeze"] = "model layers";
  expect_refused(run(train(f)), 2, {"train.freeze = \"model layers\""});
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(FreezeTest, AResumedRunHasTheSameFrozen) {
  Flags f = flags("run");
  f["train.freeze"] = "router";
  ASSERT_EQ(run(train(f)).code, 0);
  f["train.freeze"] = "embed";
  expect_refused(run(train(f, {"--resume"})), 82, {"train.freeze"});
}

}  // namespace
}  // namespace pagoda
