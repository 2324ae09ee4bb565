#include "cli/plan/timeline_page.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "report/html_text.h"

namespace pagoda {
namespace {

constexpr double kLeft = 140, kWidth = TimelinePage::kColumns;
constexpr double kLane = 30, kTop = 30, kChart = 120;

// What a kind does in columns of pixels: one, or neighbours that are drawn as one.
struct Band {
  const char* kind = "";
  double kind_s = 0;  // busy with the kind
  double busy_s = 0;  // time with this and other kinds
  int64_t first = -1, last = -1;
  size_t from = 0, to = 0;  // columns [from, to)

  double share(double pixel_s) const {
    return std::min(1.0, busy_s / (pixel_s * static_cast<double>(to - from)));
  }
};

void add_to_column(std::vector<Band>& kinds, const TimelinePage::Piece& piece, double seconds) {
  const auto same = [&](const Band& band) { return band.kind == std::string(piece.kind); };
  auto band = std::find_if(kinds.begin(), kinds.end(), same);
  if (band == kinds.end()) {
    band = kinds.insert(band, {piece.kind, 0, 0, piece.number, piece.number});
  }
  band->kind_s += seconds;
  band->last = piece.number;
}

// What each column of pixels is busy with: a band for each kind.
std::vector<std::vector<Band>> columns_of(const std::vector<TimelinePage::Piece>& pieces,
                                          double pixel_s) {
  std::vector<std::vector<Band>> columns(TimelinePage::kColumns);
  const double last_column = TimelinePage::kColumns - 1;
  for (const TimelinePage::Piece& piece : pieces) {
    const double first = std::clamp(std::floor(piece.start_s / pixel_s), 0.0, last_column);
    for (auto c = static_cast<size_t>(first); c < columns.size(); ++c) {
      const double begin_s = pixel_s * static_cast<double>(c);
      const double seconds =
          std::min(piece.end_s, begin_s + pixel_s) - std::max(piece.start_s, begin_s);
      if (seconds > 0) add_to_column(columns[c], piece, seconds);
      if (piece.end_s <= begin_s + pixel_s) break;
    }
  }
  return columns;
}

// Each column has the kind it is busiest with, and neighbours of a kind that are about as busy
// become one. Together the bands are as busy as the pieces.
std::vector<Band> bands_of(const std::vector<TimelinePage::Piece>& pieces, double pixel_s) {
  constexpr double kAlike = 0.05;
  std::vector<Band> bands;
  const std::vector<std::vector<Band>> columns = columns_of(pieces, pixel_s);
  for (size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].empty()) continue;
    Band here = *std::max_element(columns[c].begin(), columns[c].end(),
                                  [](const Band& a, const Band& b) { return a.kind_s < b.kind_s; });
    for (const Band& kind : columns[c]) here.busy_s += kind.kind_s;
    here.from = c;
    here.to = c + 1;
    const bool joins = !bands.empty() && bands.back().to == c &&
                       bands.back().kind == std::string(here.kind) &&
                       std::abs(bands.back().share(pixel_s) - here.share(pixel_s)) <= kAlike;
    if (!joins) {
      bands.push_back(here);
      continue;
    }
    Band& band = bands.back();
    band.kind_s += here.kind_s;
    band.busy_s += here.busy_s;
    band.last = here.last;
    band.to = here.to;
  }
  return bands;
}

std::string numbers_text(const Band& band, const std::string& of) {
  if (band.first < 0) return "";
  if (band.first == band.last) return ", " + of + strf(" %lld", (long long)band.first);
  return ", " + of + strf("s %lld to %lld", (long long)band.first, (long long)band.last);
}

class Drawing {
 public:
  explicit Drawing(const TimelinePage& page) : page_(page), end_s_(std::max(page.end_s, 1e-12)) {}

  std::string svg() const {
    double y = kTop;
    std::string body;
    for (const TimelinePage::Lane& lane : page_.lanes) {
      body += lane_svg(lane, y);
      y += kLane;
    }
    for (const TimelinePage::Chart& chart : page_.charts) {
      y += 20;
      body += chart_svg(chart, y);
      y += kChart;
    }
    return strf("<svg width=\"%.0f\" height=\"%.0f\" role=\"img\">\n", kLeft + kWidth + 40,
                y + 20) +
           axis_svg(y) + body + "</svg>\n";
  }

 private:
  double x(double at_s) const { return kLeft + kWidth * at_s / end_s_; }
  std::string lane_svg(const TimelinePage::Lane& lane, double y) const;
  std::string axis_svg(double y) const;
  std::string chart_svg(const TimelinePage::Chart& chart, double y) const;

  const TimelinePage& page_;
  double end_s_;
};

std::string Drawing::lane_svg(const TimelinePage::Lane& lane, double y) const {
  std::string svg = strf("<text x=\"4\" y=\"%.0f\">", y + 19) + html_text(lane.name) + "</text>";
  const double pixel_s = end_s_ / kWidth;
  for (const Band& band : bands_of(lane.pieces, pixel_s)) {
    const auto from = static_cast<double>(band.from), to = static_cast<double>(band.to);
    const double of_kind = band.share(pixel_s) * band.kind_s / band.busy_s;
    svg += strf(
        "<rect class=\"%s\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" "
        "opacity=\"%.3f\"><title>%s%s: %.4g to %.4g s, %.0f %% of it; "
        "lane busy %.0f %%</title></rect>\n",
        band.kind, kLeft + from, y + 4, to - from, kLane - 8, band.share(pixel_s), band.kind,
        html_text(numbers_text(band, lane.numbers_of)).c_str(), pixel_s * from, pixel_s * to,
        100 * of_kind, 100 * band.share(pixel_s));
  }
  return svg;
}

std::string Drawing::axis_svg(double y) const {
  constexpr int kMarks = 10;
  std::string svg;
  for (int i = 0; i <= kMarks; ++i) {
    const double at = x(end_s_ * i / kMarks);
    svg += strf(
        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\"/>"
        "<text x=\"%.1f\" y=\"20\" text-anchor=\"middle\">%.3g s</text>\n",
        at, at, kTop, y, at, end_s_ * i / kMarks);
  }
  if (page_.mark_s < 0) return svg;
  const double mark = x(page_.mark_s);
  return svg + strf("<line class=\"phase\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\"/>\n",
                    mark, mark, kTop, y);
}

// The most at each pixel, and before the first time nothing is known.
std::string Drawing::chart_svg(const TimelinePage::Chart& chart, double y) const {
  std::vector<int64_t> most(static_cast<size_t>(kWidth) + 1, -1), last_of = most;
  for (const auto& [at_s, bytes] : chart.held) {
    const auto column =
        static_cast<size_t>(std::clamp(std::floor(kWidth * at_s / end_s_), 0.0, kWidth));
    most[column] = std::max(most[column], bytes);
    last_of[column] = bytes;
  }
  std::string points;
  int64_t peak = 0, last = 0;
  for (size_t i = 0; i < most.size(); ++i) {
    const int64_t here = std::max(last, most[i]);
    if (last_of[i] >= 0) last = last_of[i];
    peak = std::max(peak, here);
    const auto budget = static_cast<double>(chart.budget_bytes);
    const double share = budget > 0 ? static_cast<double>(here) / budget : 0;
    points +=
        strf("%.0f,%.1f ", kLeft + static_cast<double>(i), y + kChart * (1 - std::min(1.0, share)));
  }
  return strf(
      "<text x=\"4\" y=\"%.0f\">%s</text><text x=\"4\" y=\"%.0f\">%s of</text>"
      "<text x=\"4\" y=\"%.0f\">%s</text>\n"
      "<rect class=\"frame\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>\n"
      "<polyline points=\"%s\"/>\n",
      y + 16, html_text(chart.name).c_str(), y + 34, format_bytes(peak).c_str(), y + 52,
      format_bytes(chart.budget_bytes).c_str(), kLeft, y, kWidth, kChart, points.c_str());
}

constexpr const char* kStyle =
    "body{font:13px sans-serif;margin:16px}pre{font-size:12px}svg text{font-size:12px}"
    "svg line{stroke:#ddd}svg .phase{stroke:#000;stroke-dasharray:4}"
    ".attention,.forward{fill:#3b6fb6}.experts,.computing{fill:#d9822b}.head{fill:#8e5ea2}"
    ".updates{fill:#c0392b}.backward{fill:#7a9fd4}.gradients{fill:#b8860b}"
    ".transfer{fill:#2e8b57}.back{fill:#7fbf7f}.other{fill:#999}"
    ".frame{fill:none;stroke:#bbb}polyline{fill:none;stroke:#3b6fb6}";

}  // namespace

std::string TimelinePage::html() const {
  const std::string heading = html_text(title);
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + heading +
         "</title><style>" + kStyle + "</style></head>\n<body><h1>" + heading + "</h1>\n<p>" +
         html_text(about) + " A lane is as light as it is idle.</p>\n" + Drawing(*this).svg() +
         "<pre>" + html_text(text) + "</pre></body></html>\n";
}

}  // namespace pagoda
