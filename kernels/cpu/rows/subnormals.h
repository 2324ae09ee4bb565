// The SSE control word with subnormals as zero, both read and written, as AMX tiles have it always.
// What is computed so must stand in a function of its own that is not inlined: the compiler does
// not know that arithmetic depends on the control word.
#pragma once

#include <xmmintrin.h>

namespace pagoda {

class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) {
    constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
    _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero);
  }
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  const unsigned before_;
};

}  // namespace pagoda
