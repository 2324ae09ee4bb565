#include <xxhash.h>

#include <algorithm>

#include "base/check.h"
#include "checkpoint/run_checkpoint.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/storage/storage_sim.h"

namespace pagoda {
namespace {

constexpr const char* kPath = "/runs/one/checkpoints";
constexpr int64_t kStep = 7;

std::string hash_text(std::string_view bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return strf("%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

RunCheckpoint checkpoint(int num_pages) {
  RunCheckpoint c;
  c.step = c.updates = kStep;
  c.resolved_config = "[train]\nseed = 3\n";
  c.model_json = "{\"hidden_size\": 32}";
  c.run_folder = "/runs/one";
  c.stores = {{"a", {"/disks/a", "/runs/one/store"}, "pages-1", std::string(32, '7'), {}},
              {"b", {"/disks/a"}, "pages-2", std::string(32, '8'), {}}};
  c.dtype = "bf16";
  c.state_format = "fp32";
  for (uint32_t page = 0; page < static_cast<uint32_t>(num_pages); ++page) {
    c.record_steps.push_back(page);
    c.stores[page % 2].pages.push_back(
        {page, page % 2, uint64_t{1} << 40 | page, 0xdead0000u + page});
  }
  return c;
}

// A machine in memory with one checkpoint on it.
struct CheckpointDisk {
  explicit CheckpointDisk(int num_pages) { CHECK(directory.commit(checkpoint(num_pages)).ok()); }
  static std::string file(const char* name) {
    return strf("%s/step-%08lld/%s", kPath, (long long)kStep, name);
  }
  std::string text(const char* name) const {
    const std::vector<std::byte> bytes = sim.contents(file(name));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void set_text(const char* name, std::string_view text) {
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    sim.set_contents(file(name), {begin, begin + text.size()});
  }

  SimStorage sim{1, 0};
  CheckpointDirectory directory{&sim, kPath};
};

// What stands behind "KEY": in the line, up to the end of a number or a text, becomes `value`.
void replace_value(std::string& line, const std::string& key, const std::string& value) {
  const size_t at = line.find("\"" + key + "\":");
  if (at == std::string::npos) return;
  const size_t begin = at + key.size() + 3;
  line.replace(begin, std::min(line.find_first_of(",}", begin), line.size()) - begin, value);
}

}  // namespace

void fuzz_manifest(std::string_view input) {
  static CheckpointDisk disk(1);
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view pages = end < input.size() ? input.substr(end + 1) : "";
  std::string line(input.substr(0, end));
  replace_value(line, "pages_xxh3", "\"" + hash_text(pages) + "\"");
  replace_value(line, "pages_bytes", std::to_string(pages.size()));
  disk.set_text("MANIFEST", line + "\nxxh3 " + hash_text(line) + "\n");
  disk.set_text("pages.bin", pages);
  auto loaded = disk.directory.load(kStep);
  if (!loaded.ok()) return;
  CHECK(loaded->step == kStep && loaded->num_pages() <= std::ssize(pages));
  // A checkpoint that was read, written and read again is the same.
  CHECK(disk.directory.commit(loaded.value()).ok());
  auto again = disk.directory.load(kStep);
  CHECK(again.ok() && again->record_steps == loaded->record_steps &&
        again->stores == loaded->stores && again->page_slots == loaded->page_slots);
}

std::vector<std::string> manifest_seeds() {
  std::vector<std::string> seeds;
  for (const int num_pages : {0, 1, 9}) {
    const CheckpointDisk disk(num_pages);
    const std::string manifest = disk.text("MANIFEST");
    seeds.push_back(manifest.substr(0, manifest.find('\n') + 1) + disk.text("pages.bin"));
  }
  return seeds;
}

}  // namespace pagoda
