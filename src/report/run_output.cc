#include "report/run_output.h"

#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/log.h"
#include "base/new_folder.h"
#include "base/output_file.h"
#include "parallel/host_name.h"

namespace pagoda {

namespace fs = std::filesystem;

namespace {

// The files that a start makes besides its page files.
constexpr const char* kFiles[] = {"tokens.bin", "eval_tokens.bin", "metrics.jsonl", "resolved.toml",
                                  "copies.room"};
constexpr char kCheckpoints[] = "checkpoints";
constexpr char kEvents[] = "tensorboard";

// The kernel closes the files of a killed process's io_uring some time after the process has ended.
constexpr std::chrono::seconds kLockWait(5);
constexpr std::chrono::milliseconds kLockRetry(50);

// True also if it is unknown: then nothing may be removed.
bool has_checkpoint(const Directory& folder) {
  const auto checkpoints = folder.folder(kCheckpoints);
  if (checkpoints.status().code() == Exit::kNoInput) return false;
  const auto steps = checkpoints.ok() ? checkpoints.value().names() : checkpoints.status();
  if (!steps.ok()) return true;
  for (const std::string& name : steps.value()) {
    if (name.ends_with(".tmp") || !checkpoints.value().has_folder(name)) continue;
    const auto step = checkpoints.value().folder(name);
    const auto files = step.ok() ? step.value().names() : step.status();
    if (!files.ok() || std::ranges::count(files.value(), "MANIFEST") > 0) return true;
  }
  return false;
}

// Removes the page file. kCannotCreate: a run is using it, and still does after kLockWait.
Status remove_unused(const Directory& disk, const std::string& name) {
  const auto file = disk.file(name);
  if (file.status().code() == Exit::kNoInput) return Status();
  RETURN_IF_ERROR(file.status());
  const auto deadline = std::chrono::steady_clock::now() + kLockWait;
  while (::flock(file.value().get(), LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Exit::kCannotCreate,
                    strf("%s/%s is in use by another run; nothing was changed: wait for it to end "
                         "or use another train.output_dir",
                         printable(disk.path()).c_str(), name.c_str()));
    }
    std::this_thread::sleep_for(kLockRetry);
  }
  return disk.remove_file(name);
}

// A run must not write to a place that a link in somebody else's folder names.
Status refuse_links(const Directory& folder, const std::function<bool(const std::string&)>& which) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.names());
  for (const std::string& name : names) {
    if (!which(name) || !folder.has_link(name)) continue;
    return Status(Exit::kBadData,
                  strf("%s/%s: is a symbolic link, which is refused in a run's folder; nothing was "
                       "changed: put the file or folder itself there, or remove the link",
                       printable(folder.path()).c_str(), printable(name).c_str()));
  }
  return Status();
}

}  // namespace

RunOutput::~RunOutput() {
  if (!created_) return;
  // First, since a checkpoint whose pages are gone could be neither resumed nor started over.
  if (const Status none = folder_->remove_folder(kCheckpoints); !none.ok()) {
    log_warn(none.message());
    return;
  }
  const auto text = read_text_file(path_ + "/" + kStartMark, Links::kRefuse, kMostMarkBytes);
  const Status removed = remove_start(marked_page_files(text.ok() ? text.value() : std::string()));
  if (!removed.ok()) log_warn(removed.message());
  std::error_code not_empty;
  if (removed.ok() && !found_) fs::remove(path_, not_empty);
}

Status RunOutput::open() {
  if (folder_) return Status();  // it is locked
  ASSIGN_OR_RETURN(folder_, Directory::open(path_, Links::kFollow));
  if (folder_->lock() != Directory::Lock::kTakenByAnother) return Status();
  return Status(Exit::kCannotCreate,
                strf("%s is in use by another run, which goes on unharmed; wait for it to end, or "
                     "name another train.output_dir",
                     printable(path_).c_str()));
}

Status RunOutput::create() {
  std::error_code error;
  found_ = fs::is_directory(path_, error);
  if (found_) {
    RETURN_IF_ERROR(open());
    RETURN_IF_ERROR(remove_unfinished_start());
  }
  RETURN_IF_ERROR(create_empty_directory(path_));
  if (!found_) RETURN_IF_ERROR(open());
  // Another run may have come and gone before the lock was ours.
  RETURN_IF_ERROR(create_empty_directory(path_));
  created_ = true;
  return Status();
}

Status RunOutput::reuse() {
  std::error_code error;
  if (!fs::is_directory(path_, error)) {
    return Status(Exit::kNoInput, strf("%s is no folder, so there is no run to resume; check "
                                       "train.output_dir, or start without --resume",
                                       path_.c_str()));
  }
  RETURN_IF_ERROR(open());
  RETURN_IF_ERROR(refuse_links(*folder_, [](const std::string& name) {
    return std::ranges::count(kFiles, name) > 0 || name == kCheckpoints || name == kStartMark ||
           name == kMoveMark || name == "store" || name == kEvents || name.starts_with("best") ||
           name == "copies";
  }));
  if (const auto checkpoints = folder_->folder(kCheckpoints); checkpoints.ok()) {
    RETURN_IF_ERROR(refuse_links(checkpoints.value(), [](const std::string&) { return true; }));
  }
  return remove_files([](const std::string& name) {
    return std::ranges::any_of(kFiles, [&](const char* file) { return is_unfinished(name, file); });
  });
}

Status RunOutput::keep() {
  RETURN_IF_ERROR(folder_->remove_file(kStartMark));
  created_ = false;
  return Status();
}

Result<std::optional<std::string>> RunOutput::killed_start() {
  std::error_code error;
  if (!fs::is_directory(path_, error)) return std::optional<std::string>();
  RETURN_IF_ERROR(open());
  ASSIGN_OR_RETURN(const std::vector<std::string> names, folder_->names());
  if (std::ranges::count(names, kStartMark) == 0 || has_checkpoint(*folder_)) {
    return std::optional<std::string>();
  }
  ASSIGN_OR_RETURN(std::string text,
                   read_text_file(path_ + "/" + kStartMark, Links::kRefuse, kMostMarkBytes));
  // The start was killed while it wrote the mark, or the file is somebody else's.
  if (marked_page_files(text).empty() && (names.size() > 1 || !text.empty())) {
    return std::optional<std::string>();
  }
  return std::optional(std::move(text));
}

// Removes what a killed start left, and nothing else.
Status RunOutput::remove_unfinished_start() {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, killed_start());
  if (!text) return Status();
  RETURN_IF_ERROR(remove_start(marked_page_files(*text)));
  log_info(strf("%s: an earlier start was killed before anything was saved; starting over",
                printable(path_).c_str()));
  return Status();
}

// Removes STARTING last: whatever interrupts this, the next start goes on with it.
Status RunOutput::remove_start(const std::vector<MarkedFile>& page_files) const {
  for (const MarkedFile& file : page_files) {
    const Status removed = remove_page_file(file);
    // Without its mark, a folder whose page file stays could be neither resumed nor started in.
    if (removed.code() == Exit::kCannotCreate) return removed;
    if (!removed.ok()) log_warn(removed.message());
  }
  RETURN_IF_ERROR(folder_->remove_folder(kCheckpoints));
  RETURN_IF_ERROR(folder_->remove_folder(kEvents));
  RETURN_IF_ERROR(remove_files([](const std::string& name) {
    return std::ranges::any_of(
        kFiles, [&](const char* file) { return name == file || is_unfinished(name, file); });
  }));
  return folder_->remove_file(kStartMark);
}

Status RunOutput::remove_files(const std::function<bool(const std::string&)>& which) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, folder_->names());
  for (const std::string& name : names) {
    if (which(name)) RETURN_IF_ERROR(folder_->remove_file(name));
  }
  return Status();
}

Status RunOutput::remove_page_file(const MarkedFile& file) const {
  if (!file.path.starts_with("/")) return remove_page_file_inside(*folder_, file.path);
  const std::string inside = path_inside(file.path, path_);
  if (!inside.empty()) return remove_page_file_inside(*folder_, inside);
  if (!file.host.empty() && file.host != host_name()) return Status();
  return remove_from_disk(file.path);
}

Status RunOutput::remove_from_disk(const std::string& path) const {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return Status();
  const std::string directory = fs::path(path).parent_path().string();
  const bool named = std::ranges::any_of(
      disks_, [&](const std::string& disk) { return absolute_path(disk) == directory; });
  if (!named) {
    return Status(Exit::kMismatch, strf("%s was left by the earlier start and is not in "
                                        "memory.disk: it stays, remove it yourself",
                                        printable(path).c_str()));
  }
  ASSIGN_OR_RETURN(const Directory disk, Directory::open(directory, Links::kFollow));
  return remove_unused(disk, fs::path(path).filename().string());
}

Status RunOutput::remove_from_disks(const std::vector<MarkedFile>& files) const {
  for (const MarkedFile& file : files) {
    if (!file.path.starts_with("/") || !path_inside(file.path, path_).empty()) continue;
    const Status removed = remove_from_disk(file.path);
    if (removed.code() != Exit::kMismatch) RETURN_IF_ERROR(removed);  // it may be another rank's
  }
  return Status();
}

// Also removes the folders on the way to it, once they are empty.
Status RunOutput::remove_page_file_inside(const Directory& above, const std::string& inside) const {
  const size_t end = inside.find('/');
  if (end == std::string::npos) return remove_unused(above, inside);
  const std::string name = inside.substr(0, end);
  if (name.empty() || name == "." || name == "..") {
    return Status(Exit::kBadData, strf("%s/%s: names no page file of the run",
                                       printable(path_).c_str(), kStartMark));
  }
  const auto next = above.folder(name);
  if (next.status().code() == Exit::kNoInput) return Status();
  RETURN_IF_ERROR(next.status());
  RETURN_IF_ERROR(remove_page_file_inside(next.value(), inside.substr(end + 1)));
  const Status removed = above.remove_empty(name);
  return removed.code() == Exit::kBadData ? Status() : removed;  // it holds others' files
}

}  // namespace pagoda
