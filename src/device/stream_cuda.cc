#include "device/stream_cuda.h"

#include <nvtx3/nvToolsExt.h>

#include <utility>

namespace pagoda {
namespace {

// Two marks behind each other are some microseconds apart also when nothing was waited for.
constexpr int64_t kNoWait_us = 10;

// Errors of work that runs; they show at whatever call comes next, of any stream of the GPU.
bool comes_late(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// Fills NVTX's table of functions, once and before any range: ranges of several threads read it
// without a lock.
void start_nvtx() {
  static const bool started = [] {
    nvtxInitialize(nullptr);
    return true;
  }();
  (void)started;
}

}  // namespace

CudaStream::CudaStream(std::shared_ptr<CudaContext> context, StreamOptions options)
    : context_(std::move(context)),
      options_(std::move(options)),
      lane_(options_.trace ? options_.trace->lane("streams", options_.name) : 0),
      gates_(std::make_shared<CudaGates>(context_)),
      delays_(options_.kind) {
  start_nvtx();
  enter();
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  thread_ = std::thread([this] { follow(); });
}

CudaStream::~CudaStream() {
  synchronize();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
  context_->enter();
  cudaStreamDestroy(stream_);
}

std::string CudaStream::where(const std::string& task) const {
  return strf("stream \"%s\" of GPU %d, task \"%s\"", options_.name.c_str(), context_->index(),
              task.c_str());
}

std::string CudaStream::where_late(const std::string& task, const char* last_op) const {
  std::lock_guard lock(mutex_);
  return where(task) + strf("; the error may come from work enqueued since task \"%s\" (last op: "
                            "%s), or from another stream", reached_task_->c_str(), last_op);
}

void CudaStream::check(cudaError_t error, const char* call) const {
  if (error == cudaSuccess) [[likely]] return;
  cuda_failed(error, call, comes_late(error) ? where_late(*task_, last_op_) : where(*task_));
}

void CudaStream::check_op(cudaError_t error, const char* op) {
  check(error, op);
  last_op_ = op;
}

void CudaStream::failed(const char* call, const std::string& error) const {
  gpu_failed(call, error, where(*task_));
}

void CudaStream::work_is_issued() {
  std::lock_guard lock(mutex_);
  unmarked_work_ = true;
  if (idle_since_us_ >= 0) idle_us_ += monotonic_us() - std::exchange(idle_since_us_, -1);
}

// A thread that issues work for several GPUs changes between them.
void CudaStream::enter() const { check(context_->enter(), "cudaSetDevice"); }

cudaStream_t CudaStream::raw() {
  work_is_issued();
  enter();
  return stream_;
}

CudaEvent CudaStream::mark(std::function<void(int64_t)> then) {
  CudaEvent event;
  enter();
  check(context_->make_event(&event), "cudaEventCreateWithFlags");
  check(cudaEventRecord(event.get(), stream_), "cudaEventRecord");
  {
    std::lock_guard lock(mutex_);
    unmarked_work_ = false;
    if (idle_since_us_ >= 0) idle_us_ += monotonic_us() - std::exchange(idle_since_us_, -1);
    marks_.push_back({event, std::move(then), task_, last_op_});
  }
  changed_.notify_one();
  return event;
}

Event CudaStream::record() {
  Event event = Event::make();
  CudaEvent reached = mark([this, event](int64_t) mutable { event.signal(delays_); });
  Event::State& state = *Event::State::of(event);
  std::lock_guard lock(state.mutex);
  if (!state.happened) state.native = std::move(reached);
  return event;
}

void CudaStream::wait(const Event& event) {
  if (event.happened()) return;
  mark([this](int64_t at_us) { wait_begin_us_ = at_us; });
  order_after(event);
  mark([this, event](int64_t at_us) { stood_still(event, at_us); });
}

void CudaStream::order_after(const Event& event) {
  const std::shared_ptr<Event::State>& state = Event::State::of(event);
  if (!state) return;
  CudaEvent native;
  std::vector<std::weak_ptr<Event::State>> parts;
  {
    std::lock_guard lock(state->mutex);
    if (state->happened) return;
    native = std::static_pointer_cast<CUevent_st>(state->native);
    parts = state->parts;
  }
  enter();
  if (native) {
    return check(cudaStreamWaitEvent(stream_, native.get(), 0), "cudaStreamWaitEvent");
  }
  for (const std::weak_ptr<Event::State>& part : parts) {
    if (auto held = part.lock()) order_after(Event::State::event_of(std::move(held)));
  }
  if (!parts.empty()) return;
  const uint32_t gate = gates_->add();
  check(gates_->put(stream_, gate), "cuStreamWaitValue32");
  event.when_happened([gates = gates_, gate] { gates->open(gate); });
}

void CudaStream::enqueue(std::function<void()> work) {
  const uint32_t gate = gates_->add();
  mark([gates = gates_, gate, work = std::move(work)](int64_t) {
    work();
    gates->open(gate);
  });
  check(gates_->put(stream_, gate), "cuStreamWaitValue32");
}

void CudaStream::copy(void* target, const void* source, int64_t bytes) {
  if (bytes == 0) return;
  cudaStream_t stream = raw();
  check_op(cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
           "cudaMemcpyAsync");
}

void CudaStream::copy_from(const Device& owner, void* target, const void* source, int64_t bytes) {
  if (bytes == 0) return;
  cudaStream_t stream = raw();
  check_op(cudaMemcpyPeerAsync(target, context_->index(), source, owner.gpu(),
                               static_cast<size_t>(bytes), stream),
           "cudaMemcpyPeerAsync");
}

StreamTime CudaStream::time() const {
  StreamTime time;
  std::lock_guard lock(mutex_);
  const int64_t now_us = monotonic_us();
  time.idle_us = idle_us_ + (idle_since_us_ >= 0 ? now_us - idle_since_us_ : 0);
  time.waited_us = waited_us_;
  time.busy_us = now_us - made_us_ - time.idle_us - time.all_waits_us();
  return time;
}

void CudaStream::begin_span(TraceLabel label) {
  task_ = std::make_shared<std::string>(label.name);
  nvtxRangePushA(label.name.c_str());
  in_range_ = true;
  spanning_ = options_.trace != nullptr && options_.trace->on();
  if (!spanning_) return;
  mark([this, label = std::move(label)](int64_t at_us) {
    span_label_ = label;
    span_begin_us_ = at_us;
  });
}

void CudaStream::end_span() {
  if (std::exchange(in_range_, false)) nvtxRangePop();
  if (!std::exchange(spanning_, false)) return;
  mark([this](int64_t at_us) {
    options_.trace->span(lane_, span_begin_us_, at_us, std::move(span_label_));
  });
}

void CudaStream::follow() {
  context_->enter();  // an error comes again at the first mark, which has a task to name
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !marks_.empty(); });
    if (marks_.empty()) return;
    Mark mark = std::move(marks_.front());
    lock.unlock();
    int64_t reached_us = 0;
    cudaError_t error = cudaEventSynchronize(mark.event.get());
    if (error == cudaSuccess) error = context_->host_us(mark.event, &reached_us);
    if (error != cudaSuccess) [[unlikely]] {
      cuda_failed(error, "work before an event", where_late(*mark.task, mark.last_op));
    }
    lock.lock();
    reached_task_ = mark.task;
    lock.unlock();
    mark.then(reached_us);
    mark = {};  // captured owners go before the next wait
    lock.lock();
    marks_.pop_front();
    if (marks_.empty() && !unmarked_work_) idle_since_us_ = monotonic_us();
  }
}

// Accounts for the time from wait_begin_us_ to end_us. Runs on the following thread.
void CudaStream::stood_still(const Event& event, int64_t end_us) {
  event.wait();  // it has happened, but its own stream's thread may not have said so yet
  if (end_us - wait_begin_us_ <= kNoWait_us) return;
  const Delays cause = event.followed_by(WorkKind::kWake);
  delays_ = Delays(options_.kind, end_us, cause);
  std::lock_guard lock(mutex_);
  for (const Delays::Part& part : cause.split(wait_begin_us_, end_us)) {
    waited_us_[static_cast<size_t>(part.by)] += part.end_us - part.begin_us;
    if (options_.trace == nullptr || !options_.trace->on()) continue;
    options_.trace->span(lane_, part.begin_us, part.end_us,
                         {std::string("wait: ") + work_kind_name(part.by), {}, 0});
  }
}

}  // namespace pagoda
