// The run file (cli/option_file.h) behind CLI11's Config interface. CLI11's own reader swallows
// lines of arrays without an error; it is never used.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/status.h"
#include "cli/option_file.h"

namespace pagoda {

// Replaces CLI11's own reader. Errors are thrown as CLI::ConfigError.
class RunFileReader : public CLI::Config {
 public:
  // Items of options for which `read` is false are checked and left out. `table` must outlive the
  // reader. `rank`: as parse_run_file() takes it.
  RunFileReader(const OptionTable& table, std::string path, std::function<bool(const Option&)> read,
                int rank)
      : table_(table), path_(std::move(path)), read_(std::move(read)), rank_(rank) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override;
  // Unused: RunConfig::to_toml() writes run files.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

 private:
  const OptionTable& table_;
  std::string path_;
  std::function<bool(const Option&)> read_;
  int rank_;
};

// Makes every option of `table` a flag "--section.key" of `app`, and its alias another, grouped by
// section in the help with unit and default. Options for which `shown` is false stay out of the
// help; a command refuses them (RunCommand::read_run_file()).
void add_option_flags(CLI::App& app, const OptionTable& table,
                      const std::function<bool(const Option&)>& shown);

// The content of a run file. kNoInput when it cannot be read.
Result<std::string> read_run_text(const std::string& path);

// Gives the options of `app` that no flag has set, and for which `read` is true, their values from
// the text of run file `path`, those of `rank`. Call after parsing argv. The errors of
// parse_run_file.
Status load_run_file(CLI::App& app, const OptionTable& table, const std::string& path,
                     const std::string& text, const std::function<bool(const Option&)>& read,
                     int rank = 0);

// Gives the options of `app` that no flag has set, and for which `taken` is true, their values from
// the newest checkpoint of a run. Call after load_run_file. kMismatch when another build made the
// checkpoint; also the errors of checkpoint_settings.
Status load_run_settings(const CLI::App& app, const OptionTable& table, const std::string& run,
                         const std::function<bool(const Option&)>& taken);

}  // namespace pagoda
