// Generates the tasks of actions (plan/step/action.h). An action with several microbatches takes
// them together: attention and routing of each, then expert by expert over all their tokens in
// groups of row blocks. So in layer-major order (docs/design.md; ES-MoE 4.1, HeterMoE Theorem 1) an
// expert's weights are read once forward and once backward per step, whatever the number of
// microbatches, and its gradient is complete when its layer's backward ends.
//
// The tasks are those of all ranks (plan/step/rank_part.h), in one order.
//
// A microbatch is computed by the device that attends to it (RunShape::shard_device), but for its
// experts. What a layer gives to one of another stage is sent as soon as it is there, and in the
// backward its gradient. A group takes rows of several microbatches, whose in-layer buffers are
// pages. Each microbatch's rows have a dispatch and a combine of their own, so that a task never
// needs more than a few pages; or a task that holds them for the group's experts
// (RunShape::in_place), and with them the microbatch's sum if the experts add to it
// (adds_in_place). Where a device lacks room for all buffers, they are uploaded for one group after
// the other. Each expert of a group is a task of its own, with its weights' page; the last such
// task computes the whole group (Task::joins_next).
//
// Tasks that depend on routing are generated ("resolved") once the caller passes the layer's
// routing. Pure: the same arguments give the same tasks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "plan/step/action.h"
#include "plan/step/expert_blocks.h"
#include "plan/step/expert_seats.h"
#include "plan/step/expert_sums.h"
#include "plan/step/pages.h"
#include "plan/step/run_shape.h"
#include "plan/step/task.h"
#include "plan/step/weight_copies.h"
#include "plan/sums/sum_plan.h"

namespace pagoda {

// What an action of experts follows from beside its routing.
struct BesideExperts {
  // How many actions of experts the pass has had, which take turns in the exchange pages.
  int64_t actions_before = 0;
  const WeightCopies* copies = nullptr;  // what guests have already; nullptr: nothing
  // Guests of the action that comes next, which get their weights between the waves of this one.
  std::span<const ExpertUse> ahead = {};
};

class StepPlan {
 public:
  struct Options {
    bool training = true;          // false: forward only
    bool state_on_device = false;  // Adam runs on the record's device, not on the host
    // A pass of generation: the step is one microbatch of new tokens, which attend to cached keys,
    // and it ends in logits. Forward only.
    bool generating = false;
  };

  StepPlan(const RunShape& shape, const PageTable& pages, const Options& options);

  // Applies `updates` optimizer steps to one record. `has_gradient`: its gradient page waits to be
  // applied.
  void adam(int64_t record, int64_t updates, bool has_gradient, TaskList& tasks) const;
  // Sends a copied record's weights from its home to the ranks that compute with them and have no
  // good copy, or with `changed` to all of these.
  void send_weights(int64_t record, const WeightCopies& copies, bool changed,
                    TaskList& tasks) const;
  // Uploads the weights of experts ahead of their use.
  void prefetch(std::span<const ExpertUse> uses, TaskList& tasks) const;
  // Sends weights of experts ahead of their use to guests on other ranks that have not the newest,
  // or with `changed` to all of these. REQUIRES: RunShape::guest_layers above 0.
  void send_guests(std::span<const ExpertUse> guests, Phase phase, const WeightCopies& copies,
                   bool changed, TaskList& tasks) const;

  // Each function below makes the tasks of an action (plan/step/action.h).
  void embed(Microbatches microbatches, TaskList& tasks) const;
  // Attention, and the router if the layer has experts or else its MLP.
  void forward_attention(int64_t layer, Microbatches microbatches, TaskList& tasks) const;
  // `routing`: the microbatches'.
  void forward_experts(int64_t layer, Microbatches microbatches, const LayerRouting& routing,
                       TaskList& tasks, const BesideExperts& beside = {}) const;
  void residual(int64_t layer, Microbatches microbatches, TaskList& tasks) const;
  void head(Microbatches microbatches, TaskList& tasks) const;
  // The head and the backward take chunks in ascending order, and finish gradients behind the last.
  // REQUIRES: all microbatches, or with RunShape::rounds() > 1 a chunk. `routing`: of
  // all microbatches up to these.
  // Returns where in `tasks` those begin that should stand behind attention of other chunks:
  // zebra's devices that attend have experts too. Else the end.
  size_t backward_experts(int64_t layer, Microbatches microbatches, const LayerRouting& routing,
                          TaskList& tasks, const BesideExperts& beside = {}) const;
  void backward_attention(int64_t layer, Microbatches microbatches, TaskList& tasks) const;
  void embed_backward(Microbatches microbatches, TaskList& tasks) const;

  const RunShape& shape() const { return shape_; }
  const PageTable& pages() const { return pages_; }
  const Options& options() const { return options_; }

 private:
  // A wave among those of an action, and which of the exchange pages it has.
  struct WavePlace {
    Phase phase = Phase::kForward;
    int64_t layer = 0, wave = 0, slot = 0, first_microbatch = 0, microbatches = 0;
  };
  // A record's sum of gradients, or a part of it: elements [first_element, + elements).
  struct SumPart {
    int64_t record = 0, first_element = 0, elements = 0;
    bool again = false;  // the buffers hold another part of it already
  };
  Task task(TaskKind kind, Phase phase, int64_t layer, int64_t microbatch) const;
  Task of_microbatch(TaskKind kind, Phase phase, int64_t layer, int64_t microbatch) const;
  Place attending(int64_t layer, int64_t microbatch) const;
  PageId output_of(int64_t layer, int64_t microbatch) const;
  void send_output(int64_t layer, int64_t microbatch, TaskList& tasks) const;
  void send_gradient(int64_t layer, int64_t microbatch, TaskList& tasks) const;
  bool has_own(const ExpertWave& wave) const;
  size_t expert_tasks(int64_t layer, Microbatches microbatches,
                      const std::vector<ExpertWave>& waves, Phase phase, ExpertSums* sums,
                      const BesideExperts& beside, TaskList& tasks) const;
  bool finishes(Microbatches microbatches) const;
  void check_taken_together(Microbatches microbatches) const;
  void expert_gradient(const Task& like, const std::optional<ExpertSums::Whole>& sum,
                       TaskList& tasks) const;
  void add_expert_sums(const Task& like, const std::vector<ExpertSums::Step>& steps,
                       TaskList& tasks) const;
  void index(int64_t layer, Microbatches microbatches, Phase phase, TaskList& tasks) const;
  Task wave_task(TaskKind kind, const WavePlace& at, int64_t device, Lane lane) const;
  Task block_task(const WavePlace& at, const ExpertGroup::Block& block, int64_t device) const;
  // A parcel, and the device that computes it.
  struct Crossing {
    int64_t seat = 0;
    const ExpertGroup* group = nullptr;
    const ExpertGroup::Parcel* parcel = nullptr;
  };
  // What goes from device to device of a wave, one way.
  struct CrossingRows {
    RowsWay way = RowsWay::kToExperts;
    WavePlace at;
    std::vector<Crossing> crossings = {};
    std::vector<size_t> newest = {};  // [seat] tasks until inbound's last; 0: none wrote it
  };
  // A page, and from where on a parcel is put into it. Others are before it if it has been begun.
  struct Filled {
    PageId page = 0;
    int64_t first_byte = 0;
    bool begun = false;
  };
  // What an action has of other ranks' experts.
  struct GuestWeights {
    const WeightCopies* copies = nullptr;                      // Before's
    std::map<std::pair<int64_t, int64_t>, PageId> pages = {};  // [device, record]
  };
  struct Travel {
    int64_t from = 0, to = 0;  // devices
    PageId source = 0, target = 0;
    int64_t bytes = 0;
    int64_t rows = 0;       // there with it; 0: none, as of a sum or a whole microbatch
    bool last_use = false;  // of the source
    int64_t source_byte = 0, target_byte = 0;  // the first ones
    int lane = 0;                              // the rows' (in_lane)
    bool in_turn = false;                      // Task's
    RowsWay way = RowsWay::kToExperts;
  };
  void bring_guests(const WavePlace& at, const ExpertWave& wave, GuestWeights& guests,
                    TaskList& tasks) const;
  void send_guest(const ExpertUse& guest, Phase phase, PageId page, TaskList& tasks) const;
  void dispatch(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const;
  void hand_out(const WavePlace& at, const Crossing& of, Filled& page, TaskList& tasks) const;
  void pack(const WavePlace& at, const Crossing& of, Filled& page, TaskList& tasks) const;
  void add_crossings(const ExpertGroup& group, int64_t seat, CrossingRows& rows) const;
  void carry(CrossingRows& rows, TaskList& tasks) const;
  void load(const CrossingRows& rows, const Crossing& of, Filled& page, TaskList& tasks) const;
  PageId source_of(const CrossingRows& rows, const Crossing& of) const;
  PageId target_of(const CrossingRows& rows, const Crossing& of) const;
  void gather(const CrossingRows& rows, const ExchangeLeg& leg, TaskList& tasks) const;
  void hand_over(const WavePlace& at, const Travel& travel, TaskList& tasks) const;
  void place_rows(CrossingRows& rows, const Crossing& of, TaskList& tasks) const;
  void compute(const WavePlace& at, const ExpertWave& wave, const GuestWeights& guests,
               ExpertSums* sums, TaskList& tasks) const;
  void compute(const WavePlace& at, const ExpertGroup& group, int64_t seat,
               const GuestWeights& guests, ExpertSums* sums, TaskList& tasks) const;
  void finish(const WavePlace& at, const ExpertWave& wave, ExpertSums* sums, TaskList& tasks) const;
  void read_rows(const WavePlace& at, const ExpertGroup& group, int64_t seat,
                 TaskList& tasks) const;
  bool arrives_whole(const ExpertGroup& group, int64_t seat) const;
  bool has_inbound(const ExpertGroup& group, int64_t seat) const;
  void combine(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const;
  void add_combine(Task task, TaskList& tasks) const;
  void transfer(const Task& like, const Travel& travel, Access access, TaskList& tasks) const;
  // Whether the rows that come to the device for the wave stay from the forward to the backward,
  // and where they come.
  bool keeps_rows(const WavePlace& at, int64_t device) const;
  PageTable::ChunkWave chunk_wave(const WavePlace& at) const;
  PageId inbound(const WavePlace& at, int64_t device) const;
  int64_t travelling_bytes(const WavePlace& at, const Crossing& of, bool back) const;
  bool apart(RowsWay way) const { return way == RowsWay::kBack && shape_.ways_apart(); }
  Lane leaving_lane(RowsWay way) const { return apart(way) ? Lane::kOutBack : Lane::kOut; }
  Lane arriving_lane(RowsWay way) const { return apart(way) ? Lane::kInBack : Lane::kIn; }
  // A sum of an expert that waits for those of other devices is added and finished where they
  // arrive: what is computed next, and what else arrives, needs neither.
  static Lane sum_lane(bool waits) { return waits ? Lane::kSums : Lane::kCompute; }
  const SumPlan& sums_of(int64_t record) const;
  bool wants_sum(int64_t record) const;
  PageId sum_page(int64_t record, int64_t device, int64_t buffer) const;
  template <typename OfChain>
  void sum(const SumPart& part, Microbatches microbatches, TaskList& tasks,
           const OfChain& of_chain) const;
  void add_sums(const SumPart& part, int64_t device, PageId to, PageId from, TaskList& tasks) const;
  Task backward_task(TaskKind kind, int64_t layer, int64_t microbatch, PageId saved,
                     bool last_use) const;
  std::vector<int> users_of(int64_t record, int seat) const;
  void prefetch_updated(int64_t record, int seat, TaskList& tasks) const;
  void upload_layer(int64_t layer, Phase phase, TaskList& tasks) const;
  Task weights_task(TaskKind kind, Phase phase, int64_t record, int device, Access access) const;
  void dense_gradient(int64_t record, TaskList& tasks) const;
  void send_head_sum(TaskList& tasks) const;
  void gradient(const Task& task, TaskList& tasks) const;

  RunShape shape_;
  PageTable pages_;
  Options options_;
  std::vector<int> attending_;
  ExchangeNodes nodes_;
  std::map<std::pair<int, int>, SumPlan> sums_;  // [stage, home]
};

}  // namespace pagoda
