#include "report/run_history.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "report/metrics.h"

namespace pagoda {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostBytes = int64_t{1} << 32;
constexpr size_t kMostLayers = 4096;

double number(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : NAN;
}

std::string text(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Removes what is at this step or behind it.
void cut(Series& series, int64_t step) {
  while (!series.steps.empty() && series.steps.back() >= step) {
    series.steps.pop_back();
    series.values.pop_back();
  }
}

void put(Series& series, int64_t step, double value) {
  cut(series, step);
  series.add(step, value);
}

void note_stalls(const Json& step, int64_t at, RunHistory& history) {
  const auto stalls = step.find("stall_s");
  const double step_s = number(step, "step_s");
  if (stalls == step.end() || !stalls->is_object() || !(step_s > 0)) return;
  for (const auto& [cause, seconds] : stalls->items()) {
    if (seconds.is_number()) put(history.stalls[cause], at, seconds.get<double>() / step_s);
  }
}

void note_experts(const Json& step, int64_t at, RunHistory& history) {
  const auto loads = step.find("experts");
  if (loads == step.end() || !loads->is_object()) return;
  const auto layers = loads->find("layer");
  if (layers == loads->end() || !layers->is_array() || layers->size() > kMostLayers) return;
  if (history.layers.empty()) {
    for (const Json& layer : *layers) {
      history.layers.push_back(layer.is_number_integer() ? layer.get<int64_t>() : 0);
    }
  }
  const auto take = [&](const char* name, std::vector<Series>& series) {
    series.resize(history.layers.size());
    const auto values = loads->find(name);
    if (values == loads->end() || !values->is_array()) return;
    for (size_t l = 0; l < series.size() && l < values->size(); ++l) {
      const Json& value = (*values)[l];
      put(series[l], at, value.is_number() ? value.get<double>() : NAN);
    }
  };
  take("max_over_mean", history.max_over_mean);
  take("entropy", history.entropy);
  take("dead", history.dead);
}

void note_run(const Json& object, RunHistory& history) {
  history.version = text(object, "version");
  const double steps = number(object, "steps");
  if (steps > 0 && steps < 1e15) history.steps = static_cast<int64_t>(steps);
  const auto options = object.find("options");
  if (options == object.end() || !options->is_object()) return;
  history.options.clear();
  for (const auto& [key, value] : options->items()) history.options[key] = value.dump();
}

void note_step(const Json& object, int64_t at, RunHistory& history) {
  for (const auto& [name, value] : object.items()) {
    if (name == "step" || !(value.is_number() || value.is_null())) continue;
    put(history.of_steps[name], at, value.is_number() ? value.get<double>() : NAN);
  }
  note_stalls(object, at, history);
  note_experts(object, at, history);
}

void note_line(const std::string& line, RunHistory& history) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    return depth < kDeepestMetrics;
  };
  const Json object = Json::parse(line, shallow, /*allow_exceptions=*/false);
  if (!object.is_object()) return;
  const std::string type = text(object, "type");
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return;
  const auto at = step->get<int64_t>();
  if (type == "run") note_run(object, history);
  if (type == "step") note_step(object, at, history);
  if (type == "eval") put(history.held_out, at, number(object, "loss"));
  if (type == "warn") history.warnings.push_back({at, text(object, "text")});
}

}  // namespace

Result<RunHistory> read_history(const std::string& run) {
  RunHistory history;
  const std::filesystem::path folder = std::filesystem::path(absolute_path(run)).lexically_normal();
  history.name = (folder.has_filename() ? folder : folder.parent_path()).filename();
  const std::string path = run + "/metrics.jsonl";
  ASSIGN_OR_RETURN(const std::string content, read_text_file(path, Links::kFollow, kMostBytes));
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) note_line(line, history);
  if (history.of_steps.empty()) {
    return Status(Exit::kBadData, printable(path) + ": has no step of a run yet");
  }
  return history;
}

}  // namespace pagoda
