// The README.md of an exported model: what it was made of, and how, so that whoever meets the
// folder later can tell, and make it again. The hub shows it (its first lines are the hub's
// metadata).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/run_config.h"

namespace pagoda {

struct ModelCard {
  std::string model_path;       // the folder that the run started from; its last part is named
  std::string resolved_config;  // RunConfig::to_toml() of the run
  int64_t step = 0;             // the step that the weights are of
  std::optional<double> held_out_loss;  // of the last evaluation up to that step
  int64_t held_out_step = 0;            // and the step it was made at
};

// Files are named without their folders, which are nobody else's business. `options` that affect
// results are listed as a run file.
std::string model_card_text(const ModelCard& card);

// The held-out loss of the last evaluation up to card.step that `metrics`, a run's metrics.jsonl,
// has; without one, or without the file, the card is left as it is.
void take_held_out_loss(const std::string& metrics, ModelCard& card);

}  // namespace pagoda
