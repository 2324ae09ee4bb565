// A run's numbers as an event file, which TensorBoard shows (train.tensorboard): TFRecords of
// tensorflow.Event messages in protocol buffers' wire format, of which only scalars are written.
//
//   record = u64 length, u32 masked CRC-32C of it, message, u32 masked CRC-32C of the message
//   masked(c) = rotate right by 15 bits, plus 0xa282ead8 (tensorflow/core/lib/hash/crc32c.h)
//
// Each process that trains writes a file of its own. One that resumes says from which step on, so
// that TensorBoard drops what an earlier process wrote of later steps. A failed write warns once
// and never stops a run. One thread uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "report/line_file.h"
#include "report/metrics.h"

namespace pagoda {

class EventFile {
 public:
  // Seconds since 1970.
  using Clock = std::function<double()>;

  // Makes `folder` if it is not there, and in it a new file whose name says when and where it was
  // made. first_step: the first step that this process makes. kCannotCreate.
  static Result<std::unique_ptr<EventFile>> create(const std::string& folder, int64_t first_step,
                                                   Clock clock = now);
  static double now();

  const std::string& path() const { return lines_->path(); }
  // Writes the numbers among the fields, as "train/loss" of a step and "eval/loss" of an
  // evaluation, and of "experts" the worst layer's, or all that are dead. Fields that are not
  // finite are left out.
  void write(MetricsType type, const MetricsFields& fields);

 private:
  EventFile(std::unique_ptr<LineFile> lines, Clock clock)
      : lines_(std::move(lines)), clock_(std::move(clock)) {}
  void add(const std::string& message);

  std::unique_ptr<LineFile> lines_;
  Clock clock_;
};

}  // namespace pagoda
