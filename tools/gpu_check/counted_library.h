// A library's attention and its products, counting what it computes of what it is asked for.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/library/library_attention.h"
#include "kernels/cuda/library/library_products.h"

namespace pagoda::check {

class CountedLibrary final : public LibraryAttention {
 public:
  explicit CountedLibrary(std::shared_ptr<LibraryAttention> library)
      : library_(std::move(library)) {}
  Result<int64_t> workspace_bytes(const AttentionGraph& graph, Stream& s) override {
    ++asked;
    Result<int64_t> bytes = library_->workspace_bytes(graph, s);
    refused = bytes.ok() ? strf("it wants %lld bytes", static_cast<long long>(bytes.value()))
                         : bytes.status().message();
    return bytes;
  }
  void run(const AttentionGraph& graph, const AttentionMemory& memory, Stream& s) override {
    ++ran;
    library_->run(graph, memory, s);
  }

  int asked = 0, ran = 0;
  std::string refused;  // why the last was, if it was

 private:
  const std::shared_ptr<LibraryAttention> library_;
};

class CountedProducts final : public LibraryProducts {
 public:
  explicit CountedProducts(std::shared_ptr<LibraryProducts> library)
      : library_(std::move(library)) {}
  void run(const ExpertProducts& products, const void** pointers, void* workspace,
           Stream& s) override {
    ++ran;
    library_->run(products, pointers, workspace, s);
  }

  int ran = 0;

 private:
  const std::shared_ptr<LibraryProducts> library_;
};

}  // namespace pagoda::check
