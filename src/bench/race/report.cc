#include "bench/race/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/log.h"

namespace pagoda {
namespace {

nlohmann::ordered_json json_of(const Figure& figure) {
  nlohmann::ordered_json out;
  out["name"] = figure.name;
  out["path"] = figure.path;
  if (figure.page_bytes > 0) out["page_bytes"] = figure.page_bytes;
  if (figure.elements > 0) out["elements"] = figure.elements;
  if (figure.threads > 0) out["threads"] = figure.threads;
  out["unit"] = figure.unit;
  out["value"] = figure.value;
  out["roof"] = figure.roof;
  out["ratio"] = figure.ratio;
  out["ratio_min"] = figure.ratio_min;
  out["ratio_p10"] = figure.ratio_p10;
  out["ratio_max"] = figure.ratio_max;
  out["cpu_s_per_unit"] = figure.cpu_s_per_unit;
  out["roof_cpu_s_per_unit"] = figure.roof_cpu_s_per_unit;
  out["rounds"] = figure.rounds;
  out["disturbed_rounds"] = figure.disturbed_rounds;
  return out;
}

std::string size_text(const Figure& figure) {
  std::string text;
  if (figure.page_bytes > 0) text = format_bytes(figure.page_bytes);
  if (figure.elements > 0) text = strf("%.2f M", static_cast<double>(figure.elements) / 1e6);
  if (figure.threads > 0) {
    text += strf("%s%d thread%s", text.empty() ? "" : ", ", figure.threads,
                 figure.threads == 1 ? "" : "s");
  }
  return text;
}

std::string disturbance_text(const Figure& figure) {
  if (figure.disturbed_rounds == 0) return "";
  return strf("  %d of %d rounds disturbed", figure.disturbed_rounds, figure.rounds);
}

std::string row(const Figure& figure, const std::string& table_unit) {
  const char* unit = figure.unit == table_unit ? "" : figure.unit.c_str();
  return strf("%-10s %-12s %-22s %8.2f %8.2f %7.2f  %4.2f %4.2f %4.2f %11.3g %8.3g  %s%s\n",
              figure.name.c_str(), figure.path.c_str(), size_text(figure).c_str(), figure.value,
              figure.roof, figure.ratio, figure.ratio_min, figure.ratio_p10, figure.ratio_max,
              figure.cpu_s_per_unit, figure.roof_cpu_s_per_unit, unit,
              disturbance_text(figure).c_str());
}

}  // namespace

void PairedRounds::add(const Timing& ours, const Timing& roof) { rounds_.push_back({ours, roof}); }

bool PairedRounds::disturbed(const Round& round) const {
  for (const Timing& timing : {round.ours, round.roof}) {
    if (timing.cpu_seconds < kUndisturbed * what_.threads * timing.seconds) return true;
  }
  return false;
}

Figure PairedRounds::figure() const {
  std::vector<double> values, roofs, ratios, cpu, roof_cpu;
  const auto counts = std::count_if(rounds_.begin(), rounds_.end(),
                                    [this](const Round& round) { return disturbed(round); });
  const bool all = counts == static_cast<int64_t>(rounds_.size());
  for (const Round& round : rounds_) {
    if (!all && disturbed(round)) continue;
    values.push_back(round.ours.gb_per_s());
    roofs.push_back(round.roof.gb_per_s());
    ratios.push_back(values.back() / roofs.back());
    cpu.push_back(round.ours.cpu_s_per_billion());
    roof_cpu.push_back(round.roof.cpu_s_per_billion());
  }
  Figure figure = what_;
  figure.value = quantile(values, 0.5);
  figure.roof = quantile(roofs, 0.5);
  figure.ratio = quantile(ratios, 0.5);
  figure.ratio_min = quantile(ratios, 0);
  figure.ratio_p10 = quantile(ratios, 0.1);
  figure.ratio_max = quantile(ratios, 1);
  figure.cpu_s_per_unit = quantile(cpu, 0.5);
  figure.roof_cpu_s_per_unit = quantile(roof_cpu, 0.5);
  figure.rounds = static_cast<int>(rounds_.size());
  figure.disturbed_rounds = static_cast<int>(counts);
  return figure;
}

std::string BenchReport::text() const {
  std::string out;
  for (const auto& [key, value] : facts) {
    std::string words = key;
    std::replace(words.begin(), words.end(), '_', ' ');
    out += strf("%-14s %s\n", words.c_str(), printable(value, 1000).c_str());
  }
  const std::string unit = figures.empty() ? "GB/s" : figures.front().unit;
  const std::string cpu = "CPU s/" + unit.substr(0, unit.find('/'));
  out += strf("\n%-10s %-12s %-22s %8s %8s %7s  %4s %4s %4s %11s %8s\n", "", "", "", unit.c_str(),
              "roof", "ratio", "min", "p10", "max", cpu.c_str(), "roof's");
  for (const Figure& figure : figures) out += row(figure, unit);
  return out;
}

std::string BenchReport::json() const {
  nlohmann::ordered_json out;
  out["bench"] = bench;
  for (const auto& [key, value] : facts) out[key] = value;
  out["figures"] = nlohmann::ordered_json::array();
  for (const Figure& figure : figures) out["figures"].push_back(json_of(figure));
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace pagoda
