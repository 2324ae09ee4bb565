// Rows on their way from attention to experts and back: how the executor finds them from routing.
#include <algorithm>

#include "plan/step/step_plan.h"
#include "train/executor.h"
#include "train/trace_names.h"

namespace pagoda {

void Executor::set_routing(int64_t layer, int64_t first_microbatch, const LayerRouting& routing) {
  const Microbatches routed{first_microbatch, std::ssize(routing)};
  routed_[layer] = {first_microbatch, routing, layer_waves(*setup_.shape, layer, routed, routing)};
  LayerRouting& first = routed_[layer].first_row;
  int64_t row = 0;
  for (size_t e = 0; e < routing.front().size(); ++e) {
    for (size_t b = 0; b < routing.size(); ++b) {
      first[b][e] = row;
      row += routing[b][e];
    }
  }
  CHECK(row <= tokens_ * setup_.config.experts_per_token, "routing of %lld rows", (long long)row);
}

Transfer Executor::next_transfer(const Task& task, Channels& channels) {
  const bool sends = task.kind == TaskKind::kSend;
  const int from = sends ? task.device : task.peer, to = sends ? task.peer : task.device;
  return {channels[{from, to}]++, from, to, task.bytes};
}

void Executor::transfer(const Task& task, Lease& lease, Stream& s) {
  if (task.kind == TaskKind::kSend) {
    return lease.release(setup_.link->send(next_transfer(task, sent_), lease.data(0), s));
  }
  const TraceLabel label = s.traced() ? task_label(task) : TraceLabel();
  setup_.link->receive(next_transfer(task, received_), lease.data(0), s, label);
}

// The other lanes of device 0 read what is written here, and so they wait for it, and it for them.
void Executor::enqueue_index(const Task& task, Stream& s) {
  if (!lanes_.empty()) {
    s.wait(lanes_.front().out->record());
    s.wait(lanes_.front().in->record());
  }
  const int64_t k = setup_.config.experts_per_token;
  const int64_t t = std::min(tokens_, setup_.size.microbatch_tokens);
  const LayerRouting& first = routed_[task.layer].first_row;
  for (size_t i = 0; i < first.size(); ++i) {
    const int64_t b = task.microbatch + static_cast<int64_t>(i);
    setup_.ops->index_rows(step_.experts + b * t * k, t, k, setup_.config.num_experts,
                           first[i].data(), step_.rows, step_.choices, s);
  }
  if (lanes_.empty()) return;
  const Event indexed = s.record();
  lanes_.front().out->wait(indexed);
  lanes_.front().in->wait(indexed);
}

const ExpertWave& Executor::wave_of(const Task& task) const {
  const RoutedRows& routed = routed_[task.layer];
  CHECK(static_cast<size_t>(task.wave) < routed.waves.size(), "layer %d has fewer waves",
        task.layer);
  return routed.waves[static_cast<size_t>(task.wave)];
}

// Its index in the routing that set_routing() was given.
int64_t Executor::routed_microbatch(const Task& task) const {
  return task.microbatch - routed_[task.layer].first_microbatch;
}

void Executor::enqueue_dispatch(const Task& task, const Lease& lease, const LayerBuffers& in,
                                Stream& s) {
  const ExpertGroup& group = wave_of(task)[task.peer];
  std::vector<RowRun> runs;
  if (task.rows > 0) {
    const ExpertGroup::Part* part = group.part(routed_microbatch(task));
    CHECK(part != nullptr && part->rows == task.rows, "layer %d has other rows", task.layer);
    for (const ExpertGroup::Run& run : part->runs) {
      runs.push_back({run.first_row, run.group_row, run.rows});
    }
  }
  blocks_.dispatch(runs, group.rows() + group.padding(), {group.rows(), task.padding},
                   task.microbatch, in, lease.data(0), task.kind == TaskKind::kDispatchBackward,
                   step_, s);
}

// Adds what the devices gave in the order of the experts. The task's pages are in the order in
// which these begin.
void Executor::enqueue_combine(const Task& task, const Lease& lease, const LayerBuffers& in,
                               Stream& s) {
  struct Given {
    RowRun run;
    int64_t expert;
    size_t device;
  };
  if (task.rows == 0) return;
  const ExpertWave& wave = wave_of(task);
  std::vector<Given> given;
  for (size_t d = 0; d < wave.size(); ++d) {
    const ExpertGroup::Part* part = wave[d].part(routed_microbatch(task));
    if (part == nullptr) continue;
    for (const ExpertGroup::Run& run : part->runs) {
      if (run.expert < task.expert || run.expert > task.last_expert) continue;
      given.push_back({{run.first_row, run.group_row, run.rows}, run.expert, d});
    }
  }
  std::sort(given.begin(), given.end(),
            [](const Given& a, const Given& b) { return a.expert < b.expert; });
  std::vector<size_t> devices;  // of the task's pages
  for (size_t i = 0; i < given.size();) {
    const size_t device = given[i].device;
    std::vector<RowRun> runs;
    for (; i < given.size() && given[i].device == device; ++i) runs.push_back(given[i].run);
    auto page = std::find(devices.begin(), devices.end(), device);
    if (page == devices.end()) page = devices.insert(page, device);
    const ExpertGroup& group = wave[device];
    blocks_.combine(runs, group.rows() + group.padding(), task.microbatch,
                    lease.data(static_cast<size_t>(page - devices.begin())),
                    task.kind == TaskKind::kCombineBackward, in.sum, step_, s);
  }
}

}  // namespace pagoda
