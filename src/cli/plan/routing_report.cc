#include "cli/plan/routing_report.h"

#include "cli/plan/plan_report.h"
#include "model/json.h"

namespace pagoda {
namespace {

std::string steps_text(const std::vector<int64_t>& steps) {
  std::string text = steps.size() == 1 ? "step " : "steps ";
  for (size_t i = 0; i < steps.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == steps.size() ? " and " : ", ") + std::to_string(steps[i]);
  }
  return text;
}

std::string pays_text(const RoutedForecast& routed, const RoutedHomes& homes) {
  if (homes.moved_experts == 0) return "";
  const int64_t after = routed.pays_after(homes);
  std::string text = strf("  %6s experts move", grouped_digits(homes.moved_experts).c_str());
  if (homes.move_s > 0) text += " in " + seconds_text(homes.move_s);
  if (after < 0) return text + ", which never pays";
  if (homes.move_s == 0) return text;
  return text + strf(", which pays after %s steps", grouped_digits(after).c_str());
}

}  // namespace

std::string routing_text(const RoutedForecast& routed) {
  std::string text =
      strf("routing   homes from the first %lld of %lld recorded steps, simulated on %s\n",
           (long long)routed.learnt_steps, (long long)routed.recorded_steps,
           steps_text(routed.tried_steps).c_str());
  text += "          homes of experts                busiest device        step\n";
  for (const RoutedHomes& homes : routed.homes) {
    text += strf("          %-30s  %5.2f x the mean  %10s%s\n", homes.name.c_str(), homes.imbalance,
                 seconds_text(homes.step_s).c_str(), pays_text(routed, homes).c_str());
  }
  if (routed.seats_by_step) {
    text += "          (within a rank experts are computed where their rows say, not at home)\n";
  }
  const RoutedExchange& exchange = routed.exchange;
  return text + strf(
                    "          all-to-alls of a step: %s in order, %s shortest first, %s in "
                    "rounds, the least\n",
                    seconds_text(exchange.in_order_s).c_str(),
                    seconds_text(exchange.shortest_first_s).c_str(),
                    seconds_text(exchange.rounds_s).c_str());
}

Json routing_json(const RoutedForecast& routed) {
  Json json = {{"recorded_steps", routed.recorded_steps},
               {"learnt_steps", routed.learnt_steps},
               {"tried_steps", routed.tried_steps},
               {"exchange",
                {{"in_order_s", routed.exchange.in_order_s},
                 {"shortest_first_s", routed.exchange.shortest_first_s},
                 {"rounds_s", routed.exchange.rounds_s}}}};
  for (const RoutedHomes& homes : routed.homes) {
    json["homes"].push_back({{"name", homes.name},
                             {"imbalance", homes.imbalance},
                             {"step_s", homes.step_s},
                             {"moved_experts", homes.moved_experts},
                             {"move_s", homes.move_s},
                             {"pays_after_steps", routed.pays_after(homes)}});
  }
  return json;
}

}  // namespace pagoda
