#include "kernels/cuda/ops_class.cuh"

#include <utility>

#include "base/log.h"
#include "kernels/cuda/attention.cuh"

namespace pagoda {
namespace PAGODA_MACHINE {
namespace {

// A library computes attention if it takes the shape and needs little memory.
class OpsWithLibrary final : public CudaOps {
 public:
  OpsWithLibrary(Processor processor, std::shared_ptr<LibraryAttention> library)
      : CudaOps(processor), library_(std::move(library)) {}

  void attention(DType dt, const AttentionShape& shape, const int32_t* document_start,
                 int64_t documents, const void* q, const void* k, const void* v, void* out,
                 float* lse, Stream& s) override {
    check_attention(shape, document_start, documents);
    const AttentionGraph graph = attention_graph(false, shape, document_start, documents);
    if (!by_library(dt, graph, document_start, documents, {q, k, v, out, lse}, s)) {
      CudaOps::attention(dt, shape, document_start, documents, q, k, v, out, lse, s);
    }
  }
  void attention_backward(DType dt, const AttentionShape& shape, const int32_t* document_start,
                          int64_t documents, const void* q, const void* k, const void* v,
                          const void* out, const float* lse, const void* dout, void* dq, void* dk,
                          void* dv, Stream& s) override {
    check_attention(shape, document_start, documents);
    const AttentionGraph graph = attention_graph(true, shape, document_start, documents);
    const AttentionMemory memory = {q, k, v, const_cast<void*>(out), const_cast<float*>(lse), dout,
                                    dq, dk, dv};
    if (!by_library(dt, graph, document_start, documents, memory, s)) {
      CudaOps::attention_backward(dt, shape, document_start, documents, q, k, v, out, lse, dout, dq,
                                  dk, dv, s);
    }
  }

 private:
  bool by_library(DType dt, const AttentionGraph& graph, const int32_t* document_start,
                  int64_t documents, AttentionMemory memory, Stream& s) {
    constexpr int64_t kAlign = 256;
    if (!library_takes(dt, graph)) return false;
    const Result<int64_t> workspace_bytes = library_->workspace_bytes(graph, s);
    if (!workspace_bytes.ok()) return false;
    std::vector<int32_t> lists;
    if (!graph.dense()) lists = document_lists(graph.shape, document_start, documents);
    const auto count = static_cast<int64_t>(lists.size());
    if (workspace_bytes.value() + 4 * count + 2 * kAlign >
        library_attention_bytes(graph.shape.tokens, graph.shape.heads, graph.shape.head_dim)) {
      return false;
    }
    Queue queue(s, graph.backward ? "attention_backward" : "attention");
    const Temporary<int32_t> on_device(queue, count);
    const Temporary<unsigned char> workspace(queue, workspace_bytes.value() + kAlign);
    upload(queue, on_device.get(), lists.data(), count);
    memory.lists = on_device.get();
    memory.workspace = reinterpret_cast<void*>(
        align_up(reinterpret_cast<int64_t>(workspace.get()), kAlign));
    library_->run(graph, memory, s);
    return true;
  }

  const std::shared_ptr<LibraryAttention> library_;
};

std::unique_ptr<Ops> make_ops(Processor processor, std::shared_ptr<LibraryAttention> library) {
  if (library == nullptr) return std::make_unique<CudaOps>(processor);
  return std::make_unique<OpsWithLibrary>(processor, std::move(library));
}

}  // namespace
}  // namespace PAGODA_MACHINE

#if defined(__CUDACC__)
namespace {

int compute_capability_major(Stream& s) {
  raw_stream(s);  // makes its GPU the thread's
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice", s);
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute", s);
  return major;
}

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(Device& device) {
  const auto stream = device.make_stream("kernels", WorkKind::kOther);
  std::shared_ptr<LibraryAttention> preferred;
  if (preferred_attention(compute_capability_major(*stream)) == AttentionBy::kLibrary) {
    Result<std::shared_ptr<LibraryAttention>> library = open_library_attention(*stream);
    if (library.ok()) {
      preferred = library.value();
    } else {
      log_info("attention computes with our kernel, not with cuDNN: " + library.status().message());
    }
  }
  return make_cuda_ops(device, preferred);
}

std::unique_ptr<Ops> make_cuda_ops(Device& device, std::shared_ptr<LibraryAttention> library) {
  const auto stream = device.make_stream("kernels", WorkKind::kOther);
  return gpu::make_ops(gpu::Processor::of(*stream), std::move(library));
}
#else
std::unique_ptr<Ops> make_emulated_ops(bool bf16_cores, int multiprocessors,
                                       std::shared_ptr<LibraryAttention> library) {
  return emulated::make_ops({bf16_cores, multiprocessors}, std::move(library));
}
#endif

}  // namespace pagoda
