// `pagoda generate --with`: two models generate at once in one process, on the same devices. Each
// has a session of its own, with a part of the budgets, and a thread that issues it. On a CPU
// device they take turns (device/device_turn.h), so that one computes while the other's rows are on
// their way or its experts come from disk; GPUs share themselves out. With what runs of both have
// recorded, their experts get homes that suit each other (plan/exchange/colocated_homes.h). The
// tokens of each are those that it generates alone.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>

#include "commands/generate_run.h"

namespace pagoda {

// What goes on until it is done, or `stop` is true.
using StoppablePart = std::function<Status(const std::atomic<bool>& stop)>;

// Runs both at once, the second on a thread of its own, and returns once both have ended. If one
// cannot go on, the other is told to stop, and the error is that of the first that met one; what a
// part throws, as for want of memory, is thrown here again. kHostMemory: no thread starts.
Status run_together(const StoppablePart& first, const StoppablePart& second);

class GeneratedTogether {
 public:
  // Neither is owned. REQUIRES: flags.with names the second model; both traces of routing, or none.
  GeneratedTogether(const RunConfig& config, const GenerateFlags& flags);

  // The part of the budgets that the first of two models gets, by the bytes of their weights, but
  // kLeastPart at least for each.
  static constexpr double kLeastPart = 0.25;
  static double part_of_first(int64_t first_bytes, int64_t second_bytes);

  // Opens, plans and generates; the caller's thread issues the first. If one cannot go on, the
  // other ends too, and the error is that of the first that met one. Errors as GenerateRun.
  Status generate();

  // REQUIRES of what follows: generate() has succeeded.
  nlohmann::ordered_json json() const;
  void print() const;

 private:
  Status plan();
  Status place(SessionOptions& of_first, SessionOptions& of_second) const;
  std::string first_name() const;

  const GenerateFlags& flags_;
  RunConfig first_config_, second_config_;
  RankGroup first_alone_, second_alone_;
  GenerateRun first_, second_;
  double seconds_ = 0;
};

}  // namespace pagoda
