#include "commands/model_copies.h"

#include <algorithm>
#include <filesystem>

#include "base/directory.h"
#include "base/log.h"
#include "base/number_text.h"
#include "report/model_card.h"

namespace pagoda {

namespace fs = std::filesystem;

namespace {

constexpr char kBest[] = "best", kOldBest[] = "best.old", kPartial[] = ".partial";

Status rename_folder(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error) return Status();
  return Status(Exit::kIoError, strf("%s: cannot be renamed to %s: %s", printable(from).c_str(),
                                     printable(to).c_str(), error.message().c_str()));
}

// The steps whose copies the folder has, ascending; none if it is not there.
std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  const auto opened = Directory::open(folder, Links::kRefuse);
  const auto names = opened.ok() ? opened.value().names() : opened.status();
  if (!names.ok()) return steps;
  for (const std::string& name : names.value()) {
    int64_t step = 0;
    if (parse_int64(name, step) && step >= 0 && std::to_string(step) == name) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Removes what was not finished in the folder, if that is there.
Status remove_partial(const std::string& path) {
  const auto folder = Directory::open(path, Links::kRefuse);
  if (folder.status().code() == Exit::kNoInput) return Status();
  RETURN_IF_ERROR(folder.status());
  ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.value().names());
  for (const std::string& name : names) {
    if (name.ends_with(kPartial)) RETURN_IF_ERROR(folder.value().remove_folder(name));
  }
  return Status();
}

}  // namespace

Status ModelCopies::repair() const {
  const std::string& out = config_.train.output_dir;
  RETURN_IF_ERROR(remove_partial(out));
  RETURN_IF_ERROR(remove_partial(copies()));
  ASSIGN_OR_RETURN(const Directory run, Directory::open(out, Links::kFollow));
  if (!run.has_folder(kOldBest)) return Status();
  if (run.has_folder(kBest)) return run.remove_folder(kOldBest);
  return rename_folder(out + "/" + kOldBest, out + "/" + kBest);
}

int64_t ModelCopies::copies_to_come() const {
  const RunConfig::Train& t = config_.train;
  std::error_code error;
  const int64_t there =
      fs::is_directory(t.output_dir + "/" + kBest, error) + std::ssize(steps_in(copies()));
  // One more while it is written.
  return std::max<int64_t>(0, t.keep_best + t.keep_copies + 1 - there);
}

// Blocks of a file go back to the disk when it is removed.
Status ModelCopies::hold(int64_t copies) const {
  RETURN_IF_ERROR(release());
  if (copies <= 0) return Status();
  ASSIGN_OR_RETURN(const int64_t bytes, trainer_.export_bytes());
  return trainer_.storage().reserve_file(room(), copies * bytes);
}

Status ModelCopies::reserve() const {
  const RunConfig::Train& t = config_.train;
  ASSIGN_OR_RETURN(const int64_t bytes, trainer_.export_bytes());
  const int64_t most = t.keep_best + t.keep_copies + 1, needed = copies_to_come() * bytes;
  log_info(strf("copies of the model: at most %lld at a time, %s in all", (long long)most,
                format_bytes(most * bytes).c_str()));
  RETURN_IF_ERROR(release());
  const int64_t free = free_disk_bytes(t.output_dir);
  if (free < 0 || free >= needed) return hold(copies_to_come());
  return Status(Exit::kCannotCreate,
                strf("%s: %s are free, and copies of the model take %s more; lower "
                     "train.keep_copies, or free some room",
                     printable(t.output_dir).c_str(), format_bytes(free).c_str(),
                     format_bytes_up(needed).c_str()));
}

Status ModelCopies::begin() const {
  const RunConfig::Train& t = config_.train;
  if (!t.keep_best && t.keep_copies == 0) return Status();
  Status begun;
  if (leads()) begun = repair();
  if (leads() && begun.ok()) begun = reserve();
  return ranks_.agree(begun);
}

Status ModelCopies::release() const {
  return leads() ? trainer_.storage().remove_file(room()) : Status();
}

Status ModelCopies::prepare() const {
  RETURN_IF_ERROR(repair());
  return hold(copies_to_come() - 1);
}

Status ModelCopies::write(const std::string& folder, const EvalHistory& evals) {
  RETURN_IF_ERROR(ranks_.agree(leads() ? prepare() : Status()));
  ModelCard card;
  card.model_path = config_.model.path;
  card.resolved_config = trainer_.config().to_toml();
  card.step = trainer_.steps_done();
  if (evals.last_step >= 0) {
    card.held_out_step = evals.last_step;
    card.held_out_loss = evals.last_loss;
  }
  return trainer_.export_model(folder, model_card_text(card));
}

Status ModelCopies::write_best(const EvalHistory& evals) {
  RETURN_IF_ERROR(write(config_.train.output_dir + "/" + kBest + kPartial, evals));
  return ranks_.agree(leads() ? put_best() : Status());
}

// Puts what was written in the old one's place.
Status ModelCopies::put_best() const {
  const std::string& out = config_.train.output_dir;
  const std::string best = out + "/" + kBest;
  ASSIGN_OR_RETURN(const Directory run, Directory::open(out, Links::kFollow));
  if (run.has_folder(kBest)) RETURN_IF_ERROR(rename_folder(best, out + "/" + kOldBest));
  RETURN_IF_ERROR(rename_folder(best + kPartial, best));
  RETURN_IF_ERROR(run.remove_folder(kOldBest));
  return hold(copies_to_come());
}

std::string ModelCopies::newest() const {
  return copies() + "/" + std::to_string(trainer_.steps_done());
}

Status ModelCopies::write_newest(const EvalHistory& evals) {
  std::error_code error;
  ASSIGN_OR_RETURN(const int64_t there, ranks_.most(leads() && fs::is_directory(newest(), error)));
  if (there != 0) return Status();
  RETURN_IF_ERROR(write(newest() + kPartial, evals));
  return ranks_.agree(leads() ? put_newest() : Status());
}

Status ModelCopies::put_newest() const {
  RETURN_IF_ERROR(rename_folder(newest() + kPartial, newest()));
  return remove_oldest();
}

Status ModelCopies::remove_oldest() const {
  std::vector<int64_t> steps = steps_in(copies());
  ASSIGN_OR_RETURN(const Directory folder, Directory::open(copies(), Links::kRefuse));
  while (std::ssize(steps) > config_.train.keep_copies) {
    RETURN_IF_ERROR(folder.remove_folder(std::to_string(steps.front())));
    steps.erase(steps.begin());
  }
  return hold(copies_to_come());
}

}  // namespace pagoda
