#include "report/step_usage.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hardware/machine.h"
#include "train/work_balance.h"

namespace pagoda {
namespace {

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : NAN;
}

double seconds(int64_t us) { return static_cast<double>(us) / 1e6; }

Stalls stalls_of(const StreamTime& time) {
  Stalls stalls;
  for (int k = 0; k < kWorkKinds; ++k) {
    stalls.emplace_back(work_kind_name(static_cast<WorkKind>(k)),
                        seconds(time.waited_us[static_cast<size_t>(k)]));
  }
  stalls.emplace_back("issue", seconds(time.idle_us));
  return stalls;
}

// [layer * devices + device] of the step.
std::vector<int64_t> rows_between(const SessionCounters& before, const SessionCounters& after) {
  std::vector<int64_t> rows = after.expert_rows;
  for (size_t i = 0; i < before.expert_rows.size(); ++i) rows[i] -= before.expert_rows[i];
  return rows;
}

double imbalance_of(const std::vector<int64_t>& rows, const std::vector<double>& speeds) {
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  double busiest = 0, together = 0;
  for (size_t first = 0; first < rows.size(); first += speeds.size()) {
    double most = 0;
    for (size_t d = 0; d < speeds.size(); ++d) {
      const auto of_device = static_cast<double>(rows[first + d]);
      most = std::max(most, of_device / speeds[d]);
      together += of_device / all;
    }
    busiest += most;
  }
  return together > 0 ? busiest / together : NAN;
}

Link::Counts links_between(const Link::Counts& before, Link::Counts after) {
  for (const auto& [pair, count] : before) {
    Link::Count& now = after[pair];
    now.transfers -= count.transfers;
    now.bytes -= count.bytes;
    now.rows -= count.rows;
  }
  return after;
}

MetricsObject links_object(const Link::Counts& links) {
  std::vector<int64_t> from, to, transfers, bytes, rows;
  for (const auto& [pair, count] : links) {
    from.push_back(pair.first);
    to.push_back(pair.second);
    transfers.push_back(count.transfers);
    bytes.push_back(count.bytes);
    rows.push_back(count.rows);
  }
  return metrics_object(
      {{"from", from}, {"to", to}, {"transfers", transfers}, {"bytes", bytes}, {"rows", rows}});
}

// A list for each quantity, by device.
MetricsObject devices_object(const std::vector<DeviceUsage>& devices) {
  std::vector<double> busy_s;
  std::vector<int64_t> tokens, expert_rows;
  for (const DeviceUsage& device : devices) {
    busy_s.push_back(device.busy_s);
    tokens.push_back(device.tokens);
    expert_rows.push_back(device.expert_rows);
  }
  MetricsFields stalls;
  for (size_t cause = 0; cause < devices.front().stalls.size(); ++cause) {
    std::vector<double> stall_s;
    for (const DeviceUsage& device : devices) stall_s.push_back(device.stalls[cause].second);
    stalls.emplace_back(devices.front().stalls[cause].first, stall_s);
  }
  return metrics_object({{"busy_s", busy_s},
                         {"stall_s", metrics_object(stalls)},
                         {"tokens", tokens},
                         {"expert_rows", expert_rows}});
}

}  // namespace

SessionCounters SessionCounters::read(const Session& session) {
  const Executor& executor = session.executor();
  SessionCounters counters{.pager = session.pager().counters(),
                           .prefetches = executor.prefetches(),
                           .devices = {},
                           .optimizer = executor.optimizer_time(),
                           .expert_rows = executor.expert_rows(),
                           .expert_speeds = {},
                           .attended = {},
                           .links = session.link() ? session.link()->counts() : Link::Counts(),
                           .row_bytes = executor.row_bytes(),
                           .host_updates = executor.host_updates()};
  for (const DeviceSetup& device : session.options().own_setups()) {
    counters.devices.push_back(executor.device_time(static_cast<int>(counters.devices.size())));
    counters.expert_speeds.push_back(device.seat_speed());
  }
  const DeviceRange own = session.shape().own_devices();
  const std::vector<int64_t> tokens =
      attended_tokens(session.shape(), session.shape().shard_device);
  counters.attended.assign(tokens.begin() + own.first, tokens.begin() + own.end());
  return counters;
}

StepUsage::StepUsage(const SessionCounters& before, const SessionCounters& after, double step_s)
    : step_s(step_s) {
  const Pager::Counters &a = before.pager, &b = after.pager;
  hit_rate = share(b.hits - a.hits, b.uses - a.uses);
  const int64_t reads = b.device_reads - a.device_reads, hits = b.device_hits - a.device_hits;
  device_hit_rate = share(hits, reads);
  host_hit_rate = share(b.host_hits - a.host_hits, reads - hits);
  const std::vector<int64_t> rows = rows_between(before, after);
  for (size_t d = 0; d < after.devices.size(); ++d) {
    const StreamTime time = after.devices[d] - before.devices[d];
    DeviceUsage& device = devices.emplace_back();
    device.busy_s = seconds(time.busy_us);
    if (d < after.attended.size()) device.tokens = after.attended[d];
    device.stalls = stalls_of(time);
    for (size_t i = d; i < rows.size(); i += after.devices.size()) device.expert_rows += rows[i];
  }
  imbalance = imbalance_of(rows, after.expert_speeds);
  links = links_between(before.links, after.links);
  row_bytes = after.row_bytes - before.row_bytes;
  stalls = devices.front().stalls;
  const StreamTime optimizer = after.optimizer - before.optimizer;
  const auto waited_us =
      (after.devices[0] - before.devices[0]).waited_us[static_cast<size_t>(WorkKind::kOptimizer)];
  optimizer_s = seconds(optimizer.busy_us);
  const bool worked = after.host_updates > before.host_updates;
  optimizer_hidden =
      worked ? std::max(1.0 - share(waited_us, optimizer.busy_us), 0.0) : NAN;
  fetch_bytes = b.fetch_bytes - a.fetch_bytes;
  write_back_bytes = b.write_back_bytes - a.write_back_bytes;
  upload_bytes = b.upload_bytes - a.upload_bytes;
  download_bytes = b.download_bytes - a.download_bytes;
  peak_memory_bytes = most_resident_bytes();
  prefetches = after.prefetches.brought - before.prefetches.brought;
  prefetch_accuracy = share(after.prefetches.used - before.prefetches.used, prefetches);
}

double StepUsage::stall_s() const {
  double sum = 0;
  for (const auto& [cause, stall] : stalls) sum += stall;
  return sum;
}

std::pair<double, double> StepUsage::busy_shares() const {
  const auto [least, most] = std::minmax_element(
      devices.begin(), devices.end(),
      [](const DeviceUsage& a, const DeviceUsage& b) { return a.busy_s < b.busy_s; });
  return {std::min(1.0, least->busy_s / step_s), std::min(1.0, most->busy_s / step_s)};
}

double StepUsage::stall_share() const { return std::min(1.0, stall_s() / step_s); }

std::string StepUsage::main_stall() const {
  const auto longest =
      std::max_element(stalls.begin(), stalls.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return longest == stalls.end() || longest->second <= 0 ? "" : longest->first;
}

void StepUsage::append_to(MetricsFields& fields) const {
  MetricsFields by_cause;
  for (const auto& [cause, stall] : stalls) by_cause.emplace_back(cause, stall);
  const MetricsFields mine = {{"mfu", mfu},
                              {"hit_rate", hit_rate},
                              {"device_hit_rate", device_hit_rate},
                              {"host_hit_rate", host_hit_rate},
                              {"stall_share", stall_share()},
                              {"stall_s", metrics_object(by_cause)},
                              {"optimizer_s", optimizer_s},
                              {"optimizer_hidden", optimizer_hidden},
                              {"fetch_bytes", fetch_bytes},
                              {"write_back_bytes", write_back_bytes},
                              {"upload_bytes", upload_bytes},
                              {"download_bytes", download_bytes},
                              {"copied_row_bytes", row_bytes.copied},
                              {"in_place_row_bytes", row_bytes.in_place},
                              {"combined_row_bytes", row_bytes.combined},
                              {"added_row_bytes", row_bytes.added},
                              {"peak_memory_bytes", peak_memory_bytes},
                              {"prefetches", prefetches},
                              {"prefetch_accuracy", prefetch_accuracy}};
  fields.insert(fields.end(), mine.begin(), mine.end());
  const bool several = devices.size() > 1;
  if (several) fields.emplace_back("devices", devices_object(devices));
  if (several) fields.emplace_back("imbalance", imbalance);
  if (several || !links.empty()) fields.emplace_back("links", links_object(links));
}

ExpertLoad expert_load(std::span<const int64_t> tokens_per_expert) {
  CHECK(!tokens_per_expert.empty());
  ExpertLoad load;
  const auto experts = static_cast<double>(tokens_per_expert.size());
  const auto sum = static_cast<double>(
      std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0}));
  for (const int64_t tokens : tokens_per_expert) {
    if (tokens == 0) {
      ++load.dead;
      continue;
    }
    const double p = static_cast<double>(tokens) / sum;
    load.max_over_mean = std::max(load.max_over_mean, p * experts);
    load.entropy -= p * std::log(p);
  }
  if (experts > 1) load.entropy /= std::log(experts);
  return load;
}

MetricsObject expert_loads(const std::vector<std::vector<int64_t>>& tokens_per_expert) {
  std::vector<int64_t> layers, dead;
  std::vector<double> max_over_mean, entropy;
  for (size_t l = 0; l < tokens_per_expert.size(); ++l) {
    if (tokens_per_expert[l].empty()) continue;
    const ExpertLoad load = expert_load(tokens_per_expert[l]);
    layers.push_back(static_cast<int64_t>(l));
    max_over_mean.push_back(load.max_over_mean);
    entropy.push_back(load.entropy);
    dead.push_back(load.dead);
  }
  return metrics_object({{"layer", layers},
                         {"max_over_mean", max_over_mean},
                         {"entropy", entropy},
                         {"dead", dead}});
}

}  // namespace pagoda
