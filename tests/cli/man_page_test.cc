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

// False, and said so, if this machine lacks the shell.
TEST_F(ManPageTest, FishCompletesCommandsFlagsAndChoices) {
  if (!std::filesystem::exists("/usr/bin/fish")) GTEST_SKIP() << "there is no /usr/bin/fish here";
  put_file(dir_.file("pagoda.fish"), pagoda({"completion", "fish"}).out);
  // [line typed, what fish offers for its last word, without what is said of each]
  const auto offered = [&](const std::string& line) {
    const std::string script = "source " + dir_.file("pagoda.fish") + "; complete -C '" + line +
                               "' | string replace -r '\\t.*' '' | string join ' '; true";
    const ProcessResult result =
        Process({"/usr/bin/fish", "--no-config", "-c", script}, dir_.file("fish")).wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  };
  EXPECT_EQ(offered("pagoda tr"), "train\n");
  EXPECT_EQ(offered("pagoda ckpt v"), "verify\n");
  EXPECT_EQ(offered("pagoda train run.toml --train.dt"), "--train.dtype\n");
  EXPECT_EQ(offered("pagoda train --train.dtype b"), "bf16\n");
  EXPECT_EQ(offered("pagoda train --optim.clip "), "global none per_expert\n");
  EXPECT_EQ(offered("pagoda data inspect --ro"), "--rows\n");
}

// A zsh with a terminal, in which a person presses Tab behind `line`: what it shows of the line.
TEST_F(ManPageTest, ZshCompletesCommandsFlagsAndChoices) {
  if (!std::filesystem::exists("/usr/bin/zsh")) GTEST_SKIP() << "there is no /usr/bin/zsh here";
  std::filesystem::create_directory(dir_.file("functions"));
  put_file(dir_.file("functions/_pagoda"), pagoda({"completion", "zsh"}).out);
  const std::string completes =
      "compinit -u -d " + dir_.file("dump") + "; bindkey '^I' expand-or-complete\n";
  const std::string set_up[] = {
      "fpath=(" + dir_.file("functions") + " $fpath); autoload -Uz compinit; " + completes,
      "autoload -Uz compinit; " + completes + "source " + dir_.file("functions/_pagoda") + "\n"};
  const std::pair<const char*, const char*> lines[] = {
      {"pagoda tr", "pagoda train "},
      {"pagoda ckpt v", "pagoda ckpt verify "},
      {"pagoda train run.toml --train.dt", "pagoda train run.toml --train.dtype "},
      {"pagoda train --train.dtype b", "pagoda train --train.dtype bf16 "},
      {"pagoda data inspect --ro", "pagoda data inspect --rows "},
      {"pagoda export --out /usr/bi", "pagoda export --out /usr/bin/"}};
  for (const std::string& begin : set_up) {
    put_file(dir_.file("begin"), begin);
    for (const auto& [line, wanted] : lines) {
      // What is typed is shown by a widget, bound to ^X, that prints the buffer.
      put_file(dir_.file("script"),
               "zmodload zsh/zpty\n"
               "zpty shell zsh -f -i\n"
               "zpty -w shell 'PS1=; unsetopt zle_bracketed_paste 2>/dev/null; source " +
                   dir_.file("begin") + "; show() { print -r -- \"$BUFFER\" > " +
                   dir_.file("shown") +
                   "; zle kill-whole-line; exit }; zle -N show; bindkey \"^X\" show; print READY'\n"
                   "zpty -m -r shell out '*READY*READY*'\n"
                   "zpty -w -n shell " +
                   "$'" + line +
                   "\t\x18'\n"
                   "for i in {1..300}; do [ -s " +
                   dir_.file("shown") +
                   " ] && break; sleep 0.02; done\n"
                   "zpty -d shell\n");
      std::filesystem::remove(dir_.file("shown"));
      const ProcessResult result =
          Process({"/usr/bin/zsh", "-f", dir_.file("script")}, dir_.file("zsh")).wait();
      ASSERT_TRUE(std::filesystem::exists(dir_.file("shown"))) << line << result.err;
      EXPECT_EQ(get_file(dir_.file("shown")), std::string(wanted) + "\n") << begin;
      if (&begin != set_up) break;  // one line shows whether it is there
    }
  }
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
