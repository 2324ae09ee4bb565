// What reads files that others wrote, as functions of bytes: for libFuzzer (tools/fuzz.sh) and for
// a replay among the tests (fuzz_replay_test.cc). A target reads its input as the program would; a
// fault is a failed CHECK, a report of a sanitizer, or memory and time beyond libFuzzer's limits.
// Targets keep what every input needs (a folder, a tokenizer) from call to call. One thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pagoda {

struct FuzzTarget {
  const char* name;
  void (*run)(std::string_view input);
  std::vector<std::string> (*seeds)();  // good inputs, made by the tests' own generators
};

std::span<const FuzzTarget> fuzz_targets();

// model.safetensors.
void fuzz_safetensors(std::string_view input);
std::vector<std::string> safetensors_seeds();
// config.json.
void fuzz_config(std::string_view input);
std::vector<std::string> config_seeds();
// model.safetensors.index.json of a folder whose other files are good.
void fuzz_index(std::string_view input);
std::vector<std::string> index_seeds();
// tokenizer.json; where it is one, a text is encoded and decoded.
void fuzz_tokenizer(std::string_view input);
std::vector<std::string> tokenizer_seeds();
// Rows of training data. The first byte chooses: bit 0 .json or .jsonl, bit 1 a chat template.
void fuzz_rows(std::string_view input);
std::vector<std::string> rows_seeds();
// A chat template, rendered with the variables of its golden file.
void fuzz_template(std::string_view input);
std::vector<std::string> template_seeds();
// A run file.
void fuzz_run_file(std::string_view input);
std::vector<std::string> run_file_seeds();
// Parses a machine's sheet, and the same text as a cluster's sheet.
void fuzz_sheet(std::string_view input);
std::vector<std::string> sheet_seeds();
// The first line of a MANIFEST, whose checksums are made right; behind it pages.bin.
void fuzz_manifest(std::string_view input);
std::vector<std::string> manifest_seeds();
// Blocks of a page file. Each takes 129 bytes: whether its checksum is made right, then how it
// begins. The superblocks A and B, the headers of six pages; behind them what the checkpoint says.
void fuzz_pages(std::string_view input);
std::vector<std::string> pages_seeds();

}  // namespace pagoda
