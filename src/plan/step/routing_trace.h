// A routing trace records as text which experts the tokens of a run chose. `train --trace-routing
// FILE` writes it, planning reads it. Pure.
//
//   pagoda-routing 1 experts 32 experts_per_token 2 microbatches 8 layers 4 with_experts 0 1 2 3
//   100 0 0 17 5 0 ...
//
// After the first line there is one line for each step (counted from 1, ascending), microbatch and
// layer with experts (both counted from 0; a microbatch's layers stand behind each other). A line
// holds these three numbers, then how many tokens chose each expert. Numbers are decimal, with one
// blank between them. A step that lacks a line (the run was killed, the disk was full) counts as
// not recorded, so one may take steps out of a file to make it smaller:
//
//   awk 'NR == 1 || $1 % 100 == 0' run.routing > every-hundredth.routing
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/step/run_shape.h"
#include "plan/step/step_schedule.h"

namespace pagoda {

// What all steps of a trace have in common.
struct RoutedShape {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t microbatches = 0;
  std::vector<uint8_t> is_moe;  // (num_layers)

  bool operator==(const RoutedShape&) const = default;
};
RoutedShape routed_shape(const RunShape& shape);

struct RoutedStep {
  int64_t step = 0;
  Routing routing;
};

struct RoutingTrace {
  RoutedShape shape;
  std::vector<RoutedStep> steps;
};

// The first line, and the lines of a step, newlines included.
std::string routing_header(const RoutedShape& shape);
std::string routing_lines(int64_t step, const Routing& routing);
// The most bytes that routing_lines() makes. 0 without layers with experts.
int64_t most_routing_bytes(const RunShape& shape);

// The trace's whole steps. kBadData naming the line: a file that is something else, of another
// version or cut in its first line; numbers that are none, negative, too large or out of order;
// tokens that are no multiple of experts_per_token. O(bytes).
Result<RoutingTrace> parse_routing_trace(std::string_view text);

}  // namespace pagoda
