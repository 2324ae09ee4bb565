// Tells how a step used the machine: where the devices' time went, what moved between the tiers and
// between devices, which pages were already in place, how much of the optimizer's work was hidden,
// and how loaded the experts and devices were. It is the difference of two readings of a session's
// totals.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "report/metrics.h"
#include "train/session.h"

namespace pagoda {

// Totals since the session was made. Read them when its streams stand still.
struct SessionCounters {
  Pager::Counters pager;
  PrefetchScore::Counts prefetches;
  std::vector<StreamTime> devices = std::vector<StreamTime>(1);
  StreamTime optimizer;
  std::vector<int64_t> expert_rows;   // Executor's
  std::vector<double> expert_speeds;  // [device]
  std::vector<int64_t> attended;      // [device] tokens of a step that it attends to
  Link::Counts links;
  Executor::RowBytes row_bytes;
  int64_t host_updates = 0;  // updates of records on the optimizer's stream

  static SessionCounters read(const Session& session);
};

// How long a device did no work in a step, by cause: a kind of work it waited for
// (device/delays.h), or "issue" when nothing was queued for it, because routing was read back or
// tasks or the input were made.
using Stalls = std::vector<std::pair<std::string, double>>;

struct DeviceUsage {
  double busy_s = 0;
  Stalls stalls;
  int64_t tokens = 0;       // attended to
  int64_t expert_rows = 0;  // rows of experts that its forward computed
};

struct StepUsage {
  double step_s = 0;
  // The share of the devices' peak that the model's operations took (set by the caller). NaN: it is
  // not known.
  double mfu = NAN;
  double hit_rate = 0;  // page requests that found a copy at their place, 0..1
  // The share of reads on a device that found their page there, and the share of the other reads
  // that found it in host memory. NaN: there was none.
  double device_hit_rate = 0, host_hit_rate = 0;

  Stalls stalls;  // of device 0; the times add up to stall_s()
  double stall_s() const;
  double stall_share() const;       // of step_s, 0..1
  std::string main_stall() const;   // the longest; "" when there was none

  // How long the optimizer's stream on the host worked, and the share of that time in which device
  // 0 did not wait for it; NaN if it had nothing to do (state on the device).
  double optimizer_s = 0, optimizer_hidden = 0;

  int64_t fetch_bytes = 0, write_back_bytes = 0;  // disk, without page headers
  int64_t upload_bytes = 0, download_bytes = 0;

  std::vector<DeviceUsage> devices;
  // When the busiest device ends a layer's experts over when all would end if they ended together,
  // over all layers; NaN: no row was computed.
  double imbalance = 0;
  Link::Counts links;  // [from, to] what travelled between devices
  Executor::RowBytes row_bytes;  // of experts' rows on their way there, and back
  // The least and the most of what devices worked, of step_s.
  std::pair<double, double> busy_shares() const;

  int64_t peak_memory_bytes = 0;  // of this process, since it began

  int64_t prefetches = 0;        // weights uploaded before their routing was known
  double prefetch_accuracy = 0;  // share that was used in the same forward, 0..1; NaN: there were
                                 // none

  StepUsage(const SessionCounters& before, const SessionCounters& after, double step_s);
  // Everything but step_s, as fields of metrics.jsonl.
  void append_to(MetricsFields& fields) const;
};

// How evenly one layer's tokens fell on its experts.
struct ExpertLoad {
  double max_over_mean = 0;
  double entropy = 0;  // of the shares, relative to even ones: 1 is even, 0 is all on one
  int64_t dead = 0;    // experts without a token
};
// REQUIRES: at least one expert.
ExpertLoad expert_load(std::span<const int64_t> tokens_per_expert);

// The loads of a step's MoE layers as one field, a list for each quantity: {"layer": [0, 2],
// "max_over_mean": [...], "entropy": [...], "dead": [...]}. [layer][E], empty for dense layers.
MetricsObject expert_loads(const std::vector<std::vector<int64_t>>& tokens_per_expert);

}  // namespace pagoda
