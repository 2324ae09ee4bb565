#include "plan/zebra/zebra_tasks.h"

#include "base/check.h"

namespace pagoda {
namespace {

ZebraStream stream_of(ZebraKind kind) {
  switch (kind) {
    case ZebraKind::kAttention:
    case ZebraKind::kOffloaded:
    case ZebraKind::kHead:
    case ZebraKind::kOffloadedBackward:
    case ZebraKind::kAttentionBackward: return ZebraStream::kAttention;
    case ZebraKind::kExpert:
    case ZebraKind::kExpertBackward: return ZebraStream::kExpert;
    case ZebraKind::kDispatch:
    case ZebraKind::kDispatchAgain:
    case ZebraKind::kCombineBackward: return ZebraStream::kToExperts;
    case ZebraKind::kCombine:
    case ZebraKind::kDispatchBackward: return ZebraStream::kToAttention;
    case ZebraKind::kAttentionSum: return ZebraStream::kAttentionSums;
    case ZebraKind::kExpertSum: return ZebraStream::kExpertSums;
  }
  CHECK(false, "no such task");
}

double seconds_of(const ZebraGroup& g, const ZebraTask& task) {
  const ZebraTimes& t = g.times;
  const MicrobatchSize size =
      g.sizes.empty() ? MicrobatchSize() : g.sizes[static_cast<size_t>(task.microbatch)];
  const int64_t moved = int64_t{g.offloaded_of(task.layer)} * g.expert_devices;
  // Shares of an expert device's n / N experts; multiplied first, so that whole times stay whole.
  const auto kept = [&](double s) {
    return s * size.expert_tokens * static_cast<double>(g.experts - moved) / g.experts;
  };
  const auto acquired = [&](double s) {
    const int64_t experts = moved / g.attention_devices * g.expert_devices;
    return s * size.expert_tokens * static_cast<double>(experts) / g.experts;
  };
  switch (task.kind) {
    case ZebraKind::kAttention: return t.attention.forward_s * size.tokens;
    case ZebraKind::kDispatch:
    case ZebraKind::kDispatchAgain: return t.dispatch.forward_s * size.tokens;
    case ZebraKind::kExpert: return kept(t.expert.forward_s);
    case ZebraKind::kOffloaded: return acquired(t.offloaded_expert.forward_s);
    case ZebraKind::kCombine: return t.combine.forward_s * size.tokens;
    case ZebraKind::kHead: return t.head_s * size.tokens;
    case ZebraKind::kCombineBackward: return t.combine.backward_s * size.tokens;
    case ZebraKind::kExpertBackward: return kept(t.expert.backward_s);
    case ZebraKind::kOffloadedBackward: return acquired(t.offloaded_expert.backward_s);
    case ZebraKind::kDispatchBackward: return t.dispatch.backward_s * size.tokens;
    case ZebraKind::kAttentionBackward: return t.attention.backward_s * size.tokens;
    case ZebraKind::kAttentionSum: return t.attention_reduce_s;
    case ZebraKind::kExpertSum: return t.expert_reduce_s;
  }
  CHECK(false, "no such task");
}

}  // namespace

ZebraTasks::ZebraTasks(const ZebraGroup* group, Ends ends, int32_t first_stream,
                       std::vector<StreamTask>* queue)
    : group_(*group),
      ends_(ends),
      first_stream_(first_stream),
      queue_(*queue),
      index_(static_cast<size_t>(kZebraKinds + 2) * static_cast<size_t>(group->layers) *
                 static_cast<size_t>(group->microbatches),
             -1) {}

void ZebraTasks::begin() {
  next_ = StreamTask();
  needs_ = 0;
  missing_ = false;
}

bool ZebraTasks::try_add(const ZebraTask& task) {
  begin();
  wait_for(task);
  if (missing_) return false;
  next_.stream = first_stream_ + static_cast<int32_t>(stream_of(task.kind));
  next_.seconds = seconds_of(group_, task);
  index(static_cast<int>(task.kind), task.layer, task.microbatch) =
      static_cast<int32_t>(queue_.size());
  queue_.push_back(next_);
  return true;
}

bool ZebraTasks::output(int32_t microbatch, After& after) {
  begin();
  need_output(group_.layers - 1, microbatch);
  after = next_.after;
  return !missing_;
}

bool ZebraTasks::input_gradient(int32_t microbatch, After& after) {
  begin();
  need(ZebraKind::kAttentionBackward, 0, microbatch);
  after = next_.after;
  return !missing_;
}

void ZebraTasks::need(int kind, int32_t layer, int32_t microbatch) {
  const int32_t task = index(kind, layer, microbatch);
  missing_ = missing_ || task < 0;
  CHECK(needs_ < next_.after.size());
  next_.after[needs_++] = task;
}

void ZebraTasks::need_output(int32_t layer, int32_t microbatch) {
  if (!group_.has_experts(layer)) return need(ZebraKind::kAttention, layer, microbatch);
  need(ZebraKind::kCombine, layer, microbatch);
  if (group_.offloaded_of(layer) > 0) need(ZebraKind::kOffloaded, layer, microbatch);
}

// Makes the next task wait for the gradient of the layer's output.
void ZebraTasks::need_gradient(int32_t layer, int32_t microbatch) {
  const bool last = layer + 1 == group_.layers;
  if (last && ends_.gradient_received) return need(kGradient, 0, microbatch);
  if (last) return need(ZebraKind::kHead, layer, microbatch);
  need(ZebraKind::kAttentionBackward, layer + 1, microbatch);
}

void ZebraTasks::wait_for(const ZebraTask& task) {
  const int32_t i = task.layer, j = task.microbatch;
  const bool offloaded = group_.offloaded_of(i) > 0;
  // Attention devices have tokens for each other's experts, which travel with those for the expert
  // devices.
  const bool exchanged = offloaded && group_.attention_devices > 1;
  switch (task.kind) {
    case ZebraKind::kAttention:
      if (i > 0) need_output(i - 1, j);
      if (i == 0 && ends_.input_received) need(kInput, 0, j);
      break;
    case ZebraKind::kDispatch: need(ZebraKind::kAttention, i, j); break;
    case ZebraKind::kExpert: need(ZebraKind::kDispatch, i, j); break;
    case ZebraKind::kOffloaded:
      need(exchanged ? ZebraKind::kDispatch : ZebraKind::kAttention, i, j);
      break;
    case ZebraKind::kCombine:
      need(ZebraKind::kExpert, i, j);
      if (exchanged) need(ZebraKind::kOffloaded, i, j);
      break;
    case ZebraKind::kHead: need_output(i, j); break;
    case ZebraKind::kDispatchAgain: need(ZebraKind::kExpert, i, j); break;
    case ZebraKind::kCombineBackward: need_gradient(i, j); break;
    case ZebraKind::kExpertBackward:
      need(ZebraKind::kCombineBackward, i, j);
      if (group_.send_again) need(ZebraKind::kDispatchAgain, i, j);
      break;
    case ZebraKind::kOffloadedBackward:
      if (!exchanged) return need_gradient(i, j);
      need(ZebraKind::kCombineBackward, i, j);
      break;
    case ZebraKind::kDispatchBackward:
      need(ZebraKind::kExpertBackward, i, j);
      if (exchanged) need(ZebraKind::kOffloadedBackward, i, j);
      break;
    case ZebraKind::kAttentionBackward:
      if (!group_.has_experts(i)) return need_gradient(i, j);
      need(ZebraKind::kDispatchBackward, i, j);
      if (offloaded) need(ZebraKind::kOffloadedBackward, i, j);
      break;
    case ZebraKind::kAttentionSum: need(ZebraKind::kAttentionBackward, i, j); break;
    case ZebraKind::kExpertSum: need(ZebraKind::kExpertBackward, i, j); break;
  }
}

}  // namespace pagoda
