// The report of `pagoda plan` on a run on a machine: for people, and the same as one JSON object.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/json_type.h"
#include "preview/plan_changes.h"
#include "preview/routed_forecast.h"
#include "preview/sharing_choice.h"

namespace pagoda {

struct PlanReport {
  const ModelSizes& model;
  const RunConfig& config;
  const MachineSheet& sheet;
  RunForecast plan;
  int64_t total_tokens = 0;  // --tokens; 0: not given
  PlanAdvice advice;
  std::vector<PlanChange> fitting;
  std::optional<RoutedForecast> routed = {};  // --routing
  std::vector<SharingChoice> sharing = {};

  std::string text() const;  // ends in a newline
  std::string json() const;
};

Json sharing_json(const std::vector<SharingChoice>& choices);
// "30,532,122,624".
std::string grouped_digits(int64_t count);
// Rounds to four digits: "674.9", "15,920", "788,300,000".
std::string rate_text(double rate);
// "97.1 s", "3.3 min", "35 days".
std::string seconds_text(double seconds);

}  // namespace pagoda
