// Attention by a library on a GPU, behind the ops of kernels/cuda. The library is cuDNN if CMake
// found the headers of cuDNN 9 and cudnn-frontend (library_attention_cudnn.cc); otherwise there is
// none (library_attention_none.cc). libcudnn.so.9 is looked for at run time. This was compiled and
// linked, and has never run on a GPU.
//
// cuDNN 9.28 says, about GPUs that were described to it, that it has these plans. On 9.0 and 10.0:
// heads of 8 to 128 in any documents. On 8.x and 12.x: the gradient of a single document only, in
// memory that grows with the square of its length, so that our kernel takes long documents. Before
// cuDNN 9.25, 9.0 was like these.
//
// Graphs are built at the first call of a shape and kept; building takes host memory and time, and
// a call takes device memory only from its stream's scratch. An error of the library ends the
// program like a CUDA error, naming op and stream.
//
// Threading: any thread; calls take turns.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "kernels/attention_graph.h"

namespace pagoda {

// The arguments of Ops::attention and attention_backward, in memory of the device.
struct AttentionMemory {
  const void *q, *k, *v;
  void* out;  // written forward, read backward; so is lse
  float* lse;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  int32_t* lists = nullptr;  // document_lists(), unless the graph is dense
  void* workspace = nullptr;
};

class LibraryAttention {
 public:
  virtual ~LibraryAttention() = default;
  // Bytes of a call's workspace. kUnavailable, with the reason: the library does not compute such a
  // shape on this GPU.
  virtual Result<int64_t> workspace_bytes(const AttentionGraph& graph, Stream& s) = 0;
  // REQUIRES: workspace_bytes() was ok, and the workspace has that many bytes.
  virtual void run(const AttentionGraph& graph, const AttentionMemory& memory, Stream& s) = 0;
};

// Opens the library for streams of the GPU of `s`; it takes memory of the GPU outside the device's
// arena. kUnavailable, with the reason: this build or this machine has none.
Result<std::shared_ptr<LibraryAttention>> open_library_attention(Stream& s);

// "cuDNN 9.19.0"; empty: there is none.
std::string library_attention_name();

}  // namespace pagoda
