// Holds what the streams of one GPU share: its events, its clock, and the call that makes a stream
// wait. Device-internal.
//
// Threading: any thread.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"

namespace pagoda {

// Ends the program with kIoError: "CUDA error in CALL: ...". `where` names stream and task, or what
// the program was doing.
[[noreturn]] void gpu_failed(const char* call, const std::string& error, const std::string& where);
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const std::string& where);
// Calls cuda_failed() unless `error` is cudaSuccess.
void require_cuda(cudaError_t error, const char* call, const std::string& where);

// An event of CUDA with a time; a counted handle.
using CudaEvent = std::shared_ptr<CUevent_st>;

class CudaContext : public std::enable_shared_from_this<CudaContext> {
 public:
  // kUnavailable: the driver lacks a call.
  static Result<std::shared_ptr<CudaContext>> create(int index, int threads);
  ~CudaContext();

  int index() const { return index_; }
  // Makes this GPU the calling thread's current one.
  cudaError_t enter() const { return cudaSetDevice(index_); }

  // Gives an event that nothing is recorded in. The event is reused once its last handle is gone.
  cudaError_t make_event(CudaEvent* event);
  // When `event` happened on the GPU, in the time of monotonic_us(). Ask soon after it happened:
  // the call compares the two clocks, which drift by less than 0.1 ms.
  cudaError_t host_us(const CudaEvent& event, int64_t* happened_us);

  // Makes work that is issued on `stream` later wait until *word, in pinned host memory, is at
  // least `value`; the numbers wrap around.
  cudaError_t wait_value(cudaStream_t stream, const uint32_t* word, uint32_t value) const;

  // The workers for host work on the GPU's streams; started when they are first asked for.
  ThreadPool& pool();

 private:
  using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

  CudaContext(int index, int threads, WaitValue wait_value);
  void put_back(cudaEvent_t event);

  const int index_;
  const int threads_;
  const WaitValue wait_value_;
  std::once_flag pool_made_;
  std::unique_ptr<ThreadPool> pool_;

  std::mutex events_mutex_;  // guards free_events_
  std::vector<cudaEvent_t> free_events_;

  // Times are counted from an event. A later one replaces it before long, since CUDA's times are
  // floats.
  std::mutex clock_mutex_;  // guards the rest
  CudaEvent base_;
  int64_t base_us_ = 0;         // estimated host time of base_
  int64_t least_base_us_ = 0;   // the lowest upper bound of that time
};

}  // namespace pagoda
