#include "tests/testing/plan/validator.h"

#include <algorithm>

#include "base/bytes.h"
#include "plan/step/rank_part.h"

namespace pagoda {

PlanValidator::PlanValidator(const RunShape* shape, const PageTable* pages,
                             const MemoryPlan& memory, const MemoryBudget& budget,
                             int64_t header_bytes, const Residency& start)
    : shape_(*shape),
      pages_(*pages),
      places_(pages, start, &faults_),
      order_(shape, pages, &faults_),
      ranks_(shape, pages, &faults_),
      slots_(memory.classes) {
  for (const PageTable::Page& page : pages_.pages) {
    kind_.push_back(pages_.classes[page.slot_class].kind);
  }
  for (PageId page = 0; page < kind_.size(); ++page) {
    if (kind_[page] == PageKind::kGradient && places_.has_content(page)) waiting_.insert(page);
  }
  check_budget(memory, budget, header_bytes);
}

void PlanValidator::fault(PlanRule rule, PageId page, const char* what) {
  faults_.push_back({rule, strf("page %u of record %u %s", page, pages_.pages[page].record, what)});
}

// The slots of all classes together; PlaceCheck sees that no others are used.
void PlanValidator::check_budget(const MemoryPlan& memory, const MemoryBudget& budget,
                                 int64_t header_bytes) {
  int64_t host_bytes = 0;
  for (int d = 0; d < shape_.own_devices().count; ++d) {
    int64_t device_bytes = budget.fixed_bytes[d];
    for (size_t c = 0; c < memory.classes.size(); ++c) {
      device_bytes += memory.classes[c].device_slots[d] * pages_.classes[c].page_bytes;
    }
    if (device_bytes > budget.device_bytes.of(static_cast<int>(d))) {
      faults_.push_back({PlanRule::kBudget, strf("device %d has slots beyond its budget", d)});
    }
  }
  for (size_t c = 0; c < memory.classes.size(); ++c) {
    host_bytes += memory.classes[c].host_slots * (pages_.classes[c].page_bytes + header_bytes);
  }
  if (host_bytes > budget.host_bytes) {
    faults_.push_back({PlanRule::kBudget, "the host has slots beyond its budget"});
  }
}

void PlanValidator::begin_step() {
  order_.begin_step();
  ranks_.begin_step();
  sent_.clear();
  demand_.clear();
  prefetched_.clear();
  updates_.clear();
  made_.clear();
  waited_ = waiting_;
}

// Gradients are made by kGradient only, read and given up by kAdam only.
void PlanValidator::check_gradient_uses(const Task& task) {
  for (const PageUse& use : task.used()) {
    if (kind_[use.page] != PageKind::kGradient) continue;
    const bool makes = task.kind == TaskKind::kGradient && use.access == Access::kCreate;
    const bool consumes =
        task.kind == TaskKind::kAdam && use.access == Access::kRead && use.last;
    if (!makes && !consumes)
      fault(PlanRule::kGradientOnce, use.page, "is neither made nor consumed");
    if (makes) {
      if (!waiting_.insert(use.page).second || !made_.insert(task.record).second) {
        fault(PlanRule::kGradientOnce, use.page, "is made again before it is consumed");
      }
    } else if (waiting_.erase(use.page) == 0) {
      fault(PlanRule::kGradientOnce, use.page, "is consumed and was not made");
    }
  }
}

// A task uses its own microbatch's in-layer buffers, and a page of one device where that is.
void PlanValidator::check_layer_buffer_uses(const Task& task) {
  for (const PageUse& use : task.used()) {
    const int device = pages_.pages[use.page].device;
    if (device >= 0 && use.place != Place::on_device(device)) {
      fault(PlanRule::kInputs, use.page, "is used where another device has it");
    }
    if (kind_[use.page] != PageKind::kLayerBuffer) continue;
    const int64_t b = task.microbatch;
    const bool head = task.kind == TaskKind::kHead;
    const int stage = shape_.stage_of(head ? shape_.num_layers : task.layer);
    // The gradient of a layer's input arrives at the stage below.
    const bool below = task.kind == TaskKind::kReceive && task.wave < 0 && task.layer > 0;
    const int at = below ? shape_.stage_of(task.layer - 1) : stage;
    const bool own = b >= 0 && (use.page == pages_.normed(at, b) || use.page == pages_.sum(at, b) ||
                                use.page == pages_.dresidual(at, b));
    if (!own) fault(PlanRule::kInputs, use.page, "is of another microbatch");
  }
}

// Weights are not computed with while an update of them waits, state not at all but by kAdam.
void PlanValidator::check_freshness(const Task& task) {
  if (task.kind == TaskKind::kAdam) {
    const int64_t count = ++updates_[task.record];
    const bool old_debts_first = count == 2 && made_.contains(task.record);
    if (count > 1 && !old_debts_first) {
      fault(PlanRule::kStateOnce, pages_.state(task.record), "is updated again in a step");
    }
    return;
  }
  for (const PageUse& use : task.used()) {
    if (kind_[use.page] == PageKind::kState) {
      fault(PlanRule::kStateOnce, use.page, "is used by something else than the optimizer");
    }
    if (kind_[use.page] != PageKind::kWeights) continue;
    if (waited_.contains(pages_.gradient(pages_.pages[use.page].record)) &&
        waiting_.contains(pages_.gradient(pages_.pages[use.page].record))) {
      fault(PlanRule::kInputs, use.page, "is read before its update");
    }
  }
}

// Whether an expert's weights stay at its seat from chunk to chunk of a phase. They do where all of
// the device's experts have room. Chunks go through a layer one behind the other, and what the
// backward reads is known from where the forward has ended, behind the last layer with experts: so
// in other layers they do also where those of a layer have room beside what work and transfers take
// at a time. Stages take all of their layers for a chunk.
bool PlanValidator::stays_for_chunks(int64_t record, int seat, Phase phase) const {
  const DeviceRange own = shape_.own_devices();
  if (!own.contains(seat) || !shape_.seat_speeds.empty()) return false;
  std::vector<int64_t> experts(static_cast<size_t>(shape_.num_layers), 0);
  int64_t all = 0, last_layer = 0;
  for (int64_t r = 0; r < std::ssize(shape_.records); ++r) {
    const RecordShape& other = shape_.records[static_cast<size_t>(r)];
    if (other.expert < 0) continue;
    last_layer = std::max(last_layer, other.layer);
    if (!shape_.has_seat(seat, r)) continue;
    ++experts[static_cast<size_t>(other.layer)];
    ++all;
  }
  const SlotClass& slots = slots_[pages_.pages[pages_.weights(record)].slot_class];
  const int64_t room = slots.device_slots[static_cast<size_t>(seat - own.first)];
  if (room >= all) return true;
  const bool known =
      phase == Phase::kBackward && shape_.records[static_cast<size_t>(record)].layer < last_layer;
  return known && !shape_.stages.several() && shape_.pinned_share == 0 &&
         room >= *std::max_element(experts.begin(), experts.end()) + slots.device_depth;
}

// Chunks read them in all copies.
int64_t PlanValidator::most_expert_reads(int64_t record, Phase phase) const {
  int64_t reads = 0;
  for (int copy = 0; copy < shape_.copies.count; ++copy) {
    const bool once = stays_for_chunks(record, shape_.seat_of(record, copy), phase);
    reads += once ? 1 : shape_.rounds();
  }
  return reads;
}

// Each device of the rank that attends reads the dense weights, and the table of tied embeddings at
// both ends of the forward; an update reads the weights as a part of the masters, and uploads them
// again. What is sent to other ranks is read once for all of them. Experts are read at their seat,
// where the run has guests on each device of the rank that attends, and for those of other ranks.
// Where chunks go through a layer by themselves, each may read experts unless they stay for it, and
// dense weights, these twice in the backward: other layers' work stands between that of the router
// and that of attention.
int64_t PlanValidator::most_reads(PageId page, Phase phase) {
  const int64_t record = pages_.pages[page].record;
  const bool dense = shape_.records[static_cast<size_t>(record)].expert < 0;
  const std::vector<int> attending = shape_.attending_devices();
  const int64_t own_attending = std::count_if(attending.begin(), attending.end(), [&](int device) {
    return shape_.own_devices().contains(device) && shape_.computes_with(device, record);
  });
  int64_t readers = dense ? own_attending : shape_.copies.count;
  if (phase == Phase::kOptimize) {
    return updates_[record] * std::max<int64_t>(1, readers) + (sent_[record] > 0);
  }
  if (!dense && shape_.weights_travel()) {
    readers += sent_[record] + std::count_if(attending.begin(), attending.end(), [&](int device) {
                 return shape_.own_devices().contains(device);
               });
  }
  if (shape_.rounds() > 1) {
    if (!dense) return most_expert_reads(record, phase);
    const bool both = shape_.tied_embeddings && record == shape_.embedding();
    const bool split = phase == Phase::kBackward;
    return readers * shape_.rounds() * (split || (both && phase == Phase::kForward) ? 2 : 1);
  }
  if (phase != Phase::kForward) return readers;
  const bool twice = shape_.tied_embeddings && record == shape_.embedding();
  return (shape_.options.microbatch_major ? shape_.microbatches : readers) + (twice ? readers : 0);
}

void PlanValidator::count_moves(const Task& task, std::span<const Move> moves) {
  auto& counts = task.kind == TaskKind::kPrefetch ? prefetched_ : demand_;
  for (const Move& move : moves) {
    const bool fetch = move.kind == Move::Kind::kFetch, upload = move.kind == Move::Kind::kUpload;
    if (!fetch && !upload) continue;
    Counts& count = counts[{move.page, task.phase}];
    count.fetches += fetch;
    count.uploads += upload;
    const int64_t reads = std::max(count.fetches, count.uploads);
    switch (kind_[move.page]) {
      case PageKind::kWeights:
        if (reads > most_reads(move.page, task.phase)) {
          fault(PlanRule::kReadOnce, move.page, "is read again in a phase");
        }
        break;
      case PageKind::kState:
        if (reads > updates_[pages_.pages[move.page].record]) {
          fault(PlanRule::kStateOnce, move.page, "is read again for an update");
        }
        break;
      case PageKind::kGradient:
        if (reads > 1) fault(PlanRule::kGradientOnce, move.page, "is read again");
        break;
      default: break;
    }
  }
}

void PlanValidator::check(const Task& task, std::span<const Move> moves,
                          std::span<const int32_t> slots) {
  if (task.kind == TaskKind::kSendPage) ++sent_[task.record];
  check_freshness(task);
  check_gradient_uses(task);
  check_layer_buffer_uses(task);
  see(task);
  count_moves(task, moves);
  places_.check(with_own_places(shape_, task), moves, slots);
}

void PlanValidator::see(const Task& task) {
  order_.check(task);
  ranks_.check(task);
}

void PlanValidator::discard(PageId page) {
  waiting_.erase(page);
  places_.discard(page);
}

void PlanValidator::end_step(bool complete) {
  for (PageId page : waited_) {
    if (waiting_.contains(page) && !made_.contains(pages_.pages[page].record)) {
      fault(PlanRule::kGradientOnce, page, "was not consumed in the step after its own");
    }
  }
  if (!complete) return;
  for (int64_t r = 0; r < static_cast<int64_t>(shape_.records.size()); ++r) {
    if (!shape_.is_home(r)) continue;
    const bool computed =
        shape_.records[r].expert < 0 || order_.computed_gradients().contains(r);
    if (computed != made_.contains(r)) {
      fault(PlanRule::kGradientOnce, pages_.gradient(r),
            computed ? "is not made" : "is made of nothing");
    }
  }
}

}  // namespace pagoda
