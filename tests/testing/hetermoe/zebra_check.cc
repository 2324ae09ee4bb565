#include <string>

#include "base/check.h"
#include "plan/refusals.h"
#include "tests/testing/hetermoe/zebra.h"

namespace pagoda {
namespace {

constexpr Refusal invalid_group("zebra group");

Status check_offloaded(const ZebraGroup& g) {
  if (g.offloaded.empty()) return Status();
  if (g.offloaded.size() != static_cast<size_t>(g.layers)) {
    return invalid_group(
        strf("offloaded experts of %zu layers, but the model has %d; give one number "
             "a layer",
             g.offloaded.size(), g.layers));
  }
  for (int32_t i = 0; i < g.layers; ++i) {
    const int32_t o = g.offloaded_of(i);
    const int32_t most = g.has_experts(i) ? g.experts / g.expert_devices : 0;
    if (o < 0 || o > most) {
      return invalid_group(strf(
          "layer %d leaves %d experts of each expert device; it can leave 0 to %d", i, o, most));
    }
    if (int64_t{o} * g.expert_devices % g.attention_devices != 0) {
      return invalid_group(
          strf("layer %d: %d experts of each of %d devices do not divide over %d "
               "attention devices; leave another number",
               i, o, g.expert_devices, g.attention_devices));
    }
  }
  return Status();
}

Status check_times(const ZebraGroup& g) {
  struct Named {
    const char* name;
    PassSeconds pass;
    bool positive;
  };
  const ZebraTimes& t = g.times;
  const Named passes[] = {{"attention", t.attention, true},
                          {"an expert device", t.expert, true},
                          {"an offloaded expert", t.offloaded_expert, !g.offloaded.empty()},
                          {"dispatch", t.dispatch, false},
                          {"combine", t.combine, false},
                          {"the head", {t.head_s, t.head_s}, false},
                          {"the sum of attention gradients", {t.attention_reduce_s, 0}, false},
                          {"the sum of expert gradients", {t.expert_reduce_s, 0}, false}};
  for (const Named& n : passes) {
    const bool takes_none = n.pass.forward_s == 0 || (g.backward && n.pass.backward_s == 0);
    if (!is_amount(n.pass.forward_s) || !is_amount(n.pass.backward_s) ||
        (n.positive && takes_none)) {
      return invalid_group(
          strf("%s takes %g s forward and %g s backward, which no device does; measure "
               "it again",
               n.name, n.pass.forward_s, n.pass.backward_s));
    }
  }
  return Status();
}

Status check_sizes(const ZebraGroup& g) {
  if (g.sizes.empty()) return Status();
  if (g.sizes.size() != static_cast<size_t>(g.microbatches)) {
    return invalid_group(
        strf("sizes of %zu microbatches, but there are %d; give each one's, or none",
             g.sizes.size(), g.microbatches));
  }
  for (size_t j = 0; j < g.sizes.size(); ++j) {
    const MicrobatchSize& size = g.sizes[j];
    if (!is_amount(size.tokens) || !is_amount(size.expert_tokens) || size.tokens == 0) {
      return invalid_group(
          strf("microbatch %zu is %g of one in tokens and %g in those of experts; both "
               "are counts",
               j, size.tokens, size.expert_tokens));
    }
  }
  return Status();
}

}  // namespace

Status check_zebra_counts(const ZebraGroup& g) {
  if (g.layers < 1 || g.microbatches < 1 || g.attention_devices < 1 || g.expert_devices < 1 ||
      g.experts < 1) {
    return invalid_group(
        strf("%d layers, %d microbatches, %d attention devices, %d expert devices, "
             "%d experts: give at least one of each",
             g.layers, g.microbatches, g.attention_devices, g.expert_devices, g.experts));
  }
  if (!g.has_experts(0))
    return invalid_group("no layer has experts; there is nothing to disaggregate");
  if (g.experts % g.expert_devices != 0) {
    return invalid_group(strf("%d experts do not divide over %d expert devices; choose a divisor",
                              g.experts, g.expert_devices));
  }
  return Status();
}

Status check_zebra(const ZebraGroup& group) {
  RETURN_IF_ERROR(check_zebra_counts(group));
  RETURN_IF_ERROR(check_offloaded(group));
  RETURN_IF_ERROR(check_sizes(group));
  return check_times(group);
}

}  // namespace pagoda
