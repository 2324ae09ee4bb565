// Parcels: where they are put together, and the messages that have several of them.
#include "tests/testing/plan/order_check.h"

namespace pagoda {

// The group or parcel that the task's first page has where the task writes. What creates the page
// begins it anew; in a message parcels stand behind one another.
OrderCheck::Group& OrderCheck::begin_group(const Task& task) {
  const PageUse& use = task.uses[0];
  const Group empty{task.phase, task.layer, task.wave};
  if (!pages_.is_message(use.page)) {
    if (task.first_byte != 0) fault(task, "does not begin its page");
    Group& group = exchange_[use.page];
    if (use.access == Access::kCreate) group = empty;
    return group;
  }
  Parcels& parcels = messages_[use.page];
  if (use.access == Access::kCreate) parcels.clear();
  return parcels.try_emplace(task.first_byte, empty).first->second;
}

// Whether the device still has the inputs of its rows of the task's wave, from the forward.
bool OrderCheck::has_inputs(const Task& task, int device) const {
  return stayed_.contains({task.layer, task.first_microbatch, task.wave, device});
}

// Inputs, and in the backward output gradients and routing weights; or what experts gave. Inputs
// that have stayed do not come again.
int64_t OrderCheck::parcel_bytes(const Task& task, const Group& parcel) const {
  const int64_t row = shape_.hidden_size * shape_.dtype_bytes;
  const bool backward = task.phase == Phase::kBackward;
  const bool inputs_too = backward && !parcel.whole && !has_inputs(task, parcel.to);
  return parcel.rows * ((inputs_too ? 2 : 1) * row + (backward ? 4 : 0));
}

// A device's parcels for the devices of another rank leave together.
void OrderCheck::check_gathered(const Task& task) {
  Sent sent;
  sent.bytes = task.bytes;
  sent.parcels = messages_[task.uses[0].page];
  int64_t end = 0, rows = 0;
  for (const auto& [first_byte, parcel] : sent.parcels) {
    if (!parcel.is_of(task)) fault(task, "sends rows that are not its own");
    if (first_byte < end) fault(task, "has parcels in one place");
    if (shape_.rank_of(parcel.to) != shape_.rank_of(task.peer)) {
      fault(task, "sends a parcel to another node than its device's");
    }
    end = first_byte + parcel_bytes(task, parcel);
    rows += parcel.rows;
    sent.group = parcel;
  }
  if (rows == 0 || task.first_byte != 0 || task.bytes != end || task.rows != rows) {
    fault(task, "sends other bytes than its parcels'");
  }
  sent_[{task.device, task.peer}].push_back(sent);
}

// One of them goes on to its device.
void OrderCheck::check_passed_on(const Task& task) {
  const Parcels& parcels = messages_[task.uses[0].page];
  const auto of = parcels.find(task.first_byte);
  Sent sent;
  sent.bytes = task.bytes;
  if (of == parcels.end() || !of->second.is_of(task) || of->second.to != task.peer) {
    fault(task, "passes on what is not for the device");
  } else {
    sent.group = of->second;
    if (task.bytes != parcel_bytes(task, sent.group) || task.rows != sent.group.rows) {
      fault(task, "passes on other bytes than the parcel's");
    }
  }
  sent_[{task.device, task.peer}].push_back(sent);
}

// What has come to its own device.
void OrderCheck::check_take(const Task& task) {
  const Parcels& parcels = messages_[task.uses[1].page];
  const auto of = parcels.find(task.first_byte);
  if (of == parcels.end() || !of->second.is_of(task) || of->second.to != task.device) {
    return fault(task, "takes what is not for the device");
  }
  if (task.bytes != parcel_bytes(task, of->second) || task.rows != of->second.rows) {
    fault(task, "takes other bytes than the parcel's");
  }
  exchange_[task.uses[0].page] = of->second;
}

}  // namespace pagoda
