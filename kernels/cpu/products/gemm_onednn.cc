// gemm.h with oneDNN (2.6 and 3.x), one thread per call.
//
// brgemm kernels multiply 16 rows at a time and add along k in order, so kernels made for 16, 32,
// 48 and 64 rows give a row the same bits (ops_linear_test holds this). Not so for products of 16
// columns or fewer, which it tiles otherwise: these, and all where oneDNN has no brgemm for the
// processor, always compute 64 rows. Weights are packed into the order the 64-row kernel asks for.
// Where it cannot multiply bf16, operands are widened: products of bf16 are exact in fp32.
#include <omp.h>

#include <cstring>
#include <map>
#include <tuple>

#include <oneapi/dnnl/dnnl.hpp>

#include "base/bytes.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/rows/row_math.h"
#include "kernels/cpu/rows/scratch.h"

namespace pagoda {
namespace {

using dnnl::memory;

constexpr int64_t kNarrow = 16;  // columns: the width of a tile

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::data_type type_of(DType dt) {
  return dt == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

dnnl::matmul::primitive_desc describe(const memory::desc& a, const memory::desc& b,
                                      const memory::desc& c, bool accumulate) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine(), a, b, c, attr);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine());
#endif
}

struct Kernel {
  dnnl::matmul primitive;
  memory::desc a, b, c, work;
  int64_t work_bytes = 0;
  bool is_brgemm = false;
};

// `packed`: the order of B another kernel already chose; nullptr leaves the choice to oneDNN.
Kernel make_kernel(DType dt, int64_t m, int64_t n, int64_t k, bool accumulate,
                   const memory::desc* packed) {
  Kernel kernel;
  kernel.a = memory::desc({m, k}, type_of(dt), memory::format_tag::ab);
  kernel.c = memory::desc({m, n}, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc any({k, n}, type_of(dt), memory::format_tag::any);
  const auto pd = describe(kernel.a, packed ? *packed : any, kernel.c, accumulate);
  kernel.primitive = dnnl::matmul(pd);
  kernel.b = pd.weights_desc();
  kernel.work = pd.scratchpad_desc();
  kernel.work_bytes = static_cast<int64_t>(kernel.work.get_size());
  kernel.is_brgemm = std::strncmp(pd.impl_info_str(), "brg", 3) == 0;
  return kernel;
}

// What one thread keeps: kernels by shape. oneDNN's own cache shares the generated code.
class Worker {
 public:
  // oneDNN's OpenMP team would fight the pool for cores; the setting is the calling thread's own.
  Worker() : single_threaded_((omp_set_num_threads(1), true)), stream_(engine()) {}

  const Kernel& kernel(DType dt, int64_t m, int64_t n, int64_t k, bool accumulate) {
    const Key key{dt, m, n, k, accumulate};
    auto found = kernels_.find(key);
    if (found == kernels_.end()) {
      const bool first = m == kGemmRows && !accumulate;
      const memory::desc* packed = first ? nullptr : &kernel(dt, kGemmRows, n, k, false).b;
      found = kernels_.emplace(key, make_kernel(dt, m, n, k, accumulate, packed)).first;
    }
    return found->second;
  }

  void multiply(const Kernel& kernel, const void* a, const void* packed, float* c) {
    std::byte* work = scratch_bytes(Scratch::kGemmWork, kernel.work_bytes);
    memory left(kernel.a, engine(), const_cast<void*>(a));
    memory right(kernel.b, engine(), const_cast<void*>(packed));
    memory out(kernel.c, engine(), c);
    memory space(kernel.work, engine(), work);
    kernel.primitive.execute(stream_, {{DNNL_ARG_SRC, left},
                                       {DNNL_ARG_WEIGHTS, right},
                                       {DNNL_ARG_DST, out},
                                       {DNNL_ARG_SCRATCHPAD, space}});
  }

  void pack(DType dt, const void* b, int64_t ldb, bool transposed, int64_t k, int64_t n,
            void* packed) {
    const memory::dims strides = transposed ? memory::dims{1, ldb} : memory::dims{ldb, 1};
    const memory::desc plain({k, n}, type_of(dt), strides);
    memory from(plain, engine(), const_cast<void*>(b));
    memory to(kernel(dt, kGemmRows, n, k, false).b, engine(), packed);
    const PackKey key{dt, ldb, transposed, k, n};
    auto found = packings_.find(key);
    if (found == packings_.end()) found = packings_.emplace(key, dnnl::reorder(from, to)).first;
    found->second.execute(stream_, from, to);
  }

 private:
  using Key = std::tuple<DType, int64_t, int64_t, int64_t, bool>;
  using PackKey = std::tuple<DType, int64_t, bool, int64_t, int64_t>;
  const bool single_threaded_;
  dnnl::stream stream_;
  std::map<Key, Kernel> kernels_;
  std::map<PackKey, dnnl::reorder> packings_;
};

Worker& worker() {
  thread_local Worker instance;
  return instance;
}

// The type multiplied: bf16 where the processor can, else fp32.
DType multiplied_type(DType dt) {
  static const bool native = [] {
    try {
      worker().kernel(DType::kBF16, kGemmRows, 16, 32, false);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return native ? dt : DType::kF32;
}

// oneDNN throws; a kernel that cannot be made or run is a bug or a lack of memory, and final.
template <typename Work>
void run(Work&& work) {
  try {
    work();
  } catch (const dnnl::error& e) {
    CHECK(false, "oneDNN failed with status %d: %s", static_cast<int>(e.status), e.what());
  }
}

}  // namespace

int64_t gemm_packed_bytes(DType dt, int64_t k, int64_t n) {
  return align_up(k, 64) * align_up(n, 64) * dtype_bytes(multiplied_type(dt));
}

void gemm_pack(DType dt, const void* b, int64_t ldb, bool transposed, int64_t k, int64_t n,
               void* packed) {
  run([&] {
    const DType type = multiplied_type(dt);
    const auto need = worker().kernel(type, kGemmRows, n, k, false).b.get_size();
    CHECK(static_cast<int64_t>(need) <= gemm_packed_bytes(dt, k, n), "%zu bytes packed", need);
    if (type == dt) return worker().pack(type, b, ldb, transposed, k, n, packed);
    const int64_t rows = transposed ? n : k, cols = transposed ? k : n;
    float* wide = scratch_floats(Scratch::kGemmWiden, rows * cols);
    for (int64_t r = 0; r < rows; ++r) {
      widen(static_cast<const bf16*>(b) + r * ldb, cols, wide + r * cols);
    }
    worker().pack(type, wide, cols, transposed, k, n, packed);
  });
}

void gemm_multiply(DType dt, int64_t m, int64_t n, int64_t k, const void* a, const void* packed,
                   float* c, bool accumulate) {
  run([&] {
    const DType type = multiplied_type(dt);
    const bool any_rows = n > kNarrow && worker().kernel(type, kGemmRows, n, k, false).is_brgemm;
    const int64_t rows = any_rows ? align_up(m, 16) : kGemmRows;
    const void* left = a;
    if (type != dt) {
      float* wide = scratch_floats(Scratch::kGemmWiden, kGemmRows * k);
      widen(static_cast<const bf16*>(a), rows * k, wide);
      left = wide;
    }
    worker().multiply(worker().kernel(type, rows, n, k, accumulate), left, packed, c);
  });
}

std::string gemm_build() {
  const dnnl_version_t& v = *dnnl_version();
  const DType type = multiplied_type(DType::kBF16);
  return strf("oneDNN %d.%d.%d, bf16 multiplied as %s, isa %#x", v.major, v.minor, v.patch,
              dtype_name(type), static_cast<unsigned>(dnnl::get_effective_cpu_isa()));
}

std::string gemm_name() {
  const dnnl_version_t& v = *dnnl_version();
  return strf("oneDNN-%d.%d.%d-%#x", v.major, v.minor, v.patch,
              static_cast<unsigned>(dnnl::get_effective_cpu_isa()));
}

}  // namespace pagoda
