// Turns the tasks of a zebra group, in a given order, into a queue that says each task's stream,
// its time, and the tasks that it waits for. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/zebra/zebra.h"

namespace pagoda {

class ZebraTasks {
 public:
  // Where the group's first layer gets its input from, and its last layer the gradient of its
  // output: from within the group (embedding, head), or from tasks that receive_input() and
  // receive_gradient() name.
  struct Ends {
    bool input_received = false;
    bool gradient_received = false;
  };

  // Nothing is owned; `queue` grows, and may have other tasks in it. Streams count from
  // `first_stream`. REQUIRES: check_zebra(*group).ok().
  ZebraTasks(const ZebraGroup* group, Ends ends, int32_t first_stream,
             std::vector<StreamTask>* queue);

  void receive_input(int32_t microbatch, int32_t task) { index(kInput, 0, microbatch) = task; }
  void receive_gradient(int32_t microbatch, int32_t task) {
    index(kGradient, 0, microbatch) = task;
  }
  // Adds the task, or returns false if it waits for a task that is not there yet.
  bool try_add(const ZebraTask& task);
  // The tasks that the output of the last layer, or the gradient of the first layer's input, waits
  // for; false if one of them is not there yet. Nothing is added.
  using After = std::array<int32_t, 3>;
  bool output(int32_t microbatch, After& after);
  bool input_gradient(int32_t microbatch, After& after);

 private:
  static constexpr int kInput = kZebraKinds, kGradient = kZebraKinds + 1;  // rows of index_

  int32_t& index(int kind, int32_t layer, int32_t microbatch) {
    const int64_t row = int64_t{kind} * group_.layers + layer;
    return index_[static_cast<size_t>(row * group_.microbatches + microbatch)];
  }
  void begin();
  void wait_for(const ZebraTask& task);
  void need(int kind, int32_t layer, int32_t microbatch);
  void need(ZebraKind kind, int32_t layer, int32_t microbatch) {
    need(static_cast<int>(kind), layer, microbatch);
  }
  void need_output(int32_t layer, int32_t microbatch);
  void need_gradient(int32_t layer, int32_t microbatch);

  const ZebraGroup& group_;
  Ends ends_;
  int32_t first_stream_;
  std::vector<StreamTask>& queue_;
  std::vector<int32_t> index_;  // [kind][layer][microbatch] in queue_; -1: not there yet
  // State of the task that is being added.
  StreamTask next_;
  size_t needs_ = 0;
  bool missing_ = false;
};

}  // namespace pagoda
