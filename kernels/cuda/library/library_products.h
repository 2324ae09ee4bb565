// Products of experts with their rows by a library on a GPU, behind the ops of kernels/cuda. The
// library is cuBLAS's grouped call (12.5 and later) if CMake found its header
// (library_products_cublas.cc); otherwise there is none (library_products_none.cc). libcublas is
// looked for at run time. This was compiled, tests run it on a made-up cuBLAS, and it has never run
// on a GPU.
//
// A call takes device memory only from its stream's scratch; the library takes some outside of the
// device's arena when it is opened. An error of the library ends the program like a CUDA error,
// naming op and stream.
//
// Threading: any thread; calls take turns.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "device/device.h"
#include "kernels/expert_products.h"

namespace pagoda {

class LibraryProducts {
 public:
  virtual ~LibraryProducts() = default;
  // Computes at least one product. Both are memory of the device: `pointers` holds products'
  // pointers, `workspace` kProductsWorkspaceBytes.
  virtual void run(const ExpertProducts& products, const void** pointers, void* workspace,
                   Stream& s) = 0;
};

// Opens the library for streams of the GPU of `s`. kUnavailable, with the reason: this build or
// this machine has none.
Result<std::shared_ptr<LibraryProducts>> open_library_products(Stream& s);

// "cuBLAS 13.0.2"; empty: there is none.
std::string library_products_name();

}  // namespace pagoda
