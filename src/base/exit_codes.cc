#include "base/exit_codes.h"

#include "base/check.h"

namespace pagoda {
namespace {

constexpr ExitMeaning kMeanings[] = {
    {Exit::kOk, "finished"},
    {Exit::kUsage, "wrong command line or run file"},
    {Exit::kDoesNotFit, "the planned run does not fit"},
    {Exit::kBadData, "bad model, tokenizer or text"},
    {Exit::kNoInput, "an input is missing"},
    {Exit::kUnavailable, "something the run insists on is missing"},
    {Exit::kInternal, "internal error"},
    {Exit::kHostMemory, "host memory too small"},
    {Exit::kDeviceMemory, "device memory too small"},
    {Exit::kCannotCreate, "output cannot be created"},
    {Exit::kIoError, "I/O error, GPU error or corruption"},
    {Exit::kStopped, "stopped with a valid checkpoint; run again with --resume"},
    {Exit::kDiverged, "diverged"},
    {Exit::kNoCheckpoint, "no valid checkpoint"},
    {Exit::kMismatch, "the checkpoint does not fit the run"},
};

}  // namespace

std::span<const ExitMeaning> exit_meanings() { return kMeanings; }

std::string exit_codes_text() {
  std::string text = "Exit codes:";
  for (const ExitMeaning& meaning : kMeanings) {
    text += strf("\n  %7d  %s", static_cast<int>(meaning.code), meaning.text);
  }
  return text + "\n  128 + n  " + kStoppedBySignal;
}

}  // namespace pagoda
