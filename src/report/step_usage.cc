#include "report/step_usage.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pagoda {
namespace {

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : NAN;
}

double seconds(int64_t us) { return static_cast<double>(us) / 1e6; }

std::vector<std::pair<std::string, double>> stalls_of(const StreamTime& time) {
  std::vector<std::pair<std::string, double>> stalls;
  for (int k = 0; k < kWorkKinds; ++k) {
    stalls.emplace_back(work_kind_name(static_cast<WorkKind>(k)),
                        seconds(time.waited_us[static_cast<size_t>(k)]));
  }
  stalls.emplace_back("issue", seconds(time.idle_us));
  return stalls;
}

}  // namespace

SessionCounters SessionCounters::read(const Session& session) {
  return {session.pager().counters(), session.executor().prefetches(),
          session.executor().device_time(), session.executor().optimizer_time(),
          session.executor().host_updates()};
}

StepUsage::StepUsage(const SessionCounters& before, const SessionCounters& after, double step_s)
    : step_s(step_s) {
  const Pager::Counters &a = before.pager, &b = after.pager;
  hit_rate = share(b.hits - a.hits, b.uses - a.uses);
  const int64_t reads = b.device_reads - a.device_reads, hits = b.device_hits - a.device_hits;
  device_hit_rate = share(hits, reads);
  host_hit_rate = share(b.host_hits - a.host_hits, reads - hits);
  stalls = stalls_of(after.device0 - before.device0);
  const StreamTime optimizer = after.optimizer - before.optimizer;
  const auto waited_us =
      (after.device0 - before.device0).waited_us[static_cast<size_t>(WorkKind::kOptimizer)];
  optimizer_s = seconds(optimizer.busy_us);
  const bool worked = after.host_updates > before.host_updates;
  optimizer_hidden =
      worked ? std::max(1.0 - share(waited_us, optimizer.busy_us), 0.0) : NAN;
  fetch_bytes = b.fetch_bytes - a.fetch_bytes;
  write_back_bytes = b.write_back_bytes - a.write_back_bytes;
  upload_bytes = b.upload_bytes - a.upload_bytes;
  download_bytes = b.download_bytes - a.download_bytes;
  prefetches = after.prefetches.brought - before.prefetches.brought;
  prefetch_accuracy = share(after.prefetches.used - before.prefetches.used, prefetches);
}

double StepUsage::stall_s() const {
  double sum = 0;
  for (const auto& [cause, stall] : stalls) sum += stall;
  return sum;
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
  const MetricsFields mine = {{"hit_rate", hit_rate},
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
                              {"prefetches", prefetches},
                              {"prefetch_accuracy", prefetch_accuracy}};
  fields.insert(fields.end(), mine.begin(), mine.end());
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
