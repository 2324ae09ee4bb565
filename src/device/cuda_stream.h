// Access to the CUDA stream behind a Stream, for kernels/cuda. The stream must belong to a device
// that open_gpu() made.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "device/device.h"

namespace pagoda {

// The CUDA stream behind `s`, whose GPU becomes the calling thread's. Work that is launched on it
// before the next call on `s` counts as work of `s`. Only the issuing thread of `s` may call it.
cudaStream_t raw_stream(Stream& s);

// Ends the program with kIoError unless `error` is cudaSuccess. The message names `call`, stream
// and task; if the error may come from earlier work, also the tasks in question and the last
// `call`, whose text must stay valid. Only the issuing thread of `s` may call it. After a launch:
// check_cuda(cudaGetLastError(), "swiglu", s).
void check_cuda(cudaError_t error, const char* call, Stream& s);

// Ends the program with the error text of a library that computes on the stream.
[[noreturn]] void library_failed(const char* call, const std::string& error, Stream& s);

}  // namespace pagoda
