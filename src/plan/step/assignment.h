// Says which device does what in a step. No bit of a result follows from it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/step/task_table.h"

namespace pagoda {

// A CPU device may be slowed, so that unequal devices and their schedules can be tried on one
// machine: its stream sleeps in proportion to the processor time that its work took. Experts and
// the rest have a factor each, since devices that are alike in both gain nothing from a division by
// kind of work (HeterMoE, section 3.1).
struct Throttle {
  double experts = 1;  // expert tasks take so many times as long
  double rest = 1;     // all others, but for updates and transfers, which other hardware does

  bool slows() const { return experts > 1 || rest > 1; }
  double of(TaskKind kind) const {
    if (sends(kind) || receives(kind)) return 1;
    switch (task_row(kind).colour) {
      case TaskColour::kExperts:
        return experts;
      case TaskColour::kUpdates:
        return 1;
      default:
        return rest;
    }
  }
};

// One of a run's devices.
struct DeviceSetup {
  int threads = 1;  // compute
  Throttle throttle = {};
  std::string name = {};  // as the run file has it: "cuda:1", "cpu/8"; empty: it has none
  int rank = 0;           // of the process with it
  // Tokens and rows of experts a second, as the run measured them; 0: not yet, on any device.
  double measured_attention = 0, measured_experts = 0;
  bool gpu = false;  // all are taken to be equally fast, whatever threads their processes have
  // In units that are the same for all devices of the run: what layers are dealt to stages by, with
  // expert_speed(), and attention until it was measured; what attention is dealt by; what experts
  // get their homes by; and what they get their seats by.
  double listed_attention_speed() const { return processors() / throttle.rest; }
  double attention_speed() const {
    return measured_attention > 0 ? measured_attention : listed_attention_speed();
  }
  double expert_speed() const { return processors() / throttle.experts; }
  double seat_speed() const { return measured_experts > 0 ? measured_experts : expert_speed(); }
  // What attention is dealt by if so many rows of experts go with a token. Measured speeds alone
  // say what either takes; before, attention stands for both.
  double token_speed(int64_t rows) const {
    if (rows == 0 || measured_attention == 0 || measured_experts == 0) return attention_speed();
    return 1 / (1 / measured_attention + static_cast<double>(rows) / measured_experts);
  }
  int processors() const { return gpu ? 1 : threads; }
};

// Returns [i] the device of each of `count` equal pieces of work that are dealt one after the
// other, each to the device that would end first with one more, by its speed: equal devices take
// turns. REQUIRES: speeds are above 0.
std::vector<int> deal(int64_t count, std::span<const double> speeds);

// How work is shared among devices of unequal speed. kMeasured: as kSpeed, by the speed that they
// have in the run once that was measured.
enum class ShareKind : uint8_t { kSpeed, kUniform, kMeasured };

// What travels where an expert's rows and its weights are on different devices: rows;
// weights (data-centric, HEXA-MoE 3.3); or for each expert and device what has fewer bytes
// (plan/step/expert_seats.h). Model-centric: rows too, but each device has a part of every expert
// (HiddenParts), and so a part of the work on every row.
enum class Sharing : uint8_t { kAuto, kRows, kData, kModel };

// Returns [shard] the device that attends to it. Each of the `most` devices that are the fastest at
// attention has a run of neighbouring shards, as many as its speed allows, or as many as others.
// Equal devices of different ranks take turns, so that no rank's network carries the rows of all. A
// device may have none. device_rank: [device], ascending; empty: there is one rank. REQUIRES:
// speeds are above 0, 0 < most.
std::vector<int> deal_shards(int64_t shards, std::span<const double> speeds, int64_t most,
                             ShareKind shares = ShareKind::kSpeed,
                             std::span<const int> device_rank = {});

}  // namespace pagoda
