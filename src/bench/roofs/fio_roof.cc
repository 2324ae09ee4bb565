// fio as the roof. Its own JSON report is believed for bytes, run time and CPU time, so that its
// start does not count.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/roofs/disk_roof.h"
#include "bench/roofs/program.h"
#include "model/json.h"
#include "offload/chunk.h"

namespace pagoda {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// The report's one job, from output that may begin with notes.
Result<Json> read_job(const std::string& output) {
  const size_t begin = output.find('{'), end = output.rfind('}');
  const Status unreadable(Exit::kIoError, "fio: its report cannot be read (" +
                                              printable(first_line(output)) +
                                              "); use --roof loop");
  if (begin == std::string::npos || end < begin) return unreadable;
  ASSIGN_OR_RETURN(const Json report,
                   parse_json(std::string_view(output).substr(begin, end - begin + 1), "fio"));
  const auto jobs = report.find("jobs");
  if (jobs == report.end() || !jobs->is_array() || jobs->size() != 1) return unreadable;
  return jobs->front();
}

class FioRoof final : public DiskRoof {
 public:
  FioRoof(std::string version, bool direct) : version_(std::move(version)), direct_(direct) {}

  std::string describe() const override {
    return version_ + ", io_uring, registered buffers and file" +
           (direct_ ? ", O_DIRECT" : ", buffered");
  }

  std::vector<RoofSetting> settings(int64_t region_bytes) const override {
    return setting_grid({512 * kKiB, kMiB, 4 * kMiB}, {4, 16, 64}, region_bytes);
  }

  Result<Timing> run(IoRequest::Op op, const RoofSetting& setting,
                     const FileRegion& region) override {
    const bool read = op == IoRequest::Op::kRead;
    const int64_t bytes = region.bytes / setting.block_bytes * setting.block_bytes;
    CHECK(bytes > 0);
    ASSIGN_OR_RETURN(
        const ProgramRun run,
        run_program({"fio", "--name=pagoda", "--filename=" + escaped(region.path),
                     strf("--offset=%lld", (long long)region.offset),
                     strf("--size=%lld", (long long)bytes), read ? "--rw=read" : "--rw=write",
                     strf("--bs=%lld", (long long)setting.block_bytes),
                     strf("--iodepth=%d", setting.depth), "--ioengine=io_uring", "--fixedbufs=1",
                     "--registerfiles=1", direct_ ? "--direct=1" : "--direct=0", "--thread=1",
                     "--fallocate=none", "--allow_file_create=0", "--invalidate=0", "--eta=never",
                     "--output-format=json"}));
    RETURN_IF_ERROR(stop_status("measuring"));  // a terminal's Ctrl-C ends fio too
    if (run.code != 0) {
      return Status(Exit::kIoError, strf("fio ended with %d (%s); use --roof loop", run.code,
                                         printable(first_line(run.output)).c_str()));
    }
    ASSIGN_OR_RETURN(const Json job, read_job(run.output));
    const auto side = job.find(read ? "read" : "write");
    if (number(job, "error") != 0 || side == job.end() ||
        number(*side, "io_bytes") != static_cast<double>(bytes)) {
      return Status(Exit::kIoError, strf("fio did not move %lld bytes of %s; use --roof loop",
                                         (long long)bytes, region.path.c_str()));
    }
    Timing timing;
    timing.bytes = bytes;
    timing.seconds = std::max(number(*side, "runtime"), 1.0) / 1000;  // whole milliseconds
    const double cpu_percent = number(job, "usr_cpu") + number(job, "sys_cpu");
    timing.cpu_seconds = cpu_percent / 100 * number(job, "job_runtime") / 1000;
    return timing;
  }

 private:
  // fio takes names apart at colons.
  static std::string escaped(const std::string& path) {
    std::string out;
    for (const char c : path) out += c == ':' ? "\\:" : std::string(1, c);
    return out;
  }

  const std::string version_;
  const bool direct_;
};

constexpr int64_t kTrialBytes = 4 * kIoAlign;  // one run of fio shows whether it can

}  // namespace

Result<std::unique_ptr<DiskRoof>> make_fio_roof(bool direct, const std::string& directory) {
  const auto version = run_program({"fio", "--version"});
  if (!version.ok() || version.value().code != 0) {
    return Status(Exit::kUnavailable, "fio is not installed; install it or use --roof loop");
  }
  auto fio = std::make_unique<FioRoof>(first_line(version.value().output), direct);
  std::string path = directory + "/fio-trial-XXXXXX";
  const Descriptor file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file.ok() || ::ftruncate(file.get(), kTrialBytes) != 0) {
    return Status(Exit::kCannotCreate, strf("cannot create a file in %s: %s",
                                            printable(directory).c_str(),
                                            error_text(errno).c_str()));
  }
  const auto trial = fio->run(IoRequest::Op::kWrite, {kTrialBytes, 1}, {path, 0, kTrialBytes});
  if (::unlink(path.c_str()) != 0) log_warn("cannot remove " + path);
  if (!trial.ok()) return Status(Exit::kUnavailable, trial.status().message());
  return std::unique_ptr<DiskRoof>(std::move(fio));
}

}  // namespace pagoda
