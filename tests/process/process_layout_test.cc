// `pagoda train --machine`: the layout that a measured sheet recommends is the one that trains, and
// changes no bit.
#include <filesystem>

#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

class LayoutTest : public RunTest {
 protected:
  // A run of two unlike devices whose layout is open.
  std::string run_file(const std::string& name) {
    const std::string path = dir_.file(name + ".toml");
    put_file(path, "[model]\npath = \"" + dir_.file("model") + "\"\n[data]\npath = \"" +
                       dir_.file("text.jsonl") + R"("
sequence_len = 32
[train]
devices = ["cpu", "cpu/1:3"]
tokens_per_step = 256
micro_batch_tokens = 32
chunks = 2
steps = 3
save_steps = 3
eval_steps = 0
output_dir = ")" + dir_.file(name) +
                       R"("
[memory]
device = "64MiB"
host = "64MiB"
)");
    return path;
  }
};

TEST_F(LayoutTest, TheSheetsLayoutTrainsTheSameBits) {
  const std::string sheet = dir_.file("mine.toml"), scratch = dir_.file("scratch");
  std::filesystem::create_directory(scratch);
  const ProcessResult measured =
      run({"bench", "machine", run_file("a"), "--device", "cpu", "--dir", scratch, "--bytes",
           "16MiB", "--rounds", "2", "--out", sheet});
  ASSERT_EQ(measured.code, 0) << measured.err;
  const ProcessResult by_sheet = run({"train", run_file("a"), "--machine", sheet});
  ASSERT_EQ(by_sheet.code, 0) << by_sheet.err;
  EXPECT_NE(by_sheet.err.find("parallel.layout "), std::string::npos) << by_sheet.err;
  EXPECT_NE(by_sheet.err.find(": a step with zebra takes "), std::string::npos) << by_sheet.err;
  const ProcessResult zebra = run({"train", run_file("b"), "--parallel.layout", "zebra"});
  ASSERT_EQ(zebra.code, 0) << zebra.err;
  const ProcessResult experts = run({"train", run_file("c")});
  ASSERT_EQ(experts.code, 0) << experts.err;
  EXPECT_EQ(experts.err.find("parallel.layout "), std::string::npos) << experts.err;
  EXPECT_TRUE(exported("a") == exported("b"));
  EXPECT_TRUE(exported("a") == exported("c"));
}

// What zebra leaves open is chosen for layers that the model has.
TEST_F(LayoutTest, ZebraOfOtherLayersIsRefused) {
  const auto zebra = [&](const Words& more) {
    return run(
        Words{"train", run_file("a"), "--parallel.layout", "zebra", "--train.devices", "cpu*8"} +
        more);
  };
  expect_refused(zebra({"--parallel.stages", "4"}), 2,
                 {"there are 3 layers and 8 devices; set 3 at most"});
  expect_refused(zebra({"--parallel.offloaded", "1", "--parallel.offloaded", "2"}), 2,
                 {"parallel.offloaded has 2 numbers, and the model 3 layers"});
  EXPECT_FALSE(std::filesystem::exists(dir_.file("a")));
}

TEST_F(LayoutTest, ASheetThatIsNoneIsRefused) {
  expect_refused(run({"train", run_file("a"), "--machine", dir_.file("none.toml")}), 66,
                 {"none.toml"});
  put_file(dir_.file("bad.toml"), "[device]\nkind = \"tpu\"\n");
  expect_refused(run({"train", run_file("a"), "--machine", dir_.file("bad.toml")}), 2,
                 {"bad.toml", "tpu"});
  EXPECT_FALSE(std::filesystem::exists(dir_.file("a")));
}

}  // namespace
}  // namespace pagoda
