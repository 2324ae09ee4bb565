#include "cli/plan/search_report.h"

#include <algorithm>

#include "base/bytes.h"
#include "cli/plan/plan_report.h"
#include "cli/plan/routing_report.h"
#include "model/json.h"
#include "offload/page_file.h"
#include "report/report.h"
#include "report/traffic_report.h"

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

double disk_bytes(const PageTraffic::Link& link) {
  return static_cast<double>(link.bytes + link.moves * kPageHeaderBytes);
}

// "rank 0", or "ranks 0 to 3, each"; neighbours that do the same are one line.
std::string of_ranks(size_t first, size_t end) {
  return end - first == 1 ? strf("rank %zu", first)
                          : strf("ranks %zu to %zu, each", first, end - 1);
}

std::string rank_text(const RanksForecast& run, size_t rank) {
  const StepForecast::Rank& r = run.step.ranks[rank];
  return strf(
      "device %s of %s, host %s of %s; store %s; a step reads %s, writes %s, sends %s",
      format_bytes(r.device_bytes).c_str(), format_bytes(run.budgets[rank].device_bytes).c_str(),
      format_bytes(r.host_bytes).c_str(), format_bytes(run.budgets[rank].host_bytes).c_str(),
      format_bytes(run.store_bytes[rank]).c_str(),
      format_decimal_bytes(disk_bytes(r.traffic.fetch)).c_str(),
      format_decimal_bytes(disk_bytes(r.traffic.write_back)).c_str(),
      format_decimal_bytes(static_cast<double>(r.sent_bytes)).c_str());
}

// "layers of stages: 11, 5"; empty without stages.
std::string stages_text(const RanksForecast& run) {
  if (run.stage_layers.size() < 2) return "";
  std::string text;
  for (const int64_t layers : run.stage_layers) {
    text += (text.empty() ? "" : ", ") + std::to_string(layers);
  }
  return "          layers of stages: " + text + "\n";
}

// What is busy in a step, and what each rank has and does.
std::string ranks_text(const RanksForecast& run) {
  const StepForecast& step = run.step;
  std::string text = "         ";
  for (int i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    if (step.busy_s(resource) <= 0) continue;
    text +=
        strf(" %s %.0f %%", resource_name(resource), 100 * step.busy_s(resource) / step.step_s());
  }
  text += " busy\n" + stages_text(run);
  text += "          experts: " + groups_text(step.group_blocks, step.waves_in_flight) + "\n";
  for (size_t first = 0; first < step.ranks.size();) {
    size_t end = first + 1;
    while (end < step.ranks.size() && rank_text(run, end) == rank_text(run, first)) ++end;
    text += "          " + of_ranks(first, end) + ": " + rank_text(run, first) + "\n";
    first = end;
  }
  return text;
}

std::string sharing_text(const SearchReport& r) {
  std::string text;
  for (const SharingChoice& choice : r.sharing) text += "          " + choice.text() + "\n";
  return text;
}

std::string as_train_text(const SearchReport& r) {
  if (!r.no_ranks.empty()) return "as train  " + r.no_ranks + "\n";
  if (!r.ranks) return "";
  const RanksForecast& run = *r.ranks;
  return strf(
             "as train  a process on each node: %s a step, %s tokens/s, MFU %.1f %%; "
             "limited by %s%s\n",
             seconds_text(run.step.step_s()).c_str(), rate_text(run.tokens_per_s()).c_str(),
             100 * run.mfu(), resource_name(run.step.bottleneck()),
             r.few_layers ? "; by a few layers" : "") +
         ranks_text(run) + sharing_text(r);
}

// What is planned of a cluster that is more than a run.
std::string copies_text(const SearchReport& r) {
  if (!r.copies) return "";
  const EqualCopies& all = *r.copies;
  return strf("copies    %s: %s tokens/s, MFU %.1f %%; limited by %s\n", all.text().c_str(),
              rate_text(all.tokens_per_s).c_str(), 100 * all.mfu, all.bottleneck) +
         strf(
             "          `train` runs %d devices at most, so this is no run yet; the lines below "
             "are of one copy\n",
             kMostDevices);
}

std::string run_time_text(int64_t tokens, double tokens_per_s) {
  if (tokens == 0) return "";
  return strf("tokens    %s of them: %s\n", grouped_digits(tokens).c_str(),
              seconds_text(static_cast<double>(tokens) / tokens_per_s).c_str());
}

std::string helps_text(const std::vector<ClusterChange>& helps) {
  std::string text;
  for (const ClusterChange& change : helps) {
    text += strf("%-9s %+5.0f %%  %s: %s\n", text.empty() ? "helps" : "", 100 * change.gain,
                 change.text.c_str(), change.layout.c_str());
  }
  return text;
}

// The changes with which a model fits, a line each.
std::string fits_with_text(const std::vector<ClusterChange>& changes) {
  std::string text;
  for (const ClusterChange& change : changes) {
    text += strf("%-9s %s: %s\n", text.empty() ? "fits with" : "     or", change.text.c_str(),
                 change.layout.c_str());
  }
  return text;
}

// The layout that is planned: its step, the time of --tokens, and what would help.
std::string best_layout_text(const SearchReport& r) {
  if (!r.best_layout) return "";
  const RanksForecast& run = r.layouts.runs.front().forecast;
  return strf("best      %s a step, a process on each node\n",
              seconds_text(run.step.step_s()).c_str()) +
         ranks_text(run) + run_time_text(r.total_tokens, r.best_tokens_per_s()) +
         helps_text(r.helps);
}

std::string hostfile_text(const SearchReport& r) {
  if (r.hostfile.size() < 2) return "";
  std::string text =
      "hostfile  nodes in the order of ranks, those of a switch together; what switches delay "
      "beyond is not simulated\n";
  for (const std::string& line : r.hostfile) text += "          " + line + "\n";
  return text;
}

// Each way of using unequal devices at its best, and how much longer it takes than the best of all.
std::string ways_text(const SearchReport& r) {
  std::string text;
  for (const LayoutWay& way : r.ways) {
    text += strf("%-9s ", text.empty() ? "ways" : "");
    if (way.step_s == 0) {
      text += "does not fit      " + way.name + "\n";
      continue;
    }
    text += strf("%8.4g s %5.2f x  %s\n", way.step_s,
                 way.step_s / r.layouts.runs.front().forecast.step.step_s(), way.name.c_str());
  }
  return text;
}

// The best, and the run's own wherever it is; and what the run file of the best has.
std::string layouts_text(const SearchReport& r) {
  const std::vector<SearchedLayout>& runs = r.layouts.runs;
  // What no run of all GPUs can be, one of those that the run lists may be.
  const std::string why = r.ranks && !r.why.empty() ? r.why + "\n" : "";
  if (r.layouts.tried + r.layouts.too_large == 0)
    return why.empty() ? "" : "layouts   none: " + why;
  std::string text =
      strf("layouts   %zu of %lld of %s fit, simulated as `train` runs them\n", runs.size(),
           (long long)r.layouts.tried, r.copies ? "a copy" : "this run") +
      (r.layouts.too_large > 0 ? strf("          %lld more have too many tasks to simulate\n",
                                      (long long)r.layouts.too_large)
                               : "");
  if (runs.empty()) return text + (why.empty() ? "" : "          " + why);
  text += "            step s   tokens/s   MFU  limited by\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    const SearchedLayout& run = runs[i];
    if (i >= r.shown && !run.as_it_is) continue;
    const RanksForecast& f = run.forecast;
    text += strf("%8zu %9.4g %10s %4.1f %%  %-10s  %s\n", i + 1, f.step.step_s(),
                 rate_text(f.tokens_per_s()).c_str(), 100 * f.mfu(),
                 resource_name(f.step.bottleneck()), run.text().c_str());
  }
  if (std::any_of(runs.begin(), runs.end(), [](const auto& run) { return run.few_layers; })) {
    text +=
        "          layers are taken as alike: steps of a few layers were simulated, with all "
        "devices\n";
  }
  text += ways_text(r);
  const std::string section = runs.front().section(r.own);
  if (section.empty()) return text;
  text += "run file  of the first; [train] changes bits but for devices, [parallel] does not\n";
  for (size_t begin = 0; begin < section.size();) {
    const size_t end = section.find('\n', begin) + 1;
    text += "          " + section.substr(begin, end - begin);
    begin = end;
  }
  return text;
}

Json layout_json(const SearchedLayout& run, const RunConfig& own) {
  const RanksForecast& f = run.forecast;
  Json json = {{"as_it_is", run.as_it_is},
               {"step_s", f.step.step_s()},
               {"tokens_per_s", f.tokens_per_s()},
               {"mfu", f.mfu()},
               {"bottleneck", resource_name(f.step.bottleneck())},
               {"few_layers", run.few_layers}};
  // The literals of TOML that options have are those of JSON too.
  for (const auto& [key, value] : run.settings(own)) json["settings"][key] = Json::parse(value);
  return json;
}

Json ranks_json(const RanksForecast& run) {
  Json json = {{"step_s", run.step.step_s()},
               {"tokens_per_s", run.tokens_per_s()},
               {"mfu", run.mfu()},
               {"bottleneck", resource_name(run.step.bottleneck())},
               {"group_blocks", run.step.group_blocks},
               {"waves_in_flight", run.step.waves_in_flight},
               {"stage_layers", run.stage_layers}};
  for (int i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    json["busy_s"][resource_name(resource)] = run.step.busy_s(resource);
  }
  for (size_t r = 0; r < run.step.ranks.size(); ++r) {
    const StepForecast::Rank& rank = run.step.ranks[r];
    json["ranks"].push_back({{"device_bytes", rank.device_bytes},
                             {"host_bytes", rank.host_bytes},
                             {"least_device_bytes", rank.least.device_bytes},
                             {"least_host_bytes", rank.least.host_bytes},
                             {"store_bytes", run.store_bytes[r]},
                             {"disk_read_bytes", disk_bytes(rank.traffic.fetch)},
                             {"disk_written_bytes", disk_bytes(rank.traffic.write_back)},
                             {"sent_bytes", rank.sent_bytes}});
  }
  return json;
}

Json copies_json(const EqualCopies& all) {
  return {{"count", all.count},          {"devices", all.devices},           {"step_s", all.step_s},
          {"sums_s", all.sums_s},        {"tokens_per_s", all.tokens_per_s}, {"mfu", all.mfu},
          {"bottleneck", all.bottleneck}};
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
  text += as_train_text(*this) + copies_text(*this) + layouts_text(*this) + best_layout_text(*this);
  if (routed) text += routing_text(*routed);
  return text + fits_with_text(fit_with) + hostfile_text(*this);
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
  if (!why.empty()) json["why"] = why;
  if (!settings.fits_with.empty()) json["fits_with"] = settings.fits_with;
  for (const size_t i : shown_runs(*this)) json["runs"].push_back(run_json(settings.runs[i], i));
  for (size_t i = 0; i < layouts.runs.size(); ++i) {
    if (i < shown || layouts.runs[i].as_it_is)
      json["layouts"].push_back(layout_json(layouts.runs[i], own.front()));
  }
  if (layouts.too_large > 0) json["layouts_too_large"] = layouts.too_large;
  for (const LayoutWay& way : ways) {
    json["ways"].push_back({{"way", way.name}, {"step_s", way.step_s}, {"settings", way.settings}});
  }
  if (copies) json["copies"] = copies_json(*copies);
  if (ranks) json["as_train"] = ranks_json(*ranks);
  if (!sharing.empty()) json["as_train"]["sharing"] = sharing_json(sharing);
  if (routed) json["as_train"]["routing"] = routing_json(*routed);
  if (!no_ranks.empty()) json["as_train"] = {{"why", no_ranks}};
  if (best_layout) {
    const RanksForecast& run = layouts.runs.front().forecast;
    Json& best = json["best_layout"] = ranks_json(run);
    if (total_tokens > 0) {
      const double seconds = static_cast<double>(total_tokens) / best_tokens_per_s();
      best["total"] = {{"tokens", total_tokens}, {"seconds", seconds}};
    }
    for (const ClusterChange& change : helps) {
      best["helps"].push_back({{"change", change.text},
                               {"layout", change.layout},
                               {"gain", change.gain},
                               {"tokens_per_s", change.tokens_per_s}});
    }
  }
  for (const std::string& line : hostfile) json["hostfile"].push_back(line);
  for (const ClusterChange& change : fit_with) {
    json["fits_with"].push_back({{"change", change.text}, {"layout", change.layout}});
  }
  return json.dump();
}

}  // namespace pagoda
