// The built program beside a run that goes on, on what somebody removed, on media that cannot be
// written, on runs that may not be read, and on checkpoints that were forged.
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/bytes.h"
#include "checkpoint/run_checkpoint.h"
#include "offload/storage.h"
#include "tests/testing/files.h"
#include "tests/testing/run_test.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public RunTest {
 protected:
  Flags endless() const {
    Flags flags = this->flags("run");
    flags["train.steps"] = "1000000";
    flags["train.save_steps"] = "1";
    return flags;
  }
  void make_run() {
    Flags flags = this->flags("run");
    flags["train.steps"] = "3";
    ASSERT_EQ(run(train(flags)).code, 0);
  }
  std::string run_dir() const { return dir_.file("run"); }
  Words verify() const { return {"ckpt", "verify", run_dir()}; }
  Words export_to(const std::string& name) const {
    return {"export", "--checkpoint", run_dir(), "--out", dir_.file(name)};
  }
  Words evaluate() const {
    return {"eval", "--checkpoint", run_dir(), "--data.eval_path", dir_.file("text.jsonl"),
            "--memory.disk", dir_.file("scratch")};
  }
  Words generate() const {
    return {"generate", "--checkpoint", run_dir(), "--prompt", "row", "--max_new_tokens", "2",
            "--memory.disk", dir_.file("scratch")};
  }
  // Replaces the checkpoint of step 3 by one whose checksums hold.
  template <typename Change>
  void forge(Change change) {
    const auto storage = open_storage(IoKind::kThreads, run_dir());
    ASSERT_TRUE(storage.ok());
    const CheckpointDirectory checkpoints(storage.value().get(), run_dir() + "/checkpoints");
    RunCheckpoint checkpoint = checkpoints.load(3).value();
    change(checkpoint);
    ASSERT_TRUE(checkpoints.commit(checkpoint).ok());
  }
};

// Waits until the process has a file open whose path has `part` in it.
bool wait_for_open(const Process& process, const std::string& part) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const fs::path files = strf("/proc/%d/fd", static_cast<int>(process.id()));
  while (std::chrono::steady_clock::now() < deadline && !process.has_ended()) {
    std::error_code gone;  // entries come and go while they are listed
    for (fs::directory_iterator at(files, gone), end; !gone && at != end; at.increment(gone)) {
      std::error_code error;
      if (fs::read_symlink(at->path(), error).string().find(part) != std::string::npos) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Commands that were started while the run had the store, and waited, read what it saved last.
TEST_F(CheckpointTest, CommandsBesideARunThatSavesAndEnds) {
  const auto training = start(train(endless()));
  ASSERT_TRUE(training->wait_for_err("saved step 2 ")) << training->err();
  std::vector<std::unique_ptr<Process>> waiting;
  for (const Words& words : {verify(), export_to("out"), evaluate(), generate()}) {
    waiting.push_back(start(words));
  }
  for (const auto& process : waiting) {
    ASSERT_TRUE(wait_for_open(*process, "/store/pages")) << process->err();
  }
  const std::string before = training->err();
  const size_t last = before.rfind("saved step ") + 11;
  const int64_t step = std::stoll(before.substr(last));
  ASSERT_TRUE(training->wait_for_err(strf("saved step %lld ", (long long)step + 2)));
  training->send(SIGTERM);
  const ProcessResult ended = training->wait();
  EXPECT_EQ(ended.code, 75) << ended.err;
  for (const auto& process : waiting) {
    const ProcessResult result = process->wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
  }
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(get_file(dir_.file("out") + "/model.safetensors"), exported("run"));
}

// A run whose files are gone must not say that it saves.
TEST_F(CheckpointTest, FilesRemovedWhileARunGoesOn) {
  struct Case {
    const char* name;
    std::function<void()> strike;
    std::string named;
  };
  const std::string store = run_dir() + "/store", metrics = run_dir() + "/metrics.jsonl";
  const std::vector<Case> cases = {
      {"the store", [&] { fs::remove_all(store); }, store + "/pages"},
      {"the store moved", [&] { fs::rename(store, dir_.file("elsewhere")); }, store + "/pages"},
      {"the metrics", [&] { fs::remove(metrics); }, metrics},
      {"the metrics replaced", [&] {
         fs::copy_file(metrics, metrics + ".new");
         fs::rename(metrics + ".new", metrics);
       }, metrics},
      {"the folder", [&] { fs::rename(run_dir(), dir_.file("moved")); }, run_dir()},
      {"the folder for another", [&] {
         fs::rename(run_dir(), dir_.file("moved"));
         fs::create_directory(run_dir());
       }, run_dir()},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto training = start(train(endless()));
    ASSERT_TRUE(training->wait_for_err("saved step 2 ")) << training->err();
    c.strike();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!training->has_ended() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_TRUE(training->has_ended()) << "the run goes on:\n" << training->err();
    expect_refused(training->wait(), 74, {c.named, "removed, moved or replaced"});
    EXPECT_FALSE(fs::exists(run_dir() + "/checkpoints") && !fs::exists(metrics) &&
                 std::string(c.name).find("folder") != std::string::npos)
        << "a folder was made anew";
    for (const char* path : {"run", "moved", "elsewhere"}) fs::remove_all(dir_.file(path));
  }
}

// What is only read may lie where nothing can be written.
TEST_F(CheckpointTest, AReadOnlyMedium) {
  make_run();
  const std::string path = dir_.file("run");
  if (::mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "SKIPPED: mounting needs root";
  }
  ASSERT_EQ(::mount(nullptr, path.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr), 0);
  for (const Words& words : {verify(), export_to("out"), evaluate(), generate()}) {
    const ProcessResult result = run(words);
    EXPECT_EQ(result.code, 0) << words[0] << ": " << result.err;
  }
  EXPECT_EQ(::umount2(path.c_str(), MNT_DETACH), 0);
}

// The reason, and not that a new run is needed.
TEST_F(CheckpointTest, ARunOneMayNotRead) {
  make_run();
  Flags flags = this->flags("run");
  flags["train.steps"] = "6";
  // Root may read all; without these capabilities it may not.
  const Words plain = program_;
  if (::geteuid() == 0) {
    program_ = Words{"/usr/bin/setpriv", "--bounding-set", "-dac_override,-dac_read_search"};
    program_ = program_ + plain;
    if (run({"--version"}).code != 0) GTEST_SKIP() << "SKIPPED: capabilities cannot be given up";
  }
  for (const char* name : {"", "/checkpoints", "/checkpoints/step-00000003",
                           "/checkpoints/step-00000003/MANIFEST",
                           "/checkpoints/step-00000003/pages.bin"}) {
    SCOPED_TRACE(name);
    const fs::path path = run_dir() + name;
    const fs::perms before = fs::status(path).permissions();
    fs::permissions(path, fs::perms::none);
    for (const Words& words : {verify(), export_to("out")}) {
      expect_refused(run(words), 66, {path.string(), "Permission denied"});
    }
    if (*name != '\0') {
      expect_refused(run(train(flags, {"--resume"})), 66, {path.string(), "Permission denied"});
    }
    fs::permissions(path, before);
  }
  fs::permissions(run_dir() + "/checkpoints/step-00000003/MANIFEST", fs::perms::none);
  EXPECT_NE(run({"ckpt", "ls", run_dir()}).out.find("not readable"), std::string::npos);
}

// A good older checkpoint does not make the newest one good.
TEST_F(CheckpointTest, ADamagedNewestAndAGoodOlder) {
  make_run();
  const std::string newest = run_dir() + "/checkpoints/step-00000004";
  fs::copy(run_dir() + "/checkpoints/step-00000003", newest);
  std::string manifest = get_file(newest + "/MANIFEST");
  manifest[20] ^= 1;
  put_file(newest + "/MANIFEST", manifest);
  expect_refused(run(verify()), 74, {newest, "damaged", "step 3", "pages are good"});
  expect_refused(run(verify() + Words{"--json"}), 74, {newest, "step 3"});
}

// Numbers with which a table or a file would be larger than any machine, and more threads or files.
TEST_F(CheckpointTest, ForgedCheckpoints) {
  make_run();
  const std::vector<std::function<void(RunCheckpoint&)>> forgeries = {
      [](RunCheckpoint& c) { c.microbatches = int64_t{1} << 30; },
      [](RunCheckpoint& c) { c.microbatches = int64_t{1} << 24; },
      [](RunCheckpoint& c) { c.microbatch_tokens = int64_t{1} << 29; },
      [](RunCheckpoint& c) { c.microbatches = 0; },
      [](RunCheckpoint& c) { c.page_slots = 1; },
      [](RunCheckpoint& c) { c.page_slots = int64_t{1} << 60; },
      [](RunCheckpoint& c) { c.stores[0].directories.clear(); },
      [](RunCheckpoint& c) { c.record_steps.pop_back(); },
      [](RunCheckpoint& c) { c.record_steps.assign(c.record_steps.size(), -1); },
      [](RunCheckpoint& c) { c.rows_consumed = -1; },
      [](RunCheckpoint& c) { c.stores.clear(); },
      [](RunCheckpoint& c) { c.stores.push_back(c.stores[0]); },
      [](RunCheckpoint& c) { c.stores.resize(2); },
      [](RunCheckpoint& c) { c.stores[0].pages.pop_back(); },
      [](RunCheckpoint& c) { c.stores[0].pages.resize(2 * c.stores[0].pages.size()); },
      [](RunCheckpoint& c) { c.stores[0].pages[0].generation = ~uint64_t{0}; },
      [](RunCheckpoint& c) { c.stores[0].pages[0].extent = ~uint32_t{0}; },
      [](RunCheckpoint& c) { c.stores[0].pages[0].extent = c.stores[0].pages[1].extent; },
      [](RunCheckpoint& c) { std::swap(c.stores[0].pages[0].extent, c.stores[0].pages[1].extent); },
      [](RunCheckpoint& c) { c.stores[0].pages[0].page = ~uint32_t{0}; },
      [](RunCheckpoint& c) { c.stores[0].file_name = "../store/pages"; },
      [](RunCheckpoint& c) { c.model_json = "{}"; },
      [](RunCheckpoint& c) { c.dtype = "fp8"; },
  };
  Flags flags = this->flags("run");
  flags["train.steps"] = "6";
  flags["optim.schedule"] = "constant";
  const ProcessLimits limits = {.address_bytes = kUnderSanitizer ? -1 : 4 * kGiB};
  fs::copy(run_dir(), dir_.file("kept"), fs::copy_options::recursive);
  for (size_t i = 0; i < forgeries.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "forgery " << i);
    forge(forgeries[i]);
    for (const Words& words : {verify(), train(flags, {"--resume"})}) {
      const ProcessResult result = run(words, limits);
      EXPECT_NE(result.code, 70) << result.err;
      EXPECT_NE(result.code, 71) << result.err;
      EXPECT_EQ(result.signal, 0) << result.err;
      EXPECT_TRUE(result.code != 0 || words[0] != "ckpt") << result.out;
      EXPECT_TRUE(result.code == 0 || !result.error_line().empty()) << result.err;
    }
    fs::remove_all(run_dir());
    fs::copy(dir_.file("kept"), run_dir(), fs::copy_options::recursive);
  }
}

}  // namespace
}  // namespace pagoda
