// Attention by a library on a GPU, behind the ops of kernels/cuda: cuDNN's, where CMake found cuDNN
// 9 and cudnn-frontend, both headers alone (library_attention_cudnn.cc); else there is none
// (library_attention_none.cc). libcudnn.so.9 is looked for at run time. It was compiled and linked,
// and has never run on a GPU.
//
// What cuDNN 9.28 has plans for, asked for GPUs that were described to it: on 9.0 and 10.0 heads of
// 8 to 128 in any documents. On 8.x and 12.x the gradient of a single document alone, in memory
// that grows with its square, so that our kernel takes long ones; as on 9.0 before cuDNN 9.25.
//
// Graphs are built at the first call of a shape and kept; building takes host memory and time, and
// a call takes device memory from its stream's scratch alone. An error of the library ends the
// program as one of CUDA does, naming op and stream.
//
// Threading: any thread; calls take turns.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "kernels/attention_choice.h"

namespace pagoda {

// Memory of the device, as of Ops::attention and attention_backward.
struct AttentionMemory {
  const void *q, *k, *v;
  void* out;   // written forward, read backward, as is lse
  float* lse;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  int32_t* lists = nullptr;  // document_lists(), unless the graph is dense
  void* workspace = nullptr;
};

class LibraryAttention {
 public:
  virtual ~LibraryAttention() = default;
  // Of a call; kUnavailable: the library does not compute such a shape on this GPU, and why.
  virtual Result<int64_t> workspace_bytes(const AttentionGraph& graph, Stream& s) = 0;
  // REQUIRES: workspace_bytes() has told, and the workspace has that much.
  virtual void run(const AttentionGraph& graph, const AttentionMemory& memory, Stream& s) = 0;
};

// For streams of the GPU of `s`; takes memory of it outside the device's arena. kUnavailable: this
// build or this machine has none, and why.
Result<std::shared_ptr<LibraryAttention>> open_library_attention(Stream& s);

// "cuDNN 9.19.0"; empty: there is none.
std::string library_attention_name();

}  // namespace pagoda
