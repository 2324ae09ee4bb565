#include "device/cuda_gates.h"

#include <atomic>

namespace pagoda {

CudaGates::CudaGates(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {
  void* word = nullptr;
  require_cuda(context_->enter(), "cudaSetDevice", "a stream's gates");
  require_cuda(cudaHostAlloc(&word, sizeof(*word_), cudaHostAllocPortable | cudaHostAllocMapped),
               "cudaHostAlloc", "a stream's gates");
  word_ = static_cast<uint32_t*>(word);
  *word_ = 0;
}

CudaGates::~CudaGates() { cudaFreeHost(word_); }

uint32_t CudaGates::add() {
  std::lock_guard lock(mutex_);
  open_.push_back(false);
  return passed_ + static_cast<uint32_t>(open_.size());
}

cudaError_t CudaGates::put(cudaStream_t stream, uint32_t gate) const {
  return context_->wait_value(stream, word_, gate);
}

void CudaGates::open(uint32_t gate) {
  std::lock_guard lock(mutex_);
  const uint32_t ahead = gate - passed_ - 1;  // shut gates before it
  CHECK(ahead < open_.size() && !open_[ahead], "a gate is opened once");
  open_[ahead] = true;
  for (; !open_.empty() && open_.front(); ++passed_) open_.pop_front();
  // What the host did before is seen by work behind the gate.
  std::atomic_ref(*word_).store(passed_, std::memory_order_release);
}

}  // namespace pagoda
