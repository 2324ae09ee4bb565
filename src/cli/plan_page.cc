#include "cli/plan_page.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/bytes.h"

namespace pagoda {
namespace {

constexpr double kLeft = 120, kWidth = 1200, kLane = 30, kTop = 30, kChart = 120;

// The page's own words are plain; names of models and machines need not be.
std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

const char* kind_of_work(const SimulatedWork& work) {
  if (work.moves) return work.phase == Phase::kBackward ? "back" : "move";
  switch (work.kind) {
    case TaskKind::kAdam: return "adam";
    case TaskKind::kExpert:
    case TaskKind::kExpertBackward: return "expert";
    case TaskKind::kHead:
    case TaskKind::kLoss: return "head";
    case TaskKind::kAttention:
    case TaskKind::kAttentionBackward: return "attention";
    default: return "other";
  }
}

struct Band {
  double from_s = 0, to_s = 0, busy_s = 0;
  const char* kind = "";
  int32_t first_layer = -1, last_layer = -1;
};

// Of one stream, in order; neighbours of a kind become one when less than a pixel is between them.
std::vector<Band> bands_of(const std::vector<const SimulatedWork*>& works, double pixel_s) {
  std::vector<Band> bands;
  for (const SimulatedWork* work : works) {
    const char* kind = kind_of_work(*work);
    const bool joins = !bands.empty() && bands.back().kind == std::string(kind) &&
                       work->start_s - bands.back().to_s < pixel_s;
    if (!joins) {
      bands.push_back({work->start_s, work->end_s, 0, kind, work->layer, work->layer});
    }
    Band& band = bands.back();
    band.to_s = std::max(band.to_s, work->end_s);
    band.busy_s += work->end_s - work->start_s;
    band.last_layer = work->layer;
  }
  // What is narrower than a third of a pixel shows nothing.
  std::erase_if(bands, [&](const Band& b) { return b.to_s - b.from_s < pixel_s / 3; });
  return bands;
}

class Page {
 public:
  explicit Page(const PlanReport& report) : report_(report), step_(*report.plan.step) {
    for (const SimulatedWork& work : step_.simulated.works) end_s_ = std::max(end_s_, work.end_s);
  }

  std::string html() const;

 private:
  double x(double at_s) const { return kLeft + kWidth * at_s / end_s_; }
  std::string lanes(double& y) const;
  std::string lane(const std::string& name, const std::vector<const SimulatedWork*>& works,
                   double y) const;
  std::string axis(double y) const;
  std::string chart(const char* name, int64_t budget, double y,
                    int64_t SimulatedMemory::* bytes) const;

  const PlanReport& report_;
  const StepForecast& step_;
  double end_s_ = 1e-12;
};

std::string Page::lane(const std::string& name, const std::vector<const SimulatedWork*>& works,
                       double y) const {
  std::string svg = strf("<text x=\"4\" y=\"%.0f\">%s</text>", y + 19, html_text(name).c_str());
  for (const Band& band : bands_of(works, end_s_ / kWidth)) {
    const std::string layers =
        band.first_layer < 0 ? ""
        : band.first_layer == band.last_layer
            ? strf(", layer %d", band.first_layer)
            : strf(", layers %d to %d", band.first_layer, band.last_layer);
    svg += strf("<rect class=\"%s\" x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" "
                "opacity=\"%.2f\"><title>%s%s: %.4g to %.4g s, %.0f %% busy</title></rect>\n",
                band.kind, x(band.from_s), y + 4, std::max(0.4, x(band.to_s) - x(band.from_s)),
                kLane - 8, 0.25 + 0.75 * std::min(1.0, band.busy_s / (band.to_s - band.from_s)),
                band.kind, layers.c_str(), band.from_s, band.to_s,
                100 * std::min(1.0, band.busy_s / (band.to_s - band.from_s)));
  }
  return svg;
}

std::string Page::lanes(double& y) const {
  std::map<int, std::vector<const SimulatedWork*>> streams;
  for (const SimulatedWork& work : step_.simulated.works) streams[work.stream].push_back(&work);
  std::string svg;
  for (auto& [stream, works] : streams) {
    std::sort(works.begin(), works.end(), [](const SimulatedWork* a, const SimulatedWork* b) {
      return a->start_s < b->start_s;
    });
    svg += lane(step_.simulated.streams[static_cast<size_t>(stream)].name, works, y);
    y += kLane;
  }
  return svg;
}

std::string Page::axis(double y) const {
  constexpr int kMarks = 10;
  std::string svg;
  for (int i = 0; i <= kMarks; ++i) {
    const double at = x(end_s_ * i / kMarks);
    svg += strf("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\"/>"
                "<text x=\"%.1f\" y=\"20\" text-anchor=\"middle\">%.3g s</text>\n",
                at, at, kTop, y, at, end_s_ * i / kMarks);
  }
  const double middle = x(step_.forward.seconds);
  return svg + strf("<line class=\"phase\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\"/>\n",
                    middle, middle, kTop, y);
}

// The most at each pixel, and before the first task nothing is known.
std::string Page::chart(const char* name, int64_t budget, double y,
                        int64_t SimulatedMemory::* bytes) const {
  std::vector<int64_t> most(static_cast<size_t>(kWidth) + 1, -1);
  for (const SimulatedMemory& held : step_.simulated.memory) {
    const auto column = static_cast<size_t>(
        std::clamp(std::floor(kWidth * held.at_s / end_s_), 0.0, kWidth));
    most[column] = std::max(most[column], held.*bytes);
  }
  std::string points;
  int64_t peak = 0, last = 0;
  for (size_t i = 0; i < most.size(); ++i) {
    if (most[i] >= 0) last = most[i];
    peak = std::max(peak, last);
    const double share = budget > 0 ? static_cast<double>(last) / static_cast<double>(budget) : 0;
    points += strf("%.0f,%.1f ", kLeft + static_cast<double>(i),
                   y + kChart * (1 - std::min(1.0, share)));
  }
  return strf("<text x=\"4\" y=\"%.0f\">%s</text><text x=\"4\" y=\"%.0f\">%s of</text>"
              "<text x=\"4\" y=\"%.0f\">%s</text>\n"
              "<rect class=\"frame\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>\n"
              "<polyline points=\"%s\"/>\n",
              y + 16, name, y + 34, format_bytes(peak).c_str(), y + 52,
              format_bytes(budget).c_str(), kLeft, y, kWidth, kChart, points.c_str());
}

std::string Page::html() const {
  double y = kTop;
  std::string body = lanes(y);
  y += 20;
  body += chart("device", step_.device_bytes, y, &SimulatedMemory::device_bytes);
  y += kChart + 20;
  body += chart("host", step_.host_bytes, y, &SimulatedMemory::host_bytes);
  y += kChart;
  const char* style =
      "body{font:13px sans-serif;margin:16px}pre{font-size:12px}svg text{font-size:12px}"
      "svg line{stroke:#ddd}svg .phase{stroke:#000;stroke-dasharray:4}"
      ".attention{fill:#3b6fb6}.expert{fill:#d9822b}.head{fill:#8e5ea2}.adam{fill:#c0392b}"
      ".move{fill:#2e8b57}.back{fill:#7fbf7f}.other{fill:#999}"
      ".frame{fill:none;stroke:#bbb}polyline{fill:none;stroke:#3b6fb6}";
  return strf("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%s</title>"
              "<style>%s</style></head>\n<body><h1>%s on %s</h1>\n<p>One step as it is planned: "
              "attention blue, experts orange, head violet, updates red, transfers green (lighter "
              "in the backward). The broken line is the end of the forward. Below: bytes in slots "
              "of the device and of the host.</p>\n",
              html_text(report_.model.name).c_str(), style, html_text(report_.model.name).c_str(),
              html_text(report_.sheet.machine.name).c_str()) +
         strf("<svg width=\"%.0f\" height=\"%.0f\" role=\"img\">\n", kLeft + kWidth + 40, y + 20) +
         axis(y) + body + "</svg>\n<pre>" + html_text(report_.text()) + "</pre></body></html>\n";
}

}  // namespace

std::string plan_page(const PlanReport& report) { return Page(report).html(); }

}  // namespace pagoda
