#include "train/executor.h"

#include <algorithm>
#include <cmath>

#include "train/trace_names.h"

namespace pagoda {

int64_t StepBatch::unpadded_tokens(int64_t begin, int64_t end) const {
  if (padding.empty()) return end - begin;
  return std::count(padding.begin() + begin, padding.begin() + end, uint8_t{0});
}

namespace {

// The microbatch of a pass of generation that the device attends to in some layer; -1: there is
// none.
int pass_microbatch(const RunShape& shape, int64_t pass_microbatches, int device) {
  for (int64_t b = 0; b < pass_microbatches; ++b) {
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      if (shape.attending(l, b) == device) return static_cast<int>(b);
    }
  }
  return -1;
}

}  // namespace

Executor::Executor(Setup setup)
    : setup_(std::move(setup)),
      own_(setup_.shape->own_devices()),
      steps_(setup_.devices.size()),
      experts_(setup_.devices.size()),
      square_sums_(setup_.table.records.size()),
      finite_(setup_.table.records.size(), 1),
      routed_copies_(setup_.size.microbatches * routed_doubles()),
      routed_at_(setup_.size.microbatches),
      routing_sent_(setup_.size.microbatches),
      indexed_at_(setup_.devices.size()),
      chosen_read_(setup_.devices.size() * setup_.size.microbatches),
      aux_gradient_(setup_.size.microbatches * setup_.config.num_experts),
      load_(setup_.config.num_layers * setup_.config.num_experts),
      routed_(setup_.config.num_layers),
      expert_rows_(setup_.config.num_layers * setup_.devices.size()),
      issue_lane_(setup_.trace ? setup_.trace->lane("run", "issuing thread") : 0) {
  pin(square_sums_);
  pin(finite_);
  pin(routed_copies_);
  pin(load_);
  CHECK(std::ssize(setup_.devices) == own_.count);
  const ModelShape model = model_shape(setup_.config);
  for (size_t d = 0; d < setup_.devices.size(); ++d) {
    blocks_.emplace_back(setup_.config, setup_.table, setup_.frozen, setup_.size, *setup_.ops[d]);
    WorkspaceArena arena{setup_.devices[d]->arena()};
    const int device = own_.first + static_cast<int>(d);
    lay_out_workspace(arena, model, setup_.size, device, steps_[d], experts_[d]);
    if (setup_.shape->attends(device)) attending_.push_back(d);
    pass_microbatch_.push_back(
        pass_microbatch(*setup_.shape, setup_.size.pass_microbatches(), device));
    compute_.push_back(setup_.devices[d]->make_stream(strf("compute %zu", d), WorkKind::kCompute));
    compute_.back()->use_scratch(
        {experts_[d].scratch, static_cast<size_t>(experts_[d].scratch_bytes)});
  }
  if (setup_.shape->devices > 1) make_lanes();
  for (size_t r = 0; r < setup_.table.records.size(); ++r) {
    spans_.push_back(spans_of(static_cast<int64_t>(r)));
    const RecordSpec& record = setup_.table.records[r];
    if (record.kind != RecordKind::kExpert) continue;
    expert_elements_ = std::max(expert_elements_, record.num_elements);
  }
  optimizer_ = make_host_stream({"optimizer", WorkKind::kOptimizer, setup_.trace},
                                std::make_shared<ThreadPool>(setup_.optimizer_threads));
  if (setup_.shape->ranks() == 1) return;
  const auto of_ranks = [this](const char* name) {
    return make_host_stream({name, WorkKind::kLink, setup_.trace}, std::make_shared<ThreadPool>(1));
  };
  arriving_ = of_ranks("arriving weights");
  leaving_ = of_ranks("leaving weights");
  routing_ = of_ranks("arriving routing");
}

Executor::~Executor() { synchronize(); }

template <typename T>
void Executor::pin(std::vector<T>& memory) {
  pins_.push_back(setup_.devices.front()->pin(reinterpret_cast<std::byte*>(memory.data()),
                                              std::ssize(memory) * int64_t{sizeof(T)}));
}

void Executor::begin_step(const StepBatch& batch) {
  batch_ = &batch;
  const int64_t n = setup_.size.tokens();
  CHECK(static_cast<int64_t>(batch.tokens.size()) == n);
  CHECK(batch.padding.empty() || batch.padding.size() == batch.tokens.size());
  tokens_ = n;
  for (Blocks& blocks : blocks_) blocks.set_microbatch_tokens(setup_.size.microbatch_tokens);
  for (const size_t device : attending_) {
    Stream& s = *compute_[device];
    const Workspace& step = steps_[device];
    s.copy(step.tokens, batch.tokens.data(), n * 4);
    s.copy(step.targets, batch.targets.data(), n * 4);
    s.copy(step.positions, batch.positions.data(), n * 4);
    s.copy(step.loss_weights, batch.weights.data(), n * 4);
    if (batch.padding.empty()) {
      setup_.ops[device]->fill_zero(step.padding, n, s);
    } else {
      s.copy(step.padding, batch.padding.data(), n);
    }
  }
}

void Executor::begin_pass(const GenerationPass& pass) {
  CHECK(setup_.size.cache.sequences > 0, "no room for a cache");
  CHECK(std::ssize(pass) == setup_.size.pass_microbatches());
  tokens_ = 0;
  wanted_.clear();
  for (const GenerationPart& part : pass) {
    const auto n = static_cast<int64_t>(part.tokens.size());
    CHECK(n > 0 && n <= setup_.size.pass_tokens());
    tokens_ += n;
    wanted_.push_back(std::ssize(part.wanted));
    CHECK(wanted_.back() <= setup_.size.wanted_tokens());
  }
  for (size_t device = 0; device < blocks_.size(); ++device) {
    if (pass_microbatch_[device] < 0) continue;
    const auto b = static_cast<size_t>(pass_microbatch_[device]);
    const GenerationPart& part = pass[b];
    const auto n = static_cast<int64_t>(part.tokens.size());
    blocks_[device].set_microbatch_tokens(n);
    const int64_t at = static_cast<int64_t>(b) * n;
    Stream& s = *compute_[device];
    const Workspace& step = steps_[device];
    s.copy(step.tokens + at, part.tokens.data(), n * 4);
    s.copy(step.positions + at, part.positions.data(), n * 4);
    s.copy(step.cache.sequence, part.sequences.data(), n * 4);
    if (part.padding.empty()) {
      setup_.ops[device]->fill_zero(step.padding + at, n, s);
    } else {
      s.copy(step.padding + at, part.padding.data(), n);
    }
    s.copy(step.cache.wanted, part.wanted.data(), wanted_[b] * 4);
  }
}

Blocks::Documents Executor::documents(int64_t microbatch) const {
  return {batch_->document_start[microbatch]};
}

// Without prefetch a page is uploaded once everything before the task that wants it is done.
bool Executor::waits_to_bring(const Task& task) const {
  if (setup_.prefetch || task.on_host) return false;
  for (const PageUse& use : task.used()) {
    const bool there = setup_.pager->residency().valid_at(use.page, use.place);
    if (use.access != Access::kCreate && !there) return true;
  }
  return false;
}

namespace {

int64_t computed_together(const auto& joined) {
  return 1 + std::count_if(joined.begin(), joined.end(), [](const auto& other) {
           return other.task.kind != TaskKind::kReadRows;
         });
}

// The task with the rows of those that join it, for traces and times.
Task with_rows_of(Task task, const auto& joined) {
  for (const auto& other : joined) {
    if (other.task.kind == TaskKind::kReadRows) continue;
    task.rows += other.task.rows;
    task.padding += other.task.padding;
  }
  return task;
}

}  // namespace

void Executor::run(const StepPiece& piece, Ledger* ledger, uint64_t generation) {
  const TraceScope issuing(setup_.trace, issue_lane_, "issue tasks");
  if (setup_.link == nullptr || !setup_.link->by_rounds()) {
    for (const Task& task : piece.tasks) run(task, ledger, generation);
    return;
  }
  const EndedRounds rounds = ended_rounds(*setup_.shape, *setup_.pages, piece.all_tasks());
  int ended = 0;
  for (size_t i = 0; i < piece.tasks.size(); ++i) {
    for (; ended < rounds.before[i]; ++ended) setup_.link->end_round();
    run(piece.tasks[i], ledger, generation);
  }
  for (; ended < rounds.all; ++ended) setup_.link->end_round();
}

double Executor::slowness(const Task& task) const {
  return setup_.throttles.empty() || task.on_host ? 1 : setup_.throttles[own(task)].of(task.kind);
}

void Executor::run(const Task& task, Ledger* ledger, uint64_t generation) {
  Stream& s = stream_of(task);
  const Residency& residency = setup_.pager->residency();
  prefetches_.before(task, residency);
  host_updates_ += task.on_host && task.kind == TaskKind::kAdam;
  count_rows(task);
  if (waits_to_bring(task)) s.synchronize();
  {
    Lease lease = setup_.pager->acquire(task.used(), s, generation);
    prefetches_.after(task, residency);
    if (task.kind == TaskKind::kPrefetch) return;  // nothing for the stream to do
    if (task.joins_next) {
      joined_.push_back({task, std::move(lease)});
      return;
    }
    const Task all = with_rows_of(task, joined_);
    if (sends(task.kind) || receives(task.kind)) {
      transfer(task, lease, s);
    } else {
      wait_for_lanes(task, s);
      if (s.traced()) s.begin_span(task_label(all));
      if (times_) times_->begin(all, computed_together(joined_), s);
      s.slow_down(slowness(task));
      enqueue(task, lease, s, ledger);
      s.slow_down(1);
      if (times_) times_->end(s);
      s.end_span();
    }
    joined_.clear();
  }
  for (const PageUse& use : task.used()) {
    if (use.last) setup_.pager->discard(use.page);
  }
}

void Executor::enqueue(const Task& task, const Lease& lease, Stream& s, Ledger* ledger) {
  const int64_t l = task.layer, b = task.microbatch;
  const LayerBuffers in = layer_buffers(task, lease);
  const int64_t residual_bytes =
      setup_.size.microbatch_tokens * setup_.config.hidden_size * dtype_bytes(setup_.size.dtype);
  auto page = [&](size_t i) -> void* { return lease.data(i); };
  auto choices = [&](size_t i) {
    return reinterpret_cast<int32_t*>(lease.data(i) + residual_bytes);
  };
  const bool tied = setup_.config.tie_word_embeddings;
  const GradientSum sum = gradient_sum(task, lease);
  const Workspace& step = steps_[own(task)];
  const Blocks& blocks = blocks_[own(task)];
  switch (task.kind) {
    case TaskKind::kPrefetch:
    case TaskKind::kUpload:
    case TaskKind::kReadRows:
    case TaskKind::kSend:
    case TaskKind::kReceive: case TaskKind::kSendPage: case TaskKind::kReceivePage:
      return;  // no work, or transfer()'s, or that of the experts that they join
    case TaskKind::kTakeParcel:
      return s.copy(page(0), lease.data(1) + task.first_byte, task.bytes);
    case TaskKind::kPlaceRows: return enqueue_place(task, lease, s);
    case TaskKind::kPackRows: return enqueue_pack(task, lease, s);
    case TaskKind::kAdam: return enqueue_adam(task, lease, s, *ledger);
    case TaskKind::kEmbed:
      return blocks.embed(b, page(0), page(1), step, s);
    case TaskKind::kAttention:
      return blocks.attention(l, b, page(0), page(1), documents(b), page(2), step, s);
    case TaskKind::kCachedAttention:
      return blocks.cached_attention(l, b, page(0), page(1), page(2), step, s);
    case TaskKind::kRoute: return enqueue_route(task, lease, choices(1), in, s);
    case TaskKind::kIndex: return enqueue_index(task, s);
    case TaskKind::kDispatch:
    case TaskKind::kDispatchBackward:
      return enqueue_dispatch(task, lease, in, s);
    case TaskKind::kExpert:
    case TaskKind::kExpertBackward: return enqueue_experts(task, lease, s);
    case TaskKind::kCombine:
    case TaskKind::kCombineBackward:
      return enqueue_combine(task, lease, in, s);
    case TaskKind::kResidual:
      return blocks.residual(page(0), in.sum, page(1), s);
    case TaskKind::kDenseMlp:
      return blocks.dense_mlp(l, b, page(0), page(1), page(2), step, s);
    case TaskKind::kHead:
    case TaskKind::kLoss:
      return blocks.head(b, page(0), tied ? page(2) : nullptr, page(1),
                         task.kind == TaskKind::kHead ? batch_->total_weight : 0.0, in.dresidual,
                         sum, step, s);
    case TaskKind::kLogits:
      if (wanted_[static_cast<size_t>(b)] == 0) return;
      return blocks.logits(wanted_[static_cast<size_t>(b)], page(0), tied ? page(2) : nullptr,
                           page(1), step, s);
    case TaskKind::kRouteReplay:
      return enqueue_replay(task, lease, choices(1), in, s);
    case TaskKind::kRouteBackward:
      return blocks.route_backward(l, b, page(0), page(1), in, sum, z_slope_, step, s);
    case TaskKind::kDenseMlpBackward:
      return blocks.dense_mlp_backward(l, b, page(0), page(1), in.dresidual, sum, step, s);
    case TaskKind::kAttentionBackward:
      return blocks.attention_backward(l, b, page(0), page(1), documents(b), in.dresidual, sum,
                                       step, s);
    case TaskKind::kEmbedBackward:
      return blocks.embed_backward(b, in.dresidual, sum, step, s);
    case TaskKind::kAddSums: return enqueue_add_sums(task, lease, s);
    case TaskKind::kGradient: return enqueue_gradient(task, lease, s);
  }
  CHECK(false, "no such task");
}

// The sum of gradients that the task has leased, if it has one.
GradientSum Executor::gradient_sum(const Task& task, const Lease& lease) const {
  const PageTable& pages = *setup_.pages;
  for (size_t i = 0; i < task.num_uses; ++i) {
    const PageTable::Page& page = pages.pages[task.uses[i].page];
    const PageKind kind = pages.classes[page.slot_class].kind;
    if (kind != PageKind::kGradientSum && kind != PageKind::kExpertSum) continue;
    return {reinterpret_cast<float*>(lease.data(i)), task.first};
  }
  return {};
}

void Executor::enqueue_add_sums(const Task& task, const Lease& lease, Stream& s) {
  float* to = reinterpret_cast<float*>(lease.data(0)) + task.first_element;
  const float* from = reinterpret_cast<const float*>(lease.data(1)) + task.first_element;
  setup_.ops[own(task)]->add(DType::kF32, to, DType::kF32, from, task.elements, to, s);
}

// The in-layer buffers of its microbatch that the task has leased.
LayerBuffers Executor::layer_buffers(const Task& task, const Lease& lease) const {
  LayerBuffers in;
  if (task.microbatch < 0) return in;
  const PageTable& pages = *setup_.pages;
  const int64_t t = setup_.size.microbatch_tokens;
  const int64_t rows_bytes = t * setup_.config.hidden_size * dtype_bytes(setup_.size.dtype);
  for (size_t i = 0; i < task.num_uses; ++i) {
    const PageId page = task.uses[i].page;
    if (pages.is_normed(page)) {
      in.normed = lease.data(i);
      in.rstd = reinterpret_cast<float*>(lease.data(i) + rows_bytes);
      in.probs = in.rstd + t;
    } else if (pages.is_sum(page)) {
      in.sum = reinterpret_cast<float*>(lease.data(i));
    } else if (pages.is_dresidual(page)) {
      in.dresidual = lease.data(i);
    }
  }
  return in;
}

// Enqueues the work of the tasks that join this one together with its own.
void Executor::enqueue_experts(const Task& task, const Lease& lease, Stream& s) {
  const ExpertSpace& space = experts_[own(task)];
  std::vector<GroupExpert> group;
  const RunShape& shape = *setup_.shape;
  const bool any_trains = shape.trains(task.record) ||
                          std::any_of(joined_.begin(), joined_.end(), [&](const Joined& other) {
                            return other.task.kind != TaskKind::kReadRows &&
                                   shape.trains(other.task.record);
                          });
  const auto add = [&](const Task& t, const Lease& pages) {
    float* gradient = gradient_sum(t, pages).data;  // none where nothing is trained
    if (gradient == nullptr && space.grad != nullptr && any_trains) {
      gradient = space.grad + t.gradient * expert_elements_;
    }
    const int64_t columns =
        setup_.config.parts.columns_at(t.expert, setup_.config.moe_intermediate_size);
    group.push_back(
        {pages.data(0), {t.first_row, t.block_row, t.rows, t.padding}, t.first, columns, gradient});
  };
  for (const Joined& other : joined_) {
    if (other.task.kind != TaskKind::kReadRows) add(other.task, other.lease);
  }
  add(task, lease);
  const Blocks& blocks = blocks_[own(task)];
  auto [inbound, outbound] = row_pages_of(task, lease);
  if (reads_in_place()) {
    locate_rows(task, inbound, s);
    inbound = {};
  }
  if (task.kind == TaskKind::kExpert) {
    blocks.experts(task.layer, group, inbound, outbound, space, s);
  } else {
    blocks.experts_backward(task.layer, group, inbound, outbound, space, s);
    if (outbound == nullptr) take_weight_gradients(task, s);
  }
}

void Executor::enqueue_gradient(const Task& task, const Lease& lease, Stream& s) {
  const RecordSpec& record = setup_.table.records[task.record];
  float* grad = gradient_sum(task, lease).data;
  if (grad == nullptr) grad = experts_[own(task)].grad + task.gradient * expert_elements_;
  if (record.kind == RecordKind::kEmbedding) grad += setup_.config.hidden_size;
  clear_frozen(task, grad, s);
  double* square_sum = experts_[own(task)].square_sums + task.record;
  setup_.ops[own(task)]->finish_gradient(setup_.size.dtype, grad,
                                         setup_.frozen.trained(setup_.table, task.record),
                                         lease.data(0), square_sum, s);
  s.copy(&square_sums_[task.record], square_sum, sizeof(double));
}

// Zeros what frozen tensors before the last one that trains have of the sum, which nobody else
// reads, so that it need not be written back.
void Executor::clear_frozen(const Task& task, float* gradient, Stream& s) {
  const RecordSpec& record = setup_.table.records[task.record];
  const int64_t trained = setup_.frozen.trained(setup_.table, task.record);
  for (int64_t t = record.first_tensor; t < record.first_tensor + record.num_tensors; ++t) {
    const TensorSpec& tensor = setup_.table.tensors[t];
    if (!setup_.frozen.has(t) || tensor.offset >= trained) continue;
    setup_.ops[own(task)]->fill_zero(gradient + tensor.offset, tensor.num_elements() * 4, s);
  }
}

Result<Executor::Routed> Executor::read_routing(int64_t layer, int64_t microbatch) {
  const TraceScope reading(setup_.trace, issue_lane_, "read back routing");
  if (own_.contains(attending(layer, microbatch))) {
    routed_at_[microbatch].wait();
  } else {
    RETURN_IF_ERROR(receive_routing(layer, microbatch));
  }
  const auto e = static_cast<size_t>(setup_.config.num_experts);
  const double* copy = routed_copies_.data() + microbatch * routed_doubles();
  return Routed{{reinterpret_cast<const int32_t*>(copy + 1 + e), e}, {copy + 1, e}, *copy};
}

void Executor::set_aux_gradient(const std::vector<float>& gradient, Microbatches microbatches) {
  // A model may name experts and have no layer with any: then there is nothing to copy.
  const int64_t e = std::ssize(gradient) / setup_.size.microbatches;
  const int64_t first = microbatches.first * e;
  std::copy_n(gradient.begin() + first, microbatches.count * e, aux_gradient_.begin() + first);
  for (const size_t device : attending_) {
    compute_[device]->copy(steps_[device].aux_grad + first, aux_gradient_.data() + first,
                           microbatches.count * e * static_cast<int64_t>(sizeof(float)));
  }
  if (microbatches.count < setup_.size.microbatches) return;
  for (const size_t device : attending_) compute_[device]->synchronize();
}

void Executor::synchronize() {
  // The first device waits for the others, so that its waiting time names them.
  Stream& s = *compute_[0];
  for (size_t d = 1; d < compute_.size(); ++d) s.wait(compute_[d]->record());
  for (const Lanes& lanes : lanes_) {
    for (const std::unique_ptr<Stream>& lane : lanes) {
      if (lane) s.wait(lane->record());
    }
  }
  for (const auto& [lane, second] : second_) s.wait(second.stream->record());
  s.wait(optimizer_->record());
  if (arriving_) s.wait(arriving_->record());
  if (leaving_) s.wait(leaving_->record());
  s.synchronize();
}

std::vector<double> Executor::loss_sums() {
  std::vector<double> sums(static_cast<size_t>(setup_.size.microbatches), 0);
  for (int64_t first = 0, end = 0; first < setup_.size.microbatches; first = end) {
    const auto device_of = [&](int64_t b) { return attending(setup_.shape->num_layers, b); };
    const int device = device_of(first);
    for (end = first; end < setup_.size.microbatches && device_of(end) == device;) ++end;
    if (!own_.contains(device)) continue;
    compute_[own(device)]->copy(sums.data() + first, steps_[own(device)].loss_sums + first,
                                (end - first) * int64_t{sizeof(double)});
  }
  for (const size_t device : attending_) compute_[device]->synchronize();
  return sums;
}

void Executor::read_logits(int64_t microbatch, int64_t i, std::vector<float>& logits) {
  const int64_t v = setup_.config.vocab_size;
  logits.resize(static_cast<size_t>(v));
  CHECK(generates(microbatch));
  const size_t device = own(attending(setup_.shape->num_layers, microbatch));
  Stream& s = *compute_[device];
  s.copy(logits.data(), steps_[device].head.logits + i * v, v * 4);
  s.synchronize();
}

double Executor::square_sum(int64_t record) const { return square_sums_[record]; }

}  // namespace pagoda
