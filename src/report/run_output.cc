#include "report/run_output.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "base/new_folder.h"

namespace pagoda {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMostStartingBytes = int64_t{1} << 20;

bool has_checkpoint(const fs::path& folder) {
  std::error_code error;
  for (const auto& step : fs::directory_iterator(folder / "checkpoints", error)) {
    const bool finished = step.path().extension() != ".tmp";
    if (finished && fs::exists(step.path() / "MANIFEST", error)) return true;
  }
  return false;
}

// What a start that was killed left, and nothing else.
Status remove_unfinished_start(const fs::path& folder) {
  std::error_code error;
  const std::string starting = folder / "STARTING";
  if (!fs::exists(starting, error) || has_checkpoint(folder)) return Status();
  ASSIGN_OR_RETURN(const std::string text,
                   read_text_file(starting, Links::kRefuse, kMostStartingBytes));
  std::istringstream lines(text);
  for (std::string page_file; std::getline(lines, page_file);) {
    if (fs::path(page_file).filename().string().starts_with("pages-")) {
      fs::remove(page_file, error);
    }
  }
  for (const char* name : {"tokens.bin", "tokens.bin.tmp", "eval_tokens.bin", "eval_tokens.bin.tmp",
                           "store", "checkpoints", "metrics.jsonl", "resolved.toml", "STARTING"}) {
    fs::remove_all(folder / name, error);
  }
  log_info(strf("%s: an earlier start was killed before anything was saved; starting over",
                printable(folder.string()).c_str()));
  return Status();
}

}  // namespace

RunOutput::~RunOutput() {
  if (!created_) return;
  std::error_code error;
  if (found_) {
    for (const auto& entry : fs::directory_iterator(path_, error)) fs::remove_all(entry, error);
  } else {
    fs::remove_all(path_, error);
  }
  if (error) log_warn(strf("%s could not be emptied: %s", path_.c_str(), error.message().c_str()));
}

Status RunOutput::lock() {
  lock_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.ok() || ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return Status();
  if (errno != EWOULDBLOCK) return Status();
  return Status(Exit::kCannotCreate,
                strf("%s is in use by another run, which goes on unharmed; wait for it to end, or "
                     "name another train.output_dir",
                     printable(path_).c_str()));
}

Status RunOutput::create() {
  std::error_code error;
  found_ = fs::is_directory(path_, error);
  if (found_) {
    RETURN_IF_ERROR(lock());
    RETURN_IF_ERROR(remove_unfinished_start(path_));
  }
  RETURN_IF_ERROR(create_empty_directory(path_));
  RETURN_IF_ERROR(lock());
  // Another run may have come and gone before the lock was ours.
  RETURN_IF_ERROR(create_empty_directory(path_));
  created_ = true;
  return Status();
}

Status RunOutput::reuse() {
  std::error_code error;
  if (fs::is_directory(path_, error)) return lock();
  return Status(Exit::kNoInput, strf("%s is no folder, so there is no run to resume; check "
                                     "train.output_dir, or start without --resume",
                                     path_.c_str()));
}

}  // namespace pagoda
