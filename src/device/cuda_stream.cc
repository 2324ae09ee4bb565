#include "device/cuda_stream.h"

#include "device/stream_cuda.h"

namespace pagoda {
namespace {

CudaStream& as_cuda(Stream& s) {
  auto* stream = dynamic_cast<CudaStream*>(&s);
  CHECK(stream != nullptr, "%s is not a stream of a GPU", s.name().c_str());
  return *stream;
}

}  // namespace

cudaStream_t raw_stream(Stream& s) { return as_cuda(s).raw(); }

void check_cuda(cudaError_t error, const char* call, Stream& s) {
  as_cuda(s).check_op(error, call);
}

void library_failed(const char* call, const std::string& error, Stream& s) {
  as_cuda(s).failed(call, error);
}

}  // namespace pagoda
