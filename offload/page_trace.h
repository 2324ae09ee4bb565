// PageTrace: the trace that moves of pages go to, and the names of pages in it. A value; copies are
// equal.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/trace.h"
#include "offload/page_use.h"

namespace pagoda {

class PageTrace {
 public:
  PageTrace() = default;  // nothing is ever traced
  // `trace` is not owned and may be nullptr. name(page) on any thread.
  PageTrace(Trace* trace, std::function<std::string(PageId)> name)
      : trace_(trace), name_(std::move(name)) {}

  Trace* trace() const { return trace_; }
  bool on() const { return trace_ != nullptr && trace_->on(); }
  Trace::Lane lane(const std::string& group, const std::string& name) const {
    return trace_ ? trace_->lane(group, name) : 0;
  }
  TraceLabel label(const std::string& verb, PageId page) const {
    const std::string name = name_ ? name_(page) : "page " + std::to_string(page);
    return TraceLabel{verb + " " + name, {}, 0}.add("page", page);
  }
  TraceLabel label(const std::string& verb, PageId page, int64_t bytes) const {
    return label(verb, page).add(kTraceBytes, bytes);
  }

 private:
  Trace* trace_ = nullptr;
  std::function<std::string(PageId)> name_;
};

// One transfer, which begins on one thread and ends on another. It records nothing if it begins
// while the trace is off.
class TransferSpan {
 public:
  void begin(const PageTrace& trace, const std::string& verb, PageId page, int64_t bytes) {
    if (!trace.on()) return;
    trace_ = trace.trace();
    label_ = trace.label(verb, page, bytes);
    begin_us_ = monotonic_us();
  }
  void end(Trace::Lane lane) {
    if (trace_) trace_->span(lane, begin_us_, monotonic_us(), std::move(label_));
    trace_ = nullptr;
  }

 private:
  Trace* trace_ = nullptr;
  TraceLabel label_;
  int64_t begin_us_ = 0;
};

}  // namespace pagoda
