#include <utility>

#include "base/log.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ops_class.cuh"
#include "kernels/library_choice.h"

namespace pagoda {
namespace PAGODA_MACHINE {
namespace {

// A library computes what it takes; attention only if it needs little memory.
class OpsWithLibraries final : public CudaOps {
 public:
  OpsWithLibraries(Processor processor, Libraries libraries)
      : CudaOps(processor), libraries_(std::move(libraries)) {}

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
  void grouped_linear(DType dt, InputRows x, std::span<const RowsOfWeight> experts, int64_t in,
                      int64_t out, DType y_dt, OutputRows y, Stream& s) override {
    if (!takes_experts(dt, x, experts, in, out, y_dt, y)) {
      return CudaOps::grouped_linear(dt, x, experts, in, out, y_dt, y, s);
    }
    in_launches(experts, [&](std::span<const RowsOfWeight> some) {
      multiply(expert_products(false, x.dense, some, in, out, y.dense), s);
    });
  }
  void grouped_linear_backward_input(DType dt, InputRows dy, std::span<const RowsOfWeight> experts,
                                     int64_t in, int64_t out, DType dx_dt, OutputRows dx,
                                     Stream& s) override {
    if (!takes_experts(dt, dy, experts, in, out, dx_dt, dx)) {
      return CudaOps::grouped_linear_backward_input(dt, dy, experts, in, out, dx_dt, dx, s);
    }
    in_launches(experts, [&](std::span<const RowsOfWeight> some) {
      multiply(expert_products(true, dy.dense, some, in, out, dx.dense), s);
    });
  }

 private:
  // Puts `bytes` of scratch where libraries want memory to begin.
  static void* aligned(const Temporary<unsigned char>& memory, int64_t align) {
    return reinterpret_cast<void*>(align_up(reinterpret_cast<int64_t>(memory.get()), align));
  }

  // It takes dense rows alone.
  bool takes_experts(DType dt, InputRows x, std::span<const RowsOfWeight> experts, int64_t in,
                     int64_t out, DType y_dt, const OutputRows& y) const {
    return libraries_.experts != nullptr && x.each == nullptr && y.sums == nullptr &&
           library_takes(dt, x.dense, experts, in, out, y_dt, y.dense);
  }
  void multiply(const ExpertProducts& products, Stream& s) {
    if (products.count() == 0) return;
    Queue queue(s, products.op);
    const auto count = static_cast<int64_t>(products.pointers.size());
    const Temporary<const void*> pointers(queue, count);
    const Temporary<unsigned char> workspace(queue, kProductsWorkspaceBytes + kProductsAlign);
    upload(queue, pointers.get(), products.pointers.data(), count);
    libraries_.experts->run(products, pointers.get(), aligned(workspace, kProductsAlign), s);
  }

  bool by_library(DType dt, const AttentionGraph& graph, const int32_t* document_start,
                  int64_t documents, AttentionMemory memory, Stream& s) {
    constexpr int64_t kAlign = 256;
    if (libraries_.attention == nullptr || !library_takes(dt, graph)) return false;
    const Result<int64_t> workspace_bytes = libraries_.attention->workspace_bytes(graph, s);
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
    memory.workspace = aligned(workspace, kAlign);
    libraries_.attention->run(graph, memory, s);
    return true;
  }

  const Libraries libraries_;
};

std::unique_ptr<Ops> make_ops(Processor processor, Libraries libraries) {
  if (!libraries.attention && !libraries.experts) return std::make_unique<CudaOps>(processor);
  return std::make_unique<OpsWithLibraries>(processor, std::move(libraries));
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

// The library if it is preferred and there.
template <typename Library>
std::shared_ptr<Library> opened(ComputedBy preferred, const char* what,
                                Result<std::shared_ptr<Library>> (*open)(Stream&), Stream& s) {
  if (preferred == ComputedBy::kOwnKernel) return nullptr;
  Result<std::shared_ptr<Library>> library = open(s);
  if (library.ok()) return library.value();
  log_info(std::string(what) +
           ": our kernel computes, not a library's: " + library.status().message());
  return nullptr;
}

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(Device& device) {
  const auto stream = device.make_stream("kernels", WorkKind::kOther);
  const LibraryChoice choice = library_choice(compute_capability_major(*stream));
  return make_cuda_ops(
      device, {opened(choice.attention, "attention", open_library_attention, *stream),
               opened(choice.experts, "products of experts", open_library_products, *stream)});
}

std::unique_ptr<Ops> make_cuda_ops(Device& device, Libraries libraries) {
  const auto stream = device.make_stream("kernels", WorkKind::kOther);
  return gpu::make_ops(gpu::Processor::of(*stream), std::move(libraries));
}
#else
std::unique_ptr<Ops> make_emulated_ops(bool bf16_cores, int multiprocessors, Libraries libraries) {
  return emulated::make_ops({bf16_cores, multiprocessors}, std::move(libraries));
}
#endif

}  // namespace pagoda
