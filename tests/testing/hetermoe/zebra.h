// Zebra parallelism (HeterMoE section 4.1): attention of all layers on M attention devices, experts
// on N expert devices, so that the two kinds work on different microbatches at a time. This times
// the actions of such a step (plan/step/zebra_actions.h), which a run executes as they are
// (parallel.layout = zebra), with a microbatch as a chunk of the step.
//
// Transfers in the two directions, and sums of gradients over devices, do not slow each other here.
//
// Theorem 1 orders actions layer by layer, within a layer microbatch by microbatch, and the
// backward in the same way; in a last layer without experts, forward and backward of a microbatch
// come back to back. Exhaustive search (L, R <= 4) never beat it for equal microbatches and layers,
// one ratio of backward to forward, transfers not longer than computing, no experts in the last
// layer, and experts no slower than attention; with slower experts it was beaten in some cases, by
// a few per cent. So the order is a start, and it is worth choosing how soon each kind of device
// turns from the last layer's forward to its backward (Lags, best_zebra).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/step/lags.h"
#include "plan/zebra/stream_times.h"
#include "tests/testing/hetermoe/paper_clock.h"

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
  // The part of a transfer that does not depend on its rows. The only attention device of a group
  // sends none to experts that it has itself.
  double transfer_fixed = 1;
  double head_s = 0;  // once a step and microbatch: logits, loss and their backward
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
  // which compute them between attention of other microbatches. Empty: none.
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

// The actions of the group's step, and the seconds of each. REQUIRES: check_zebra(group).ok(), lags
// that do not wait for each other; the group outlives its times.
ActionList group_actions(const ZebraGroup& group, const Lags& lags);
PaperTimes zebra_times(const ZebraGroup& group);

// kUsage for lags below 0, or that wait for each other in the group's last layer.
Status check_lags(const ZebraGroup& group, const Lags& lags);

// The head's and attention's lags count only if the last layer has experts. O(L R). Returns the
// errors of check_zebra and check_lags.
Result<TimedActions> plan_zebra(const ZebraGroup& group, const Lags& lags);

struct ZebraStep {
  Lags lags;
  TimedActions plan;
  StreamTimes times;
};

// The plan of the least time among lag_choices() (plan/zebra/zebra_search.h); the first among
// equals. O(L R) for each.
Result<ZebraStep> best_zebra(const ZebraGroup& group);

}  // namespace pagoda
