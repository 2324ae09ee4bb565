// Attention and its gradient as graphs of cuDNN 9 (NVIDIA, cudnn-frontend's sdpa and sdpa_backward;
// the gradient by its deterministic algorithm). A single document is a dense tensor; several are
// packed rows with ragged offsets and lengths. cuDNN's statistics are the natural logarithm of the
// sums of exponentials, as ours.
#include <cudnn.h>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING  // the program starts where there is no cuDNN
#include <cudnn_frontend.h>

#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "device/cuda_stream.h"
#include "kernels/cuda/library/library_attention.h"

void* cudnn_frontend::cudnn_dlhandle = nullptr;  // what its calls look for functions in

namespace pagoda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Names of tensors in a graph.
enum Uid : int64_t {
  kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kLengths, kQkvOffsets, kOutOffsets, kLseOffsets
};

// Whether an error is one of GPU, driver or memory, not of the requested shape; it may be inside an
// error of plans.
bool is_of_the_machine(const fe::error_t& error) {
  if (error.code == fe::error_code_t::CUDA_API_FAILED ||
      error.code == fe::error_code_t::INVALID_CUDA_DEVICE ||
      error.code == fe::error_code_t::HANDLE_ERROR) {
    return true;
  }
  return error.err_msg.find("CUDNN_STATUS_EXECUTION_FAILED") != std::string::npos ||
         error.err_msg.find("ALLOCATION_FAILED") != std::string::npos;
}

const char* op_of(const AttentionGraph& graph) {
  return graph.backward ? "cuDNN attention_backward" : "cuDNN attention";
}

// Describes a graph to cuDNN.
class Description {
 public:
  Description(const AttentionGraph& of, fe::graph::Graph& graph) : of_(of), graph_(graph) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (!of.dense()) {
      lengths_ = list(kLengths, of.documents);
      qkv_offsets_ = list(kQkvOffsets, of.documents + 1);
      out_offsets_ = list(kOutOffsets, of.documents + 1);
      lse_offsets_ = list(kLseOffsets, of.documents + 1);
    }
    if (of.backward) {
      describe_backward();
    } else {
      describe_forward();
    }
  }

 private:
  Tensor list(Uid uid, int64_t n) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid)
                             .set_dim({n, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }
  void lay_out(fe::graph::Tensor_attributes& t, Uid uid, int64_t heads, int64_t stride,
               const Tensor& offsets) const {
    t.set_uid(uid)
        .set_dim({of_.documents, heads, of_.rows, of_.shape.head_dim})
        .set_stride({of_.rows * stride, of_.shape.head_dim, stride, 1});
    if (offsets) t.set_ragged_offset(offsets);
  }
  void lay_out_qkv(fe::graph::Tensor_attributes& t, Uid uid) const {
    const bool queries = uid == kQ || uid == kDq;
    lay_out(t, uid, queries ? of_.shape.heads : of_.shape.kv_heads, of_.shape.qkv_stride,
            qkv_offsets_);
  }
  void lay_out_out(fe::graph::Tensor_attributes& t, Uid uid) const {
    lay_out(t, uid, of_.shape.heads, of_.shape.heads * of_.shape.head_dim, out_offsets_);
  }
  void lay_out_lse(fe::graph::Tensor_attributes& t) const {
    const int64_t tokens = of_.shape.tokens;
    t.set_uid(kLse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({of_.documents, of_.shape.heads, of_.rows, 1})
        .set_stride({of_.shape.heads * tokens, tokens, 1, 1});
    if (lse_offsets_) t.set_ragged_offset(lse_offsets_);
  }
  Tensor qkv(Uid uid) {
    fe::graph::Tensor_attributes t;
    lay_out_qkv(t, uid);
    return graph_.tensor(t);
  }
  Tensor out(Uid uid) {
    fe::graph::Tensor_attributes t;
    lay_out_out(t, uid);
    return graph_.tensor(t);
  }

  // The attributes that forward and backward share.
  template <typename Attributes>
  Attributes causal() const {
    Attributes attributes;
    attributes.set_attn_scale(
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(of_.shape.head_dim))));
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (!of_.dense()) {
      attributes.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    }
    return attributes;
  }
  void describe_forward() {
    auto attributes = causal<fe::graph::SDPA_attributes>();
    attributes.set_name("attention").set_generate_stats(true);
    const auto [out, lse] = graph_.sdpa(qkv(kQ), qkv(kK), qkv(kV), attributes);
    lay_out_out(out->set_output(true), kOut);
    lay_out_lse(lse->set_output(true));
  }
  void describe_backward() {
    auto attributes = causal<fe::graph::SDPA_backward_attributes>();
    attributes.set_name("attention_backward").set_deterministic_algorithm(true);
    if (!of_.dense()) attributes.set_max_total_seq_len_q(of_.shape.tokens);
    fe::graph::Tensor_attributes lse;
    lay_out_lse(lse);
    const auto [dq, dk, dv] = graph_.sdpa_backward(qkv(kQ), qkv(kK), qkv(kV), out(kOut),
                                                   out(kDout), graph_.tensor(lse), attributes);
    lay_out_qkv(dq->set_output(true), kDq);
    lay_out_qkv(dk->set_output(true), kDk);
    lay_out_qkv(dv->set_output(true), kDv);
  }

  const AttentionGraph& of_;
  fe::graph::Graph& graph_;
  Tensor lengths_, qkv_offsets_, out_offsets_, lse_offsets_;  // none where it is dense
};

class CudnnAttention final : public LibraryAttention {
 public:
  explicit CudnnAttention(Stream& s) {
    raw_stream(s);  // its GPU becomes the thread's
    require(fe::detail::create_handle(&handle_), "cudnnCreate", s);
  }
  ~CudnnAttention() override { fe::detail::destroy_handle(handle_); }

  Result<int64_t> workspace_bytes(const AttentionGraph& graph, Stream& s) override {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = graphs_.try_emplace(graph);
    Built& built = found->second;
    if (is_new) build(graph, s, built);
    if (!built.refused.empty()) return Status(Exit::kUnavailable, built.refused);
    return built.workspace_bytes;
  }

  void run(const AttentionGraph& graph, const AttentionMemory& memory, Stream& s) override {
    const std::lock_guard lock(mutex_);
    const auto at = [](const void* p) { return const_cast<void*>(p); };
    std::unordered_map<int64_t, void*> tensors = {
        {kQ, at(memory.q)}, {kK, at(memory.k)}, {kV, at(memory.v)}, {kOut, memory.out},
        {kLse, memory.lse}};
    if (graph.backward) {
      tensors.insert({{kDout, at(memory.dout)}, {kDq, memory.dq}, {kDk, memory.dk},
                      {kDv, memory.dv}});
    }
    if (!graph.dense()) {
      int32_t* next = memory.lists;
      tensors[kLengths] = next;
      next += graph.documents;
      for (const Uid offsets : {kQkvOffsets, kOutOffsets, kLseOffsets}) {
        tensors[offsets] = next;
        next += graph.documents + 1;
      }
    }
    require(fe::detail::set_stream(handle_, raw_stream(s)), op_of(graph), s);
    const fe::error_t error = graphs_.at(graph).graph->execute(handle_, tensors, memory.workspace);
    if (error.is_bad()) library_failed(op_of(graph), error.err_msg, s);
  }

 private:
  struct Built {
    std::unique_ptr<fe::graph::Graph> graph;
    int64_t workspace_bytes = 0;
    std::string refused;  // why; empty: it was built
  };

  static void require(cudnnStatus_t status, const char* call, Stream& s) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    library_failed(call, fe::detail::get_error_string(status), s);
  }
  // Refuses shapes that cuDNN does not compute.
  void build(const AttentionGraph& of, Stream& s, Built& built) {
    raw_stream(s);
    built.graph = std::make_unique<fe::graph::Graph>();
    const Description description(of, *built.graph);
    fe::error_t error = built.graph->build(handle_, {fe::HeurMode_t::A});
    if (error.is_good()) error = built.graph->get_workspace_size(built.workspace_bytes);
    if (error.is_good()) return;
    if (is_of_the_machine(error)) library_failed(op_of(of), error.err_msg, s);
    built.graph.reset();
    built.refused = "cuDNN does not compute it: " + error.err_msg;
  }

  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;  // guards the rest, and the stream of the handle
  std::map<AttentionGraph, Built> graphs_;
};

// Loads cuDNN and the CUDA runtime that its headers call, once; says what is missing.
const std::string& missing_library() {
  static const std::string missing = []() -> std::string {
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
    if (fe::cudnn_dlhandle == nullptr) return dlerror();
    try {
      fe::detail::get_backend_version();
      int device = 0;
      fe::detail::cuda_get_device(&device);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }();
  return missing;
}

}  // namespace

Result<std::shared_ptr<LibraryAttention>> open_library_attention(Stream& s) {
  // On Hopper the deterministic gradient keeps all scores unless this limit is set; with it cuDNN
  // from 9.25 on has one that needs memory for rows only. A user's own setting stands.
  setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "0", /*overwrite=*/0);
  if (!missing_library().empty()) return Status(Exit::kUnavailable, missing_library());
  return std::shared_ptr<LibraryAttention>(std::make_shared<CudnnAttention>(s));
}

std::string library_attention_name() {
  if (!missing_library().empty()) return "";
  const size_t version = fe::detail::get_backend_version();
  return strf("cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace pagoda
