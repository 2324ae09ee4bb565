// What `eval` and `generate` share: a model that is read and not trained, and a session of it whose
// store lies in a scratch folder and is removed at the end. The session has the devices of all
// ranks; each rank reads the model itself, and keeps what is at home with it. One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/scratch_folder.h"
#include "parallel/rank_group.h"
#include "plan/step/routing_trace.h"
#include "train/model_input.h"
#include "train/session.h"

namespace pagoda {

class ForwardRun {
 public:
  // Neither is owned. All ranks make every call together, and an error of one is one of all.
  ForwardRun(const RunConfig& config, RankGroup& ranks)
      : config_(config), ranks_(ranks), scratch_(config.scratch_parent()) {}

  // Stops at signals from now on, and opens model.path or a run's newest checkpoint. Errors as
  // open_storage and open_model; kMismatch when ranks have opened different ones.
  Status open(const std::string& run);
  // REQUIRES: open() has succeeded.
  const ModelInput& model() const { return *model_; }
  RankGroup& ranks() const { return ranks_; }
  bool leads() const { return ranks_.rank() == 0; }
  // kMismatch unless all ranks have the same `value` of what `what` names.
  Status check_alike(const char* what, const std::string& value) const;

  // A session that trains nothing, of one microbatch. With `routing`, experts are at home by it.
  // Errors as join_ranks() and homes_by_routing(); kMismatch when ranks have other traces.
  // REQUIRES: open() has succeeded.
  Result<SessionOptions> options(const std::optional<RoutingTrace>& routing) const;
  // [device] how fast it is at experts, beside the others. GPUs, which may be unequal, are as fast
  // as the datasheets of their classes say. Errors as RankGroup::agree().
  Result<std::vector<double>> expert_rates(const SessionOptions& options) const;
  // Lets as many devices attend as there is room for, the fastest: `deal` has so many attend at
  // most. One attends if need be, whether there is room or not. REQUIRES: open() has succeeded.
  using Deal = std::function<void(SessionOptions&, int64_t most)>;
  void deal_to_devices(SessionOptions& options, const Deal& deal) const;
  // The folder of this rank that the session's store will lie in, created at the first call.
  // kCannotCreate.
  Result<std::string> scratch();
  // Calls `work` with a session that has the model's weights, and removes its store whatever comes
  // of it. REQUIRES: open() has succeeded.
  Status in_session(SessionOptions options, const std::function<Status(Session&)>& work);

 private:
  const RunConfig& config_;
  RankGroup& ranks_;
  std::unique_ptr<Storage> storage_;
  ScratchFolder scratch_;
  bool has_scratch_ = false;
  std::optional<ModelInput> model_;

  Status open_own(const std::string& run);
  Status place_experts(const RoutingTrace& routing, SessionOptions& options) const;
};

}  // namespace pagoda
