// Counts what a program allocates with new. Include it in one source file of the program, since it
// replaces the program's operators.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace pagoda {

inline std::atomic<int64_t> allocations{0};  // of all threads, since the program began

}  // namespace pagoda

// Not inlined: GCC would see malloc() and free() and warn that they are no pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++pagoda::allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
