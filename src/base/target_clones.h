// PAGODA_TARGET_CLONES before a function compiles it once per x86-64 level (AVX-512, AVX2,
// baseline) and selects the clone when the program loads. Clones give the same bits: the build
// forms no fused multiply-adds and vector code spells its reductions out
// (kernels/cpu/rows/vector.h). Empty where the compiler or a sanitizer cannot do it.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PAGODA_TARGET_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PAGODA_TARGET_CLONES
#endif
