#include "train/expert_forecast.h"

namespace pagoda {

ExpertForecast::ExpertForecast(const Session& session)
    : session_(session), tokens_per_expert_(session.config().num_layers) {}

void ExpertForecast::note(int64_t layer, const std::vector<int64_t>& tokens_per_expert) {
  tokens_per_expert_[layer] = tokens_per_expert;
}

void ExpertForecast::prefetch(const StepPlan& plan, int64_t layer, TaskList& tasks) const {
  const std::vector<int64_t>& last = tokens_per_expert_[layer];
  if (last.empty()) return;
  const RunShape& shape = session_.shape();
  const PageId any = session_.pages().weights(shape.expert(layer, 0));
  const SlotClass& slots = session_.memory().classes[session_.pages().pages[any].slot_class];
  std::vector<int64_t> room;
  for (int32_t device_slots : slots.device_slots) room.push_back(device_slots / 2);
  std::vector<int64_t> records;
  for (size_t e = 0; e < last.size(); ++e) {
    const int64_t record = shape.expert(layer, static_cast<int64_t>(e));
    if (last[e] == 0 || room[shape.records[record].device]-- <= 0) continue;
    records.push_back(record);
  }
  plan.prefetch(records, tasks);
}

}  // namespace pagoda
