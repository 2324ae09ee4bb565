#include "plan/step/step_plan.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace pagoda {

StepPlan::StepPlan(const RunShape& shape, const PageTable& pages, const Options& options)
    : shape_(shape),
      pages_(pages),
      options_(options),
      attending_(shape.attending_devices()),
      nodes_(shape.exchange_nodes()) {
  for (int64_t r = 0; r <= shape.head(); ++r) {
    const int home = shape.records[r].device;
    const int stage = shape.records[r].expert < 0 ? shape.stage_of_record(r) : -1;
    if (stage < 0 || sums_.contains({stage, home})) continue;
    sums_[{stage, home}] =
        plan_sums(shape.sums, shape.shards_of(stage), shape.microbatches, home, shape.rounds() > 1);
  }
}

void StepPlan::check_taken_together(Microbatches microbatches) const {
  const int64_t together = shape_.round_microbatches();
  CHECK(microbatches.count == together && microbatches.first % together == 0);
}

// No later microbatches of the step have a part in a gradient.
bool StepPlan::finishes(Microbatches microbatches) const {
  return microbatches.end() == shape_.microbatches;
}

Task StepPlan::task(TaskKind kind, Phase phase, int64_t layer, int64_t microbatch) const {
  Task task;
  task.kind = kind;
  task.phase = phase;
  task.layer = static_cast<int32_t>(layer);
  task.microbatch = static_cast<int32_t>(microbatch);
  return task;
}

// A task of the device that attends to the microbatch in the layer.
Task StepPlan::of_microbatch(TaskKind kind, Phase phase, int64_t layer, int64_t microbatch) const {
  Task t = task(kind, phase, layer, microbatch);
  t.device = static_cast<uint8_t>(shape_.attending(layer, microbatch));
  return t;
}

Place StepPlan::attending(int64_t layer, int64_t microbatch) const {
  return Place::on_device(shape_.attending(layer, microbatch));
}

// The page that the layer writes what it gives into.
PageId StepPlan::output_of(int64_t layer, int64_t microbatch) const {
  return shape_.leaves_stage(layer) ? pages_.leaving_input(layer + 1, microbatch)
                                    : pages_.layer_input(layer + 1, microbatch);
}

// Sends it to the next layer, if that is of another stage.
void StepPlan::send_output(int64_t layer, int64_t microbatch, TaskList& tasks) const {
  if (!shape_.leaves_stage(layer)) return;
  const int64_t bytes = shape_.microbatch_tokens * shape_.hidden_size * shape_.dtype_bytes;
  transfer(task(TaskKind::kSend, Phase::kForward, layer + 1, microbatch),
           {.from = shape_.attending(layer, microbatch),
            .to = shape_.attending(layer + 1, microbatch),
            .source = pages_.leaving_input(layer + 1, microbatch),
            .target = pages_.layer_input(layer + 1, microbatch),
            .bytes = bytes,
            .last_use = true},
           Access::kCreate, tasks);
}

// Sends the gradient of the layer's input to the layer below, if that is of another stage.
void StepPlan::send_gradient(int64_t layer, int64_t microbatch, TaskList& tasks) const {
  if (layer == 0 || !shape_.leaves_stage(layer - 1)) return;
  const int64_t bytes = shape_.microbatch_tokens * shape_.hidden_size * shape_.dtype_bytes;
  transfer(task(TaskKind::kSend, Phase::kBackward, layer, microbatch),
           {.from = shape_.attending(layer, microbatch),
            .to = shape_.attending(layer - 1, microbatch),
            .source = pages_.dresidual(shape_.stage_of(layer), microbatch),
            .target = pages_.dresidual(shape_.stage_of(layer - 1), microbatch),
            .bytes = bytes,
            .last_use = true},
           Access::kCreate, tasks);
}

void StepPlan::adam(int64_t record, int64_t updates, bool has_gradient, TaskList& tasks) const {
  const RecordShape& shape = shape_.records[record];
  Task t = task(TaskKind::kAdam, Phase::kOptimize, shape.layer, -1);
  t.expert = static_cast<int32_t>(shape.expert);
  t.record = record;
  t.updates = updates;
  t.device = static_cast<uint8_t>(shape.device);
  t.on_host = !options_.state_on_device;
  const Place place = t.on_host ? Place::host() : Place::on_device(shape.device);
  t.use(pages_.weights(record), place, Access::kWrite);  // a part of the masters
  t.use(pages_.state(record), place, Access::kWrite);
  if (has_gradient) t.use(pages_.gradient(record), place, Access::kRead, true);
  tasks.push_back(t);
}

// The devices that compute with a record in a step, ascending. `seat`: of an expert.
std::vector<int> StepPlan::users_of(int64_t record, int seat) const {
  if (!shape_.is_copied(record)) return {seat};
  std::vector<int> users;
  for (int d = 0; d < shape_.devices; ++d) {
    if (shape_.computes_with(d, record)) users.push_back(d);
  }
  return users;
}

void StepPlan::send_weights(int64_t record, const WeightCopies& copies, bool changed,
                            TaskList& tasks) const {
  const RecordShape& shape = shape_.records[record];
  int newest = -1;
  for (const int device : users_of(record, shape.device)) {  // the first of each rank
    const int rank = shape_.rank_of(device);
    if (rank == newest) continue;
    newest = rank;
    if (rank == shape_.home_rank(record) || (!changed && copies.is_good(record, rank))) continue;
    Task send = task(TaskKind::kSendPage, Phase::kOptimize, shape.layer, -1);
    send.record = record;
    send.on_host = true;
    send.device = static_cast<uint8_t>(shape.device);
    send.peer = static_cast<uint8_t>(device);
    send.bytes = shape.num_elements * shape_.dtype_bytes;
    Task receive = send;
    receive.kind = TaskKind::kReceivePage;
    receive.lane = Lane::kIn;
    std::swap(receive.device, receive.peer);
    send.use(pages_.weights(record), Place::host(), Access::kRead);
    receive.use(pages_.weights(record), Place::host(), Access::kCreate);
    tasks.push_back(send);
    tasks.push_back(receive);
  }
}

Task StepPlan::weights_task(TaskKind kind, Phase phase, int64_t record, int device,
                            Access access) const {
  const RecordShape& shape = shape_.records[record];
  Task t = task(kind, phase, shape.layer, -1);
  t.expert = static_cast<int32_t>(shape.expert);
  t.record = record;
  t.device = static_cast<uint8_t>(device);
  t.use(pages_.weights(record), Place::on_device(device), access);
  return t;
}

void StepPlan::prefetch(std::span<const ExpertUse> uses, TaskList& tasks) const {
  for (const ExpertUse& use : uses) {
    tasks.push_back(weights_task(TaskKind::kPrefetch, Phase::kForward, use.record, use.device,
                                 Access::kPrefetch));
  }
}

// Uploads the weights from the host, where their update leaves them, to the slots that they had on
// the home's devices; an expert's is where its gradient was.
void StepPlan::prefetch_updated(int64_t record, int seat, TaskList& tasks) const {
  if (options_.state_on_device || !shape_.options.prefetch) return;
  for (const int device : users_of(record, seat)) {
    if (shape_.rank_of(device) != shape_.home_rank(record)) continue;
    tasks.push_back(
        weights_task(TaskKind::kPrefetch, Phase::kOptimize, record, device, Access::kPrefetch));
  }
}

void StepPlan::upload_layer(int64_t layer, Phase phase, TaskList& tasks) const {
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    const int64_t record = shape_.expert(layer, e);
    for (const int device : users_of(record, shape_.records[record].device)) {
      tasks.push_back(weights_task(TaskKind::kUpload, phase, record, device, Access::kRead));
    }
  }
}

void StepPlan::embed(Microbatches microbatches, TaskList& tasks) const {
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    Task t = of_microbatch(TaskKind::kEmbed, Phase::kForward, -1, b);
    t.use(pages_.weights(shape_.embedding()), attending(0, b), Access::kRead);
    t.use(pages_.layer_input(0, b), attending(0, b), Access::kCreate);
    tasks.push_back(t);
  }
}

void StepPlan::forward_attention(int64_t layer, Microbatches microbatches, TaskList& tasks) const {
  const PageId weights = pages_.weights(shape_.layer_record[layer]);
  const bool forward_only = !options_.training;
  const int stage = shape_.stage_of(layer);
  const TaskKind kind = options_.generating ? TaskKind::kCachedAttention : TaskKind::kAttention;
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    const Place device = attending(layer, b);
    Task attention = of_microbatch(kind, Phase::kForward, layer, b);
    attention.use(weights, device, Access::kRead);
    attention.use(pages_.layer_input(layer, b), device, Access::kRead, forward_only);
    attention.use(pages_.middle(layer, b), device, Access::kCreate);
    tasks.push_back(attention);
    const bool moe = shape_.is_moe[layer];
    Task second =
        of_microbatch(moe ? TaskKind::kRoute : TaskKind::kDenseMlp, Phase::kForward, layer, b);
    second.use(weights, device, Access::kRead);
    // kRoute writes the chosen experts behind the residual.
    second.use(pages_.middle(layer, b), device, moe ? Access::kWrite : Access::kRead,
               forward_only && !moe);
    second.use(moe ? pages_.normed(stage, b) : output_of(layer, b), device, Access::kCreate);
    if (moe) second.use(pages_.sum(stage, b), device, Access::kCreate);
    tasks.push_back(second);
    if (!moe) send_output(layer, b, tasks);
  }
}

void StepPlan::forward_experts(int64_t layer, Microbatches microbatches,
                               const LayerRouting& routing, TaskList& tasks,
                               const BesideExperts& beside) const {
  expert_tasks(layer, microbatches, layer_waves(shape_, layer, microbatches, routing),
               Phase::kForward, nullptr, beside, tasks);
}

void StepPlan::residual(int64_t layer, Microbatches microbatches, TaskList& tasks) const {
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    Task t = of_microbatch(TaskKind::kResidual, Phase::kForward, layer, b);
    const Place device = attending(layer, b);
    t.use(pages_.middle(layer, b), device, Access::kRead, !options_.training);
    t.use(output_of(layer, b), device, Access::kCreate);
    t.use(pages_.sum(shape_.stage_of(layer), b), device, Access::kRead, true);
    tasks.push_back(t);
    send_output(layer, b, tasks);
  }
}

const SumPlan& StepPlan::sums_of(int64_t record) const {
  return sums_.at({shape_.stage_of_record(record), shape_.records[record].device});
}

// Some tables' whole sums come apart from those that others begin meanwhile.
PageId StepPlan::sum_page(int64_t record, int64_t device, int64_t buffer) const {
  const int64_t layer = shape_.records[record].layer;
  const bool whole = device == shape_.records[record].device && buffer == sums_of(record).root;
  const bool apart = whole && layer < 0 && shape_.whole_sum_device(record) == device;
  if (apart) return pages_.whole_sum(record);
  const bool by_chunks = shape_.rounds() > 1 && layer >= 0;
  return by_chunks ? pages_.layer_sum(device, layer, buffer) : pages_.gradient_sum(device, buffer);
}

void StepPlan::add_sums(const SumPart& part, int64_t device, PageId to, PageId from,
                        TaskList& tasks) const {
  Task t = task(TaskKind::kAddSums, Phase::kBackward, shape_.records[part.record].layer, -1);
  t.device = static_cast<uint8_t>(device);
  t.record = part.record;
  t.first_element = part.first_element;
  t.elements = part.elements;
  t.use(to, Place::on_device(device), Access::kWrite);
  t.use(from, Place::on_device(device), Access::kRead);
  tasks.push_back(t);
}

// Where nothing of the record trains, nobody reads the whole sum. A tied head's has the
// embedding's.
bool StepPlan::wants_sum(int64_t record) const {
  const bool tied = record == shape_.head() && shape_.tied_embeddings;
  return shape_.trains(record) || (tied && shape_.trains(shape_.embedding()));
}

// Goes through the microbatches' part of the sum; `of_chain` adds the tasks of a microbatch, and is
// told the use of the page that these sum in.
template <typename OfChain>
void StepPlan::sum(const SumPart& part, Microbatches microbatches, TaskList& tasks,
                   const OfChain& of_chain) const {
  const bool wanted = wants_sum(part.record);
  bool takes = false;  // what comes behind a microbatch comes with it
  for (const SumStep& step : sums_of(part.record).steps) {
    if (step.kind == SumStep::Kind::kChain) takes = microbatches.has(step.microbatch);
    if (!takes || (!wanted && step.kind != SumStep::Kind::kChain)) continue;
    const PageId page = sum_page(part.record, step.device, step.buffer);
    const bool keeps = part.again || (step.kind == SumStep::Kind::kChain && !step.first);
    const Access access = keeps ? Access::kWrite : Access::kCreate;
    switch (step.kind) {
      case SumStep::Kind::kChain:
        of_chain(step, PageUse{page, Place::on_device(step.device), access});
        break;
      case SumStep::Kind::kAdd:
        add_sums(part, step.device, page, sum_page(part.record, step.device, step.other), tasks);
        break;
      case SumStep::Kind::kMove: {
        Task like = task(TaskKind::kSend, Phase::kBackward, shape_.records[part.record].layer, -1);
        like.record = part.record;
        like.first_element = part.first_element;
        like.elements = part.elements;
        transfer(like,
                 {step.device, step.to, page, sum_page(part.record, step.to, step.other),
                  part.elements * static_cast<int64_t>(sizeof(float))},
                 access, tasks);
      }
    }
  }
}

void StepPlan::head(Microbatches microbatches, TaskList& tasks) const {
  check_taken_together(microbatches);
  TaskKind kind = options_.training ? TaskKind::kHead : TaskKind::kLoss;
  if (options_.generating) kind = TaskKind::kLogits;
  const int64_t record = shape_.head();
  const int64_t layer = shape_.num_layers;
  const auto of_one = [&](int64_t b) {
    Task t = of_microbatch(kind, Phase::kForward, layer, b);
    t.layer = -1;
    t.use(pages_.weights(record), attending(layer, b), Access::kRead);
    t.use(pages_.layer_input(layer, b), attending(layer, b), Access::kRead, true);
    if (shape_.tied_embeddings) {
      t.use(pages_.weights(shape_.embedding()), attending(layer, b), Access::kRead);
    }
    return t;
  };
  if (!options_.training) {
    for (int64_t b = microbatches.first; b < microbatches.end(); ++b) tasks.push_back(of_one(b));
    return;
  }
  // The final norm, then the table, which is the embedding if they are tied.
  const int64_t table =
      shape_.tied_embeddings ? shape_.records[shape_.embedding()].num_elements : 0;
  sum({record, 0, shape_.records[record].num_elements + table}, microbatches, tasks,
      [&](const SumStep& step, const PageUse& use) {
        Task t = of_one(step.microbatch);
        t.first = step.first;
        const PageId gradient = pages_.dresidual(shape_.stage_of(layer), step.microbatch);
        t.use(gradient, use.place, Access::kCreate);
        t.use(use.page, use.place, use.access);
        tasks.push_back(t);
      });
  if (!finishes(microbatches)) return;
  dense_gradient(record, tasks);
  if (shape_.tied_embeddings) send_head_sum(tasks);
}

// Sends the whole sum of a tied head to where it waits for the embedding's, if it is not there.
void StepPlan::send_head_sum(TaskList& tasks) const {
  const RecordShape& head = shape_.records[shape_.head()];
  const RecordShape& table = shape_.records[shape_.embedding()];
  if (head.device == table.device) return;
  Task like = task(TaskKind::kSend, Phase::kBackward, -1, -1);
  like.record = shape_.head();
  like.elements = head.num_elements + table.num_elements;
  const PageId whole = sum_page(shape_.head(), head.device, sums_of(shape_.head()).root);
  transfer(like,
           {.from = head.device,
            .to = table.device,
            .source = whole,
            .target = pages_.whole_sum(shape_.head()),
            .bytes = like.elements * static_cast<int64_t>(sizeof(float))},
           Access::kCreate, tasks);
}

// The gradient of a dense record from its whole sum, if it trains.
void StepPlan::dense_gradient(int64_t record, TaskList& tasks) const {
  const RecordShape& shape = shape_.records[record];
  if (!shape.trains()) return;
  Task t = task(TaskKind::kGradient, Phase::kBackward, shape.layer, -1);
  t.record = record;
  t.device = static_cast<uint8_t>(shape.device);
  const Place home = Place::on_device(shape.device);
  const bool kept = record == shape_.embedding() && shape_.tied_embeddings;
  t.use(pages_.gradient(record), home, Access::kCreate);
  t.use(
      kept ? pages_.whole_sum(shape_.head()) : sum_page(record, shape.device, sums_of(record).root),
      home, Access::kRead);
  gradient(t, tasks);
}

void StepPlan::gradient(const Task& task, TaskList& tasks) const {
  tasks.push_back(task);
  if (!shape_.updates_in_backward()) return;
  adam(task.record, 1, true, tasks);
  prefetch_updated(task.record, task.device, tasks);
}

// The backward of one microbatch through a part of a layer. `saved`: the page that the forward
// saved.
Task StepPlan::backward_task(TaskKind kind, int64_t layer, int64_t microbatch, PageId saved,
                             bool last_use) const {
  const bool replay = kind == TaskKind::kRouteReplay;
  const Place device = attending(layer, microbatch);
  const int stage = shape_.stage_of(layer);
  Task t = of_microbatch(kind, Phase::kBackward, layer, microbatch);
  t.use(pages_.weights(shape_.layer_record[layer]), device, Access::kRead);
  t.use(saved, device, Access::kRead, last_use);
  t.use(pages_.dresidual(stage, microbatch), device, replay ? Access::kRead : Access::kWrite);
  if (replay || kind == TaskKind::kRouteBackward) {
    const Access access = replay ? Access::kCreate : Access::kRead;
    t.use(pages_.normed(stage, microbatch), device, access, !replay);
    t.use(pages_.sum(stage, microbatch), device, access, !replay);
  }
  return t;
}

// The gradients of the shared expert are summed here, those of the record's rest with attention's.
size_t StepPlan::backward_experts(int64_t layer, Microbatches microbatches,
                                  const LayerRouting& routing, TaskList& tasks,
                                  const BesideExperts& beside) const {
  check_taken_together(microbatches);
  const int64_t record = shape_.layer_record[layer];
  const RecordShape& dense = shape_.records[record];
  const auto replay = [&](const SumStep& step) {
    return backward_task(TaskKind::kRouteReplay, layer, step.microbatch,
                         pages_.middle(layer, step.microbatch), false);
  };
  if (dense.shared_elements == 0) {
    for (const SumStep& step : sums_of(record).steps) {
      const bool own = step.kind == SumStep::Kind::kChain && microbatches.has(step.microbatch);
      if (own) tasks.push_back(replay(step));
    }
  } else {
    const int64_t first_element = dense.num_elements - dense.shared_elements;
    sum({record, first_element, dense.shared_elements}, microbatches, tasks,
        [&](const SumStep& step, const PageUse& use) {
          Task t = replay(step);
          t.first = step.first;
          t.use(use.page, use.place, use.access);
          tasks.push_back(t);
        });
  }
  const LayerRouting own(routing.begin() + microbatches.first,
                         routing.begin() + microbatches.end());
  const LayerSeats seats = layer_seats(shape_, layer, microbatches, own);
  std::optional<ExpertSums> sums;
  if (shape_.pages_expert_sums()) sums.emplace(shape_, pages_, layer, routing, seats);
  const size_t rest =
      expert_tasks(layer, microbatches, layer_waves(shape_, layer, microbatches, own, seats),
                   Phase::kBackward, sums ? &*sums : nullptr, beside, tasks);
  if (shape_.rounds() == 1 || !finishes(microbatches)) return rest;
  // Gradients of experts whose last rows were in a chunk before this one.
  const std::vector<int64_t> here = tokens_per_expert(own), all = tokens_per_expert(routing);
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    const auto at = static_cast<size_t>(e);
    if (here[at] > 0 || all[at] == 0) continue;
    Task like = task(TaskKind::kGradient, Phase::kBackward, layer, -1);
    like.record = shape_.expert(layer, e);
    like.expert = static_cast<int32_t>(e);
    like.device = static_cast<uint8_t>(seats.seat(e));
    add_expert_sums(like, sums->rest(e), tasks);
    expert_gradient(like, sums->take_whole(e), tasks);
  }
  return rest;
}

void StepPlan::backward_attention(int64_t layer, Microbatches microbatches, TaskList& tasks) const {
  check_taken_together(microbatches);
  const int64_t record = shape_.layer_record[layer];
  const RecordShape& dense = shape_.records[record];
  const SumPart part{record, 0, dense.num_elements - dense.shared_elements,
                     dense.shared_elements > 0};
  const TaskKind above =
      shape_.is_moe[layer] ? TaskKind::kRouteBackward : TaskKind::kDenseMlpBackward;
  sum(part, microbatches, tasks, [&](const SumStep& step, const PageUse& use) {
    const int64_t b = step.microbatch;
    Task first = backward_task(above, layer, b, pages_.middle(layer, b), true);
    first.first = step.first;
    first.use(use.page, use.place, use.access);
    tasks.push_back(first);
    Task second =
        backward_task(TaskKind::kAttentionBackward, layer, b, pages_.layer_input(layer, b), true);
    second.use(use.page, use.place, Access::kWrite);
    tasks.push_back(second);
    send_gradient(layer, b, tasks);
  });
  if (finishes(microbatches)) dense_gradient(record, tasks);
}

void StepPlan::embed_backward(Microbatches microbatches, TaskList& tasks) const {
  check_taken_together(microbatches);
  const int64_t record = shape_.embedding();
  // A head's sum has the final norm in front of its table, so the embedding's has room there.
  const SumPart part{record, shape_.hidden_size, shape_.records[record].num_elements};
  sum(part, microbatches, tasks, [&](const SumStep& step, const PageUse& use) {
    Task t = of_microbatch(TaskKind::kEmbedBackward, Phase::kBackward, -1, step.microbatch);
    t.first = step.first;
    t.use(pages_.dresidual(shape_.stage_of(0), step.microbatch), use.place, Access::kRead, true);
    t.use(use.page, use.place, use.access);
    tasks.push_back(t);
  });
  if (!finishes(microbatches)) return;
  if (shape_.tied_embeddings && shape_.trains(record)) {
    const int64_t home = shape_.records[record].device;
    add_sums(part, home, pages_.whole_sum(shape_.head()),
             sum_page(record, home, sums_of(record).root), tasks);
  }
  dense_gradient(record, tasks);
}

}  // namespace pagoda
