// Status and Result<T>: operating errors as values. A Status is either ok or carries the exit code
// the process ends with and one English line "what, where, what is safe, what to do". The exit
// codes follow sysexits; base/exit_codes.h and docs/exit-codes.md say what each means.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace pagoda {

enum class Exit : int {
  kOk = 0,
  kDoesNotFit = 3,      // `pagoda plan` only: the run does not fit this machine
  kUsage = 2,           // wrong command line or run file
  kBadData = 65,        // malformed model, tokenizer or data file
  kNoInput = 66,        // an input is missing
  kUnavailable = 69,    // a required facility (GPU, io_uring) is missing
  kInternal = 70,       // broken invariant
  kHostMemory = 71,     // host budget or pinned memory too small
  kDeviceMemory = 72,   // device budget too small
  kCannotCreate = 73,   // cannot create output, no disk space at start, store in use
  kIoError = 74,        // I/O error, CUDA error or corruption while running
  kStopped = 75,        // stopped on request with a valid checkpoint; requeue it (exit_of_signal())
  kDiverged = 80,       // non-finite loss or gradients
  kNoCheckpoint = 81,   // no valid checkpoint to resume from
  kMismatch = 82,       // checkpoint does not fit the configuration, data or build
};

// Stopped by a signal without a checkpoint to resume from: 128 + its number, as a shell reports the
// end of a program that does not catch it.
inline Exit exit_of_signal(int signal) { return static_cast<Exit>(128 + signal); }

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Exit code, std::string message) : code_(code), message_(std::move(message)) {
    CHECK(code != Exit::kOk, "an error Status needs an error code");
  }
  bool ok() const { return code_ == Exit::kOk; }
  Exit code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Exit code_ = Exit::kOk;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) {
    CHECK(!std::get<Status>(state_).ok(), "a Result from an ok Status has no value");
  }
  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  // REQUIRES: ok().
  T& value() {
    CHECK(ok(), "%s", std::get<Status>(state_).message().c_str());
    return std::get<T>(state_);
  }
  const T& value() const { return const_cast<Result*>(this)->value(); }
  T&& take() { return std::move(value()); }
  T& operator*() { return value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace pagoda

#define PAGODA_CONCAT_(a, b) a##b
#define PAGODA_CONCAT(a, b) PAGODA_CONCAT_(a, b)

// Returns the error of a Status expression from the enclosing function.
#define RETURN_IF_ERROR(expr)                              \
  do {                                                     \
    if (::pagoda::Status status_ = (expr); !status_.ok()) return status_; \
  } while (0)

// ASSIGN_OR_RETURN(auto x, result_expression): the value, or return the error.
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_(PAGODA_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                      \
  if (!tmp.ok()) return tmp.status();     \
  lhs = tmp.take()
