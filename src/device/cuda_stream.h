// What CUDA kernels need of a stream. For kernels/cuda; the stream must be one of a device that
// open_gpu() made.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "device/device.h"

namespace pagoda {

// The CUDA stream behind `s`, whose GPU becomes the calling thread's. What is launched on it before
// the next call on `s` is work of `s` like any other. The issuing thread of `s`.
cudaStream_t raw_stream(Stream& s);

// Ends the program with kIoError unless `error` is cudaSuccess, naming `call`, stream and task; of
// what may be an error of earlier work also since which task, and the last `call`, whose text must
// stay. The issuing thread of `s`. After a launch: check_cuda(cudaGetLastError(), "swiglu", s).
void check_cuda(cudaError_t error, const char* call, Stream& s);

// Likewise for an error of a library that computes on the stream, with its text.
[[noreturn]] void library_failed(const char* call, const std::string& error, Stream& s);

}  // namespace pagoda
