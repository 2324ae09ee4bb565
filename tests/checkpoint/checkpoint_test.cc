// Checkpoint manifests: what is written comes back, every damage is noticed, and an interrupted
// commit leaves the old checkpoint or the new one, never something else.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/manifest.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/storage/storages.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using nlohmann::json;

constexpr const char* kPath = "/runs/one/checkpoints";

RunCheckpoint sample(int64_t step) {
  RunCheckpoint c;
  c.step = step;
  c.updates = std::max<int64_t>(0, step - 1);
  c.rows_consumed = 1000 * step;
  c.config_hash = "0123456789abcdef";
  c.resolved_config = "[train]\nseed = 3\ntitle = \"two\\nlines, Grüße\"\n";
  c.model_json = "{\"hidden_size\": 32}";
  c.run_folder = "/runs/one";
  c.model_path = "/models/tiny";
  c.tokenizer = "bpe 1, cafe, end of text 2";
  c.data_fingerprint = "feedface";
  c.build = "1.2.3";
  c.kernel_set = "vector/loop";
  c.page_slots = 2;
  c.microbatches = 4;
  c.microbatch_tokens = 512;
  c.dtype = "bf16";
  c.state_format = "8bit-2";
  for (int64_t r = 0; r < 5; ++r) c.record_steps.push_back(r);
  c.stores = {
      {"node07", {"/disks/a", "/disks/b"}, "pages-1", std::string(32, 'a'), {}, "vector/loop"},
      {"node08", {"/disks/a"}, "pages-2", std::string(32, 'b'), {}, "matrix/x"}};
  for (uint32_t p = 0; p < 9; ++p) {
    c.stores[p % 3 == 1].pages.push_back(
        {p, p % 2, static_cast<uint64_t>(step) << 33 | p, 0xdead0000u + p});
  }
  return c;
}

// Every field by name, so that a field the manifest loses is found.
std::string text_of(const RunCheckpoint& c) {
  json stores = json::array();
  for (const CheckpointStore& store : c.stores) {
    json pages = json::array();
    for (const PageVersion& v : store.pages) {
      pages.push_back({v.page, v.extent, v.generation, v.checksum});
    }
    stores.push_back({store.host, store.directories, store.file_name, store.store_id,
                      std::move(pages), store.kernel_set});
  }
  const json all = {{"step", c.step},
                    {"updates", c.updates},
                    {"rows", c.rows_consumed},
                    {"hash", c.config_hash},
                    {"toml", c.resolved_config},
                    {"json", c.model_json},
                    {"model", c.model_path},
                    {"folder", c.run_folder},
                    {"tokenizer", c.tokenizer},
                    {"data", c.data_fingerprint},
                    {"build", c.build},
                    {"kernels", c.kernel_set},
                    {"slots", c.page_slots},
                    {"microbatches", c.microbatches},
                    {"tokens", c.microbatch_tokens},
                    {"dtype", c.dtype},
                    {"state", c.state_format},
                    {"record_steps", c.record_steps},
                    {"stores", stores}};
  return all.dump();
}

std::string file_text(const SimStorage& sim, const std::string& path) {
  const std::vector<std::byte> bytes = sim.contents(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Without the seal behind it.
json manifest_in(const SimStorage& sim, const std::string& path) {
  const std::string text = file_text(sim, path);
  return json::parse(text.substr(0, text.find('\n')));
}

void set_text(SimStorage& sim, const std::string& path, const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  sim.set_contents(path, {begin, begin + text.size()});
}

std::string step_file(int64_t step, const char* name) {
  return strf("%s/step-%08lld/%s", kPath, (long long)step, name);
}

TEST(Checkpoint, ComesBackAsItWas) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  EXPECT_TRUE(directory.steps().value().empty());
  EXPECT_EQ(directory.newest().status().code(), Exit::kNoCheckpoint);
  ASSERT_OK(directory.commit(sample(7)));
  ASSERT_OK(directory.commit(sample(123456789)));
  EXPECT_EQ(directory.steps().value(), (std::vector<int64_t>{7, 123456789}));
  for (const int64_t step : {7, 123456789}) {
    const auto loaded = directory.load(step);
    ASSERT_OK(loaded.status());
    EXPECT_EQ(text_of(loaded.value()), text_of(sample(step)));
  }
  const auto newest = directory.newest();
  ASSERT_OK(newest.status());
  EXPECT_EQ(newest.value().checkpoint.step, 123456789);
}

TEST(Checkpoint, AStepMayBeCommittedAgain) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  ASSERT_OK(directory.commit(sample(7)));
  RunCheckpoint again = sample(7);
  again.rows_consumed = 5;
  ASSERT_OK(directory.commit(again));
  EXPECT_EQ(text_of(directory.load(7).value()), text_of(again));
}

// The damaged file is named and nothing of it is used.
void expect_refused(SimStorage& sim, const CheckpointDirectory& directory, const std::string& path,
                    const std::string& damaged, const std::string& what) {
  set_text(sim, path, damaged);
  const auto loaded = directory.load(7);
  ASSERT_FALSE(loaded.ok()) << path << ": " << what << " was not noticed";
  EXPECT_TRUE(loaded.status().code() == Exit::kIoError) << loaded.status().message();
  EXPECT_NE(loaded.status().message().find("step-00000007"), std::string::npos)
      << loaded.status().message();
}

TEST(Checkpoint, EveryChangedByteAndEveryTruncationIsNoticed) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  ASSERT_OK(directory.commit(sample(7)));
  int64_t damages = 0;
  for (const char* name : {"MANIFEST", "pages.bin"}) {
    const std::string path = step_file(7, name);
    const std::string good = file_text(sim, path);
    ASSERT_GT(good.size(), 100u);
    for (size_t i = 0; i < good.size(); ++i) {
      for (const int change : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
        std::string damaged = good;
        damaged[i] = static_cast<char>(damaged[i] ^ change);
        expect_refused(sim, directory, path, damaged, strf("byte %zu ^ %02x", i, change));
        if (HasFatalFailure()) return;
        ++damages;
      }
    }
    for (size_t length = 0; length < good.size(); ++length, ++damages) {
      expect_refused(sim, directory, path, good.substr(0, length), strf("%zu bytes", length));
      if (HasFatalFailure()) return;
    }
    expect_refused(sim, directory, path, good + "\n", "a byte more");
    set_text(sim, path, good);
    ASSERT_OK(directory.load(7).status());
  }
  std::printf("%lld damages\n", (long long)damages);
}

std::string sealed(const json& manifest) {
  const std::string line = manifest.dump();
  const XXH128_hash_t h = XXH3_128bits(line.data(), line.size());
  return strf("%s\nxxh3 %016llx%016llx\n", line.c_str(), (unsigned long long)h.high64,
              (unsigned long long)h.low64);
}

// Manifests that verify but say something else than this build writes.
TEST(Checkpoint, EachFieldIsNeededAndHasItsType) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  ASSERT_OK(directory.commit(sample(7)));
  const std::string path = step_file(7, "MANIFEST");
  const std::string good = file_text(sim, path);
  const json manifest = manifest_in(sim, path);
  ASSERT_EQ(sealed(manifest), good) << "the test's idea of a manifest";
  for (const auto& [key, value] : manifest.items()) {
    for (const json& other : {json(), json::object(), json::array({json::object()}),
                              value.is_string() ? json(5) : json("five")}) {
      json damaged = manifest;
      damaged[key] = other;
      set_text(sim, path, sealed(damaged));
      EXPECT_FALSE(directory.load(7).ok()) << key << " = " << other.dump();
    }
    if (key == "kernel_set") continue;  // older manifests have none: the next test
    json damaged = manifest;
    damaged.erase(key);
    set_text(sim, path, sealed(damaged));
    EXPECT_FALSE(directory.load(7).ok()) << "no " << key;
  }
  for (const auto& [key, value] : manifest["stores"][1].items()) {
    for (const json& other :
         {json(), json::object(), json(-1), value.is_string() ? json(5) : json("five")}) {
      json damaged = manifest;
      damaged["stores"][1][key] = other;
      set_text(sim, path, sealed(damaged));
      EXPECT_FALSE(directory.load(7).ok()) << key << " = " << other.dump();
    }
    if (key == "host" || key == "kernel_set") continue;  // older manifests have none
    json damaged = manifest;
    damaged["stores"][1].erase(key);
    set_text(sim, path, sealed(damaged));
    EXPECT_FALSE(directory.load(7).ok()) << "no " << key;
  }
  json newer = manifest;
  newer["format"] = manifest["format"].get<int>() + 1;
  set_text(sim, path, sealed(newer));
  EXPECT_EQ(directory.load(7).status().code(), Exit::kMismatch);
  for (const char* text : {"", "\n", "null", "[1,2]", "\"\""}) {
    set_text(sim, path, sealed(json()));
    EXPECT_FALSE(directory.load(7).ok());
    set_text(sim, path, text);
    EXPECT_FALSE(directory.load(7).ok());
  }
  // A directory under another step's name is not that step.
  json moved = manifest;
  moved["step"] = 9;
  set_text(sim, path, sealed(moved));
  EXPECT_FALSE(directory.load(7).ok()) << "a manifest of step 9 in the folder of step 7";
}

TEST(Checkpoint, OneOfBeforeKernelSetsHadNamesIsRead) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  ASSERT_OK(directory.commit(sample(7)));
  const std::string path = step_file(7, "MANIFEST");
  json manifest = manifest_in(sim, path);
  ASSERT_EQ(manifest.erase("kernel_set"), 1u);
  for (json& store : manifest["stores"]) ASSERT_EQ(store.erase("kernel_set"), 1u);
  set_text(sim, path, sealed(manifest));
  RunCheckpoint unnamed = sample(7);
  unnamed.kernel_set.clear();
  for (CheckpointStore& store : unnamed.stores) store.kernel_set.clear();
  const auto loaded = directory.load(7);
  ASSERT_OK(loaded.status());
  EXPECT_EQ(text_of(loaded.value()), text_of(unnamed));
}

// A manifest as it was before ranks had stores, in the format of this number.
json with_one_store(json manifest, int format) {
  manifest["format"] = format;
  const json store = manifest["stores"][0];
  for (const auto& [key, value] : store.items()) {
    if (key != "host") manifest[key] = value;
  }
  manifest.erase("stores");
  return manifest;
}

TEST(Checkpoint, OneOfBeforeRanksHadStoresIsRead) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  RunCheckpoint one = sample(7);
  one.stores.pop_back();
  ASSERT_OK(directory.commit(one));
  const std::string path = step_file(7, "MANIFEST");
  const json manifest = manifest_in(sim, path);
  set_text(sim, path, sealed(with_one_store(manifest, 5)));
  one.stores[0].host.clear();
  const auto loaded = directory.load(7);
  ASSERT_OK(loaded.status());
  EXPECT_EQ(text_of(loaded.value()), text_of(one));
}

TEST(Checkpoint, AStoreTravelsAsText) {
  const std::string good = encode_store(sample(7).stores[1]);
  const auto store = decode_store(good);
  ASSERT_OK(store.status());
  EXPECT_EQ(store.value(), sample(7).stores[1]);
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() - 1), good + "x", good.substr(1),
        good.substr(0, good.find('\n')), std::string("[]\n"), std::string("{}\n")}) {
    EXPECT_EQ(decode_store(bad).status().code(), Exit::kIoError) << bad;
  }
}

// Before format 5, pages.bin had a page's slot in place of the extent: two for each page, in order.
TEST(Checkpoint, OneOfBeforeExtentsHadNumbersIsRead) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  ASSERT_OK(directory.commit(sample(7)));
  const std::string path = step_file(7, "MANIFEST");
  json manifest = with_one_store(manifest_in(sim, path), 4);
  // Pages 0, 1 and 3, of which 2 would be scratch, in slots 1, 0 and 1.
  const std::vector<std::vector<uint32_t>> versions = {
      {0, 1, 77, 0, 0xabcd}, {1, 0, 78, 0, 0x1234}, {3, 1, 0, 1, 0x77}};
  const auto load = [&](const std::vector<std::vector<uint32_t>>& list) {
    std::string pages;
    for (const auto& words : list) {
      pages.append(reinterpret_cast<const char*>(words.data()), 4 * words.size());
    }
    const XXH128_hash_t h = XXH3_128bits(pages.data(), pages.size());
    manifest["pages"] = list.size();
    manifest["pages_bytes"] = pages.size();
    manifest["pages_xxh3"] =
        strf("%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    set_text(sim, path, sealed(manifest));
    set_text(sim, step_file(7, "pages.bin"), pages);
    return directory.load(7);
  };
  const auto loaded = load(versions);
  ASSERT_OK(loaded.status());
  EXPECT_EQ(
      loaded.value().stores[0].pages,
      (std::vector<PageVersion>{{0, 1, 77, 0xabcd}, {1, 2, 78, 0x1234}, {3, 5, 1ull << 32, 0x77}}));
  // What no run wrote: a third slot, pages out of order, a page twice.
  EXPECT_EQ(load({{0, 2, 77, 0, 1}}).status().code(), Exit::kIoError);
  EXPECT_EQ(load({{0, ~0u, 77, 0, 1}}).status().code(), Exit::kIoError);
  EXPECT_EQ(load({versions[1], versions[0]}).status().code(), Exit::kIoError);
  EXPECT_EQ(load({versions[1], versions[1]}).status().code(), Exit::kIoError);
}

// With checksums that hold: numbers that nothing may be computed from.
TEST(Checkpoint, ForgedNumbersAreRefused) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  ASSERT_OK(directory.commit(sample(7)));
  const std::string path = step_file(7, "MANIFEST");
  const std::string good = file_text(sim, path);
  const json manifest = manifest_in(sim, path);
  const json large = uint64_t{1} << 62, larger = ~uint64_t{0};
  const std::vector<std::pair<const char*, std::vector<json>>> forged = {
      {"updates", {-1, 8, large, larger}},
      {"rows_consumed", {-1, large, larger}},
      {"page_slots", {-1, 0, 1, 3, large}},
      {"microbatches", {-1, 0, large, larger}},
      {"microbatch_tokens", {-1, 0, large, larger}},
      {"record_steps", {json::array({1, -1}), json::array({large})}},
      {"stores", {json::array(), json::object(), json(5)}},
      {"dtype", {"", "fp8"}},
  };
  const std::vector<std::pair<const char*, std::vector<json>>> of_store = {
      {"directories", {json::array(), json::array({""}), json::array({std::string("/a\0b", 4)})}},
      {"file_name", {"", "pages/../../etc", "../pages", "other"}},
      {"store_id", {"", "00", std::string(32, 'x'), std::string(33, '0')}},
      {"pages", {-1, 0, 2, 4, 10, large, larger}},
  };
  std::vector<std::tuple<const char*, json, bool>> all;
  for (const auto& [key, values] : forged) {
    for (const json& value : values) all.emplace_back(key, value, false);
  }
  for (const auto& [key, values] : of_store) {
    for (const json& value : values) all.emplace_back(key, value, true);
  }
  for (const auto& [key, value, in_store] : all) {
    json other = manifest;
    (in_store ? other["stores"][1] : other)[key] = value;
    set_text(sim, path, sealed(other));
    const Status status = directory.load(7).status();
    EXPECT_EQ(status.code(), Exit::kIoError) << key << " = " << value.dump();
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
  RunCheckpoint twice = sample(8);
  twice.stores[1].pages.push_back(twice.stores[0].pages[2]);
  ASSERT_OK(directory.commit(twice));
  EXPECT_EQ(directory.load(8).status().code(), Exit::kIoError) << "a page in two stores";
  json both = manifest;  // each may be so large, but not both
  both["microbatches"] = both["microbatch_tokens"] = 1 << 20;
  set_text(sim, path, sealed(both));
  EXPECT_EQ(directory.load(7).status().code(), Exit::kIoError);
  set_text(sim, path, sealed(json::parse(std::string(1000, '[') + std::string(1000, ']'))));
  EXPECT_EQ(directory.load(7).status().code(), Exit::kIoError);
}

TEST(Checkpoint, NewestSkipsBrokenOnesAndSaysSo) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  for (const int64_t step : {3, 5, 9}) ASSERT_OK(directory.commit(sample(step)));
  ASSERT_OK(sim.make_directory(std::string(kPath) + "/step-00000011"));      // no files
  ASSERT_OK(sim.make_directory(std::string(kPath) + "/step-00000012.tmp"));  // never finished
  ASSERT_OK(sim.make_directory(std::string(kPath) + "/step-half"));
  sim.flip_bit(step_file(9, "pages.bin"), 13, 2);
  const auto newest = directory.newest();
  ASSERT_OK(newest.status());
  std::string warnings;
  for (const Status& damaged : newest.value().damaged) warnings += damaged.message() + "\n";
  EXPECT_EQ(newest.value().checkpoint.step, 5);
  EXPECT_NE(warnings.find("step-00000011"), std::string::npos) << warnings;
  EXPECT_NE(warnings.find("step-00000009/pages.bin"), std::string::npos) << warnings;
  EXPECT_EQ(warnings.find("step-00000005"), std::string::npos) << warnings;
  // Broken ones are left alone for whoever wants to look.
  EXPECT_TRUE(sim.exists(step_file(9, "MANIFEST")));
  sim.flip_bit(step_file(5, "MANIFEST"), 20, 0);
  sim.flip_bit(step_file(3, "MANIFEST"), 20, 0);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(directory.newest().status().code(), Exit::kNoCheckpoint);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  for (const char* step : {"step-00000011", "step-00000009", "step-00000005", "step-00000003"}) {
    EXPECT_NE(printed.find(step), std::string::npos) << printed;
  }
}

// Unlike one that is damaged: it may be good, and an older one is not in its place.
TEST(Checkpoint, OneThatCannotBeReadNowIsAnErrorAndNotSkipped) {
  for (const int64_t nth : {1, 2, 3}) {  // the list, MANIFEST, pages.bin
    SimStorage sim(1, 0);
    const CheckpointDirectory directory(&sim, kPath);
    for (const int64_t step : {3, 5}) ASSERT_OK(directory.commit(sample(step)));
    sim.inject({.nth = nth});
    EXPECT_EQ(directory.newest().status().code(), Exit::kIoError) << "call " << nth;
    const auto newest = directory.newest();
    ASSERT_OK(newest.status());
    EXPECT_EQ(newest.value().checkpoint.step, 5);
  }
}

TEST(Checkpoint, RemovesWhatIsOlderAndNothingElse) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  for (const int64_t step : {3, 5, 9}) ASSERT_OK(directory.commit(sample(step)));
  ASSERT_OK(sim.make_directory(std::string(kPath) + "/step-00000012.tmp"));
  ASSERT_OK(sim.write_file(std::string(kPath) + "/step-00000012.tmp/pages.bin", "x"));
  ASSERT_OK(sim.write_file(std::string(kPath) + "/notes.txt", "mine"));
  ASSERT_OK(sim.make_directory(std::string(kPath) + "/step-notes"));
  directory.remove_older(5);
  EXPECT_EQ(sim.list_directory(kPath).value(),
            (std::vector<std::string>{"LATEST", "notes.txt", "room", "step-00000005",
                                      "step-00000009", "step-notes"}));
  EXPECT_EQ(file_text(sim, std::string(kPath) + "/LATEST"), "step-00000005\n");
}

// The room of the next checkpoint is made once; each takes it and leaves that of the one before.
TEST(Checkpoint, RoomGoesRound) {
  SimStorage sim(1, 0);
  const CheckpointDirectory directory(&sim, kPath);
  const std::string room = std::string(kPath) + "/room";
  ASSERT_OK(directory.commit(sample(3)));
  // A process that was killed while it saved leaves this behind.
  ASSERT_OK(sim.make_directory(std::string(kPath) + "/step-00000004.tmp"));
  for (int64_t step = 3; step <= 9; step += 2) {
    ASSERT_OK(directory.reserve(sample(step)));
    EXPECT_TRUE(sim.exists(room + "/MANIFEST") && sim.exists(room + "/pages.bin"));
    EXPECT_EQ(directory.steps().value(), std::vector<int64_t>{step});
    EXPECT_EQ(sim.list_directory(kPath).value().size(), step == 3 ? 2u : 3u);  // LATEST too
    ASSERT_OK(directory.commit(sample(step + 2)));
    EXPECT_FALSE(sim.exists(room)) << "the checkpoint is not in the room it had";
    directory.remove_older(step + 2);
    EXPECT_TRUE(sim.exists(room));
    EXPECT_EQ(text_of(directory.load(step + 2).value()), text_of(sample(step + 2)));
  }
}

// A machine with checkpoint 3 saved, about to save 5.
struct Machine {
  explicit Machine(uint64_t seed) : sim(seed, 0), directory(&sim, kPath) {
    Status saved = directory.commit(sample(3));
    if (saved.ok()) saved = directory.reserve(sample(3));
    CHECK(saved.ok(), "%s", saved.message().c_str());
    calls_before = sim.calls();
  }
  SimStorage sim;
  CheckpointDirectory directory;
  int64_t calls_before = 0;
};

int64_t calls_of_a_save() {
  Machine machine(1);
  const Status saved = machine.directory.commit(sample(5));
  CHECK(saved.ok(), "%s", saved.message().c_str());
  machine.directory.remove_older(5);
  return machine.sim.calls() - machine.calls_before;
}

// The old checkpoint or the new one, complete; the new one if it was reported.
void expect_old_or_new(Machine& machine, bool reported) {
  const auto newest = machine.directory.newest();
  ASSERT_TRUE(newest.ok()) << newest.status().message();
  const int64_t step = newest.value().checkpoint.step;
  EXPECT_TRUE(step == 5 || (step == 3 && !reported)) << "step " << step << " came back";
  EXPECT_EQ(text_of(newest.value().checkpoint), text_of(sample(step)));
  ASSERT_OK(machine.directory.commit(sample(5)));  // saving goes on
  machine.directory.remove_older(5);
  ASSERT_OK(machine.directory.reserve(sample(5)));
  EXPECT_EQ(machine.directory.steps().value(), std::vector<int64_t>{5});
}

TEST(Checkpoint, PowerLossAtAnyCallLeavesTheOldOrTheNew) {
  const int64_t calls = calls_of_a_save();
  ASSERT_GT(calls, 10);
  int old_ones = 0, new_ones = 0;
  for (int64_t nth = 1; nth <= calls + 1; ++nth) {
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE(::testing::Message() << "call " << nth << " of " << calls << ", seed " << seed);
      Machine machine(seed);
      machine.sim.inject({.kind = SimFault::Kind::kCrash, .nth = nth, .crash_seed = seed});
      const bool reported = machine.directory.commit(sample(5)).ok();
      if (reported) machine.directory.remove_older(5);
      machine.sim.clear_faults();
      machine.sim.crash(seed);
      machine.sim.restart();
      const auto newest = machine.directory.newest();
      if (newest.ok()) (newest.value().checkpoint.step == 3 ? old_ones : new_ones) += 1;
      expect_old_or_new(machine, reported);
      if (HasFailure()) return;
    }
  }
  std::printf("%lld calls: old %d times, new %d times\n", (long long)calls, old_ones, new_ones);
  EXPECT_GT(old_ones, 0);
  EXPECT_GT(new_ones, 0);
}

// A killed process may leave a step whose name is not durable. The next one resumes from it and
// overwrites pages of the step before, so a power loss then must not take it back.
TEST(Checkpoint, AStepThatWasResumedFromSurvivesPowerLoss) {
  const int64_t calls = calls_of_a_save();
  int new_ones = 0;
  for (int64_t died_at = 1; died_at <= calls; ++died_at) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(::testing::Message() << "call " << died_at << ", seed " << seed);
      Machine machine(seed);
      for (int64_t nth = died_at; nth <= calls + 20; ++nth) machine.sim.inject({.nth = nth});
      (void)machine.directory.commit(sample(5));
      machine.sim.clear_faults();
      machine.sim.restart();
      ASSERT_OK(machine.directory.sync());
      const auto resumed = machine.directory.newest();
      ASSERT_OK(resumed.status());
      machine.sim.crash(seed);
      machine.sim.restart();
      const auto after = machine.directory.newest();
      ASSERT_OK(after.status());
      ASSERT_EQ(after.value().checkpoint.step, resumed.value().checkpoint.step);
      new_ones += resumed.value().checkpoint.step == 5;
    }
  }
  EXPECT_GT(new_ones, 0);
}

TEST(Checkpoint, AFailingCallNeverReportsWhatIsNotThere) {
  const int64_t calls = calls_of_a_save();
  for (const auto kind : {SimFault::Kind::kError, SimFault::Kind::kShort}) {
    for (int64_t nth = 1; nth <= calls; ++nth) {
      SCOPED_TRACE(::testing::Message() << "call " << nth << ", kind " << static_cast<int>(kind));
      Machine machine(7);
      machine.sim.inject({.kind = kind, .nth = nth, .error = ENOSPC});
      const Status saved = machine.directory.commit(sample(5));
      if (saved.ok()) machine.directory.remove_older(5);
      machine.sim.clear_faults();
      // What was reported must survive a power loss right after.
      machine.sim.crash(static_cast<uint64_t>(nth));
      machine.sim.restart();
      expect_old_or_new(machine, saved.ok());
      if (HasFailure()) return;
    }
  }
}

// The very first checkpoint of a run: its folders are new too, and must not vanish with it.
TEST(Checkpoint, TheFirstOneSurvivesPowerLossToo) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    SimStorage sim(seed, 0);
    const CheckpointDirectory directory(&sim, kPath);
    ASSERT_OK(directory.commit(sample(0)));
    sim.crash(seed);
    sim.restart();
    const auto newest = directory.newest();
    ASSERT_OK(newest.status());
    EXPECT_EQ(text_of(newest.value().checkpoint), text_of(sample(0)));
  }
}

}  // namespace
}  // namespace pagoda
