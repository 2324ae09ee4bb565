#include "report/traffic_report.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"

namespace pagoda {
namespace {

// On disk every page has its header before it.
int64_t file_bytes(const PageTraffic::Link& link) {
  return link.bytes + link.moves * kPageHeaderBytes;
}

int64_t store_bytes(const RunShape& shape, const PageTable& pages, const SessionOptions& options,
                    int page_slots) {
  return PageFile::disk_bytes(page_specs(shape, pages), page_slots,
                              static_cast<int>(options.directories.size()));
}

std::string room_text(const SessionOptions& options, const RunOutlook& outlook) {
  if (outlook.resumed) return "there already";
  std::string text;
  for (const std::string& directory : options.directories) {
    const int64_t free = free_disk_bytes(nearest_directory(directory));
    if (free < 0) return "free space unknown";
    text += (text.empty() ? "" : ", ") + format_bytes(free);
  }
  return text + " free";
}

// The versions of pages, and the bytes of the other choice.
std::string versions_text(const RunShape& shape, const PageTable& pages,
                          const SessionOptions& options) {
  if (!options.size.training) return "1 version of each page";
  const bool saves = options.page_slots > 1;
  const int64_t otherwise = store_bytes(shape, pages, options, saves ? 1 : 2);
  return strf("%d version%s of each page%s; with%s checkpoints (train.save_steps) %s",
              options.page_slots, saves ? "s" : "", saves ? ", so that a checkpoint stays" : "",
              saves ? "out" : "", format_bytes(otherwise).c_str());
}

// The most bytes that a new run writes once.
int64_t durable_bytes(const PageTable& pages) {
  int64_t bytes = 0;
  for (const PageTable::Page& page : pages.pages) {
    if (page.durable) bytes += page.bytes + kPageHeaderBytes;
  }
  return bytes;
}

std::string millions_text(double count) {
  if (count < 1e6) return strf("%.0f", count);
  if (count < 1e9) return strf("%.1f million", count / 1e6);
  return strf("%.1f billion", count / 1e9);
}

// A budget that would do, and by how much it is missed.
std::string missed_text(const char* key, int64_t needed_bytes, int64_t missed_bytes) {
  return strf("%s = %s (%s more)", key, format_bytes_up(needed_bytes).c_str(),
              format_bytes_up(missed_bytes).c_str());
}

// Returns by how much the device that lacks most misses what would keep all on the devices.
int64_t missed_on_device(const SessionOptions& options, const MemoryPlan& memory) {
  int64_t most = 0;
  for (int d = 0; d < options.own_devices().count; ++d) {
    const int64_t whole = memory.whole_on_device[static_cast<size_t>(d)];
    most = std::max(most, whole - options.device_bytes.of(d));
  }
  return most;
}

}  // namespace

SteadyTraffic predict_traffic(const RunShape& shape, const PageTable& pages,
                              const MemoryPlan& memory) {
  const StepPlan plan(seated(shape, memory), pages,
                      {.training = shape.training, .state_on_device = memory.state_on_device});
  if (shape.training) return steady_traffic(plan, memory.classes);
  return {steady_step(plan, memory.classes), {}};
}

std::string offload_line(const SessionOptions& options, const MemoryPlan& memory,
                         const PageTraffic& step) {
  const bool training = options.size.training;
  if (memory.state_on_device) {
    return strf("offload: none: everything fits on the device, in %s of memory.device%s",
                format_bytes_up(memory.whole_device_bytes).c_str(),
                training ? "; the optimizer runs there" : "");
  }
  const bool disk = step.fetch.moves + step.write_back.moves > 0;
  std::string line = disk ? "offload: device + host + disk: " : "offload: device + host: ";
  // A GPU leaves updates that do not wait for all gradients to the host.
  const bool device_would_do = options.gpus.empty() || !options.eager_adam || !training;
  if (device_would_do) {
    line += "the device alone needs " + missed_text("memory.device", memory.whole_device_bytes,
                                                    missed_on_device(options, memory));
  }
  if (disk) {
    line += (device_would_do ? ", no disk " : "no disk needs ") +
            missed_text("memory.host", memory.whole_host_bytes,
                        memory.whole_host_bytes - options.host_bytes);
  }
  if (!training) return line;
  return line + (line.ends_with(": ") ? "" : "; ") + "the optimizer runs on the host";
}

std::string step_line(const SessionOptions& options, const PageTraffic& step) {
  if (step == PageTraffic()) return "";
  return strf("%s %s read from disk, %s written, %s copied to the device, %s from it "
              "(predicted, all experts used)",
              options.size.training ? "a step:" : "a pass:",
              format_bytes(file_bytes(step.fetch)).c_str(),
              format_bytes(file_bytes(step.write_back)).c_str(),
              format_bytes(step.upload.bytes).c_str(), format_bytes(step.download.bytes).c_str());
}

std::string disk_line(const RunShape& shape, const PageTable& pages, const SessionOptions& options,
                      const RunOutlook& outlook) {
  return strf("disk:   %s in %zu director%s (%s), %s",
              format_bytes(store_bytes(shape, pages, options, options.page_slots)).c_str(),
              options.directories.size(), options.directories.size() == 1 ? "y" : "ies",
              room_text(options, outlook).c_str(), versions_text(shape, pages, options).c_str());
}

std::vector<std::string> drive_lines(const PageTable& pages, const SessionOptions& options,
                                     const RunOutlook& outlook, const SteadyTraffic& traffic) {
  const auto drives = static_cast<double>(options.directories.size());
  const double step = static_cast<double>(file_bytes(traffic.step.write_back)) / drives;
  const double save = static_cast<double>(file_bytes(traffic.checkpoint.write_back)) / drives;
  const bool saves = outlook.save_steps > 0;
  if (outlook.steps == 0 || (step == 0 && !saves)) return {};
  const auto steps = static_cast<double>(outlook.steps);
  const auto tokens = static_cast<double>(options.size.tokens());
  const double saved = saves ? std::ceil(steps / static_cast<double>(outlook.save_steps)) : 0;
  const auto start = static_cast<double>(outlook.resumed ? 0 : durable_bytes(pages));
  const double all = start / drives + steps * step + saved * save;
  const double a_step = step + saved * save / steps;  // checkpoints shared out
  if (a_step == 0) return {};
  std::vector<std::string> lines = {
      strf("drive%s %s written a step%s, %s in this run's %lld steps; %s a million tokens",
           drives > 1 ? "s, each:" : ": ", format_decimal_bytes(step).c_str(),
           saves ? (" and " + format_decimal_bytes(save) + " a checkpoint").c_str() : "",
           format_decimal_bytes(all).c_str(), (long long)outlook.steps,
           format_decimal_bytes(a_step / tokens * 1e6).c_str())};
  if (outlook.drive_tbw > 0) {
    const double life = outlook.drive_tbw * 1e12;
    lines.push_back(
        strf("        %.2g %% of the %g TB it is rated for; they last for %s steps or "
             "%s tokens like these",
             100 * all / life, outlook.drive_tbw, millions_text(life / a_step).c_str(),
             millions_text(life / a_step * tokens).c_str()));
  }
  return lines;
}

std::string format_decimal_bytes(double bytes) {
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1e3) return strf("%.0f B", bytes);
  size_t unit = 0;
  for (bytes /= 1e3; bytes >= 1e3 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1e3;
  return strf("%.2f %s", bytes, kUnits[unit]);
}

}  // namespace pagoda
