#include "report/run_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/check.h"
#include "report/html_text.h"

namespace pagoda {
namespace {

constexpr const char* kColours[] = {"#1f6fb4", "#d1495b", "#2a9d6f", "#8a5cc2",
                                    "#c98a1b", "#4c5866", "#17a2b8", "#b5179e"};
constexpr double kLeft = 64, kWidth = 760, kTop = 12, kHeight = 220, kBelow = 34;
constexpr size_t kMostPoints = 760;  // of a line: one for each pixel

constexpr const char* kStyle = R"(<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 900px; margin: 2em auto;
  padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 2em 0 .3em }
table { border-collapse: collapse } td, th { padding: .15em .8em .15em 0; text-align: left;
  vertical-align: top } td.number { text-align: right }
svg text { font-size: 11px; fill: #555 } svg .grid { stroke: #e3e3e3 }
.key { display: inline-block; margin-right: 1.2em } .key i { display: inline-block; width: 1.4em;
  height: .2em; vertical-align: middle; margin-right: .4em }
p { margin: .3em 0 }
</style>
)";

const char* colour(size_t i) { return kColours[i % std::size(kColours)]; }

bool is_finite(double value) { return std::isfinite(value); }

// The means of neighbours, so that no line has more points than it has pixels.
Series thinned(const Series& series) {
  const size_t each = (series.steps.size() + kMostPoints - 1) / kMostPoints;
  if (each <= 1) return series;
  Series thin;
  for (size_t i = 0; i < series.steps.size(); i += each) {
    double sum = 0;
    int64_t count = 0;
    const size_t end = std::min(series.steps.size(), i + each);
    for (size_t j = i; j < end; ++j) {
      if (!is_finite(series.values[j])) continue;
      sum += series.values[j];
      ++count;
    }
    thin.add(series.steps[(i + end - 1) / 2], count > 0 ? sum / static_cast<double>(count) : NAN);
  }
  return thin;
}

struct Line {
  std::string name;
  std::string colour;
  Series series;
  bool dots = false;  // each value is marked
};

struct Range {
  double low = INFINITY, high = -INFINITY;
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double of(double value) const { return (value - low) / (high - low); }
};

// A step between ticks: 1, 2 or 5 times a power of ten.
double tick_step(const Range& range) {
  const double rough = (range.high - range.low) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

class Chart {
 public:
  explicit Chart(std::vector<Line> lines) : lines_(std::move(lines)) {
    for (const Line& line : lines_) {
      for (size_t i = 0; i < line.series.steps.size(); ++i) {
        if (!is_finite(line.series.values[i])) continue;
        x_.take(static_cast<double>(line.series.steps[i]));
        y_.take(line.series.values[i]);
      }
    }
    if (!(x_.low < x_.high)) x_ = {x_.low - 0.5, x_.low + 0.5};
    if (!(y_.low < y_.high))
      y_ = {y_.low - 0.5 * std::abs(y_.low) - 1e-9, y_.low + 0.5 * std::abs(y_.low) + 1e-9};
  }

  std::string svg() const {
    std::string out = strf("<svg width=\"%.0f\" height=\"%.0f\" role=\"img\">\n",
                           kLeft + kWidth + 10, kTop + kHeight + kBelow);
    for (double at = std::ceil(y_.low / tick_step(y_)) * tick_step(y_); at <= y_.high;
         at += tick_step(y_)) {
      out += strf(
          "<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>"
          "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.5g</text>\n",
          kLeft, kLeft + kWidth, y(at), y(at), kLeft - 6, y(at) + 4, clean(at));
    }
    for (double at = std::ceil(x_.low / tick_step(x_)) * tick_step(x_); at <= x_.high;
         at += tick_step(x_)) {
      out += strf("<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.10g</text>\n", x(at),
                  kTop + kHeight + 16, clean(at));
    }
    out += strf("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">step</text>\n", kLeft + kWidth,
                kTop + kHeight + 31);
    for (const Line& line : lines_) out += line_svg(line);
    return out + "</svg>\n";
  }

 private:
  // Sums of steps leave a rest where zero is meant.
  static double clean(double at) { return std::abs(at) < 1e-12 ? 0 : at; }
  double x(double step) const { return kLeft + kWidth * x_.of(step); }
  double y(double value) const { return kTop + kHeight * (1 - y_.of(value)); }

  std::string line_svg(const Line& line) const {
    std::string points, dots;
    const Series thin = thinned(line.series);
    for (size_t i = 0; i < thin.steps.size(); ++i) {
      if (!is_finite(thin.values[i])) continue;
      const double at = x(static_cast<double>(thin.steps[i])), value = y(thin.values[i]);
      points += strf("%.1f,%.1f ", at, value);
      if (!line.dots) continue;
      dots += strf(
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>step %lld: %.6g"
          "</title></circle>\n",
          at, value, line.colour.c_str(), (long long)thin.steps[i], thin.values[i]);
    }
    return "<polyline fill=\"none\" stroke=\"" + line.colour + "\" stroke-width=\"1.3\" points=\"" +
           points + "\"/>\n" + dots;
  }

  std::vector<Line> lines_;
  Range x_, y_;
};

std::string keys_of(const std::vector<Line>& lines) {
  std::string out = "<p>";
  for (const Line& line : lines) {
    out += "<span class=\"key\"><i style=\"background:" + line.colour + "\"></i>" +
           html_text(line.name) + "</span>";
  }
  return out + "</p>\n";
}

// Lines without a value are left out, and the chart where none has one.
std::string chart(const std::string& title, std::vector<Line> lines) {
  std::erase_if(lines, [](const Line& line) {
    return std::none_of(line.series.values.begin(), line.series.values.end(), is_finite);
  });
  if (lines.empty()) return "";
  const Chart drawn(lines);
  return "<h2>" + html_text(title) + "</h2>\n" + keys_of(lines) + drawn.svg();
}

std::string chart_of(const std::vector<RunHistory>& runs, const std::string& title,
                     const std::string& field) {
  std::vector<Line> lines;
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto found = runs[r].of_steps.find(field);
    if (found != runs[r].of_steps.end()) lines.push_back({runs[r].name, colour(r), found->second});
  }
  return chart(title, lines);
}

std::string losses(const std::vector<RunHistory>& runs) {
  std::vector<Line> trained, held_out;
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto found = runs[r].of_steps.find("loss");
    if (found != runs[r].of_steps.end()) {
      trained.push_back({runs[r].name, colour(r), found->second});
    }
    if (!runs[r].held_out.steps.empty()) {
      held_out.push_back({runs[r].name, colour(r), runs[r].held_out, true});
    }
  }
  return chart("Loss", trained) + chart("Held-out loss", held_out);
}

std::string stalls(const RunHistory& run) {
  std::vector<Line> lines;
  for (const auto& [cause, series] : run.stalls) {
    lines.push_back({cause, colour(lines.size()), series});
  }
  return chart("Share of a step that device 0 waited, by cause: " + run.name, lines);
}

// A row for each layer, columns over the steps; darker is more. `most`: the darkest.
std::string heat_map(const std::vector<int64_t>& layers, const std::vector<Series>& values,
                     double least, double most) {
  constexpr double kRow = 12;
  constexpr size_t kColumns = 190;
  const double height = kRow * static_cast<double>(layers.size());
  std::string out =
      strf("<svg width=\"%.0f\" height=\"%.0f\" role=\"img\">\n", kLeft + kWidth + 10, height + 24);
  for (size_t l = 0; l < layers.size(); ++l) {
    const double y = kRow * static_cast<double>(l);
    if (layers.size() <= 16 || l % 4 == 0) {
      out += strf("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">layer %lld</text>\n", kLeft - 6,
                  y + kRow - 2, (long long)layers[l]);
    }
    const std::vector<int64_t>& steps = values[l].steps;
    const size_t columns = std::min(kColumns, steps.size());
    for (size_t c = 0; c < columns; ++c) {
      const size_t from = steps.size() * c / columns, to = steps.size() * (c + 1) / columns;
      double value = -INFINITY;
      for (size_t i = from; i < to; ++i) value = std::max(value, values[l].values[i]);
      if (!is_finite(value)) continue;
      const double share = std::clamp((value - least) / (most - least), 0.0, 1.0);
      out += strf(
          "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" fill=\"#b0341d\" "
          "opacity=\"%.2f\"><title>layer %lld, step %lld: %.4g</title></rect>\n",
          kLeft + kWidth * static_cast<double>(c) / static_cast<double>(columns), y,
          kWidth / static_cast<double>(columns) + 0.3, kRow - 1, 0.04 + 0.96 * share,
          (long long)layers[l], (long long)steps[from], value);
    }
  }
  const std::vector<int64_t>& steps = values.front().steps;
  out += strf(
      "<text x=\"%.0f\" y=\"%.0f\">step %lld</text><text x=\"%.0f\" y=\"%.0f\" "
      "text-anchor=\"end\">step %lld</text>\n",
      kLeft, height + 16, (long long)steps.front(), kLeft + kWidth, height + 16,
      (long long)steps.back());
  return out + "</svg>\n";
}

double largest(const std::vector<Series>& all) {
  double most = -INFINITY;
  for (const Series& series : all) {
    for (const double value : series.values) most = std::max(most, is_finite(value) ? value : most);
  }
  return most;
}

std::string expert_loads(const RunHistory& run) {
  if (run.layers.empty() || run.max_over_mean.front().steps.empty()) return "";
  const double most = std::max(1.001, largest(run.max_over_mean));
  std::string out = "<h2>" + html_text("Load of the fullest expert over the mean: " + run.name) +
                    "</h2>\n" +
                    strf("<p>White is even, darkest is %.4g times the mean.</p>\n", most) +
                    heat_map(run.layers, run.max_over_mean, 1, most);
  const double dead = largest(run.dead);
  if (!(dead > 0)) return out + "<p>No step had an expert without tokens.</p>\n";
  return out + "<h2>" + html_text("Experts without tokens: " + run.name) + "</h2>\n" +
         strf("<p>Darkest is %.0f of a layer.</p>\n", dead) +
         heat_map(run.layers, run.dead, 0, dead);
}

double mean(const Series& series) {
  double sum = 0;
  int64_t count = 0;
  for (const double value : series.values) {
    if (!is_finite(value)) continue;
    sum += value;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : NAN;
}

using Figure = std::function<double(const RunHistory&)>;

double of_mean(const RunHistory& run, const char* field) {
  const auto found = run.of_steps.find(field);
  return found == run.of_steps.end() ? NAN : mean(found->second);
}

std::string figure_row(const std::vector<RunHistory>& runs, const std::string& name,
                       const char* format, const Figure& figure) {
  std::string row = "<tr><td>" + html_text(name) + "</td>";
  bool any = false;
  for (const RunHistory& run : runs) {
    const double value = figure(run);
    any = any || is_finite(value);
    row += "<td class=\"number\">" + (is_finite(value) ? strf(format, value) : "") + "</td>";
  }
  return any ? row + "</tr>\n" : "";
}

std::string summary(const std::vector<RunHistory>& runs) {
  std::string out = "<table>\n<tr><th></th>";
  for (size_t r = 0; r < runs.size(); ++r) {
    out +=
        std::string("<th style=\"color:") + colour(r) + "\">" + html_text(runs[r].name) + "</th>";
  }
  out += "</tr>\n";
  const auto last = [](const Series& series) {
    return series.values.empty() ? NAN : series.values.back();
  };
  out += figure_row(runs, "steps made", "%.0f", [](const RunHistory& run) {
    return static_cast<double>(run.of_steps.begin()->second.steps.back());
  });
  out += figure_row(runs, "last loss", "%.4f", [&](const RunHistory& run) {
    return run.of_steps.contains("loss") ? last(run.of_steps.at("loss")) : NAN;
  });
  out += figure_row(runs, "last held-out loss", "%.4f",
                    [&](const RunHistory& run) { return last(run.held_out); });
  out += figure_row(runs, "lowest held-out loss", "%.4f", [](const RunHistory& run) {
    double least = INFINITY;
    for (const double value : run.held_out.values) least = std::min(least, value);
    return least;
  });
  const auto of = [](const char* field) {
    return [field](const RunHistory& run) { return of_mean(run, field); };
  };
  out += figure_row(runs, "tokens a second", "%.1f", of("tokens_per_s"));
  out += figure_row(runs, "seconds a step", "%.3g", of("step_s"));
  out += figure_row(runs, "part of a step that device 0 waited", "%.3f", of("stall_share"));
  const auto megabytes = [](const char* field) {
    return [field](const RunHistory& run) { return of_mean(run, field) / 1e6; };
  };
  out += figure_row(runs, "MB read from disk a step", "%.3f", megabytes("fetch_bytes"));
  out += figure_row(runs, "MB written to disk a step", "%.3f", megabytes("write_back_bytes"));
  out += figure_row(runs, "most memory of the process, GB", "%.3f", [](const RunHistory& run) {
    const auto peaks = run.of_steps.find("peak_memory_bytes");
    return peaks == run.of_steps.end() ? NAN : peaks->second.values.back() / 1e9;
  });
  out += figure_row(runs, "warnings", "%.0f",
                    [](const RunHistory& run) { return static_cast<double>(run.warnings.size()); });
  return out + "</table>\n";
}

// Lists what differs between several runs, or all options of one.
std::string options(const std::vector<RunHistory>& runs) {
  std::set<std::string> keys;
  for (const RunHistory& run : runs) {
    for (const auto& [key, value] : run.options) keys.insert(key);
  }
  std::string rows;
  for (const std::string& key : keys) {
    std::set<std::string> values;
    std::string row = "<tr><td>" + html_text(key) + "</td>";
    for (const RunHistory& run : runs) {
      const auto found = run.options.find(key);
      const std::string value = found != run.options.end() ? found->second : "";
      values.insert(value);
      row += "<td>" + html_text(value) + "</td>";
    }
    if (runs.size() == 1 || values.size() > 1) rows += row + "</tr>\n";
  }
  if (rows.empty()) return "";
  return std::string("<h2>") + (runs.size() == 1 ? "Options" : "Options that differ") +
         "</h2>\n<table>\n" + rows + "</table>\n";
}

std::string warnings(const RunHistory& run) {
  if (run.warnings.empty()) return "";
  std::string out = "<h2>" + html_text("Warnings: " + run.name) + "</h2>\n";
  for (const RunHistory::Note& note : run.warnings) {
    out += strf("<p>step %lld: ", (long long)note.step) + html_text(note.text) + "</p>\n";
  }
  return out;
}

}  // namespace

std::string run_page(const std::vector<RunHistory>& runs) {
  CHECK(!runs.empty());
  std::string title = runs.size() == 1 ? "Run " : "Runs ";
  for (size_t r = 0; r < runs.size(); ++r) title += (r > 0 ? ", " : "") + runs[r].name;
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>" +
                    html_text(title) + "</title>\n" + kStyle + "<h1>" + html_text(title) +
                    "</h1>\n" + summary(runs) + losses(runs);
  out += chart_of(runs, "Tokens a second", "tokens_per_s");
  out += chart_of(runs, "Gradient norm", "grad_norm");
  out += chart_of(runs, "Learning rate", "learning_rate");
  out += chart_of(runs, "Balance loss", "aux_loss");
  out += chart_of(runs, "Z-loss", "z_loss");
  out += chart_of(runs, "Part of a step that device 0 waited", "stall_share");
  for (const RunHistory& run : runs) out += stalls(run);
  for (const RunHistory& run : runs) out += expert_loads(run);
  for (const RunHistory& run : runs) out += warnings(run);
  return out + options(runs) + "</html>\n";
}

}  // namespace pagoda
