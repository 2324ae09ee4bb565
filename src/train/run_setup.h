// The one door from a model and a run's settings to the numbers that planning works with: the
// run's shape, its groups of row blocks and its memory budget. Sessions and forecasts both come
// through it, so that what is planned is what is run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "config/run_config.h"
#include "model/frozen_tensors.h"
#include "parallel/rank_group.h"
#include "plan/machine/model_shape.h"
#include "plan/memory/group_choice.h"
#include "plan/memory/memory_plan.h"
#include "plan/memory/table_homes.h"
#include "plan/step/action.h"
#include "plan/step/assignment.h"
#include "plan/step/run_shape.h"
#include "train/executor.h"

namespace pagoda {

// Coefficients of what routers are trained by beside the cross-entropy.
struct RouterLosses {
  std::optional<double> balance;  // none: the model's
  double z = 0;                   // 0: there is none
};

struct RunSetup {
  WorkspaceSize size;  // saved_layers, group_blocks: chosen for the run, whatever was asked for
  AdamSettings adam;
  RouterLosses losses;
  FrozenTensors frozen;
  std::vector<DeviceSetup> devices = std::vector<DeviceSetup>(1);  // of all ranks, in their order
  int rank = 0;  // whose part of the run this is
  bool eager_adam = false;    // RunShape's
  PlanOptions plan;
  double pinned_share = 0;    // RunShape's
  ExchangeOrder exchange = ExchangeOrder::kFlat;  // RunShape's
  std::vector<double> network_rates = {};         // RunShape's; of no account for one rank
  ShareKind shares = ShareKind::kSpeed;
  bool zebra = false;  // RunShape's, and lags
  Lags lags = {};
  int64_t kept_rows = 0;  // RunShape's
  int stages = 1;  // RunShape's, and their order
  PipelineOrder pipeline_order = PipelineOrder::kBreadthFirst;
  std::vector<int64_t> stage_layers = {};        // [stage] how many it has; empty: by its speed
  int copies = 1;                                // RunShape's
  std::shared_ptr<const ActionList> order = {};  // RunShape's
  // [layer], or one for all: experts that zebra leaves where attention is.
  std::vector<int64_t> offloaded = {0};
  bool seats_by_step = false;  // experts get their seats by their rows in each step, if they can
  Sharing sharing = Sharing::kRows;  // RunShape's, if experts can be guests
  // RunShape's; chosen for the run.
  int64_t waves_in_flight = kLeastWaves, guest_layers = 0;
  int64_t token_rows = 0;  // rows_with_token() of the run, by which attention is dealt too
  // [record] the home, where experts have exchanged theirs or were assigned; -1, or empty: each has
  // that of its share.
  std::vector<int> homes = {};
  TableRanks table_ranks = {};  // of a run that trains; chosen for the run
  // [sequence] the microbatch of a pass of generation that it goes with; empty: the first.
  std::vector<int> sequence_microbatch = {};

  int num_devices() const { return static_cast<int>(devices.size()); }
  // RunShape's, of `rank`.
  int in_lanes() const {
    return devices.back().rank > 0 ? lanes_of_card(exchange, network_rates, rank) : 1;
  }
  // Those of `rank`. What is said of each device, as budgets, is said of these.
  DeviceRange own_devices() const;
  DeviceRange devices_of_copy(int stage, int copy) const;  // of a stage
  std::span<const DeviceSetup> own_setups() const {
    return std::span(devices).subspan(static_cast<size_t>(own_devices().first),
                                      static_cast<size_t>(own_devices().count));
  }
  // The `most` of each copy of each stage that are the fastest at attention attend, each to its
  // share of the shards.
  void deal_attention(int64_t most);
  // Deals a setup that only runs forward, whose bits do not follow from who computes what. A pass
  // over a text of `microbatches` takes several of them, as many as keep the `most` devices that
  // are the fastest at attention busy, by their speed; one where one device attends.
  void deal_text(int64_t microbatches, int64_t most);
  // Sequences that are generated together go to the `most` devices that are the fastest at
  // attention, by their speed, in runs of neighbours. A device's are a microbatch of each pass; one
  // without any does not attend. Sets the sequences of size.cache, those of one device at most.
  void deal_sequences(int64_t sequences, int64_t most);
  int64_t offloaded_of(int64_t layer) const {
    return offloaded[offloaded.size() == 1 ? 0 : static_cast<size_t>(layer)];
  }
};

// kUsage if the setup has numbers for other layers than the model's, more stages than these, more
// stages and copies than devices, moves corrections that its routers have not, or has lags that
// would have the model's last layer wait for itself.
Status check_layers(const ModelShape& model, const RunSetup& setup);

// Sets what train.freeze names of the model. Returns the errors of freeze_tensors().
Status set_frozen(const RunConfig& config, const ModelConfig& model, RunSetup& setup);

// kUsage if a z-loss is asked for and the model's routers have no softmax.
Status check_losses(const ModelConfig& model, const RouterLosses& losses);

// kUsage if there are more ranks than the model has records: some would have nothing to keep.
Status check_ranks(const ModelShape& model, const RunSetup& setup);

// kHostMemory if the run has more pages than there may be. Ask before anything that takes memory
// for each microbatch or page.
Status check_pages(const RunShape& shape);

// The setup of a training run on the CPU: whether GPUs compute is for the caller to say.
RunSetup run_setup(const RunConfig& config);

// Makes of the setup of a rank that of all: their devices, in the order of the ranks. All ranks
// call it together. kUsage if some compute on GPUs and others do not, with too many devices, or
// with network cards of another number of ranks.
Status join_ranks(const RunConfig& config, RankGroup& ranks, RunSetup& setup);

// A stage has as many layers as its devices have time for, by the speeds that these are listed
// with, whatever was measured since; or as many as others where shares are uniform.
// Experts go to the devices of their layer's stage by their shares, in zebra to those that do not
// attend but for `offloaded` of each layer, in each copy to its own; dense layers go round those of
// the stage that attend; the embedding and the head are the first one's of their stage, but where
// table_ranks has them elsewhere. REQUIRES: check_model(model), check_layers().
RunShape make_run_shape(const ModelShape& model, const RunSetup& setup);

}  // namespace pagoda
