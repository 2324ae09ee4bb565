// The step is data: a list of tasks, made before they run. The executor runs it on devices;
// anything else (memory planning, a simulator) reads the same list.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "offload/residency.h"
#include "plan/rounds/card_lanes.h"

namespace pagoda {

// What a task does. plan/step/task_table.h has the other facts of each kind.
enum class TaskKind : uint8_t {
  kAdam,             // optimizer steps of one record, up to the newest
  kSendPage,         // weights leave their home's host memory for device `peer` of another rank
  kReceivePage,      // ... and arrive there; a copied record's in that rank's host memory
  kPrefetch,         // no work: its pages are uploaded ahead of use
  kUpload,           // no work: its pages are uploaded before later work of the device
  kEmbed,            // tokens -> layer_input(0)
  kAttention,        // layer_input -> middle
  kCachedAttention,  // kAttention over the cached keys of earlier tokens too
  kRoute,            // middle -> normed rows, chosen experts
  kIndex,            // chosen experts of one or all microbatches -> each expert's rows
  kDispatch,         // one microbatch's rows of the group of device `peer` -> inbound or a parcel
  kSend,             // a parcel, a whole group or a sum leaves for device `peer`
  kReceive,          // what device `peer` sent arrives
  kTakeParcel,       // its own parcel of what was sent to a node's devices together -> its page
  kPlaceRows,        // the parcel from device `peer` -> its rows of inbound
  kReadRows,         // no work: a microbatch's rows, which the group's experts read in place, and
                     // its sum, if they add to it
  kExpert,           // inbound, or rows in place -> outbound, or sums in place
  kPackRows,         // rows of outbound -> the parcel for device `peer`
  kCombine,          // outbound -> one microbatch's sum over experts
  kResidual,         // middle + sum -> next layer_input
  kDenseMlp,         // middle -> next layer_input, for layers without experts
  kHead,             // loss and its gradient
  kLoss,             // the loss alone
  kLogits,           // logits of the last tokens, to choose the next by
  kRouteReplay,      // backward: kRoute again, with the choices of the forward
  kDispatchBackward,
  kExpertBackward,
  kCombineBackward,
  kRouteBackward,  // router, norm: gradient of the middle residual
  kDenseMlpBackward,
  kAttentionBackward,  // gradient of the layer's input
  kEmbedBackward,
  kAddSums,   // fp32 sum += fp32 sum: two shards' gradients of a dense record
  kGradient,  // a record's finished fp32 gradient -> its gradient page, and its norm
};
inline constexpr int kTaskKinds = static_cast<int>(TaskKind::kGradient) + 1;

// A device's streams of tasks: what is computed, what leaves for other devices, and what arrives
// from those that share its layers; from the stages of layers below, rows; from other stages,
// gradients and their sums; from other ranks, weights of guests; and sums of experts' gradients
// from guests and copies, with what is done to them. In zebra what experts gave leaves and arrives
// by lanes of its own (RunShape::ways_apart()). So no computation waits behind an exchange that it
// does not need. A lane takes what arrives one after the other; a device whose network card is
// faster than others has further ones for rows, beside kIn (plan/rounds/card_lanes.h).
enum class Lane : uint8_t {
  kCompute,
  kOut,
  kIn,
  kOutBack,
  kInBack,
  kFromBelow,
  kFromAbove,
  kWeights,
  kSums,
  kIn1,
  kIn2,
  kIn3
};
inline constexpr int kLanes = static_cast<int>(Lane::kIn3) + 1;
static_assert(kLanes - static_cast<int>(Lane::kIn1) == kMostCardLanes - 1);
// The n-th of those by which rows arrive.
constexpr Lane in_lane(int n) {
  return n == 0 ? Lane::kIn : static_cast<Lane>(static_cast<int>(Lane::kIn1) + n - 1);
}

enum class Phase : uint8_t { kForward, kBackward, kOptimize };
inline constexpr int kPhases = static_cast<int>(Phase::kOptimize) + 1;

struct Task {
  TaskKind kind = TaskKind::kEmbed;
  Phase phase = Phase::kForward;
  Lane lane = Lane::kCompute;
  uint8_t device = 0;      // the device whose lane runs it; on_host: any of the rank that does
  bool on_host = false;    // on a stream of the host: kAdam with its pages in host memory,
                           // kSendPage, and kReceivePage of copied records
  bool first = false;      // the first block of an expert, or of its sum that is a page; or the
                           // first microbatch of a shard, whose gradients begin at zero
  bool last = false;       // the last block of an expert that has tokens: its gradient is complete
  // kExpert, kExpertBackward, kReadRows: the task is computed together with the next one; the pages
  // of both stay leased until that one is enqueued.
  bool joins_next = false;
  bool in_turn = false;  // kSend, kReceive: ExchangeLeg's
  // kExpertBackward, and kGradient of an expert: index of the device's fp32 buffer that its
  // gradient is summed in, unless a page is used (RunShape::pages_expert_sums).
  uint8_t gradient = 0;
  int32_t cell = 0;  // kExpert, kExpertBackward: of its rows (plan/sums/sum_shape.h)
  int32_t layer = -1;
  int32_t expert = -1;
  int32_t microbatch = -1;   // -1: none
  // kIndex indexes this many, from `microbatch` on, once they are routed. Dispatch and combine wait
  // for it, in whatever lane it is.
  int32_t microbatches = 1;
  // kAdam, kGradient, kExpert, kExpertBackward, kSendPage, kReceivePage
  int64_t record = -1;
  int64_t updates = 0;     // kAdam: optimizer steps it applies
  // Tasks of a wave (plan/step/expert_blocks.h): kExpert computes rows of one expert in its
  // device's group; kReadRows has one microbatch's rows there, kDispatch has one microbatch's rows
  // in the group of device `peer`, kCombine those of experts [expert, last_expert] in the wave.
  // kPlaceRows, kPackRows and kTakeParcel have a parcel's rows. The n-th kReceive from a device
  // takes what its n-th kSend gave. A parcel may come in several parts; the last has its rows.
  int32_t wave = -1;
  int32_t first_microbatch = -1;  // the first of those whose wave it is
  int32_t last_expert = -1;
  uint8_t peer = 0;
  int64_t bytes = 0;  // kSend, kReceive, kTakeParcel, kSendPage, kReceivePage
  // Where the bytes begin in the page that kSend reads, that kReceive writes, or that kTakeParcel
  // reads; and where a parcel begins in the page that kDispatch or kPackRows writes.
  int64_t first_byte = 0;
  int64_t first_row = 0;  // kExpert: the first of them in the layer's re-index vector
  int64_t block_row = 0;  // kExpert: the first of them in the group
  int64_t rows = 0;
  int64_t padding = 0;     // rows of zeros behind them, computed too (padded_experts)
  // kAddSums adds elements [first_element, first_element + elements) of its second page to those
  // of its first; kSend and kReceive of a sum carry its elements from first_element on.
  int64_t first_element = 0, elements = 0;
  std::array<PageUse, 6> uses{};
  uint8_t num_uses = 0;

  bool operator==(const Task&) const = default;
  std::span<const PageUse> used() const { return {uses.data(), num_uses}; }
  void use(PageId page, Place place, Access access, bool last_use = false) {
    CHECK(num_uses < uses.size(), "a task of kind %d uses too many pages", static_cast<int>(kind));
    uses[num_uses++] = {page, place, access, last_use};
  }
};

using TaskList = std::vector<Task>;

// Whether the task is one end of a transfer.
constexpr bool sends(TaskKind kind) {
  return kind == TaskKind::kSend || kind == TaskKind::kSendPage;
}
constexpr bool receives(TaskKind kind) {
  return kind == TaskKind::kReceive || kind == TaskKind::kReceivePage;
}

// Appends the tasks' uses of pages, in order: what the tasks make certain to come.
inline void add_uses(const TaskList& tasks, std::vector<PageUse>& uses) {
  for (const Task& task : tasks) {
    uses.insert(uses.end(), task.uses.begin(), task.uses.begin() + task.num_uses);
  }
}

}  // namespace pagoda
