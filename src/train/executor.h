// The executor: runs tasks on devices. It owns the device streams, the workspaces and the
// optimizer's stream, takes each task's leases in plan order and enqueues its work; it decides
// nothing. For tasks that are computed together (Task::joins_next) the last one enqueues the work
// of all, and their leases are held until then.
//
// With several ranks it runs those of one (plan/step/rank_part.h), on the devices of the rank. Each
// microbatch's routing goes to all other ranks as soon as its kRoute is done, without a task:
// read_routing() takes what other ranks have sent.
//
// Threading: one thread calls everything. run() returns when the tasks are issued, not when they
// are done (without prefetch it waits before a page is brought to a device); synchronize() waits.
// Data given to run() by pointer (the batch) must stay until then.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/blocks.h"
#include "model/frozen_tensors.h"
#include "offload/pager.h"
#include "optim/adam.h"
#include "parallel/link.h"
#include "plan/step/action.h"
#include "plan/step/assignment.h"
#include "plan/step/expert_blocks.h"
#include "plan/step/pages.h"
#include "plan/step/step_schedule.h"
#include "plan/step/task.h"
#include "train/ledger.h"
#include "train/prefetch_score.h"
#include "train/task_times.h"

namespace pagoda {

// The optimizer's settings that do not change from step to step.
struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.0;
  // Eager clipping: the factor follows from the record's own norm when its gradient is complete.
  bool clip_by_record = false;
  double correction_speed = 0.0;  // of Ops::move_correction; 0: corrections stay
  double clip_norm = 1.0;
  StateFormat state = StateFormat::kFp32;
  uint64_t seed = 0;  // seeds the moments' stochastic rounding
};

// One step's input. All arrays cover the whole step, microbatches behind each other.
struct StepBatch {
  std::vector<int32_t> tokens, targets, positions;  // (N)
  std::vector<float> weights;                       // (N)
  std::vector<uint8_t> padding;                     // (N), 1: padding; empty: no token is padding
  std::vector<std::vector<int32_t>> document_start;  // per microbatch, from 0 to T
  double total_weight = 0;                           // sum of weights

  // Tokens of rows [begin, end) that are not padding.
  int64_t unpadded_tokens(int64_t begin, int64_t end) const;
};

// A microbatch of a pass of generation: the next tokens of some sequences, those of a sequence in
// order.
struct GenerationPart {
  std::vector<int32_t> tokens, positions, sequences;  // (n), 0 < n <= WorkspaceSize::pass_tokens()
  std::vector<int32_t> wanted;                        // the tokens whose logits are wanted
  std::vector<uint8_t> padding = {};                  // (n), 1: padding; empty: no token is padding
};
using GenerationPass = std::vector<GenerationPart>;  // [WorkspaceSize::pass_microbatches()]

class Executor {
 public:
  struct Setup {
    ModelConfig config;
    TensorTable table;
    WorkspaceSize size;  // on_gpu: updates on devices are gpu_adam's
    AdamSettings adam;
    FrozenTensors frozen;
    std::vector<Device*> devices;  // the rank's; not owned
    std::vector<Throttle> throttles;  // [device]; empty: none is slowed
    std::vector<Ops*> ops;            // [device] its operators; not owned
    const RunShape* shape = nullptr;   // not owned
    const PageTable* pages = nullptr;  // not owned
    Pager* pager = nullptr;        // not owned
    Link* link = nullptr;          // between devices, and hosts; not owned; nullptr with one device
    int optimizer_threads = 1;
    bool prefetch = true;          // false: a task that needs an upload waits for its device's work
    Trace* trace = nullptr;        // not owned
  };

  // Compute, with several devices what leaves and what arrives, and either apart on its way back,
  // with several stages what arrives from others, weights of guests where these come from other
  // ranks, sums of experts where these travel, and second ones of those for rows that arrive, where
  // these come in turn; the optimizer's stream comes on top, once. in_lanes: RunShape's.
  static constexpr int streams_per_device(int devices, int stages, bool far_guests,
                                          bool expert_sums, bool ways_apart, int in_lanes,
                                          bool in_turn) {
    return 1 + (devices > 1 ? 1 + in_lanes : 0) + (stages > 1 ? 2 : 0) + (far_guests ? 1 : 0) +
           (expert_sums ? 1 : 0) + (ways_apart ? 2 : 0) + (in_turn ? (ways_apart ? 2 : 1) : 0);
  }
  // With several ranks, on the host: for weights that arrive or leave, and for routing.
  static constexpr int kStreamsOfRanks = 3;

  explicit Executor(Setup setup);
  ~Executor();

  // Copies the step's input to the devices that attend. `batch` stays valid until synchronize().
  void begin_step(const StepBatch& batch);
  // Copies the input of a pass of generation to the devices of the rank that attend to it. The
  // tasks of the pass follow.
  void begin_pass(const GenerationPass& pass);
  // Sets the tokens per expert of a layer, or per part of one, and of those microbatches that are
  // taken through its experts together, for the tasks of these.
  void set_routing(int64_t layer, int64_t first_microbatch, const LayerRouting& routing);
  // Runs the piece's tasks. kAdam tasks apply what `ledger` has pending for their record; pages
  // they write become `generation`.
  void run(const StepPiece& piece, Ledger* ledger, uint64_t generation);

  // Sets the experts that kRoute takes in place of its own choice, to compare with a reference:
  // [layer], (N, k), empty for dense layers. Not owned; nullptr: the model chooses.
  void impose_routing(const std::vector<std::vector<int32_t>>* experts) { imposed_ = experts; }

  // Replaces Setup::link. REQUIRES: nothing was sent so far.
  void set_link(Link* link) { setup_.link = link; }

  // From now on slows a CPU device of the rank like that, as other work on it would. For tests.
  void throttle(int device, const Throttle& throttle) {
    setup_.throttles[static_cast<size_t>(device)] = throttle;
  }

  // From now on takes the times of tasks into `times`. Not owned; nullptr: none are taken.
  void time_tasks(TaskTimes* times) { times_ = times; }

  // What routing of a microbatch chose in the newest layer; valid until its next kRoute task.
  struct Routed {
    std::span<const int32_t> counts;    // (E)
    std::span<const double> prob_sums;  // (E)
    double log_squares = 0;             // of Ops::log_sums; 0 without WorkspaceSize::z_loss
  };
  // Waits until the microbatch is routed in the layer, and for nothing that its device does after
  // that. Returns the link's error where another rank's routing did not come. REQUIRES: its kRoute
  // task has run here, or is one of another rank and not read yet.
  Result<Routed> read_routing(int64_t layer, int64_t microbatch);
  // Sets the gradient of the balance loss with respect to each probability of some microbatches.
  // `gradient`: (M, E). Waits if these are all.
  void set_aux_gradient(const std::vector<float>& gradient, Microbatches microbatches);
  // Sets the gradient of the z-loss by half the square of a token's log sum.
  void set_z_slope(float slope) { z_slope_ = slope; }
  // Takes what routing of these microbatches of a step chose in a layer, by which the layer's
  // update moves its corrections. The first microbatch comes first.
  void add_load(int64_t layer, Microbatches microbatches, const LayerRouting& routing);
  // Waits for all streams.
  void synchronize();
  // After synchronize(): the loss sum of each microbatch that a device of the rank attends to, 0
  // of others; and the squared gradient norm of a record at home here.
  std::vector<double> loss_sums();
  double square_sum(int64_t record) const;
  // Waits for the pass: the logits of the i-th wanted token of a microbatch of it. (V)
  // REQUIRES: generates().
  void read_logits(int64_t microbatch, int64_t i, std::vector<float>& logits);
  // The microbatch of a pass of generation ends on a device of the rank.
  bool generates(int64_t microbatch) const {
    return own_.contains(attending(setup_.shape->num_layers, microbatch));
  }
  // True once an eager update met a non-finite gradient (and left its record alone).
  bool saw_non_finite() const { return saw_non_finite_; }
  // True once an update made a weight that is not finite: nothing may be saved any more.
  bool weights_overflowed() const;

  // How a device's computing stream and the optimizer on the host spent their time so far. The
  // times are complete after synchronize(), in which device 0 waits for the work of the others.
  StreamTime device_time(int device) const { return compute_[device]->time(); }
  StreamTime optimizer_time() const { return optimizer_->time(); }
  // [layer * devices + device] of the rank: rows of experts that forwards computed so far.
  const std::vector<int64_t>& expert_rows() const { return expert_rows_; }
  // Bytes of rows of experts on the rank's devices so far, forward and backward.
  struct RowBytes {
    int64_t copied = 0;    // to where experts read them, or to leave for other devices
    int64_t in_place = 0;  // not copied, since experts read them where they were
    int64_t combined = 0;  // written by experts or sent by other devices, and then added to sums
    int64_t added = 0;     // added to sums as experts gave them, and nowhere written
    RowBytes operator-(const RowBytes& before) const {
      return {copied - before.copied, in_place - before.in_place, combined - before.combined,
              added - before.added};
    }
  };
  const RowBytes& row_bytes() const { return row_bytes_; }
  int64_t host_updates() const { return host_updates_; }  // updates of records on the host so far
  const PrefetchScore::Counts& prefetches() const { return prefetches_.counts(); }
  Stream& stream(int device) { return *compute_[device]; }
  Stream& host_stream() { return *optimizer_; }

 private:
  template <typename T>
  void pin(std::vector<T>& memory);
  void run(const Task& task, Ledger* ledger, uint64_t generation);
  void enqueue(const Task& task, const Lease& lease, Stream& s, Ledger* ledger);
  void enqueue_adam(const Task& task, const Lease& lease, Stream& s, Ledger& ledger);
  void enqueue_host_adam(const AdamRecord& record, const Task& task, const std::byte* gradient,
                         const std::vector<Ledger::Step>& steps, Stream& s);
  void move_correction(const Task& task, void* weights, Stream& s);
  void enqueue_gpu_adam(const AdamRecord& record, const Task& task, const std::byte* gradient,
                        const std::vector<Ledger::Step>& steps, Stream& s);
  AdamStep adam_step(const Ledger::Step& step, int64_t record) const;
  void enqueue_route(const Task& task, const Lease& lease, int32_t* choices, const LayerBuffers& in,
                     Stream& s);
  void enqueue_replay(const Task& task, const Lease& lease, int32_t* choices,
                      const LayerBuffers& in, Stream& s);
  void enqueue_add_sums(const Task& task, const Lease& lease, Stream& s);
  void enqueue_gradient(const Task& task, const Lease& lease, Stream& s);
  void clear_frozen(const Task& task, float* gradient, Stream& s);
  void make_lanes();
  Stream& stream_of(const Task& task);
  bool leaves_rank(const Task& task) const;
  int turns_of(const Task& task) const;
  double slowness(const Task& task) const;  // how many times as long its work takes
  // The task's device among the rank's.
  size_t own(const Task& task) const { return static_cast<size_t>(task.device - own_.first); }
  size_t own(int device) const { return static_cast<size_t>(device - own_.first); }
  int attending(int64_t layer, int64_t microbatch) const {
    return setup_.shape->attending(layer, microbatch);
  }
  bool waits_to_bring(const Task& task) const;
  Blocks::Documents documents(int64_t microbatch) const;
  GradientSum gradient_sum(const Task& task, const Lease& lease) const;
  LayerBuffers layer_buffers(const Task& task, const Lease& lease) const;
  void wait_for_lanes(const Task& task, Stream& s);
  void count_rows(const Task& task);
  void enqueue_index(const Task& task, Stream& s);
  // [Lane] all but kCompute; nullptr: the run has no tasks for it.
  using Lanes = std::array<std::unique_ptr<Stream>, kLanes>;
  using Channels = std::map<std::pair<int, int>, int64_t>;  // [from, to] transfers so far
  void transfer(const Task& task, Lease& lease, Stream& s);
  Transfer next_transfer(const Task& task, Channels& channels) const;
  Transfer routing_transfer(int64_t layer, int64_t microbatch, int rank, Channels& channels) const;
  void send_routing(int64_t layer, int64_t microbatch, Stream& s);
  Status receive_routing(int64_t layer, int64_t microbatch);
  const ExpertWave& wave_of(const Task& task) const;
  void enqueue_dispatch(const Task& task, const Lease& lease, const LayerBuffers& in, Stream& s);
  void enqueue_combine(const Task& task, const Lease& lease, const LayerBuffers& in, Stream& s);
  void enqueue_place(const Task& task, const Lease& lease, Stream& s);
  void enqueue_pack(const Task& task, const Lease& lease, Stream& s);
  void enqueue_experts(const Task& task, const Lease& lease, Stream& s);
  void locate_rows(const Task& task, const Blocks::Inbound& inbound, Stream& s);
  void take_weight_gradients(const Task& task, Stream& s);
  // The pages of rows that an expert's task has leased. Without outbound it adds in place.
  struct RowPages {
    Blocks::Inbound inbound;
    void* outbound = nullptr;
  };
  RowPages row_pages_of(const Task& task, const Lease& lease) const;
  Blocks::RowArrays arrays_of(const Task& task, int seat) const;
  bool reads_in_place() const;  // whether the tasks that joined hold rows

  // How much of routed_copies_ a microbatch has.
  int64_t routed_doubles() const {
    return setup_.config.num_experts + div_ceil(setup_.config.num_experts, 2) + 1;
  }
  // Neighbouring tensors of a record with the same decay setting are one span. They end with the
  // last one that trains. A frozen one before it does not decay and has a gradient of zeros, which
  // leaves it as it is.
  std::vector<AdamSpan> spans_of(int64_t record) const;

  // [device] means one of the rank's, from 0.
  Setup setup_;
  DeviceRange own_;
  std::vector<Blocks> blocks_;        // [device]
  std::vector<Workspace> steps_;      // [device] of those that attend
  std::vector<size_t> attending_;     // devices
  std::vector<int> pass_microbatch_;  // [device] of a pass of generation, that it attends to; or -1
  std::vector<ExpertSpace> experts_;  // [device]
  std::vector<std::vector<AdamSpan>> spans_;  // [record]
  int64_t expert_elements_ = 0;               // of the largest expert, or part of one
  // [record] the squared norm of its gradient, in memory that the host reads; valid when the
  // gradient's page is.
  std::vector<double> square_sums_;
  std::vector<int32_t> finite_;  // [record] 0 if an update on a GPU made a weight that is not
                                 // finite
  // Copies of Workspace::log_squares, prob_sums and counts, one behind the other, and when each
  // microbatch's are there and may be overwritten.
  std::vector<double> routed_copies_;  // (M, 1, prob_sums (E), counts (E) in half of as many)
  std::vector<Event> routed_at_, routing_sent_;  // (M)
  std::vector<Event> indexed_at_;                // [device of the rank] its newest kIndex
  std::vector<Event> chosen_read_;  // [device of the rank][microbatch] its newest kIndex
  std::vector<float> aux_gradient_;              // (M, E)
  float z_slope_ = 0;
  std::vector<int32_t> load_;                    // (num_layers, E) tokens of the newest step
  std::vector<std::shared_ptr<void>> pins_;  // page-lock what devices write into the host
  const StepBatch* batch_ = nullptr;
  int64_t tokens_ = 0;  // tokens of the current step or pass
  std::vector<int64_t> wanted_;  // [microbatch] wanted tokens of the current pass
  const std::vector<std::vector<int32_t>>* imposed_ = nullptr;
  TaskTimes* times_ = nullptr;
  // [layer][microbatch][E]: an expert's rows of the microbatch, and the first of them in the
  // re-index vector.
  struct RoutedRows {
    LayerRouting first_row;  // of each microbatch, by expert
    std::vector<ExpertWave> waves;
  };
  std::vector<std::map<int64_t, RoutedRows>> routed_;  // (num_layers), by first microbatch
  // Tasks that the next one computes too, and their pages.
  struct Joined {
    Task task;
    Lease lease;
  };
  std::vector<Joined> joined_;
  std::atomic<bool> saw_non_finite_{false}, weights_overflowed_{false};
  PrefetchScore prefetches_;
  int64_t host_updates_ = 0;
  std::vector<int64_t> expert_rows_;
  RowBytes row_bytes_;
  const Trace::Lane issue_lane_;  // lane of the calling thread
  std::vector<std::unique_ptr<Stream>> compute_;  // [device]
  std::vector<Lanes> lanes_;                      // [device]; empty with one device
  // What arrives in turn from other ranks comes by its lane and by a second stream alternately. So
  // one of them has come to the next transfer before the other has all of the one before, and its
  // sender need not wait to hear of it. Rows are put in their places on the stream by which they
  // came: the other one would come to its next transfer only behind them.
  struct SecondStream {
    std::unique_ptr<Stream> stream;
    bool is_next = false;
    Stream* newest = nullptr;  // by which the lane's newest transfer comes
  };
  std::map<std::pair<size_t, Lane>, SecondStream> second_;  // [device, lane]
  Channels sent_, received_;
  std::unique_ptr<Stream> optimizer_;
  std::unique_ptr<Stream> arriving_, leaving_, routing_;  // nullptr with one rank
};

}  // namespace pagoda
