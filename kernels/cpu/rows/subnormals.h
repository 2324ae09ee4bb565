// Sets the SSE control word so that subnormals count as zero, read and written; AMX tiles always do
// so. The arithmetic must stand in a function of its own that is not inlined, since the compiler
// does not know that it depends on the control word.
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
