// CHECK: always-on assertions for bugs. A failed CHECK means the program's own state is wrong: it
// prints the condition, the place and a message, and ends the program with Exit::kInternal. Bad
// input, I/O errors and budgets that are too small are no bugs; they are Status values (status.h).
#pragma once

#include <string>

namespace pagoda {

// printf-style formatting into a string; the compiler checks arguments against the format.
std::string strf(const char* format, ...) __attribute__((format(printf, 1, 2)));

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message = {});

}  // namespace pagoda

// CHECK(cond) or CHECK(cond, "format", args...).
#define CHECK(cond, ...)                                                                      \
  do {                                                                                        \
    if (!(cond)) [[unlikely]]                                                                 \
      ::pagoda::check_failed(#cond, __FILE__, __LINE__ __VA_OPT__(, ::pagoda::strf(__VA_ARGS__))); \
  } while (0)
