// The folder of a run: resolved.toml, metrics.jsonl, tokens.bin, checkpoints/, and by default
// store/.
#pragma once

#include <string>

#include "base/status.h"
#include "config/run_config.h"
#include "base/descriptor.h"

namespace pagoda {

// Creates the folder of a fresh run, and takes it away again if the start fails (one that was there
// is only emptied), so that the same command can be repeated. While the object lives the folder is
// locked against other runs (where the file system can lock a directory; the page file has a lock
// of its own).
class RunOutput {
 public:
  explicit RunOutput(std::string path) : path_(std::move(path)) {}
  ~RunOutput();
  RunOutput(const RunOutput&) = delete;
  RunOutput& operator=(const RunOutput&) = delete;

  // A new or empty folder, or one whose start was killed (STARTING lists its page files; nothing
  // was saved), which is emptied; kCannotCreate if it holds anything else or another run is using
  // it.
  Status create();
  // The folder of a run to resume; kNoInput if there is none, kCannotCreate if that run is going
  // on.
  Status reuse();
  // The start succeeded: the folder stays.
  void keep() { created_ = false; }

 private:
  Status lock();

  std::string path_;
  Descriptor lock_;
  bool created_ = false;
  bool found_ = false;  // create() took a folder that was there
};

}  // namespace pagoda
