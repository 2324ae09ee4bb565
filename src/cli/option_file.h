// Reads TOML whose keys are options: run files and machine sheets. Every key must be declared in an
// OptionTable; types are strict; each error names file, line, column and, for unknown keys, the
// nearest known one.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"
#include "base/status.h"

namespace pagoda {

struct RunFileItem {
  std::string key;                 // "train.steps"
  std::vector<std::string> texts;  // the texts that would follow the flag: one, or a list's
};

// Parses and checks the content of a run file; `path` is for messages. kUsage on anything wrong:
// syntax, duplicate keys, unknown keys, wrong types, values outside of their option's range.
// Sections of [rank.N] have local options: those of `rank` win over what is said for all, and the
// others are checked only.
Result<std::vector<RunFileItem>> parse_run_file(const std::string& text, const std::string& path,
                                                const OptionTable& table, int rank = 0);

}  // namespace pagoda
