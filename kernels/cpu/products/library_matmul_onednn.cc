#include "kernels/cpu/products/library_matmul.h"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "base/check.h"
#include "kernels/cpu/rows/scratch.h"

namespace pagoda {
namespace {

using dnnl::memory;

memory::data_type type_of(DType dt) {
  return dt == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const memory::desc& a,
                                      const memory::desc& b, const memory::desc& c) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, c);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), engine);
#endif
}

class OneDnnMatmul final : public LibraryMatmul {
 public:
  explicit OneDnnMatmul(const MatmulShape& shape)
      : shape_(shape),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        a_({shape.m, shape.k}, memory::data_type::bf16, memory::format_tag::ab),
        a_given_({shape.m, shape.k}, memory::data_type::bf16, memory::format_tag::ba),
        c_({shape.m, shape.n}, type_of(shape.c_dt), memory::format_tag::ab) {
    const memory::desc b({shape.k, shape.n}, memory::data_type::bf16,
                         shape.b_packed ? memory::format_tag::any : memory::format_tag::ab);
    const auto chosen = describe(engine_, a_, b, c_);
    b_ = chosen.weights_desc();
    matmul_ = dnnl::matmul(chosen);
    lay_out_ = dnnl::reorder(memory(a_given_, engine_, nullptr), memory(a_, engine_, nullptr));
  }

  int64_t packed_bytes() const override { return static_cast<int64_t>(b_.get_size()); }

  void pack(const bf16* b, int64_t ldb, bool transposed, void* packed) override {
    const memory::dims strides = transposed ? memory::dims{1, ldb} : memory::dims{ldb, 1};
    const memory::desc plain({shape_.k, shape_.n}, memory::data_type::bf16, strides);
    memory from(plain, engine_, const_cast<bf16*>(b)), to(b_, engine_, packed);
    run([&] { dnnl::reorder(from, to).execute(stream_, from, to); });
  }

  void multiply(const bf16* a, const void* b, void* c) override {
    run([&] {
      const void* left = shape_.a_transposed ? laid_out(a) : a;
      matmul_.execute(stream_,
                      {{DNNL_ARG_SRC, memory(a_, engine_, const_cast<void*>(left))},
                       {DNNL_ARG_WEIGHTS, memory(b_, engine_, const_cast<void*>(b))},
                       {DNNL_ARG_DST, memory(c_, engine_, c)}});
    });
  }

 private:
  template <typename Work>
  static void run(Work&& work) {
    omp_set_num_threads(1);  // for the calling thread
    try {
      work();
    } catch (const dnnl::error& e) {
      CHECK(false, "oneDNN failed with status %d: %s", static_cast<int>(e.status), e.what());
    }
  }

  const void* laid_out(const bf16* a) {
    std::byte* dense = scratch_bytes(Scratch::kGemmWiden,
                                     shape_.m * shape_.k * int64_t{sizeof(bf16)});
    memory from(a_given_, engine_, const_cast<bf16*>(a)), to(a_, engine_, dense);
    lay_out_.execute(stream_, from, to);
    return dense;
  }

  const MatmulShape shape_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  memory::desc a_, a_given_, b_, c_;
  dnnl::matmul matmul_;
  dnnl::reorder lay_out_;
};

}  // namespace

std::unique_ptr<LibraryMatmul> make_library_matmul(const MatmulShape& shape) {
  omp_set_num_threads(1);
  try {
    return std::make_unique<OneDnnMatmul>(shape);
  } catch (const dnnl::error&) {
    return nullptr;  // a processor on which it has no bf16
  }
}

}  // namespace pagoda
