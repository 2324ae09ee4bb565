// A model that serves prompts on slowed CPU devices: for programs that measure forward passes. A
// pass takes 16 prompts through all layers to their next tokens. Routing is imposed: each layer's
// experts are of lognormal popularity, sigma 1, and chosen token by token, the same wherever the
// token is.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "parallel/slow_link.h"
#include "plan/step/routing_trace.h"
#include "tools/bench/random_token_run.h"
#include "train/generation.h"

namespace pagoda {

inline constexpr int64_t kSequences = 16, kExperts = 8;

struct ServedSetting {
  std::string directory;
  std::unique_ptr<Storage> storage;
  int rounds = 3, passes = 2;
  int64_t hidden_size = 256;
  bool tiny = false;
  int files = 0;

  int64_t layers() const { return tiny ? 2 : 4; }
  int64_t prompt_tokens() const { return tiny ? 8 : 32; }
};

// A model with the choices of all tokens.
struct ServedModel {
  RandomModel sizes;
  HfFolder folder;
  std::vector<TokenIds> prompts;
  // [layer], (tokens of all prompts, experts_per_token)
  std::vector<std::vector<int32_t>> choices = {};
  RoutingTrace trace = {};  // a prompt is a microbatch

  int64_t prompt_tokens() const { return std::ssize(prompts.front()); }
};

// width: hidden units of an expert over the model's hidden size.
ServedModel make_served_model(const ServedSetting& setting, const std::string& name, double width,
                              int64_t experts_per_token, uint32_t seed);

// Each device attends to prompts by its speed.
SessionOptions served_options(ServedSetting& setting, const ServedModel& model,
                              const std::vector<Throttle>& devices);

// A model in a session that serves its prompts again and again.
class ServedRun {
 public:
  // Neither the model nor the storage is owned. `cards`: the network's; nullptr: transfers take no
  // time. Serves once.
  ServedRun(const ServedModel& model, Storage* storage, const SessionOptions& options,
            const std::shared_ptr<NetworkCards>& cards);
  ~ServedRun();  // removes the page file

  // The program ends if a pass gives other tokens than the one before.
  void serve(int passes);

  const ServedModel& model() const { return model_; }
  const Session& session() const { return *session_; }
  Executor& executor() { return session_->executor(); }
  const std::vector<TokenIds>& next() const { return next_; }
  int64_t tokens_of(int device) const;  // the device attends to so many

 private:
  void impose();

  const ServedModel& model_;
  std::vector<std::vector<int32_t>> imposed_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<PassRunner> runner_;
  std::vector<TokenIds> next_;
};

// What a model takes on a device of speed 1, which is not slowed at experts, with what its streams
// do between tasks. Rest that is slowed more counts as more work.
struct ServedCosts {
  double row_s = 0;  // in an expert, and between its page and the parcels that it travels in
  // A token in a layer: from attention to its rows in parcels; what experts gave, added.
  double before_s = 0, after_s = 0;
  double outside_s = 0;              // a pass outside of layers, on the devices as they are
  double experts_s = 0;              // a layer's experts on average, on the devices
};

// Measures some passes.
ServedCosts measure_costs(const ServedSetting& setting, ServedRun& run);

}  // namespace pagoda
