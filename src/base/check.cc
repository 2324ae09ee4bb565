#include "base/check.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "base/log.h"
#include "base/status.h"

namespace pagoda {

std::string strf(const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list measure;
  va_copy(measure, args);
  const int length = std::vsnprintf(nullptr, 0, format, measure);
  va_end(measure);
  std::string text(length < 0 ? 0 : static_cast<size_t>(length), '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, args);
  va_end(args);
  return text;
}

namespace {

constexpr size_t kMaxMessage = 2000;

}  // namespace

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "pagoda: internal error: CHECK(%s) failed at %s:%d%s%s\n", condition, file,
               line, message.empty() ? "" : ": ", printable(message, kMaxMessage).c_str());
  // No handler and no destructor runs in a program whose state is wrong.
  ::_exit(static_cast<int>(Exit::kInternal));
}

}  // namespace pagoda
