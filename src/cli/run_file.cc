#include "cli/run_file.h"

#include <iterator>
#include <sstream>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "commands/commands.h"

namespace pagoda {
namespace {

constexpr int64_t kMaxRunFileBytes = kMiB;

std::string describe(const Option& option) {
  std::string facts = option.unit;
  if (!option.default_text.empty()) {
    facts += (facts.empty() ? "default " : "; default ") + option.default_text;
  }
  return facts.empty() ? option.help : option.help + " (" + facts + ")";
}

std::string value_name(const Option& option) {
  if (const auto* choice = std::get_if<ChoiceTarget>(&option.target)) {
    std::string names;
    for (const std::string& name : choice->names) names += (names.empty() ? "" : "|") + name;
    return names;
  }
  if (std::holds_alternative<int64_t*>(option.target)) return "INT";
  if (std::holds_alternative<CountOrAuto>(option.target)) return "INT|auto";
  if (std::holds_alternative<double*>(option.target)) return "REAL";
  if (std::holds_alternative<RealOrAuto>(option.target)) return "REAL|auto";
  if (std::holds_alternative<bool*>(option.target)) return "true|false";
  const bool size = std::holds_alternative<MemorySize*>(option.target) ||
                    std::holds_alternative<MemorySizes*>(option.target);
  return size ? "SIZE" : "TEXT";
}

}  // namespace

std::vector<CLI::ConfigItem> RunFileReader::from_config(std::istream& in) const {
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  Result<std::vector<RunFileItem>> items = parse_run_file(text, path_, table_, rank_);
  if (!items.ok()) throw CLI::ConfigError(items.status().message());
  std::vector<CLI::ConfigItem> out;
  for (RunFileItem& item : items.value()) {
    if (!read_(*table_.find(item.key))) continue;
    CLI::ConfigItem& converted = out.emplace_back();
    converted.name = std::move(item.key);
    converted.inputs = std::move(item.texts);
  }
  return out;
}

void add_option_flags(CLI::App& app, const OptionTable& table,
                      const std::function<bool(const Option&)>& shown) {
  for (const OptionSection& section : table.sections()) {
    for (const Option& option : table.options()) {
      if (option.section != section.name) continue;
      const auto assign = [&option](const CLI::results_t& texts) {
        const Status status = option.assign(texts);
        if (!status.ok()) throw CLI::ValidationError(status.message());
        return true;
      };
      const std::string alias = option.alias.empty() ? "" : ",--" + option.alias;
      CLI::Option* flag = app.add_option("--" + option.key + alias, assign, describe(option));
      flag->type_name(value_name(option))->group(shown(option) ? section.title : "");
      if (!option.is_list()) continue;
      // One value for each occurrence: a greedy list would swallow the run file behind it.
      flag->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
    }
  }
}

Result<std::string> read_run_text(const std::string& path) {
  Result<std::string> text = read_file_or_pipe(path, kMaxRunFileBytes);
  if (!text.ok()) return Status(text.status().code(), "run file " + text.status().message());
  return text;
}

Status load_run_file(CLI::App& app, const OptionTable& table, const std::string& path,
                     const std::string& text, const std::function<bool(const Option&)>& read,
                     int rank) {
  std::istringstream in(text);
  app.config_formatter(std::make_shared<RunFileReader>(table, path, read, rank));
  app.allow_config_extras(CLI::config_extras_mode::error);
  try {
    app.parse_from_stream(in);
  } catch (const CLI::ParseError& parse_error) {
    return Status(Exit::kUsage, parse_error.what());
  }
  return Status();
}

Status load_run_settings(const CLI::App& app, const OptionTable& table, const std::string& run,
                         const std::function<bool(const Option&)>& taken) {
  ASSIGN_OR_RETURN(const std::string settings, checkpoint_settings(run));
  const auto items = parse_run_file(settings, "the checkpoint's configuration", table);
  if (!items.ok()) {
    return Status(Exit::kMismatch, "a build with other options made this checkpoint: " +
                                       items.status().message());
  }
  for (const RunFileItem& item : items.value()) {
    const Option& option = *table.find(item.key);
    if (!taken(option) || app.count("--" + item.key) > 0) continue;
    RETURN_IF_ERROR(option.assign(item.texts));
  }
  return Status();
}

}  // namespace pagoda
