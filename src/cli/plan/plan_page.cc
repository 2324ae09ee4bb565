#include "cli/plan/plan_page.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cli/plan/timeline_page.h"
#include "plan/step/task_table.h"

namespace pagoda {
namespace {

// The class of TimelinePage that a piece of work is drawn as.
const char* kind_of_work(const SimulatedWork& work) {
  if (work.moves) return work.phase == Phase::kBackward ? "back" : "transfer";
  switch (task_row(work.kind).colour) {
    case TaskColour::kUpdates: return "updates";
    case TaskColour::kExperts: return "experts";
    case TaskColour::kHead: return "head";
    case TaskColour::kAttention: return "attention";
    case TaskColour::kOther: return "other";
  }
  return "other";
}

std::vector<TimelinePage::Lane> lanes_of(const Simulated& step) {
  std::map<int, TimelinePage::Lane> lanes;
  for (const SimulatedWork& work : step.works) {
    lanes[work.stream].pieces.push_back({work.start_s, work.end_s, kind_of_work(work), work.layer});
  }
  std::vector<TimelinePage::Lane> sorted;
  for (auto& [stream, lane] : lanes) {
    std::sort(lane.pieces.begin(), lane.pieces.end(),
              [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
    lane.name = step.streams[static_cast<size_t>(stream)].name;
    lane.numbers_of = "layer";
    sorted.push_back(std::move(lane));
  }
  return sorted;
}

TimelinePage::Chart chart_of(const char* name, int64_t budget, const Simulated& step,
                             int64_t SimulatedMemory::* bytes) {
  TimelinePage::Chart chart{name, budget, {}};
  for (const SimulatedMemory& held : step.memory) chart.held.emplace_back(held.at_s, held.*bytes);
  std::stable_sort(chart.held.begin(), chart.held.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return chart;
}

std::string step_page(std::string title, std::string text, const StepForecast& step) {
  TimelinePage page;
  page.title = std::move(title);
  page.about =
      "One step as it is planned: attention blue, experts orange, head violet, updates red, "
      "transfers green (lighter in the backward). The broken line is the end of the forward. "
      "Below: bytes in slots of the device and of the host.";
  page.text = std::move(text);
  page.lanes = lanes_of(step.simulated);
  page.charts = {chart_of("device", step.device_bytes, step.simulated,
                          &SimulatedMemory::device_bytes),
                 chart_of("host", step.host_bytes, step.simulated, &SimulatedMemory::host_bytes)};
  for (const SimulatedWork& work : step.simulated.works) {
    page.end_s = std::max(page.end_s, work.end_s);
  }
  page.mark_s = step.forward.seconds;
  return page.html();
}

}  // namespace

std::string plan_page(const PlanReport& report) {
  return step_page(report.model.name + " on " + report.sheet.machine.name, report.text(),
                   *report.plan.step);
}

std::string layout_page(const SearchReport& report) {
  return step_page(report.model.name + " on " + report.where, report.text(),
                   report.layouts.runs.front().forecast.step);
}

}  // namespace pagoda
