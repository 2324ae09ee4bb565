// The folder of a run: resolved.toml, metrics.jsonl, tokens.bin, checkpoints/, and by default
// store/.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/directory.h"
#include "base/status.h"

namespace pagoda {

// Creates the folder of a fresh run, and takes it away again if the start fails (one that was there
// is only emptied), so that the same command can be repeated. While the object lives the folder is
// locked against other runs (where the file system can lock a directory; the page file has a lock
// of its own). Nothing is removed but what a start makes, by its names, and no link is followed.
class RunOutput {
 public:
  // `disks` hold the run's page files: what STARTING names elsewhere is not removed.
  RunOutput(std::string path, std::vector<std::string> disks)
      : path_(std::move(path)), disks_(std::move(disks)) {}
  ~RunOutput();
  RunOutput(const RunOutput&) = delete;
  RunOutput& operator=(const RunOutput&) = delete;

  // A new or empty folder, or one whose start was killed (it has STARTING, and nothing was saved),
  // which is emptied; kCannotCreate if it holds anything else or another run is using it.
  Status create();
  // The folder of a run to resume, without what a killed process was writing; kNoInput if there is
  // none, kCannotCreate if that run is going on, kBadData if a link stands for one of its parts.
  Status reuse();
  // The start succeeded: the folder stays.
  Status keep();
  // kIoError when the folder is not at its path any more (base/held_file.h).
  Status check() const { return folder_ ? folder_->check() : Status(); }

 private:
  Status open();
  Status remove_unfinished_start() const;
  Status remove_start(const std::vector<std::string>& page_files) const;
  Status remove_files(const std::function<bool(const std::string&)>& which) const;
  Status remove_page_file(const std::string& line) const;
  Status remove_page_file_inside(const Directory& above, const std::string& inside) const;

  std::string path_;
  std::vector<std::string> disks_;
  std::optional<Directory> folder_;  // locked
  bool created_ = false;
  bool found_ = false;  // create() took a folder that was there
};

}  // namespace pagoda
