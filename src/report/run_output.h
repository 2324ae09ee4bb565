// The folder of a run holds resolved.toml, metrics.jsonl, tokens.bin, checkpoints/, by default
// store/, and if they are asked for tensorboard/, best/ and
// copies/.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/directory.h"
#include "base/status.h"
#include "checkpoint/start_mark.h"

namespace pagoda {

// Creates the folder of a fresh run, and removes it again if the start fails (a folder that was
// there before is only emptied), so that the same command can be repeated. While the object lives
// the folder is locked against other runs (where the file system can lock a directory; the page
// file has a lock of its own). It removes only files with the names that a start makes, and follows
// no link.
class RunOutput {
 public:
  // `disks` are the folders of the run's page files: files that STARTING names elsewhere are not
  // removed.
  RunOutput(std::string path, std::vector<std::string> disks)
      : path_(std::move(path)), disks_(std::move(disks)) {}
  ~RunOutput();
  RunOutput(const RunOutput&) = delete;
  RunOutput& operator=(const RunOutput&) = delete;

  // What create() would remove: the mark of a start that was killed, if that is here. Takes the
  // folder, with the errors of create(). Page files on disks of other ranks are for these to remove
  // before, by remove_from_disks().
  Result<std::optional<std::string>> killed_start();
  // Removes those of the page files that are in `disks`, outside the run's folder. kCannotCreate.
  Status remove_from_disks(const std::vector<MarkedFile>& files) const;
  // Takes a new or empty folder, or one whose start was killed (it has STARTING, and nothing was
  // saved), which it empties. kCannotCreate if the folder holds anything else or another run is
  // using it.
  Status create();
  // Takes the folder of a run to resume, and removes what a killed process was writing. kNoInput if
  // there is none, kCannotCreate if that run is still going, kBadData if a link stands for one of
  // its parts.
  Status reuse();
  // Call when the start has succeeded: the folder stays.
  Status keep();
  // Call when a rank was lost in the start: what it left is removed by the next one.
  void leave_to_next_start() { created_ = false; }
  // kIoError when the folder is not at its path any more (base/held_file.h).
  Status check() const { return folder_ ? folder_->check() : Status(); }

 private:
  Status open();
  Status remove_unfinished_start();
  Status remove_start(const std::vector<MarkedFile>& page_files) const;
  Status remove_files(const std::function<bool(const std::string&)>& which) const;
  Status remove_page_file(const MarkedFile& file) const;
  Status remove_from_disk(const std::string& path) const;
  Status remove_page_file_inside(const Directory& above, const std::string& inside) const;

  std::string path_;
  std::vector<std::string> disks_;
  std::optional<Directory> folder_;  // locked
  bool created_ = false;
  bool found_ = false;  // create() took a folder that existed before
};

}  // namespace pagoda
