// What the built program does with a run that cannot go on as it is: other settings, other text, no
// checkpoint, damage on disk, divergence. It stops with one line, never with wrong numbers, and
// what was saved stays.
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/run_checkpoint.h"
#include "offload/page_layout.h"
#include "offload/storage.h"
#include "template/template.h"
#include "tests/testing/files.h"
#include "tests/testing/run_test.h"
#include "tests/testing/storage/old_store.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

// A finished run of 4 steps that may be resumed to 8.
class ResumeTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    ASSERT_EQ(run(train(flags_of(4))).code, 0);
    run_dir_ = dir_.file("run");
  }
  Flags flags_of(int steps) const {
    Flags flags = this->flags("run");
    flags["train.steps"] = std::to_string(steps);
    flags["train.save_steps"] = "4";
    flags["optim.schedule"] = "constant";  // so that the number of steps is no setting of results
    return flags;
  }
  ProcessResult resume(const Flags& flags) { return run(train(flags, {"--resume"})); }
  void expect_resumes() {
    const ProcessResult result = resume(flags_of(8));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(losses("run").size(), 8u);
  }
  std::string checkpoint() const { return run_dir_ + "/checkpoints/step-00000004"; }
  std::string page_file() const {
    for (const auto& entry : fs::directory_iterator(run_dir_ + "/store")) {
      return entry.path().string();
    }
    return "";
  }

  // Offset of the committed version of `page` in the page file, found by its header.
  int64_t committed_offset(const std::string& file, uint32_t page) const {
    const std::string versions = get_file(checkpoint() + "/pages.bin");
    for (size_t at = 0; at < versions.size(); at += 20) {
      uint32_t id, extent;
      uint64_t generation;
      std::memcpy(&id, versions.data() + at, 4);
      std::memcpy(&extent, versions.data() + at + 4, 4);
      std::memcpy(&generation, versions.data() + at + 8, 8);
      if (id != page) continue;
      for (size_t block = kFirstExtentOffset; block < file.size(); block += kPageHeaderBytes) {
        PageHeader header;
        if (header.decode(reinterpret_cast<const std::byte*>(file.data() + block)) &&
            header.page == id && header.extent == extent && header.generation == generation) {
          return static_cast<int64_t>(block);
        }
      }
    }
    return -1;
  }
  static void flip(const std::string& path, int64_t offset) {
    std::string bytes = get_file(path);
    bytes[static_cast<size_t>(offset)] ^= 0x10;
    put_file(path, bytes);
  }

  std::string run_dir_;
};

// A run says which day its template was told, whenever it goes on or generates.
TEST_F(ResumeTest, TheDayOfAChatTemplateIsTheRuns) {
  put_file(dir_.file("model/chat_template.jinja"),
           "{{ strftime_now('%d') }}{% for m in messages %}{{ m.role[0] }}{{ m.content }};"
           "{% endfor %}{% if add_generation_prompt %}a{% endif %}");
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    rows += strf(R"({"messages":[{"role":"user","content":"%d"},)"
                 R"({"role":"assistant","content":"%d"}]})"
                 "\n",
                 i, i + 1);
  }
  put_file(dir_.file("chat.jsonl"), rows);
  const auto chat_flags = [&](int steps) {
    Flags flags = flags_of(steps);
    flags["data.path"] = dir_.file("chat.jsonl");
    flags["train.output_dir"] = dir_.file("chat");
    return flags;
  };
  const auto day = [&] {
    const std::string resolved = get_file(dir_.file("chat") + "/resolved.toml");
    const size_t at = resolved.find("chat_date = \"");
    return at == std::string::npos ? "" : resolved.substr(at + 13, 10);
  };
  // The two clocks are 26 hours apart.
  program_ = {"/usr/bin/env", "TZ=AAA+12", PAGODA_BINARY};
  const ProcessResult first = run(train(chat_flags(4)));
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string told = day();
  EXPECT_TRUE(jinja::Date::parse(told).ok()) << told;
  program_ = {"/usr/bin/env", "TZ=BBB-14", PAGODA_BINARY};
  const ProcessResult second = run(train(chat_flags(8), {"--resume"}));
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(day(), told);
  EXPECT_EQ(losses("chat").size(), 8u);
  const ProcessResult generated = run({"generate", "--checkpoint", dir_.file("chat"), "--chat",
                                       "--prompt", "x", "--json", "--max_new_tokens", "1"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  const auto json = nlohmann::json::parse(generated.out);
  std::string prompt;
  for (const int token : json["generated"][0]["prompt_tokens"]) prompt += static_cast<char>(token);
  EXPECT_EQ(prompt, told.substr(8) + "ux;a");
}

TEST_F(ResumeTest, OtherSettingsAreNamed) {
  const std::vector<std::tuple<std::string, std::string, std::string>> changes = {
      {"optim.learning_rate", "0.001", "optim.learning_rate is 0.001, was 0.003"},
      {"train.seed", "4", "train.seed is 4, was 3"},
      {"train.dtype", "fp32", "train.dtype is \"fp32\", was \"bf16\""},
      {"optim.clip", "none", "optim.clip is \"none\", was \"global\""},
      {"data.sequence_len", "64", "data.sequence_len is 64, was 32"},
  };
  for (const auto& [key, value, named] : changes) {
    Flags other = flags_of(8);
    other[key] = value;
    // Room enough for each of them.
    other["memory.device"] = other["memory.host"] = "64MiB";
    expect_refused(resume(other), 82, {named, "untouched"});
  }
  expect_resumes();
}

TEST_F(ResumeTest, OtherTextOrModel) {
  const std::string text = get_file(dir_.file("text.jsonl"));
  put_file(dir_.file("text.jsonl"), text + "{\"text\": \"one more\"}\n");
  expect_refused(resume(flags_of(8)), 82, {"training data or the model's tokenizer", "untouched"});
  put_file(dir_.file("text.jsonl"), text);
  const std::string config = dir_.file("model") + "/config.json";
  const std::string before = get_file(config);
  put_file(config, before + "\n");
  expect_refused(resume(flags_of(8)), 82, {"config.json", "untouched"});
  put_file(config, before);
  expect_resumes();
}

// Moments in an encoding of before are as long as those of today: only its name tells.
TEST_F(ResumeTest, StateInAnotherEncoding) {
  const auto storage = open_storage(IoKind::kThreads, run_dir_);
  ASSERT_TRUE(storage.ok()) << storage.status().message();
  const CheckpointDirectory checkpoints(storage.value().get(), run_dir_ + "/checkpoints");
  RunCheckpoint saved = checkpoints.load(4).value();
  const std::string today = std::exchange(saved.state_format, "8bit");
  ASSERT_TRUE(checkpoints.commit(saved).ok());
  const std::string out = dir_.file("out");
  for (const Words& words :
       {train(flags_of(8), {"--resume"}), Words{"ckpt", "verify", run_dir_},
        Words{"export", "--checkpoint", run_dir_, "--out", out}}) {
    SCOPED_TRACE(words.front());
    expect_refused(run(words), 82, {"step 4", "\"8bit\"", "untouched", "version that wrote it"});
  }
  EXPECT_FALSE(fs::exists(out));
  EXPECT_NE(run({"ckpt", "ls", run_dir_}).out.find("another format"), std::string::npos);
  saved.state_format = today;
  ASSERT_TRUE(checkpoints.commit(saved).ok());
  expect_resumes();
}

// A run that was saved on another processor goes on, and says from which step on.
TEST_F(ResumeTest, OnAnotherKernelSet) {
  const std::string quiet = run(train(flags_of(4), {"--resume"})).err;
  EXPECT_EQ(quiet.find("kernel set"), std::string::npos) << quiet;
  const auto storage = open_storage(IoKind::kThreads, run_dir_);
  ASSERT_TRUE(storage.ok()) << storage.status().message();
  const CheckpointDirectory checkpoints(storage.value().get(), run_dir_ + "/checkpoints");
  RunCheckpoint saved = checkpoints.load(4).value();
  const std::string own = std::exchange(saved.kernel_set, "abacus/beads");
  EXPECT_NE(run({"--version"}).out.find(own), std::string::npos) << own;
  ASSERT_TRUE(checkpoints.commit(saved).ok());
  const ProcessResult result = resume(flags_of(8));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(losses("run").size(), 8u);
  for (const std::string& part : Words{"abacus/beads", own, "from step 5 on"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " in " << result.err;
  }
  EXPECT_EQ(checkpoints.load(8).value().kernel_set, own) << "what made step 8";
}

TEST_F(ResumeTest, NoCheckpoint) {
  Flags none = flags_of(4);
  none["train.output_dir"] = dir_.file("none");
  none["train.save_steps"] = "0";
  ASSERT_EQ(run(train(none)).code, 0);
  for (const Words& words :
       {train(none, {"--resume"}), Words{"ckpt", "ls", dir_.file("none")},
        Words{"ckpt", "verify", dir_.file("none")},
        Words{"export", "--checkpoint", dir_.file("none"), "--out", dir_.file("out")}}) {
    SCOPED_TRACE(words.front());
    expect_refused(run(words), 81, {dir_.file("none")});
  }
  EXPECT_FALSE(fs::exists(dir_.file("out")));
  none["train.output_dir"] = dir_.file("nowhere");
  expect_refused(resume(none), 66, {dir_.file("nowhere")});
}

// One flipped byte in the committed version of a page, for pages over the whole file. Weights of
// embedding and first layer, then states: these are read before they are written, while weights of
// an expert that gets no tokens are made anew without a look at the old ones.
TEST_F(ResumeTest, ADamagedPageIsNeverUsed) {
  const std::string path = page_file(), good = get_file(path);
  const size_t pages = get_file(checkpoint() + "/pages.bin").size() / 20;
  int found = 0;
  for (uint32_t page = 0; page < 200; page += page < 2 ? 2 : page == 2 ? 5 : 14) {
    const int64_t offset = committed_offset(good, page);
    if (offset < 0) continue;
    ++found;
    SCOPED_TRACE(testing::Message() << "page " << page << " at " << offset);
    // Once in the header, otherwise in the payload.
    flip(path, offset + (found == 1 ? 100 : kPageHeaderBytes + 33));
    const std::string name = strf("page %u ", page);
    expect_refused(run({"ckpt", "verify", run_dir_}), 74, {name, path});
    expect_refused(resume(flags_of(8)), 74, {name, path});
    // The refused run wrote to free slots only.
    std::string now = get_file(path);
    now[static_cast<size_t>(offset + (found == 1 ? 100 : kPageHeaderBytes + 33))] ^= 0x10;
    put_file(path, now);
    EXPECT_EQ(run({"ckpt", "verify", run_dir_}).code, 0);
  }
  EXPECT_GT(found, 5);
  EXPECT_GT(pages, 100u);
  expect_resumes();
}

TEST_F(ResumeTest, ADamagedManifestIsNoCheckpoint) {
  for (const char* name : {"MANIFEST", "pages.bin"}) {
    const std::string path = checkpoint() + "/" + name, good = get_file(path);
    for (const size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      SCOPED_TRACE(testing::Message() << name << " byte " << at);
      flip(path, static_cast<int64_t>(at));
      const ProcessResult refused = resume(flags_of(8));
      expect_refused(refused, 81, {run_dir_ + "/checkpoints"});
      EXPECT_NE(refused.err.find(path), std::string::npos) << refused.err;
      put_file(path, good.substr(0, at));
      expect_refused(resume(flags_of(8)), 81, {run_dir_ + "/checkpoints"});
      put_file(path, good);
    }
  }
  expect_resumes();
}

TEST_F(ResumeTest, ADamagedPageFile) {
  const std::string path = page_file();
  const std::string good = get_file(path);
  put_file(path, good.substr(0, good.size() - 4096));
  expect_refused(resume(flags_of(8)), 82, {path});
  std::string zeros = good;
  zeros.replace(0, 8192, 8192, '\0');  // both superblocks
  put_file(path, zeros);
  expect_refused(resume(flags_of(8)), 74, {path});
  fs::remove(path);
  expect_refused(resume(flags_of(8)), 81, {path});
  put_file(path, good);
  expect_resumes();
}

// A run of the version before is exported, checked and gone on with, to the same bits.
TEST_F(ResumeTest, ARunOfTheVersionBefore) {
  Flags whole = flags_of(8);
  whole["train.output_dir"] = dir_.file("whole");
  ASSERT_EQ(run(train(whole)).code, 0);
  const std::string half = exported("run");
  make_old_run(checkpoint(), page_file());
  const ProcessResult verified = run({"ckpt", "verify", run_dir_});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_EQ(run({"ckpt", "ls", run_dir_}).code, 0);
  EXPECT_TRUE(exported("run") == half);
  // A damaged page of the old format is refused as one of the new is.
  const std::string good = get_file(page_file());
  flip(page_file(), 65536 + kPageHeaderBytes + 33);  // page 0, in slot 0
  expect_refused(run({"ckpt", "verify", run_dir_}), 74, {"page 0 ", page_file()});
  put_file(page_file(), good);
  expect_resumes();
  EXPECT_EQ(run({"ckpt", "verify", run_dir_}).code, 0);
  EXPECT_TRUE(exported("run") == exported("whole"));
}

// What only repeats the text is made again.
TEST_F(ResumeTest, DamagedTokensAreMadeAgain) {
  flip(run_dir_ + "/tokens.bin", 1000);
  expect_resumes();
}

TEST_F(ResumeTest, DivergenceKeepsTheLastGoodCheckpoint) {
  for (const char* clip : {"global", "none", "per_expert"}) {
    SCOPED_TRACE(clip);
    fs::remove_all(dir_.file("wild"));
    Flags wild = flags_of(50);
    wild["train.output_dir"] = dir_.file("wild");
    wild["train.save_steps"] = "2";
    wild["optim.clip"] = clip;
    wild["optim.learning_rate"] = "1e30";
    wild["optim.warmup_steps"] = "0";
    const ProcessResult diverged = run(train(wild));
    expect_refused(diverged, 80, {"optim.learning_rate", "intact"});
    const ProcessResult verified = run({"ckpt", "verify", "--json", dir_.file("wild")});
    EXPECT_EQ(verified.code, 0) << verified.err;
    EXPECT_EQ(nlohmann::json::parse(verified.out)["step"], 0) << diverged.err;
    const std::string metrics = get_file(dir_.file("wild") + "/metrics.jsonl");
    if (clip == std::string("global")) {
      EXPECT_NE(metrics.find("{\"type\":\"warn\",\"step\":"), std::string::npos) << metrics;
    }
    EXPECT_TRUE(exported("wild") == get_file(dir_.file("model") + "/model.safetensors"));
  }
}

// What a kill between the commit of the last step and the removal of the one before leaves.
TEST_F(ResumeTest, ARotationThatWasCutIsFinished) {
  fs::copy(checkpoint(), dir_.file("before"), fs::copy_options::recursive);
  expect_resumes();
  fs::rename(dir_.file("before"), checkpoint());
  const ProcessResult again = resume(flags_of(8));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(files_in(run_dir_ + "/checkpoints"), (Words{"LATEST", "room", "step-00000008"}));
  EXPECT_EQ(losses("run").size(), 8u);
  EXPECT_EQ(run({"ckpt", "verify", run_dir_}).code, 0);
}

// A kill before the first checkpoint, with the disk inside the run's folder: the same command
// starts over.
TEST_F(ResumeTest, AnEarlyKillWithDisksInsideTheFolder) {
  const std::string folder = dir_.file("killed"), disk = folder + "/disks/a";
  const std::string pages = disk + "/pages-0123456789abcdef.0";
  fs::create_directories(disk);
  put_file(pages, "half a start");
  put_file(folder + "/tokens.bin", "half a start");
  put_file(folder + "/STARTING", pages + "\n");
  Flags flags = flags_of(4);
  flags["train.output_dir"] = folder;
  flags["memory.disk"] = disk;
  const ProcessResult result = run(train(flags));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(fs::exists(pages));
  EXPECT_FALSE(fs::exists(folder + "/STARTING"));
}

}  // namespace
}  // namespace pagoda
