#include "cli/plan/plan_report.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "cli/plan/routing_report.h"
#include "model/json.h"
#include "report/report.h"
#include "report/traffic_report.h"

namespace pagoda {
namespace {

std::string line_of(const char* what, const std::string& text) {
  return strf("%-9s ", what) + text + "\n";
}

std::string moment_text(const SimulatedMemory& held, const StepForecast& step) {
  const char* phase = held.at_s < step.forward.seconds ? "forward" : "backward";
  return strf("%s into the step, %s", seconds_text(held.at_s).c_str(), phase);
}

std::string peak_text(int64_t bytes, const SimulatedMemory& held, const StepForecast& step) {
  return format_bytes(bytes) + " " + moment_text(held, step);
}

std::string model_text(const PlanReport& r) {
  const ModelShape& m = r.model.shape;
  std::string text =
      line_of("model", strf("%s (%s): %s parameters, %s active", r.model.name.c_str(),
                            r.model.family.c_str(), grouped_digits(r.plan.parameters.total).c_str(),
                            grouped_digits(r.plan.parameters.active).c_str()));
  text += line_of("", strf("%lld layers, %lld experts, top %lld", (long long)m.num_layers(),
                           (long long)m.num_experts, (long long)m.experts_per_token));
  return text;
}

const char* source_name(const MachineSheet& sheet) {
  return sheet.machine.source == SheetSource::kMeasured ? "measured" : "datasheet";
}

std::string run_text(const PlanReport& r) {
  const RunConfig& c = r.config;
  return line_of("machine", r.sheet.machine.name + " (" + source_name(r.sheet) + ")") +
         line_of("run",
                 strf("%s tokens a step in microbatches of %s, rows of %s; weights %s, state %s",
                      grouped_digits(c.train.tokens_per_step).c_str(),
                      grouped_digits(c.train.micro_batch_tokens).c_str(),
                      grouped_digits(c.data.sequence_len).c_str(), dtype_name(c.train.dtype),
                      state_format_name(c.optim.state)));
}

std::string needs_text(const PlanReport& r) {
  const RunForecast& p = r.plan;
  std::string text =
      line_of("memory",
              strf("%s: budget %s, a step needs at least %s", p.device_text().c_str(),
                   format_bytes(p.device_bytes).c_str(), format_bytes_up(p.device_needs).c_str())) +
      line_of("",
              strf("host: budget %s, a step needs at least %s", format_bytes(p.host_bytes).c_str(),
                   format_bytes_up(p.least.host_bytes).c_str()));
  const std::string room =
      p.disk_bytes > 0 ? "of " + format_bytes(p.disk_bytes) : "of drives of unknown size";
  return text +
         line_of("",
                 strf("disk: store of %s %s%s", format_bytes(p.store_bytes).c_str(), room.c_str(),
                      r.config.train.save_steps > 0 ? ", two versions of each page for checkpoints"
                                                    : ", one version of each page"));
}

std::string memory_text(const PlanReport& r) {
  const StepForecast& s = *r.plan.step;
  std::string text =
      line_of("", strf("used: device %s, host %s%s", format_bytes(s.device_bytes).c_str(),
                       format_bytes(s.host_bytes).c_str(),
                       s.state_on_device ? "; everything stays on the device" : ""));
  if (r.model.shape.num_experts > 0) {
    text += line_of("", "experts: " + groups_text(s.group_blocks, s.waves_in_flight));
  }
  for (const KindBytes& kind : s.kinds) {
    const bool below = kind.device < kind.all && kind.device + kind.host < kind.all;
    text += line_of("", strf("  %-11s %11s: room for %s on the device, %s in the host%s", kind.name,
                             format_bytes(kind.all).c_str(), format_bytes(kind.device).c_str(),
                             format_bytes(kind.host).c_str(), below ? ", the rest on disk" : ""));
  }
  if (s.saved_layers > 0) {
    text += line_of("", strf("beside them %lld layers keep what their backward reads",
                             (long long)s.saved_layers));
  }
  std::string peaks =
      "peak in slots: device " + peak_text(s.device_peak.device_bytes, s.device_peak, s);
  if (s.host_peak.host_bytes > 0) {
    peaks += "; host " + peak_text(s.host_peak.host_bytes, s.host_peak, s);
  }
  return text + line_of("", peaks);
}

// "41 %", or "41 to 44 %" of the step, of devices [first, end).
std::string busy_text(const PlanReport& r, size_t first, size_t end) {
  const StepForecast& s = *r.plan.step;
  const auto [least, most] =
      std::minmax_element(s.device_busy_s.begin() + static_cast<std::ptrdiff_t>(first),
                          s.device_busy_s.begin() + static_cast<std::ptrdiff_t>(end));
  const std::string from = strf("%.0f", 100 * *least / s.step_s());
  const std::string to = strf("%.0f", 100 * *most / s.step_s());
  return (from == to ? to : from + " to " + to) + " %";
}

// "attends to 8 of 8 microbatches in 11 of 16 layers", without the layers where it has all.
std::string attends_text(const PlanReport& r, const RunForecast::DeviceWork& work) {
  const int64_t layers = r.model.shape.num_layers();
  const std::string text = strf("attends to %lld of %lld microbatches",
                                (long long)work.microbatches, (long long)r.config.micro_batches());
  if (work.layers == layers) return text;
  return text + strf(" in %lld of %lld layers", (long long)work.layers, (long long)layers);
}

// What each of several devices does; neighbours that do the same are one line.
std::string devices_text(const PlanReport& r) {
  const auto& devices = r.plan.devices;
  if (devices.size() < 2) return "";
  std::string text;
  for (size_t d = 0; d < devices.size();) {
    size_t end = d + 1;
    while (end < devices.size() && devices[end] == devices[d]) ++end;
    const std::string which = end - d == 1 ? strf("%zu", d) : strf("%zu to %zu, each", d, end - 1);
    const RunForecast::DeviceWork& work = devices[d];
    const bool idle = work.microbatches == 0 && work.experts == 0;
    text += line_of(
        d == 0 ? "devices" : "",
        idle ? which + ": no work; there are fewer shards and experts than devices"
             : strf("%s: %s, home of %lld of %lld experts of a layer, computes %s of the step",
                    which.c_str(), attends_text(r, work).c_str(), (long long)work.experts,
                    (long long)r.model.shape.num_experts, busy_text(r, d, end).c_str()));
    d = end;
  }
  if (r.plan.seats_by_step && !r.plan.step->state_on_device) {
    text += line_of("", "experts are computed where their tokens of each step balance best");
  }
  auto listed = parse_devices(r.config.train.devices);
  if (r.sheet.gpu() && listed.ok() && listed->empty()) {
    text += line_of("", strf("to run so: train.devices = \"cuda*%zu\"", devices.size()));
  }
  for (const SharingChoice& choice : r.sharing) text += line_of("", choice.text());
  const PlanAdvice& advice = r.advice;
  if (advice.assignments == 0) return text;
  return text +
         line_of("",
                 advice.best_assignment.empty()
                     ? strf("no better assignment among %lld others", (long long)advice.assignments)
                     : strf("best assignment of %lld others: %s", (long long)advice.assignments,
                            advice.best_assignment.c_str()));
}

std::string step_text(const PlanReport& r) {
  const StepForecast& s = *r.plan.step;
  std::string text =
      line_of("step", strf("%s: forward %s, backward %s", seconds_text(s.step_s()).c_str(),
                           seconds_text(s.forward.seconds).c_str(),
                           seconds_text(s.backward.seconds).c_str()));
  text += line_of("", "  busy       forward backward  step");
  for (int i = 0; i < kResources; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto resource = static_cast<Resource>(i);
    if (s.busy_s(resource) <= 0) continue;
    text += line_of("", strf("  %-10s %5.0f %%  %5.0f %% %4.0f %%", resource_name(resource),
                             100 * s.forward.busy_s[at] / s.forward.seconds,
                             100 * s.backward.busy_s[at] / s.backward.seconds,
                             100 * s.busy_s(resource) / s.step_s()));
  }
  text += line_of("speed", strf("%s tokens/s, MFU %.1f %%; limited by %s",
                                rate_text(r.plan.tokens_per_s()).c_str(), 100 * r.plan.mfu(),
                                resource_name(s.bottleneck())));
  const ComputeBound& bound = r.advice.compute_bound;
  if (bound.tokens_per_step == 0) return text;
  return text +
         line_of("",
                 strf(bound.reached() ? "compute-bound (%.0f %% busy) from %s tokens a step: %s "
                                        "tokens/s"
                                      : "computes at most %.0f %% of a step, of %s tokens: %s "
                                        "tokens/s",
                      100 * bound.compute_share, grouped_digits(bound.tokens_per_step).c_str(),
                      rate_text(bound.tokens_per_s).c_str()));
}

// What is written until each drive has been written what it is rated for.
double life_tokens(const PlanReport& r) {
  const double life = r.sheet.disk.tbw * 1e12 * static_cast<double>(r.sheet.disk.drives);
  return life / r.plan.written_bytes() * static_cast<double>(r.plan.tokens);
}

std::string drive_text(const PlanReport& r) {
  const RunForecast& p = r.plan;
  if (p.written_bytes() <= 0 && p.read_bytes() <= 0) return line_of("drives", "not used by steps");
  std::string text = line_of(
      "drives", strf("%s read and %s written a step", format_decimal_bytes(p.read_bytes()).c_str(),
                     format_decimal_bytes(p.written_bytes()).c_str()));
  if (r.sheet.disk.tbw <= 0 || p.written_bytes() <= 0) return text;
  const double tokens = life_tokens(r);
  return text + line_of("", strf("at the %g TB that each is rated for they last %s tokens, %s",
                                 r.sheet.disk.tbw, rate_text(tokens).c_str(),
                                 seconds_text(tokens / p.tokens_per_s()).c_str()));
}

std::string tokens_text(const PlanReport& r) {
  if (r.total_tokens == 0) return "";
  const double steps = static_cast<double>(r.total_tokens) / static_cast<double>(r.plan.tokens);
  return line_of("tokens", strf("%s of them: %s, %s written to the drives",
                                grouped_digits(r.total_tokens).c_str(),
                                seconds_text(steps * r.plan.step->step_s()).c_str(),
                                format_decimal_bytes(steps * r.plan.written_bytes()).c_str()));
}

std::string changes_text(const PlanReport& r) {
  std::string text;
  for (const PlanChange& change : r.fitting) {
    text += line_of(text.empty() ? "fits with" : "     or", change.text);
  }
  for (const HelpfulChange& change : r.advice.helpful) {
    text += line_of(&change == &r.advice.helpful.front() ? "helps" : "",
                    strf("%+5.0f %%  %s", 100 * change.gain, change.text.c_str()));
  }
  if (!r.advice.helpful.empty() && r.plan.step->coarseness != Coarseness()) {
    text += line_of("", "(gains are of runs planned in coarser pieces)");
  }
  return text;
}

Json traffic_json(const RunForecast& p) {
  const PageTraffic& t = p.step->traffic;
  return {{"disk_read_bytes", p.read_bytes()},
          {"disk_written_bytes", p.written_bytes()},
          {"upload_bytes", t.upload.bytes},
          {"download_bytes", t.download.bytes}};
}

Json phase_json(const PhaseForecast& phase) {
  Json json = {{"seconds", phase.seconds}};
  for (int i = 0; i < kResources; ++i) {
    json["busy_s"][resource_name(static_cast<Resource>(i))] = phase.busy_s[static_cast<size_t>(i)];
  }
  return json;
}

Json step_json(const PlanReport& r) {
  const StepForecast& s = *r.plan.step;
  Json json = {{"step_s", s.step_s()},
               {"forward", phase_json(s.forward)},
               {"backward", phase_json(s.backward)},
               {"tokens_per_s", r.plan.tokens_per_s()},
               {"mfu", r.plan.mfu()},
               {"bottleneck", resource_name(s.bottleneck())},
               {"traffic", traffic_json(r.plan)},
               {"device_bytes", s.device_bytes},
               {"host_bytes", s.host_bytes},
               {"state_on_device", s.state_on_device},
               {"group_blocks", s.group_blocks},
               {"waves_in_flight", s.waves_in_flight},
               {"saved_layers", s.saved_layers},
               {"peak_device_bytes", s.device_peak.device_bytes},
               {"peak_device_at_s", s.device_peak.at_s},
               {"peak_host_bytes", s.host_peak.host_bytes},
               {"peak_host_at_s", s.host_peak.at_s},
               {"ep_degree", s.coarseness.experts},
               {"device_busy_s", s.device_busy_s}};
  for (const KindBytes& kind : s.kinds) {
    json["kinds"][kind.name] = {{"all", kind.all}, {"device", kind.device}, {"host", kind.host}};
  }
  return json;
}

}  // namespace

Json sharing_json(const std::vector<SharingChoice>& choices) {
  Json json;
  for (const SharingChoice& choice : choices) {
    Json of_choice = {{"step_s", choice.step_s}, {"gain", choice.gain}};
    for (const auto& [key, value] : choice.settings) of_choice["settings"][key] = value;
    json.push_back(std::move(of_choice));
  }
  return json;
}

std::string grouped_digits(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = digits.starts_with("-") ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string seconds_text(double seconds) {
  constexpr double kSecondsOfDay = 86400;
  if (seconds < 120) return strf("%.3g s", seconds);
  if (seconds < 2 * 3600) return strf("%.3g min", seconds / 60);
  if (seconds < 2 * kSecondsOfDay) return strf("%.3g h", seconds / 3600);
  if (seconds < 730 * kSecondsOfDay) return strf("%.3g days", seconds / kSecondsOfDay);
  return strf("%.3g years", seconds / (365.25 * kSecondsOfDay));
}

std::string rate_text(double rate) {
  if (rate < 1000) return strf("%.4g", rate);
  const double unit = std::pow(10, std::floor(std::log10(rate)) - 3);
  return grouped_digits(std::llround(std::round(rate / unit) * unit));
}

std::string PlanReport::text() const {
  std::string text = model_text(*this) + run_text(*this) + needs_text(*this);
  if (!plan.step) return text + changes_text(*this);
  return text + memory_text(*this) + devices_text(*this) + step_text(*this) + drive_text(*this) +
         tokens_text(*this) + (routed ? routing_text(*routed) : "") + changes_text(*this);
}

std::string PlanReport::json() const {
  Json json = {{"model", model.name},
               {"family", model.family},
               {"parameters", plan.parameters.total},
               {"active_parameters", plan.parameters.active},
               {"machine", sheet.machine.name},
               {"source", source_name(sheet)},
               {"tokens_per_step", plan.tokens},
               {"micro_batch_tokens", config.train.micro_batch_tokens},
               {"devices", plan.devices.size()},
               {"device_budget_bytes", plan.device_bytes},
               {"host_budget_bytes", plan.host_bytes},
               {"least_device_bytes", plan.least.device_bytes},
               {"least_host_bytes", plan.least.host_bytes},
               {"store_bytes", plan.store_bytes},
               {"disk_bytes", plan.disk_bytes},
               {"fits", plan.fits.ok()}};
  if (!plan.fits.ok()) json["why"] = plan.fits.message();
  for (const PlanChange& change : fitting) json["fits_with"].push_back(change.text);
  if (!plan.step) return json.dump();
  json["step"] = step_json(*this);
  if (routed) json["routing"] = routing_json(*routed);
  if (!sharing.empty()) json["sharing"] = sharing_json(sharing);
  if (plan.written_bytes() > 0 && sheet.disk.tbw > 0)
    json["drive_life_tokens"] = life_tokens(*this);
  if (total_tokens > 0) {
    const double steps = static_cast<double>(total_tokens) / static_cast<double>(plan.tokens);
    json["total"] = {{"tokens", total_tokens},
                     {"seconds", steps * plan.step->step_s()},
                     {"disk_written_bytes", steps * plan.written_bytes()}};
  }
  if (advice.compute_bound.reached()) {
    json["compute_bound_tokens_per_step"] = advice.compute_bound.tokens_per_step;
  }
  for (const HelpfulChange& change : advice.helpful) {
    json["helps"].push_back(
        {{"change", change.text}, {"gain", change.gain}, {"tokens_per_s", change.tokens_per_s}});
  }
  return json.dump();
}

}  // namespace pagoda
