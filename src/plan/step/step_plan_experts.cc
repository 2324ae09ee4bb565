// The tasks of a layer's experts; step_plan_rows.cc has those that carry rows.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "plan/step/step_plan.h"

namespace pagoda {

Task StepPlan::wave_task(TaskKind kind, const WavePlace& at, int64_t device, Lane lane) const {
  Task t = task(kind, at.phase, at.layer, -1);
  t.wave = static_cast<int32_t>(at.wave);
  t.first_microbatch = static_cast<int32_t>(at.first_microbatch);
  t.device = static_cast<uint8_t>(device);
  t.lane = lane;
  return t;
}

Task StepPlan::block_task(const WavePlace& at, const ExpertGroup::Block& block,
                          int64_t device) const {
  const bool backward = at.phase == Phase::kBackward;
  Task t = wave_task(backward ? TaskKind::kExpertBackward : TaskKind::kExpert, at, device,
                     Lane::kCompute);
  t.expert = static_cast<int32_t>(block.expert);
  t.record = shape_.expert(at.layer, block.expert);
  t.first_row = block.first_row;
  t.block_row = block.group_row;
  t.rows = block.rows;
  t.padding = block.padding;
  t.cell = static_cast<int32_t>(block.cell);
  t.first = block.first;
  t.last = block.last;
  t.gradient = static_cast<uint8_t>(block.ordinal % shape_.group_blocks);
  return t;
}

namespace {

// Marks the normed rows' last use: no later task reads them, and a backward computes them again.
void give_up_normed(size_t first_task, TaskList& tasks) {
  std::vector<PageId> seen;
  for (size_t i = tasks.size(); i-- > first_task;) {
    Task& t = tasks[i];
    if (t.kind != TaskKind::kDispatch || t.rows == 0) continue;
    PageUse& normed = t.uses[1];
    normed.last = std::find(seen.begin(), seen.end(), normed.page) == seen.end();
    if (normed.last) seen.push_back(normed.page);
  }
}

}  // namespace

// Sends an expert's weights from its home's host to a device of another rank, where they have a
// lane of their own: who needs them waits for them, and nothing else that arrives does.
void StepPlan::send_guest(const ExpertUse& guest, Phase phase, PageId page, TaskList& tasks) const {
  const RecordShape& record = shape_.records[static_cast<size_t>(guest.record)];
  Task send = task(TaskKind::kSendPage, phase, record.layer, -1);
  send.record = guest.record;
  send.expert = static_cast<int32_t>(record.expert);
  send.lane = Lane::kOut;
  send.device = static_cast<uint8_t>(record.device);
  send.peer = static_cast<uint8_t>(guest.device);
  send.bytes = record.num_elements * shape_.dtype_bytes;
  Task receive = send;
  receive.kind = TaskKind::kReceivePage;
  receive.lane = Lane::kWeights;
  std::swap(receive.device, receive.peer);
  send.on_host = true;
  send.use(pages_.weights(guest.record), Place::host(), Access::kRead);
  receive.use(page, Place::on_device(guest.device), Access::kCreate);
  tasks.push_back(send);
  tasks.push_back(receive);
}

void StepPlan::send_guests(std::span<const ExpertUse> guests, Phase phase,
                           const WeightCopies& copies, bool changed, TaskList& tasks) const {
  for (const ExpertUse& guest : guests) {
    const PageId page = pages_.guest_of(guest.device, guest.record);
    if (!changed && copies.is_good_guest(guest.record, page)) continue;
    send_guest(guest, phase, page, tasks);
  }
}

// Sends weights of experts to devices of other ranks that compute rows of theirs and have not the
// newest, once in the action: ahead of the wave's rows, while waves before are in work. Unless
// layers have pages of their own, a device's guests take its pages by turns, which are as many as
// the experts of the waves in flight can be.
void StepPlan::bring_guests(const WavePlace& at, const ExpertWave& wave, GuestWeights& guests,
                            TaskList& tasks) const {
  for (size_t d = 0; d < wave.size() && shape_.weights_travel(); ++d) {
    const auto device = static_cast<int>(d);
    for (const ExpertGroup::Block& block : wave[d].blocks) {
      const int64_t record = shape_.expert(at.layer, block.expert);
      const int rank = shape_.rank_of(device);
      if (rank == shape_.home_rank(record)) continue;
      const bool by_turns = shape_.guest_layers == 0;
      const int64_t before =
          std::count_if(guests.pages.begin(), guests.pages.end(),
                        [&](const auto& guest) { return guest.first.first == device; });
      const PageId page = by_turns
                              ? pages_.guest(device, before % PageTable::guest_pages(shape_, rank))
                              : pages_.guest_of(device, record);
      if (!guests.pages.emplace(std::pair(device, record), page).second) continue;
      const bool there =
          !by_turns && guests.copies != nullptr && guests.copies->is_good_guest(record, page);
      if (!there) send_guest({record, device}, at.phase, page, tasks);
    }
  }
}

// Adds tasks that hold the rows of a group that are read in place, and the sums that are added to.
void StepPlan::read_rows(const WavePlace& at, const ExpertGroup& group, int64_t seat,
                         TaskList& tasks) const {
  const int stage = shape_.stage_of(at.layer);
  const Place here = Place::on_device(static_cast<int>(seat));
  for (const ExpertGroup::Part& of_microbatch : group.parts) {
    const int64_t b = at.first_microbatch + of_microbatch.microbatch;
    if (!shape_.in_place || shape_.attending(at.layer, b) != seat) continue;
    Task t = wave_task(TaskKind::kReadRows, at, seat, Lane::kCompute);
    t.expert = static_cast<int32_t>(group.blocks.front().expert);
    t.microbatch = static_cast<int32_t>(b);
    t.rows = of_microbatch.rows;
    t.joins_next = true;
    t.use(pages_.normed(stage, b), here, Access::kRead);
    if (at.phase == Phase::kBackward) t.use(pages_.dresidual(stage, b), here, Access::kRead);
    if (shape_.adds_in_place()) t.use(pages_.sum(stage, b), here, Access::kWrite);
    tasks.push_back(t);
  }
}

// Adds the tasks of a group's experts, the last of which computes all.
void StepPlan::compute(const WavePlace& at, const ExpertGroup& group, int64_t seat,
                       const GuestWeights& guests, ExpertSums* sums, TaskList& tasks) const {
  const Place place = Place::on_device(static_cast<int>(seat));
  read_rows(at, group, seat, tasks);
  for (size_t i = 0; i < group.blocks.size(); ++i) {
    Task t = block_task(at, group.blocks[i], seat);
    t.joins_next = i + 1 < group.blocks.size();
    const auto guest = guests.pages.find({seat, t.record});
    const bool far = guest != guests.pages.end();
    t.use(far ? guest->second : pages_.weights(t.record), place, Access::kRead);
    if (!shape_.adds_in_place()) {
      t.use(pages_.outbound(seat, at.slot), place, i == 0 ? Access::kCreate : Access::kWrite);
    }
    if (has_inbound(group, seat)) {
      t.use(inbound(at, seat), place, Access::kRead);
      const bool stayed = at.phase == Phase::kBackward && keeps_rows(at, seat);
      if (stayed) t.use(pages_.kept_rows(seat, chunk_wave(at)), place, Access::kRead);
    }
    if (sums != nullptr) {
      const auto [page, begins] = sums->chain(group.blocks[i]);
      t.first = begins;
      t.use(page, place, begins ? Access::kCreate : Access::kWrite);
    }
    tasks.push_back(t);
  }
  if (shape_.exchange == ExchangeOrder::kFlat) {
    CrossingRows given{RowsWay::kBack, at};
    add_crossings(group, seat, given);
    carry(given, tasks);
  }
}

// Adds what follows a wave's blocks, in the order of the experts and their cells, whichever device
// has which: additions of sums, those that go to the seats, and gradients.
void StepPlan::finish(const WavePlace& at, const ExpertWave& wave, ExpertSums* sums,
                      TaskList& tasks) const {
  std::vector<std::pair<const ExpertGroup::Block*, size_t>> blocks;  // with their devices
  for (size_t d = 0; d < wave.size(); ++d) {
    for (const ExpertGroup::Block& block : wave[d].blocks) blocks.emplace_back(&block, d);
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const auto& x, const auto& y) {
    return std::pair(x.first->expert, x.first->cell) < std::pair(y.first->expert, y.first->cell);
  });
  for (const auto& [block, device] : blocks) {
    Task of_block = block_task(at, *block, static_cast<int64_t>(device));
    if (sums != nullptr) add_expert_sums(of_block, sums->behind(*block), tasks);
    if (!block->last) continue;
    std::optional<ExpertSums::Whole> whole;
    if (sums != nullptr) {
      whole = sums->take_whole(block->expert);
      of_block.device = static_cast<uint8_t>(pages_.pages[whole->page].device);  // the seat
    }
    expert_gradient(of_block, whole, tasks);
  }
}

// Adds the experts of a wave. Where all of it goes back together, nobody gives back before all have
// computed.
void StepPlan::compute(const WavePlace& at, const ExpertWave& wave, const GuestWeights& guests,
                       ExpertSums* sums, TaskList& tasks) const {
  CrossingRows given{RowsWay::kBack, at};
  for (size_t d = 0; d < wave.size(); ++d) {
    compute(at, wave[d], static_cast<int64_t>(d), guests, sums, tasks);
    add_crossings(wave[d], static_cast<int64_t>(d), given);
  }
  if (shape_.exchange != ExchangeOrder::kFlat) carry(given, tasks);
  if (at.phase == Phase::kBackward) finish(at, wave, sums, tasks);
}

// Adds the sums of shards of the expert that a task like this one has computed, and sends those
// that go to another device. Nobody reads the sums of an expert that does not train.
void StepPlan::add_expert_sums(const Task& like, const std::vector<ExpertSums::Step>& steps,
                               TaskList& tasks) const {
  const RecordShape& record = shape_.records[static_cast<size_t>(like.record)];
  const int64_t elements = record.num_elements;
  if (!record.trains()) return;
  for (const ExpertSums::Step& step : steps) {
    const size_t at = tasks.size();
    if (step.to < 0) {
      add_sums({like.record, 0, elements}, step.device, step.page, step.other, tasks);
      tasks.back().lane = sum_lane(step.waits);
    } else {
      Task sum = task(TaskKind::kSend, Phase::kBackward, like.layer, -1);
      sum.record = like.record;
      sum.elements = elements;
      transfer(sum,
               {.from = step.device,
                .to = step.to,
                .source = step.page,
                .target = step.other,
                .bytes = elements * static_cast<int64_t>(sizeof(float))},
               Access::kCreate, tasks);
      tasks.back().lane = Lane::kSums;
    }
    for (size_t i = at; i < tasks.size(); ++i) tasks[i].expert = like.expert;
  }
}

// The gradient of an expert, if it trains, from its sum, which is a page or a buffer of its device.
void StepPlan::expert_gradient(const Task& like, const std::optional<ExpertSums::Whole>& sum,
                               TaskList& tasks) const {
  if (!shape_.records[static_cast<size_t>(like.record)].trains()) return;
  const Place place = Place::on_device(like.device);
  Task t = task(TaskKind::kGradient, Phase::kBackward, like.layer, -1);
  t.expert = like.expert;
  t.record = like.record;
  t.gradient = like.gradient;
  t.device = like.device;
  t.lane = sum_lane(sum && sum->waits);
  t.use(pages_.gradient(like.record), place, Access::kCreate);
  if (sum) t.use(sum->page, place, Access::kRead);
  gradient(t, tasks);
}

// Adds combines of each microbatch's rows in the wave, in the order of the experts, if these have
// not added them. A task reads what a few devices gave; more of them take further tasks.
void StepPlan::combine(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const {
  if (shape_.adds_in_place()) return;
  const bool backward = at.phase == Phase::kBackward;
  const TaskKind kind = backward ? TaskKind::kCombineBackward : TaskKind::kCombine;
  for (int64_t i = 0; i < at.microbatches; ++i) {
    const int64_t b = at.first_microbatch + i;
    const int device = shape_.attending(at.layer, b);
    std::vector<std::pair<const ExpertGroup::Run*, size_t>> runs;  // with their seats
    for (size_t seat = 0; seat < wave.size(); ++seat) {
      const ExpertGroup::Part* part = wave[seat].part(i);
      if (part == nullptr) continue;
      for (const ExpertGroup::Run& run : part->runs) runs.emplace_back(&run, seat);
    }
    std::sort(runs.begin(), runs.end(),
              [](const auto& x, const auto& y) { return x.first->expert < y.first->expert; });
    Task t;
    for (const auto& [run, seat_index] : runs) {
      const auto seat = static_cast<int64_t>(seat_index);
      const PageId given =
          seat == device ? pages_.outbound(seat, at.slot) : pages_.arriving(device, seat, at.slot);
      const auto used = t.used();
      const bool there = std::any_of(used.begin(), used.end(),
                                     [&](const PageUse& use) { return use.page == given; });
      if (!there && t.num_uses + 2u > t.uses.size()) {
        add_combine(t, tasks);
        t = Task();
      }
      if (t.rows == 0) {
        t = wave_task(kind, at, device,
                      shape_.devices > 1 ? arriving_lane(RowsWay::kBack) : Lane::kCompute);
        t.microbatch = static_cast<int32_t>(b);
        t.expert = static_cast<int32_t>(run->expert);
      }
      if (!there || t.num_uses == 0) t.use(given, Place::on_device(device), Access::kRead);
      t.last_expert = static_cast<int32_t>(run->expert);
      t.rows += run->rows;
    }
    if (t.rows > 0) add_combine(t, tasks);
  }
}

void StepPlan::add_combine(Task task, TaskList& tasks) const {
  task.use(pages_.sum(shape_.stage_of(task.layer), task.microbatch),
           attending(task.layer, task.microbatch), Access::kWrite);
  tasks.push_back(task);
}

void StepPlan::index(int64_t layer, Microbatches microbatches, Phase phase, TaskList& tasks) const {
  for (const int device : attending_) {
    Task t = task(TaskKind::kIndex, phase, layer, microbatches.first);
    t.microbatches = static_cast<int32_t>(microbatches.count);
    t.device = static_cast<uint8_t>(device);
    t.lane = shape_.devices > 1 ? Lane::kOut : Lane::kCompute;
    bool any = false;
    for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
      any = any || shape_.attending(layer, b) == device;
    }
    if (any) tasks.push_back(t);
  }
}

bool StepPlan::has_own(const ExpertWave& wave) const {
  if (!shape_.zebra || shape_.rounds() == 1) return false;
  for (size_t d = 0; d < wave.size(); ++d) {
    if (!wave[d].blocks.empty() && shape_.attends(static_cast<int>(d))) return true;
  }
  return false;
}

// Adds dispatch, experts and combine of every wave. With several devices a wave is handed out as
// early as there are pages for its rows, and combined before the one behind it is computed: so a
// device may be ahead of others by all waves but one that are in flight. It is combined no later,
// or what devices give back would hold pages that they need for what they compute next. Combines,
// and so their sums, keep the order of the experts.
// Returns where the first wave of devices that attend begins in zebra, else the end.
size_t StepPlan::expert_tasks(int64_t layer, Microbatches microbatches,
                              const std::vector<ExpertWave>& waves, Phase phase, ExpertSums* sums,
                              const BesideExperts& beside, TaskList& tasks) const {
  const int64_t in_flight = waves_in_flight(shape_), ahead = in_flight - 1;
  const int64_t behind = std::min<int64_t>(ahead, 1);
  index(layer, microbatches, phase, tasks);
  if (shape_.options.whole_layers) upload_layer(layer, phase, tasks);
  const size_t first_task = tasks.size();
  const auto count = static_cast<int64_t>(waves.size());
  // In zebra a chunk's wave arrives while the one before it computes, so they have different pages,
  // also where one of them is the only wave of its chunk, or devices that attend have one of their
  // own behind it. In stages a chunk's rows come behind its attention, for which a device has ended
  // the chunk before, so that it does not matter.
  const int64_t begin = shape_.rounds() == 1 ? 0 : beside.actions_before;
  const auto place = [&](int64_t i) {
    const int64_t slot = (begin + i) % in_flight;
    return WavePlace{phase, layer, i, slot, microbatches.first, microbatches.count};
  };
  std::optional<size_t> own;
  GuestWeights guests{beside.copies};
  for (int64_t i = -ahead; i < count + behind; ++i) {
    const int64_t next = i + ahead, done = i - behind;
    if (next < count) {
      const ExpertWave& wave = waves[static_cast<size_t>(next)];
      if (!own && has_own(wave)) own = tasks.size();
      bring_guests(place(next), wave, guests, tasks);
      dispatch(place(next), wave, tasks);
    }
    const bool combines = done >= 0;
    if (combines && behind > 0) combine(place(done), waves[static_cast<size_t>(done)], tasks);
    if (i >= 0 && i < count) {
      // Each wave sends as many, where sums of gradients leave the network room.
      const auto first = static_cast<size_t>(i * std::ssize(beside.ahead) / count);
      const auto end = static_cast<size_t>((i + 1) * std::ssize(beside.ahead) / count);
      const std::span<const ExpertUse> part = beside.ahead.subspan(first, end - first);
      if (!part.empty()) send_guests(part, phase, *beside.copies, false, tasks);
      compute(place(i), waves[static_cast<size_t>(i)], guests, sums, tasks);
    }
    if (combines && behind == 0) combine(place(done), waves[static_cast<size_t>(done)], tasks);
  }
  // Rows that are read in place have slots of their own until the next layer's take these.
  if (phase == Phase::kForward && !shape_.in_place) give_up_normed(first_task, tasks);
  return own.value_or(tasks.size());
}

}  // namespace pagoda
