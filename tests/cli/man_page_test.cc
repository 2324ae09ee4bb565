// The manual page and the completions of the built program, read by the programs that use them.
#include <gtest/gtest.h>

#include <filesystem>

#include "config/run_config.h"
#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

class ManPageTest : public testing::Test {
 protected:
  ProcessResult pagoda(const Words& words) {
    return Process(Words{PAGODA_BINARY} + words, dir_.file("pagoda")).wait();
  }
  // What bash offers for the last of these words.
  std::string completed(const std::string& words) {
    put_file(dir_.file("script"), pagoda({"completion", "bash"}).out + "COMP_WORDS=(" + words +
                                      ")\n"
                                      "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                                      "_pagoda\necho \"${COMPREPLY[@]}\"\n");
    const ProcessResult result =
        Process({"/bin/bash", dir_.file("script")}, dir_.file("bash")).wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  }
  TempDir dir_;
};

TEST_F(ManPageTest, HasEveryOptionOfARun) {
  const ProcessResult page = pagoda({"man"});
  ASSERT_EQ(page.code, 0) << page.err;
  RunConfig config;
  OptionTable table;
  config.declare(table);
  for (const Option& option : table.options()) {
    EXPECT_NE(page.out.find("\\-\\-" + option.key), std::string::npos) << option.key;
  }
  for (const char* command :
       {"PAGODA TRAIN", "PAGODA EXPORT", "PAGODA BENCH DISK", "EXIT STATUS"}) {
    EXPECT_NE(page.out.find(std::string(".SH \"") + command + "\""), std::string::npos) << command;
  }
}

TEST_F(ManPageTest, GroffFindsNothingWrong) {
  if (!std::filesystem::exists("/usr/bin/groff")) {
    std::puts("SKIPPED: there is no groff here");
    GTEST_SKIP();
  }
  put_file(dir_.file("page"), pagoda({"man"}).out);
  const ProcessResult drawn =
      Process({"/usr/bin/groff", "-man", "-Tascii", "-P-cbou", "-ww", dir_.file("page")},
              dir_.file("groff"))
          .wait();
  EXPECT_EQ(drawn.code, 0);
  EXPECT_EQ(drawn.err, "");
  EXPECT_NE(drawn.out.find("--train.steps"), std::string::npos);
}

TEST_F(ManPageTest, BashCompletesCommandsFlagsAndChoices) {
  EXPECT_EQ(completed("pagoda tr"), "train\n");
  EXPECT_EQ(completed("pagoda ckpt v"), "verify\n");
  EXPECT_EQ(completed("pagoda train run.toml --train.dt"), "--train.dtype\n");
  EXPECT_EQ(completed("pagoda train --train.dtype b"), "bf16\n");
  EXPECT_EQ(completed("pagoda train --optim.clip ''"), "global per_expert none\n");
  EXPECT_EQ(completed("pagoda export --out ./mod"), "\n") << "a path, which is bash's own business";
  EXPECT_EQ(completed("pagoda data inspect --ro"), "--rows\n");
}

TEST_F(ManPageTest, OtherShells) {
  const ProcessResult zsh = pagoda({"completion", "zsh"}), fish = pagoda({"completion", "fish"});
  EXPECT_TRUE(zsh.out.starts_with("#compdef pagoda\n"));
  EXPECT_NE(
      fish.out.find("complete -c pagoda -n '__fish_seen_subcommand_from train' -l train.dtype "
                    "-x -a 'fp32 bf16' -d '"),
      std::string::npos);
  const ProcessResult wrong = pagoda({"completion", "csh"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "pagoda: completion: \"csh\" must be bash, zsh or fish\n");
}

}  // namespace
}  // namespace pagoda
