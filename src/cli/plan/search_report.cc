#include "cli/plan/search_report.h"

#include <algorithm>

#include "base/bytes.h"
#include "cli/plan/plan_report.h"
#include "model/json.h"

namespace pagoda {
namespace {

// The best, and the run's own settings wherever they are.
std::vector<size_t> shown_runs(const SearchReport& r) {
  std::vector<size_t> shown;
  for (size_t i = 0; i < r.settings.runs.size(); ++i) {
    if (i < r.shown || r.settings.runs[i].as_it_is) shown.push_back(i);
  }
  return shown;
}

// Those that are not as in the run itself, which may be none of the runs; then all.
std::string differing_text(const SearchedRun& run, const SearchedRun* own) {
  if (own == nullptr) return run.text();
  if (run.as_it_is) return "(as it is)";
  const auto before = own->settings();
  std::string text;
  for (const auto& setting : run.settings()) {
    if (std::find(before.begin(), before.end(), setting) != before.end()) continue;
    text += (text.empty() ? "" : ", ") + setting.first + " = " + setting.second;
  }
  return text;
}

std::string settings_text(const SearchReport& r) {
  const std::vector<SearchedRun>& runs = r.settings.runs;
  const auto as_it_is = std::find_if(runs.begin(), runs.end(),
                                     [](const SearchedRun& run) { return run.as_it_is; });
  const SearchedRun* own = as_it_is == runs.end() ? nullptr : &*as_it_is;
  std::string text =
      strf("settings  %zu of %lld fit, each simulated; by device memory, as `plan` plans a run\n",
           runs.size(), (long long)r.settings.tried) +
      "            step s   tokens/s   MFU  limited by      device        host  states on: "
      "settings that differ from the run's\n";
  for (const size_t i : shown_runs(r)) {
    const SearchedRun& run = runs[i];
    text += strf("%8zu %9.4g %10s %4.1f %%  %-10s %11s %11s  %s: %s\n", i + 1, run.step_s,
                 rate_text(run.tokens_per_s).c_str(), 100 * run.mfu, resource_name(run.bottleneck),
                 format_bytes(run.device_bytes).c_str(), format_bytes(run.host_bytes).c_str(),
                 run.state_place().c_str(), differing_text(run, own).c_str());
  }
  return text;
}

std::string strategies_text(const SearchReport& r) {
  std::string text =
      strf("found     %zu strategies fit and were simulated\n", r.strategies.size()) +
      "            step s   tokens/s   MFU  of each device\n";
  for (size_t i = 0; i < std::min(r.strategies.size(), r.shown); ++i) {
    const Strategy& strategy = r.strategies[i];
    text +=
        strf("%8zu %9.4g %10s %4.1f %%  %11s  %s\n", i + 1, strategy.step_s,
             rate_text(static_cast<double>(r.tokens) / strategy.step_s).c_str(), 100 * strategy.mfu,
             format_bytes(strategy.device_bytes).c_str(), strategy.text().c_str());
  }
  return text;
}

Json run_json(const SearchedRun& run, size_t at) {
  Json json = {{"rank", at + 1},
               {"as_it_is", run.as_it_is},
               {"step_s", run.step_s},
               {"tokens_per_s", run.tokens_per_s},
               {"mfu", run.mfu},
               {"bottleneck", resource_name(run.bottleneck)},
               {"device_bytes", run.device_bytes},
               {"host_bytes", run.host_bytes},
               {"states", run.state_place()},
               {"disk_written_bytes", run.written_bytes}};
  // The literals of TOML that options have are those of JSON too.
  for (const auto& [key, value] : run.settings()) json["settings"][key] = Json::parse(value);
  return json;
}

Json strategy_json(const Strategy& strategy, int64_t tokens) {
  return {{"strategy", strategy.text()},
          {"step_s", strategy.step_s},
          {"tokens_per_s", static_cast<double>(tokens) / strategy.step_s},
          {"mfu", strategy.mfu},
          {"device_bytes", strategy.device_bytes},
          {"host_bytes", strategy.host_bytes},
          {"pipeline", strategy.mesh.pipeline},
          {"expert", strategy.mesh.expert},
          {"data", strategy.mesh.data},
          {"microbatches", strategy.microbatches},
          {"schedule", strategy.schedule == PipelineSchedule::kGpipe ? "gpipe" : "1f1b"}};
}

}  // namespace

std::string SearchReport::text() const {
  const ParameterCount count = count_parameters(model.shape);
  std::string text =
      strf("model     %s (%s): %s parameters, %s active\n", model.name.c_str(),
           model.family.c_str(), grouped_digits(count.total).c_str(),
           grouped_digits(count.active).c_str()) +
      strf("%-9s %s\n", of, where.c_str()) +
      strf("run       %s tokens a step\n", grouped_digits(tokens).c_str());
  if (settings.tried > 0) text += settings_text(*this);
  if (!strategies.empty()) text += strategies_text(*this);
  if (!timeline.lanes.empty()) text += best_strategy().text();
  return text + fits_with_text(fit_with);
}

std::string SearchReport::json() const {
  const ParameterCount count = count_parameters(model.shape);
  Json json = {{"model", model.name},
               {"parameters", count.total},
               {"active_parameters", count.active},
               {of, where},
               {"tokens_per_step", tokens},
               {"fits", fits()}};
  if (settings.tried > 0) json["settings_tried"] = settings.tried;
  if (!fits()) json["why"] = why;
  if (!settings.fits_with.empty()) json["fits_with"] = settings.fits_with;
  for (const size_t i : shown_runs(*this)) json["runs"].push_back(run_json(settings.runs[i], i));
  for (size_t i = 0; i < std::min(strategies.size(), shown); ++i) {
    json["strategies"].push_back(strategy_json(strategies[i], tokens));
  }
  if (!timeline.lanes.empty()) json["best_strategy"] = best_strategy().json();
  for (const ClusterChange& change : fit_with) {
    json["fits_with"].push_back({{"change", change.text}, {"strategy", change.strategy}});
  }
  return json.dump();
}

}  // namespace pagoda
