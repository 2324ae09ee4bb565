// pagoda bench disk|copy|memory|adam [--json] [--rounds N] [--bytes SIZE] ...
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/bytes.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/memory_size.h"
#include "base/stop_signal.h"
#include "bench/adam.h"
#include "bench/copy.h"
#include "bench/disk.h"
#include "bench/memory.h"
#include "cli/commands.h"

namespace pagoda {
namespace {

constexpr int64_t kMaxRounds = 1000;
constexpr int64_t kMaxBenchPageBytes = 4 * kGiB;
constexpr int64_t kMaxBenchPages = 1 << 16;
constexpr int64_t kMaxArrayBytes = int64_t{1} << 40;
constexpr int64_t kMaxThreads = 1024;

// A size from `lowest` to `highest` bytes.
Result<int64_t> parse_size(const char* flag, const std::string& text, int64_t lowest,
                           int64_t highest) {
  const Result<MemorySize> size = MemorySize::parse(text);
  const int64_t bytes = size.ok() ? size.value().resolve(0, 0) : 0;
  if (bytes >= lowest && bytes <= highest) return bytes;
  return Status(Exit::kUsage, strf("%s: \"%s\" must be a size from %s to %s", flag,
                                   printable(text).c_str(), format_bytes(lowest).c_str(),
                                   format_bytes(highest).c_str()));
}

// The value whose name is `text`.
template <typename E>
Result<E> parse_choice(const char* flag, const std::string& text,
                       const std::vector<std::pair<const char*, E>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names += std::string(names.empty() ? "" : ", ") + name;
  }
  return Status(Exit::kUsage, strf("%s: \"%s\" must be one of %s", flag, printable(text).c_str(),
                                   names.c_str()));
}

// What they have in common.
class BenchCommand : public Command {
 public:
  Status run() final {
    if (rounds_ < 1 || rounds_ > kMaxRounds) {
      return Status(Exit::kUsage, strf("--rounds: must be from 1 to %lld", (long long)kMaxRounds));
    }
    install_stop_signals();
    const Result<BenchReport> report = measure();
    if (!report.ok()) return report.status();
    const BenchReport& found = report.value();
    std::fputs((json_ ? found.json() + "\n" : found.text()).c_str(), stdout);
    return Status();
  }

 protected:
  BenchCommand(CLI::App& bench, const char* name, const char* help)
      : Command(bench.add_subcommand(name, help)) {
    app().add_flag("--json", json_, "print one JSON object");
    app()
        .add_option("--rounds", rounds_, "times that ours and the roof take turns (default 7)")
        ->type_name("INT");
  }

  void add_bytes(const char* help, const char* by_default = "512MiB") {
    bytes_text_ = by_default;
    app().add_option("--bytes", bytes_text_, help)->type_name("SIZE");
  }
  void add_pages() {
    app()
        .add_option("--page_bytes", page_texts_, "sizes of a page (default 1MiB 4MiB 16MiB 64MiB)")
        ->type_name("SIZE")
        ->delimiter(',');
  }

  int rounds() const { return static_cast<int>(rounds_); }
  Result<int64_t> bytes(int64_t lowest, int64_t highest) const {
    return parse_size("--bytes", bytes_text_, lowest, highest);
  }
  Result<std::vector<int64_t>> pages() const {
    std::vector<int64_t> pages;
    for (const std::string& text : page_texts_) {
      ASSIGN_OR_RETURN(const int64_t page_bytes,
                       parse_size("--page_bytes", text, kIoAlign, kMaxBenchPageBytes));
      if (page_bytes % kIoAlign != 0) {
        return Status(Exit::kUsage, "--page_bytes: \"" + printable(text) +
                                        "\" must be a multiple of 4096 bytes");
      }
      pages.push_back(page_bytes);
    }
    return pages;
  }

 private:
  virtual Result<BenchReport> measure() = 0;

  bool json_ = false;
  int64_t rounds_ = 7;
  std::string bytes_text_;
  std::vector<std::string> page_texts_ = {"1MiB", "4MiB", "16MiB", "64MiB"};
};

class BenchDiskCommand final : public BenchCommand {
 public:
  explicit BenchDiskCommand(CLI::App& bench)
      : BenchCommand(bench, "disk", "Page reads and writes against the best that fio does") {
    app()
        .add_option("--dir", directory_, "folder on the drive to be measured (default: here)")
        ->type_name("DIR");
    add_pages();
    add_bytes("of the file, for each size of page in turn (default 512MiB)");
    app()
        .add_option("--io", io_, "how pages move: auto, uring or threads (default auto)")
        ->type_name("KIND");
    app()
        .add_option("--roof", roof_,
                    "what they are held against: fio, loop (pread and pwrite on threads), or auto: "
                    "fio where it is installed (default auto)")
        ->type_name("KIND");
  }

 private:
  Result<BenchReport> measure() override {
    std::error_code error;
    if (!std::filesystem::is_directory(directory_, error)) {
      return Status(Exit::kNoInput, "--dir " + printable(directory_) + ": no such folder");
    }
    DiskBench bench;
    bench.directory = directory_;
    bench.rounds = rounds();
    ASSIGN_OR_RETURN(bench.page_bytes, pages());
    const auto [smallest, largest] =
        std::minmax_element(bench.page_bytes.begin(), bench.page_bytes.end());
    ASSIGN_OR_RETURN(bench.bytes, bytes(*largest, kMaxBenchPages * *smallest));
    ASSIGN_OR_RETURN(bench.io, parse_choice<IoKind>("--io", io_,
                                                    {{"auto", IoKind::kAuto},
                                                     {"uring", IoKind::kUring},
                                                     {"threads", IoKind::kThreads}}));
    ASSIGN_OR_RETURN(bench.roof, parse_choice<RoofKind>("--roof", roof_,
                                                        {{"auto", RoofKind::kAuto},
                                                         {"fio", RoofKind::kFio},
                                                         {"loop", RoofKind::kLoop}}));
    return run_disk_bench(bench);
  }

  std::string directory_ = ".";
  std::string io_ = "auto";
  std::string roof_ = "auto";
};

class BenchCopyCommand final : public BenchCommand {
 public:
  explicit BenchCopyCommand(CLI::App& bench)
      : BenchCommand(bench, "copy", "Copies between host and device against bare ones") {
    add_pages();
    add_bytes("copied in a round, and as much memory again (default 512MiB)");
  }

 private:
  Result<BenchReport> measure() override {
    CopyBench bench;
    bench.rounds = rounds();
    ASSIGN_OR_RETURN(bench.page_bytes, pages());
    ASSIGN_OR_RETURN(const int64_t asked, bytes(2 * kIoAlign, kMaxArrayBytes));
    bench.bytes = align_up(asked, 2 * kIoAlign);
    return run_copy_bench(bench);
  }
};

class BenchMemoryCommand final : public BenchCommand {
 public:
  explicit BenchMemoryCommand(CLI::App& bench)
      : BenchCommand(bench, "memory", "Streams of memory: read, write, copy, triad, update") {
    add_bytes("of each of three arrays (default 512MiB)");
  }

 private:
  Result<BenchReport> measure() override {
    MemoryBench bench;
    bench.rounds = rounds();
    const int cores = usable_cores();
    bench.threads = {1};
    if (cores > 1) bench.threads.push_back(cores);
    ASSIGN_OR_RETURN(const int64_t asked, bytes(kIoAlign, kMaxArrayBytes));
    bench.bytes = align_up(asked, cores * kIoAlign);
    return run_memory_bench(bench);
  }
};

class BenchAdamCommand final : public BenchCommand {
 public:
  explicit BenchAdamCommand(CLI::App& bench)
      : BenchCommand(bench, "adam", "Updates of weights against streams of the same bytes") {
    add_bytes("of gradients, weights and states, together (default 2GiB)", "2GiB");
    app()
        .add_option("--threads", threads_, "cores that update (default: all)")
        ->type_name("INT");
  }

 private:
  Result<BenchReport> measure() override {
    if (threads_ < 1 || threads_ > kMaxThreads) {
      return Status(Exit::kUsage,
                    strf("--threads: must be from 1 to %lld", (long long)kMaxThreads));
    }
    AdamBench bench;
    bench.rounds = rounds();
    bench.threads = static_cast<int>(threads_);
    bench.record_elements = {1 << 20, 5 << 19, 5 << 20};
    ASSIGN_OR_RETURN(bench.bytes, bytes(kMiB, kMaxArrayBytes));
    return run_adam_bench(bench);
  }

  int64_t threads_ = usable_cores();
};

}  // namespace

std::vector<CommandPtr> add_bench_commands(CLI::App& root) {
  CLI::App& bench =
      *root.add_subcommand("bench", "How fast this machine is: disk, copy, memory, adam");
  std::vector<CommandPtr> commands;
  commands.push_back(std::make_unique<BenchDiskCommand>(bench));
  commands.push_back(std::make_unique<BenchCopyCommand>(bench));
  commands.push_back(std::make_unique<BenchMemoryCommand>(bench));
  commands.push_back(std::make_unique<BenchAdamCommand>(bench));
  return commands;
}

}  // namespace pagoda
