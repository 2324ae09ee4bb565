// Zebra parallelism (HeterMoE section 4.1): attention of all layers on M attention devices, experts
// on N expert devices, so that the two kinds work on different microbatches at a time. This makes
// the tasks of a step in the order of Theorem 1 and times them. Planned only: `pagoda plan`
// simulates it, and no run executes it yet. Pure.
//
// The devices of a kind do the same at the same time. So a plan has one queue for the computing of
// each kind, one for the transfers from attention to expert devices (dispatch, and combine in the
// backward) and one for those in the other direction, in which every device takes part; and two for
// sums of gradients over devices, for which only the end of the step waits. Transfers in the two
// directions, and sums, do not slow each other here.
//
// Theorem 1 orders tasks layer by layer, within a layer microbatch by microbatch, and the backward
// in the same way; in a last layer without experts, forward and backward of a microbatch come back
// to back. Exhaustive search (L, R <= 4) never beat it for equal microbatches and layers, one ratio
// of backward to forward, transfers not longer than computing, no experts in the last layer, and
// experts no slower than attention; with slower experts it was beaten in some cases, by a few per
// cent. So the order is a start, and it is worth choosing how soon each kind of device turns from
// the last layer's forward to its backward (Lags, best_zebra).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/machine/pass_cost.h"
#include "plan/step/lags.h"
#include "plan/zebra/stream_times.h"

namespace pagoda {

// The size of a microbatch relative to the one whose times are known.
struct MicrobatchSize {
  double tokens = 1;         // attention, head, transfers
  double expert_tokens = 1;  // rows of experts, on any device
};

// The times of one microbatch in one layer (the profile of HeterMoE section 5).
struct ZebraTimes {
  PassSeconds attention;         // T_A_attn: all but the experts, on the attention devices
  PassSeconds expert;            // T_E_exp: an expert device with its n / N experts
  PassSeconds offloaded_expert;  // T_E_attn: the same work on an attention device
  PassSeconds dispatch;          // the backward's goes to the attention devices
  PassSeconds combine;           // the backward's goes to the expert devices
  double head_s = 0;             // once a step and microbatch: logits, loss and their backward
  // The sums of a layer's gradients over all devices with the same weights, once a step: attention
  // is replicated over the attention devices of all groups, an expert over groups only.
  double attention_reduce_s = 0;
  double expert_reduce_s = 0;
};

struct ZebraGroup {
  int32_t layers = 1;             // L
  int32_t microbatches = 1;       // R
  int32_t attention_devices = 1;  // M
  int32_t expert_devices = 1;     // N
  int32_t experts = 1;            // n, experts of a layer; N divides it
  bool last_layer_experts = true;
  bool backward = true;  // false: the forward alone
  // Where inputs of experts for the backward's recomputation come from: false: they are kept on the
  // expert devices; true: the attention devices dispatch them again, ahead of the gradient.
  bool send_again = false;
  // [layers] o_l (section 4.2): experts that each expert device leaves to the attention devices,
  // which compute them after the attention of all microbatches of the layer. Empty: none.
  std::vector<int32_t> offloaded;
  std::vector<MicrobatchSize> sizes;  // [microbatches]; empty: all equal
  ZebraTimes times;

  bool has_experts(int32_t layer) const { return last_layer_experts || layer + 1 < layers; }
  int32_t offloaded_of(int32_t layer) const {
    return offloaded.empty() ? 0 : offloaded[static_cast<size_t>(layer)];
  }
};

// Ok, or one line that names the first invalid value.
Status check_zebra(const ZebraGroup& group);
// Checks only layers, microbatches, devices and experts.
Status check_zebra_counts(const ZebraGroup& group);

enum class ZebraStream : int32_t {
  kAttention,  // what an attention device computes
  kExpert,     // what an expert device computes
  kToExperts,
  kToAttention,
  kAttentionSums,
  kExpertSums
};
inline constexpr int kZebraStreams = 6;

enum class ZebraKind : uint8_t {
  kAttention,
  kDispatch,
  kExpert,
  kOffloaded,  // experts on attention devices
  kCombine,
  kHead,
  kDispatchAgain,
  kCombineBackward,
  kExpertBackward,
  kOffloadedBackward,
  kDispatchBackward,
  kAttentionBackward,
  kAttentionSum,
  kExpertSum
};
inline constexpr int kZebraKinds = static_cast<int>(ZebraKind::kExpertSum) + 1;

struct ZebraTask {
  ZebraKind kind = ZebraKind::kAttention;
  int32_t layer = 0;
  int32_t microbatch = 0;
};

struct ZebraPlan {
  std::vector<ZebraTask> tasks;
  std::vector<StreamTask> queue;  // [tasks] by ZebraStream; a task waits for earlier ones only
};

// The head's and attention's lags count only if the last layer has experts. If it has none, the
// expert's lag counts only if not several attention devices have experts of the layer before. O(L
// R). Returns the errors of check_zebra, and refuses lags that wait for each other: an expert lag
// above the sum of the two others, or an attention lag above the expert's if several attention
// devices have experts of the last layer.
Result<ZebraPlan> plan_zebra(const ZebraGroup& group, const Lags& lags);

struct ZebraStep {
  Lags lags;
  ZebraPlan plan;
  StreamTimes times;
};

// The plan of the least time among lags of 0 to 3 and R - 1 each; the first among equals. Times at
// most 125 plans: O(L R).
Result<ZebraStep> best_zebra(const ZebraGroup& group);

}  // namespace pagoda
