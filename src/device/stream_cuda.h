// A CUDA stream and a thread that follows it. The issuing thread gives work to CUDA at once and
// runs ahead. The following thread sleeps until marks between the work have happened, and then does
// the host's part: it signals events, runs work that was enqueued for the host and opens the gate
// behind it, and adds up times.
//
// The GPU itself waits for events of other streams, its own and other GPUs'; for events that the
// host signals it waits at a gate (device/cuda_gates.h). Calls are made with the stream's GPU
// current. Times are the GPU's (CudaContext::host_us). Every task
// that begins a span is a range for NVTX, so that profilers show the plan's names. Device-internal.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "device/cuda_context.h"
#include "device/cuda_gates.h"
#include "device/event.h"

namespace pagoda {

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<CudaContext> context, StreamOptions options);
  ~CudaStream() override;

  Event record() override;
  void wait(const Event& event) override;
  void enqueue(std::function<void()> work) override;
  void copy(void* target, const void* source, int64_t bytes) override;
  void copy_from(const Device& owner, void* target, const void* source, int64_t bytes) override;
  ThreadPool& pool() override { return context_->pool(); }
  const std::string& name() const override { return options_.name; }
  StreamTime time() const override;
  bool traced() const override { return true; }
  void begin_span(TraceLabel label) override;
  void end_span() override;

  cudaStream_t raw();  // see raw_stream()
  void check(cudaError_t error, const char* call) const;
  // check() for an op's call; later errors name `op` as the last that gave the GPU work.
  void check_op(cudaError_t error, const char* op);
  [[noreturn]] void failed(const char* call, const std::string& error) const;

 private:
  // A point in the stream, and what the host does once the GPU has reached it, with the time of
  // that.
  struct Mark {
    CudaEvent event;
    std::function<void(int64_t)> then;
    std::shared_ptr<const std::string> task;  // the task when the mark was made
    const char* last_op;                      // the last op before the mark
  };

  void enter() const;
  CudaEvent mark(std::function<void(int64_t)> then);
  void order_after(const Event& event);
  void work_is_issued();
  std::string where(const std::string& task) const;
  std::string where_late(const std::string& task, const char* last_op) const;
  void follow();
  void stood_still(const Event& event, int64_t end_us);

  const std::shared_ptr<CudaContext> context_;
  const StreamOptions options_;
  const Trace::Lane lane_;
  const std::shared_ptr<CudaGates> gates_;
  cudaStream_t stream_ = nullptr;
  const int64_t made_us_ = monotonic_us();

  // Issuing thread only.
  std::shared_ptr<const std::string> task_ = std::make_shared<std::string>("none");
  const char* last_op_ = "none";
  bool in_range_ = false;  // inside a range of NVTX
  bool spanning_ = false;  // inside a span of the trace

  // The following thread's only.
  Delays delays_;
  int64_t wait_begin_us_ = 0;
  TraceLabel span_label_;
  int64_t span_begin_us_ = 0;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<Mark> marks_;
  std::shared_ptr<const std::string> reached_task_ = task_;  // task of the newest mark that was
                                                             // reached
  bool stop_ = false;
  bool unmarked_work_ = false;  // issued since the newest mark
  int64_t idle_since_us_ = made_us_;  // -1: at work
  int64_t idle_us_ = 0;               // before that
  std::array<int64_t, kWorkKinds> waited_us_{};

  std::thread thread_;  // last: starts when the rest exists
};

}  // namespace pagoda
