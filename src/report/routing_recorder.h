// Records how many tokens each expert got in the steps of a run (train.trace_routing), in the
// format of plan/step/routing_trace.h. A step that cannot be written is a warning and is left out;
// it never stops a run. One thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "plan/step/routing_trace.h"
#include "report/line_file.h"

namespace pagoda {

class RoutingRecorder {
 public:
  // Call before a fresh run starts anything. kCannotCreate if there is a file already.
  static Status check_new(const std::string& path);

  // With kept_step < 0 opens the file of a fresh run, which must be new. Otherwise opens the file
  // of a run that is resumed after that step and removes later steps from it, or creates one.
  // kCannotCreate; also, leaving the file as it is, when its first line is not that of such a run.
  static Result<std::unique_ptr<RoutingRecorder>> open(const std::string& path,
                                                       const RoutedShape& shape,
                                                       int64_t kept_step);

  // Call after each step; `step` counts from 1.
  void record(int64_t step, const Routing& routing) { lines_->add(routing_lines(step, routing)); }

  // kIoError when the file was removed or replaced.
  Status check() const { return lines_->check(); }

 private:
  explicit RoutingRecorder(std::unique_ptr<LineFile> lines) : lines_(std::move(lines)) {}

  std::unique_ptr<LineFile> lines_;
};

}  // namespace pagoda
