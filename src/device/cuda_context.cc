#include "device/cuda_context.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"

namespace pagoda {

void gpu_failed(const char* call, const std::string& error, const std::string& where) {
  std::fprintf(stderr,
               "pagoda: CUDA error in %s: %s, %s; checkpoints are intact: continue with "
               "--resume, and if it comes again look for \"Xid\" in the system's log\n",
               call, error.c_str(), where.c_str());
  // The program ends at once: other threads may wait for the GPU, or for memory that only the GPU
  // can give back.
  _exit(static_cast<int>(Exit::kIoError));
}

void cuda_failed(cudaError_t error, const char* call, const std::string& where) {
  gpu_failed(call, strf("%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error)), where);
}

void require_cuda(cudaError_t error, const char* call, const std::string& where) {
  if (error != cudaSuccess) [[unlikely]] cuda_failed(error, call, where);
}

Result<std::shared_ptr<CudaContext>> CudaContext::create(int index, int threads) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
  constexpr const char* kCall = "cuStreamWaitValue32";
#if CUDART_VERSION >= 12050
  const cudaError_t asked =
      cudaGetDriverEntryPointByVersion(kCall, &found, 12000, cudaEnableDefault, &answer);
#else
  const cudaError_t asked = cudaGetDriverEntryPoint(kCall, &found, cudaEnableDefault, &answer);
#endif
  if (asked != cudaSuccess || answer != cudaDriverEntryPointSuccess || found == nullptr) {
    return Status(Exit::kUnavailable,
                  strf("the NVIDIA driver has no %s, which streams wait with; update the driver, "
                       "or train on the CPU with train.devices = \"cpu\"",
                       kCall));
  }
  return std::shared_ptr<CudaContext>(
      new CudaContext(index, threads, reinterpret_cast<WaitValue>(found)));
}

CudaContext::CudaContext(int index, int threads, WaitValue wait_value)
    : index_(index), threads_(threads), wait_value_(wait_value) {}

CudaContext::~CudaContext() {
  base_.reset();  // goes to the free ones
  for (cudaEvent_t event : free_events_) cudaEventDestroy(event);
}

cudaError_t CudaContext::make_event(CudaEvent* made) {
  cudaEvent_t event = nullptr;
  {
    std::lock_guard lock(events_mutex_);
    if (!free_events_.empty()) {
      event = free_events_.back();
      free_events_.pop_back();
    }
  }
  if (event == nullptr) {
    cudaError_t error = enter();
    // A thread that waits for the event sleeps, since the cores have other work.
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventBlockingSync);
    if (error != cudaSuccess) return error;
  }
  // A handle may outlive the context's other owners.
  *made = CudaEvent(event, [weak = weak_from_this()](cudaEvent_t done) {
    if (const auto context = weak.lock()) {
      context->put_back(done);
    } else {
      cudaEventDestroy(done);
    }
  });
  return cudaSuccess;
}

void CudaContext::put_back(cudaEvent_t event) {
  std::lock_guard lock(events_mutex_);
  free_events_.push_back(event);
}

// `now` is at or after the event, so now - elapsed is the latest that the base's time can be. The
// least of these over a while is taken: some of those who wait wake at once.
cudaError_t CudaContext::host_us(const CudaEvent& event, int64_t* happened_us) {
  constexpr int64_t kWindow_us = 2'000'000;  // a part in 10^5 of drift is 20 us; floats hold 1 us
  const int64_t now_us = monotonic_us();
  std::lock_guard lock(clock_mutex_);
  if (!base_) {
    base_ = event;
    base_us_ = least_base_us_ = *happened_us = now_us;
    return cudaSuccess;
  }
  float elapsed_ms = 0;
  const cudaError_t error = cudaEventElapsedTime(&elapsed_ms, base_.get(), event.get());
  if (error != cudaSuccess) return error;
  const auto elapsed_us = static_cast<int64_t>(1000.0 * double{elapsed_ms});
  least_base_us_ = std::min(least_base_us_, now_us - elapsed_us);
  base_us_ = std::min(base_us_, least_base_us_);
  *happened_us = std::min(base_us_ + elapsed_us, now_us);
  if (elapsed_us > kWindow_us) {
    base_ = event;
    base_us_ = least_base_us_ + elapsed_us;
    least_base_us_ = now_us;
  }
  return cudaSuccess;
}

cudaError_t CudaContext::wait_value(cudaStream_t stream, const uint32_t* word,
                                    uint32_t value) const {
  const auto address = reinterpret_cast<CUdeviceptr>(word);
  // The runtime's error codes are the driver's.
  return static_cast<cudaError_t>(
      wait_value_(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ));
}

ThreadPool& CudaContext::pool() {
  std::call_once(pool_made_, [this] { pool_ = std::make_unique<ThreadPool>(threads_); });
  return *pool_;
}

}  // namespace pagoda
