#include "base/check.h"
#include "cli/option_file.h"
#include "cli/sheet_file.h"
#include "config/run_config.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

std::string shipped(const std::string& name) {
  return get_file(std::string(PAGODA_GOLDEN_DIR) + "/../../configs/" + name);
}

}  // namespace

void fuzz_run_file(std::string_view input) {
  RunConfig config, again;
  OptionTable table, again_table;
  config.declare(table);
  again.declare(again_table);
  const auto items = parse_run_file(std::string(input), "run.toml", table);
  if (!items.ok()) return;
  for (const RunFileItem& item : items.value()) {
    CHECK(table.find(item.key)->assign(item.texts).ok(), "%s", item.key.c_str());
  }
  (void)config.validate_for_training().ok();  // either is right
  // What was read can be written and read back.
  const std::string text = config.to_toml();
  const auto written = parse_run_file(text, "resolved.toml", again_table);
  CHECK(written.ok(), "%s", written.status().message().c_str());
  for (const RunFileItem& item : written.value()) {
    CHECK(again_table.find(item.key)->assign(item.texts).ok(), "%s", item.key.c_str());
  }
  CHECK(again.to_toml() == text);
}

std::vector<std::string> run_file_seeds() {
  RunConfig config;
  OptionTable table;
  config.declare(table);
  return {config.to_toml(),
          "[data]\npath = [  # several lines\n  \"a.jsonl\",\n  \"b # not a comment\",\n]\n"
          "[train]\nsteps = 1_000\ndtype = 'fp32'\n[optim]\nlearning_rate = 2.5e-4\n"
          "weight_decay = 0\n[memory]\ndevice = \"80%\"\ndisk = \"/one\"\n",
          "train.steps = 0x10\n[data]\npath = '''a\n'''\n[memory]\nhost = \"1.5GiB\"\n"};
}

void fuzz_sheet(std::string_view input) {
  static const TempDir dir;
  static const std::string path = dir.file("cluster.toml");
  static const bool has_node = [] {
    put_file(dir.file("node.toml"), shipped("machines/gpu-24gb.toml"));
    return true;
  }();
  CHECK(has_node);
  auto machine = parse_machine_sheet(std::string(input), "machine.toml");
  if (machine.ok()) {
    auto again = parse_machine_sheet(machine->to_toml(), "written.toml");
    CHECK(again.ok(), "%s", again.status().message().c_str());
  }
  put_file(path, std::string(input));
  (void)read_cluster_sheet(path).ok();  // either is right
}

std::vector<std::string> sheet_seeds() {
  return {shipped("machines/gpu-24gb.toml"), shipped("machines/gpu-4x48gb.toml"),
          shipped("clusters/4x8-gpu-80gb.toml"),
          "[cluster]\nname = \"two\"\nnodes = [\"node.toml\", \"node.toml\"]\n"};
}

}  // namespace pagoda
