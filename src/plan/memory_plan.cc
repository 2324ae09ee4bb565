#include "plan/memory_plan.h"

#include <algorithm>

#include "plan/step_schedule.h"

namespace pagoda {
namespace {

bool is_exchange(const PageTable::Class& info) {
  return info.kind == PageKind::kInbound || info.kind == PageKind::kOutbound;
}

// Every record owes an update with a gradient, until it is paid.
class AllOwe final : public Debts {
 public:
  explicit AllOwe(size_t records) : owed_(records, 1) {}
  int64_t owed(int64_t record) const override { return owed_[record]; }
  bool has_gradient(int64_t record) const override { return owed_[record] > 0; }
  bool due(int64_t) const override { return false; }
  void pay(int64_t record) { owed_[record] = 0; }

 private:
  std::vector<int64_t> owed_;
};

// All tasks of a step in which every expert gets tokens.
TaskList whole_step(const StepPlan& plan) {
  const RunShape& shape = plan.shape();
  const bool training = plan.options().training;
  AllOwe debts(training ? shape.records.size() : 0);
  StepSchedule schedule(
      &plan, training ? &debts : nullptr, nullptr,
      training ? StepSchedule::Extent::kStep : StepSchedule::Extent::kForward);
  const auto one_each = [&](int64_t, int64_t) {
    return std::vector<int64_t>(shape.num_experts, 1);
  };
  TaskList tasks;
  walk(schedule, one_each, [&](const StepPiece& piece) {
    for (const Task& task : piece.tasks) {
      if (task.kind == TaskKind::kAdam) debts.pay(task.record);
      tasks.push_back(task);
    }
  });
  return tasks;
}

// Slots of a layer's experts, where they are brought up together.
void hold_whole_layers(const RunShape& shape, const PageTable& pages,
                       std::vector<SlotClass>& slots) {
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::vector<int32_t> experts(shape.devices, 0);
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      const int device = shape.records[shape.expert(l, e)].device;
      int32_t& held =
          slots[pages.pages[pages.weights(shape.expert(l, e))].slot_class].device_slots[device];
      held = std::max(held, ++experts[device]);
    }
  }
}

// Fewest slots of every class at every place.
std::vector<SlotClass> minimum_slots(const StepPlan& plan) {
  const int devices = plan.shape().devices;
  const PageTable& pages = plan.pages();
  std::vector<SlotClass> slots(pages.classes.size());
  for (SlotClass& c : slots) c.device_slots.assign(devices, 0);
  for (const Task& task : whole_step(plan)) {
    std::vector<SlotClass> used(pages.classes.size());
    for (SlotClass& c : used) c.device_slots.assign(devices, 0);
    for (int i = 0; i < task.num_uses; ++i) {
      SlotClass& c = used[pages.pages[task.uses[i].page].slot_class];
      const Place place = task.uses[i].place;
      ++(place.tier == Tier::kHost ? c.host_slots : c.device_slots[place.device]);
    }
    for (size_t c = 0; c < slots.size(); ++c) {
      slots[c].host_slots = std::max(slots[c].host_slots, used[c].host_slots);
      for (int d = 0; d < devices; ++d) {
        slots[c].device_slots[d] = std::max(slots[c].device_slots[d], used[c].device_slots[d]);
      }
    }
  }
  if (plan.shape().options.whole_layers) hold_whole_layers(plan.shape(), pages, slots);
  // A page on its way up and an evicted one on its way down pass through the host at a time.
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    int64_t passing = std::min<int64_t>(2, info.num_pages);
    if (is_exchange(info)) passing = devices > 1 ? info.num_pages : 0;
    slots[c].host_slots = std::max(slots[c].host_slots, static_cast<int32_t>(passing));
  }
  return slots;
}

int64_t device_bytes(const PageTable& pages, const std::vector<SlotClass>& slots, int device) {
  int64_t bytes = 0;
  for (size_t c = 0; c < slots.size(); ++c) {
    bytes += slots[c].device_slots[device] * pages.classes[c].page_bytes;
  }
  return bytes;
}

int64_t host_bytes(const PageTable& pages, const std::vector<SlotClass>& slots, int64_t header) {
  int64_t bytes = 0;
  for (size_t c = 0; c < slots.size(); ++c) {
    bytes += slots[c].host_slots * (pages.classes[c].page_bytes + header);
  }
  return bytes;
}

// One place's slots during the division of what is left.
struct Share {
  const PageTable::Class* pages;
  int32_t* slots;
  int64_t slot_bytes;
  int64_t most;  // pages that could want a slot here
};

// Gives out `left` bytes in proportion to what each class still wants.
void divide(std::vector<Share> shares, int64_t& left) {
  double wanted = 0;
  for (const Share& s : shares) {
    wanted += static_cast<double>((s.most - *s.slots) * s.slot_bytes);
  }
  if (wanted <= 0) return;
  const double fraction = std::min(1.0, static_cast<double>(left) / wanted);
  for (const Share& s : shares) {
    const auto more = static_cast<int32_t>(fraction * static_cast<double>(s.most - *s.slots));
    *s.slots += more;
    left -= more * s.slot_bytes;
  }
  // Rounding leaves some room: whole slots for whoever still fits, in class order.
  for (const Share& s : shares) {
    while (*s.slots < s.most && left >= s.slot_bytes) {
      ++*s.slots;
      left -= s.slot_bytes;
    }
  }
}

// Pages of a class that live on a device: experts are spread over devices, the rest is on device 0.
int64_t pages_on_device(const RunShape& shape, const PageTable& pages, size_t c, int device) {
  const PageTable::Class& info = pages.classes[c];
  if (is_exchange(info)) return info.num_pages;
  if (info.kind == PageKind::kActivation) return device == 0 ? info.num_pages : 0;
  int64_t count = 0;
  for (const PageTable::Page& page : pages.pages) {
    if (page.slot_class == c) count += shape.records[page.record].device == device;
  }
  return count;
}

bool grow_device(const RunShape& shape, const PageTable& pages, int device, int64_t left,
                 bool everything, std::vector<SlotClass>& slots) {
  std::vector<Share> dense, other;
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    Share share{&info, &slots[c].device_slots[device], info.page_bytes,
                pages_on_device(shape, pages, c, device)};
    share.most = std::max<int64_t>(share.most, *share.slots);
    const bool updated_below = info.kind == PageKind::kState || info.kind == PageKind::kGradient;
    if (updated_below && !everything) {
      // A gradient leaves for the host; two slots let one leave while the next is made.
      share.most = info.kind == PageKind::kState ? 0 : std::min<int64_t>(2, share.most);
      share.most = std::max<int64_t>(share.most, *share.slots);
    }
    const bool stays = info.kind == PageKind::kWeights && !info.expert;
    (stays ? dense : other).push_back(share);
  }
  divide(dense, left);
  divide(other, left);
  for (const Share& s : dense) {
    if (*s.slots < s.most) return false;
  }
  for (const Share& s : other) {
    if (*s.slots < s.most) return false;
  }
  return true;
}

void grow_host(const PageTable& pages, bool state_on_device, int64_t left, int64_t header,
               std::vector<SlotClass>& slots) {
  std::vector<Share> shares;
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    if (is_exchange(info) || state_on_device) continue;
    shares.push_back({&info, &slots[c].host_slots, info.page_bytes + header,
                      std::max<int64_t>(info.num_pages, slots[c].host_slots)});
  }
  divide(std::move(shares), left);
}

}  // namespace

int64_t MemoryPlan::on_devices(const PageTable& pages, PageKind kind) const {
  int64_t bytes = 0;
  for (size_t c = 0; c < classes.size(); ++c) {
    if (pages.classes[c].kind != kind) continue;
    for (int32_t slots : classes[c].device_slots) bytes += slots * pages.classes[c].page_bytes;
  }
  return bytes;
}

int64_t MemoryPlan::in_host(const PageTable& pages, PageKind kind) const {
  int64_t bytes = 0;
  for (size_t c = 0; c < classes.size(); ++c) {
    if (pages.classes[c].kind == kind) bytes += classes[c].host_slots * pages.classes[c].page_bytes;
  }
  return bytes;
}

Result<MemoryPlan> plan_memory(const RunShape& shape, const PageTable& pages, bool training,
                               const MemoryBudget& budget, int64_t header_bytes) {
  auto minimum = [&](bool state_on_device) {
    return minimum_slots(
        StepPlan(shape, pages, {.training = training, .state_on_device = state_on_device}));
  };
  MemoryPlan plan;
  plan.classes = minimum(false);
  int64_t fixed_most = 0;
  for (int d = 0; d < shape.devices; ++d) {
    plan.min_device_bytes = std::max(
        plan.min_device_bytes, budget.fixed_bytes[d] + device_bytes(pages, plan.classes, d));
    fixed_most = std::max(fixed_most, budget.fixed_bytes[d]);
  }
  plan.min_host_bytes = host_bytes(pages, plan.classes, header_bytes);
  if (budget.device_bytes < plan.min_device_bytes) {
    return Status(Exit::kDeviceMemory,
                  strf("memory.device is %s but a step needs at least %s (%s of it workspace); "
                       "raise memory.device, or lower %s",
                       format_bytes(budget.device_bytes).c_str(),
                       format_bytes_up(plan.min_device_bytes).c_str(),
                       format_bytes(fixed_most).c_str(), budget.lower));
  }
  if (budget.host_bytes < plan.min_host_bytes) {
    return Status(Exit::kHostMemory,
                  strf("memory.host is %s but a step needs at least %s; raise memory.host",
                       format_bytes(budget.host_bytes).c_str(),
                       format_bytes_up(plan.min_host_bytes).c_str()));
  }
  // Everything on the devices, if it fits: the state's slots come with the plan that has Adam
  // there.
  std::vector<SlotClass> resident = minimum(true);
  plan.state_on_device = true;
  for (int d = 0; d < shape.devices; ++d) {
    const int64_t left =
        budget.device_bytes - budget.fixed_bytes[d] - device_bytes(pages, resident, d);
    plan.state_on_device =
        plan.state_on_device && left >= 0 && grow_device(shape, pages, d, left, true, resident);
  }
  if (plan.state_on_device) plan.classes = std::move(resident);
  for (int d = 0; d < shape.devices && !plan.state_on_device; ++d) {
    const int64_t left =
        budget.device_bytes - budget.fixed_bytes[d] - device_bytes(pages, plan.classes, d);
    grow_device(shape, pages, d, left, false, plan.classes);
  }
  grow_host(pages, plan.state_on_device,
            budget.host_bytes - host_bytes(pages, plan.classes, header_bytes), header_bytes,
            plan.classes);
  for (int d = 0; d < shape.devices; ++d) {
    plan.device_slot_bytes.push_back(device_bytes(pages, plan.classes, d));
  }
  plan.host_slot_bytes = host_bytes(pages, plan.classes, header_bytes);
  return plan;
}

}  // namespace pagoda
