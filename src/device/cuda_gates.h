// Gates are points at which a CUDA stream stands still until the host lets it go on. They let work
// on a GPU wait for events on the host (a finished disk read, a stream of the host) without
// blocking the thread that issues work. Device-internal.
//
// A stream comes to its gates in the order they were added, and may come to one long after the host
// opened it; the host opens them in any order. All gates of a stream are one word of pinned memory:
// the number of gates that are open with all before them, which the GPU compares.
//
// Threading: add() on the stream's issuing thread, open() on any.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "device/cuda_context.h"

namespace pagoda {

class CudaGates {
 public:
  explicit CudaGates(std::shared_ptr<CudaContext> context);
  ~CudaGates();
  CudaGates(const CudaGates&) = delete;
  CudaGates& operator=(const CudaGates&) = delete;

  // Adds a shut gate and returns its number.
  uint32_t add();
  // Makes work that is issued on `stream` from here on wait for the gate. `stream` is always the
  // same.
  cudaError_t put(cudaStream_t stream, uint32_t gate) const;
  void open(uint32_t gate);  // once

 private:
  const std::shared_ptr<CudaContext> context_;
  uint32_t* word_ = nullptr;  // gates that are open with all before them; wraps around

  std::mutex mutex_;  // guards the rest
  uint32_t passed_ = 0;     // *word_
  std::deque<bool> open_;   // state of the gates after those
};

}  // namespace pagoda
