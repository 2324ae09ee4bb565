#include "report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "base/log.h"

namespace pagoda {
namespace {

// Weight of the newest step in the mean that the eta is made from.
constexpr double kNewest = 0.1;
constexpr int kBarCells = 20;
constexpr int kUsualColumns = 80;

int terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

std::string bar(int64_t step, int64_t steps) {
  const int64_t whole = steps > 0 ? std::clamp<int64_t>(step * kBarCells / steps, 0, kBarCells) : 0;
  const auto done = static_cast<size_t>(whole);
  return "[" + std::string(done, '#') + std::string(kBarCells - done, '.') + "]";
}

double tokens_per_s(const ProgressReport& report) {
  return report.step_s > 0 ? static_cast<double>(report.tokens) / report.step_s : 0;
}

std::string share_text(const char* name, double share) {
  return strf(" | %s %.0f%%", name, 100 * share);
}

}  // namespace

bool wants_colour(bool terminal) {
  const char* no_colour = std::getenv("NO_COLOR");
  return terminal && (no_colour == nullptr || no_colour[0] == '\0');
}

std::string duration_text(double seconds) {
  constexpr double kLongest = 100.0 * 365 * 86400;
  if (!(seconds >= 0) || seconds > kLongest) return "?";
  const auto s = static_cast<long long>(std::llround(seconds));
  if (s < 60) return strf("%llds", s);
  if (s < 3600) return strf("%lldm%02llds", s / 60, s % 60);
  if (s < 86400) return strf("%lldh%02lldm", s / 3600, s % 3600 / 60);
  return strf("%lldd%02lldh", s / 86400, s % 86400 / 3600);
}

std::string count_text(double count) {
  constexpr const char* kSuffixes[] = {"", "k", "M", "G", "T"};
  int power = 0;
  // 999.5 would print as 1000.
  for (; count >= 999.5 && power < 4; ++power) count /= 1000;
  return strf(power > 0 && count < 9.95 ? "%.1f%s" : "%.0f%s", count, kSuffixes[power]);
}

std::string step_line(const ProgressReport& r, double eta_s) {
  std::string line = strf("step %lld/%lld | loss %.4f | aux %.4f", (long long)r.step,
                          (long long)r.steps, r.loss, r.aux_loss);
  if (!std::isnan(r.grad_norm)) line += strf(" | gnorm %.2f", r.grad_norm);
  line += strf(" | lr %.2g | ", r.learning_rate) + count_text(tokens_per_s(r)) + " tok/s";
  line += share_text("hit", r.hit_rate) + share_text("stall", r.stall_share);
  if (!r.main_stall.empty()) line += " (" + r.main_stall + ")";
  if (!std::isnan(r.least_busy)) {
    line += strf(" | devices busy %.0f..%.0f%%", 100 * r.least_busy, 100 * r.most_busy);
  }
  return line + " | eta " + duration_text(eta_s);
}

std::string bar_line(const ProgressReport& r, double eta_s, int columns) {
  const std::string line =
      bar(r.step, r.steps) +
      strf(" %lld/%lld loss %.4f ", (long long)r.step, (long long)r.steps, r.loss) +
      count_text(tokens_per_s(r)) + " tok/s eta " + duration_text(eta_s);
  return line.substr(0, static_cast<size_t>(std::max(columns, 0)));
}

Progress::Progress(int64_t log_steps)
    : log_steps_(log_steps), colour_(wants_colour(log_is_terminal())) {
  CHECK(log_steps > 0);
}

Progress::~Progress() { set_status_line(""); }

void Progress::step(const ProgressReport& report) {
  // A plain mean until there are enough steps for a moving one.
  const double weight = std::max(kNewest, 1.0 / static_cast<double>(++steps_seen_));
  mean_step_s_ += weight * (report.step_s - mean_step_s_);
  eta_s_ = mean_step_s_ * static_cast<double>(std::max<int64_t>(0, report.steps - report.step));
  const bool last = report.step == report.steps;
  if (report.step % log_steps_ == 0 || last) log_info(step_line(report, eta_s_));
  if (!log_is_terminal()) return;
  std::string line = bar_line(report, eta_s_, terminal_columns() - 1);
  const size_t bar_end = line.find(']');
  if (colour_ && bar_end != std::string::npos) {
    line = "\033[32m" + line.substr(0, bar_end + 1) + "\033[0m" + line.substr(bar_end + 1);
  }
  set_status_line(last ? "" : line);
}

void Progress::activity(const std::string& text) {
  if (!log_is_terminal()) return;
  set_status_line(text.substr(0, static_cast<size_t>(std::max(terminal_columns() - 1, 0))));
}

}  // namespace pagoda
