#include "report/model_card.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "config/saved_options.h"

namespace pagoda {
namespace {

constexpr int64_t kMostMetricsBytes = int64_t{1} << 30;

std::string last_part(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  const std::string name = (normal.has_filename() ? normal : normal.parent_path()).filename();
  return name.empty() ? "model" : name;
}

std::string file_names(const std::vector<std::string>& paths) {
  std::string names;
  for (const std::string& path : paths) {
    names += (names.empty() ? "" : ", ") + ("`" + printable(last_part(path)) + "`");
  }
  return names;
}

// The part of a run file that the run had and that affects results.
std::string options_of_results(const SavedOptions& run) {
  RunConfig config;
  OptionTable table;
  config.declare(table);
  std::string text, section;
  for (const Option& option : table.options()) {
    const std::string value = run.value(option.key);
    if (option.affects != Affects::kResults || value.empty()) continue;
    if (option.section != section) text += (text.empty() ? "[" : "\n[") + option.section + "]\n";
    section = option.section;
    text += option.key.substr(section.size() + 1) + " = " + value + "\n";
  }
  return text;
}

}  // namespace

std::string model_card_text(const ModelCard& card) {
  const SavedOptions run(card.resolved_config);
  const std::string name = printable(last_part(card.model_path));
  std::string text =
      "---\nlibrary_name: transformers\ntags:\n- mixture-of-experts\n- pagoda\n---\n\n";
  text += "# " + name + ", fine-tuned\n\n";
  text +=
      strf("Step %lld of a run that trained %s of `%s` with Pagoda %s.\n\n", (long long)card.step,
           run.texts("train.freeze").empty() ? "every parameter" : "all but frozen parameters",
           name.c_str(), PAGODA_VERSION);
  text += "| | |\n|---|---|\n";
  text += "| started from | `" + name + "` |\n";
  text += "| data | " + file_names(run.texts("data.path")) + " |\n";
  text += "| tokens a step | " + run.value("train.tokens_per_step") + " |\n";
  if (card.held_out_loss) {
    text += strf("| held-out loss | %.4f at step %lld |\n", *card.held_out_loss,
                 (long long)card.held_out_step);
  }
  text += "\nThe options that shaped it:\n\n```toml\n" + options_of_results(run) + "```\n";
  return text;
}

void take_held_out_loss(const std::string& metrics, ModelCard& card) {
  const auto text = read_text_file(metrics, Links::kRefuse, kMostMetricsBytes);
  if (!text.ok()) return;
  std::istringstream lines(text.value());
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"eval\"") == std::string::npos) continue;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool whole = object.is_object() && object.value("type", nlohmann::json()) == "eval" &&
                       object.contains("step") && object["step"].is_number_integer() &&
                       object.contains("loss") && object["loss"].is_number();
    if (!whole || object["step"].get<int64_t>() > card.step) continue;
    card.held_out_step = object["step"].get<int64_t>();
    card.held_out_loss = object["loss"].get<double>();
  }
}

}  // namespace pagoda
