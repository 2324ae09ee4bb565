// The built program beside what is not its own: planted links, devices, pipes, and folders that
// only look like its own. All of it stays as it is.
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>

#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

class ForeignFilesTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    fs::create_directory(dir_.file("victim"));
    for (const char* name : {"thesis", "MANIFEST", "pages.bin"}) {
      put_file(dir_.file("victim/") + name, "years of work");
    }
  }
  void TearDown() override {
    EXPECT_EQ(files_in(dir_.file("victim")), (Words{"MANIFEST", "pages.bin", "thesis"}));
    for (const std::string& name : files_in(dir_.file("victim"))) {
      EXPECT_EQ(get_file(dir_.file("victim/") + name), "years of work") << name;
    }
  }
  ProcessResult shell(const std::string& script, const Words& words) {
    return Process(Words{"/bin/sh", "-c", script, "sh"} + program_ + words, dir_.file("shell"))
        .wait();
  }
  Flags flags_of(int steps) const {
    Flags flags = this->flags("run");
    flags["train.steps"] = std::to_string(steps);
    flags["train.save_steps"] = "4";
    flags["optim.schedule"] = "constant";
    return flags;
  }
  Words plan_page(const std::string& page) const {
    const std::string configs = std::string(PAGODA_GOLDEN_DIR) + "/../../configs/";
    return {"plan",
            "--model.path",
            dir_.file("model"),
            "--machine",
            configs + "machines/gpu-24gb.toml",
            "--train.save_steps",
            "0",
            "--html",
            page};
  }
};

// Whoever knows the process's number plants a link by the name that its folder might have.
TEST_F(ForeignFilesTest, AScratchFolderIsNobodyElses) {
  const std::string scratch = dir_.file("scratch"), notes = scratch + "/pagoda-scratch-notes";
  fs::create_directories(notes);
  put_file(notes + "/thesis", "years of work");
  const ProcessResult result = shell(
      "ln -s " + dir_.file("victim") + " " + scratch + "/pagoda-scratch-$$ && exec \"$@\"",
      {"eval", "--model.path", dir_.file("model"), "--data.eval_path", dir_.file("text.jsonl"),
       "--data.sequence_len", "32", "--train.micro_batch_tokens", "64", "--memory.disk", scratch});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(files_in(notes), Words{"thesis"});
  EXPECT_EQ(files_in(scratch).size(), 2u) << "its own is removed, the link is not";
}

// A run's folder from somebody else, resumed.
TEST_F(ForeignFilesTest, LinksInAReceivedRunAreRefused) {
  ASSERT_EQ(run(train(flags_of(4))).code, 0);
  const std::string manifest = get_file(dir_.file("run/checkpoints/step-00000004/MANIFEST"));
  for (const char* name : {"checkpoints/step-00000008.tmp", "checkpoints/step-00000008",
                           "metrics.jsonl", "resolved.toml"}) {
    const std::string link = dir_.file("run/") + name;
    const bool file = fs::path(name).has_extension() && fs::path(name).extension() != ".tmp";
    if (file) fs::rename(link, dir_.file("kept"));
    fs::create_symlink(dir_.file(file ? "victim/thesis" : "victim"), link);
    expect_refused(run(train(flags_of(8), {"--resume"})), 65, {name, "symbolic link"});
    fs::remove(link);
    if (file) fs::rename(dir_.file("kept"), link);
  }
  EXPECT_EQ(get_file(dir_.file("run/checkpoints/step-00000004/MANIFEST")), manifest);
  const ProcessResult resumed = run(train(flags_of(8), {"--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(losses("run").size(), 8u);
}

TEST_F(ForeignFilesTest, APageTakesTheRoomOfAFileOnly) {
  const std::string page = dir_.file("page.html");
  const auto kind = [&] {
    struct stat info = {};
    EXPECT_EQ(::lstat(page.c_str(), &info), 0);
    return info.st_mode & S_IFMT;
  };
  fs::create_symlink(dir_.file("victim/thesis"), page);
  expect_refused(run(plan_page(page)), 73, {page, "symbolic link"});
  EXPECT_EQ(kind(), mode_t{S_IFLNK});
  fs::remove(page);
  fs::create_symlink("/proc/self/fd/1", page);  // like /dev/stdout, which is not put at risk
  const ProcessResult piped = shell("\"$@\" | cat", plan_page(page));
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_NE(piped.out.find("</html>"), std::string::npos);
  EXPECT_EQ(kind(), mode_t{S_IFLNK});
  fs::remove(page);
  if (::mknod(page.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) {  // /dev/null is such a device
    GTEST_SKIP() << "SKIPPED: making a device needs root";
  }
  (void)run(plan_page(page));  // some file systems have no devices
  EXPECT_EQ(kind(), mode_t{S_IFCHR});
}

// A pipe is read while somebody writes to it, and not waited for.
TEST_F(ForeignFilesTest, RunFilesFromPipes) {
  put_file(dir_.file("run.toml"), "[train]\nstepz = 4\n");
  const ProcessResult piped =
      shell("cat " + dir_.file("run.toml") + " | \"$@\"", {"train", "/dev/stdin"});
  expect_refused(piped, 2, {"/dev/stdin:2", "train.stepz"});
  const std::string fifo = dir_.file("fifo.toml");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(run({"train", fifo}), 66, {fifo, "writer"});
  expect_refused(run({"train", "/dev/zero"}), 2, {"/dev/zero", "larger than 1.00 MiB"});
  expect_refused(run({"train", dir_.path()}), 66, {dir_.path(), "folder"});
}

}  // namespace
}  // namespace pagoda
