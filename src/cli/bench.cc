// pagoda bench disk|copy|memory|adam|gemm|attention|step [--json] [--rounds N] [--bytes SIZE] ...
#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/bytes.h"
#include "base/stop_signal.h"
#include "base/terminal_text.h"
#include "bench/adam.h"
#include "bench/attention.h"
#include "bench/copy.h"
#include "bench/disk.h"
#include "bench/gemm.h"
#include "bench/memory.h"
#include "bench/step.h"
#include "cli/bench_options.h"
#include "cli/commands.h"
#include "cli/value_option.h"
#include "hardware/machine.h"

namespace pagoda {
namespace {

constexpr int64_t kMaxBenchPageBytes = 4 * kGiB;
constexpr int64_t kMaxBenchPages = 1 << 16;
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxGemmSize = 1 << 16;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxTokens = 1 << 24;  // the most tokens of a call or a step

// What they have in common.
class BenchCommand : public Command {
 public:
  Status run() final {
    RETURN_IF_ERROR(check_range("--rounds", rounds_, kMaxRounds));
    install_stop_signals();
    const Result<BenchReport> report = measure();
    if (!report.ok()) return report.status();
    const BenchReport& found = report.value();
    print_result(json_ ? found.json() + "\n" : found.text());
    return Status();
  }

 protected:
  BenchCommand(CLI::App& bench, const char* name, const char* help)
      : Command(bench.add_subcommand(name, help)) {
    app().add_flag("--json", json_, "print one JSON object");
    add_value(app(), "--rounds", rounds_, "times that ours and the roof take turns")
        ->type_name("INT");
  }

  void add_bytes(const char* help, const std::string& by_default = "512MiB") {
    bytes_text_ = by_default;
    add_value(app(), "--bytes", bytes_text_, help)->type_name("SIZE");
  }
  void add_pages() {
    add_value(app(), "--page_bytes", page_texts_, "page sizes to measure")
        ->type_name("SIZE")
        ->delimiter(',');
  }
  void add_threads(const char* help) {
    app().add_option("--threads", threads_, strf("%s (default: all)", help))->type_name("INT");
  }

  int rounds() const { return static_cast<int>(rounds_); }
  Result<int> threads() const {
    RETURN_IF_ERROR(check_range("--threads", threads_, kMaxThreads));
    return static_cast<int>(threads_);
  }
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
  int64_t threads_ = usable_cores();
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
    add_bytes("size of the file, for each page size in turn");
    add_value(app(), "--io", io_, "how pages move: auto, uring or threads")->type_name("KIND");
    add_value(app(), "--roof", roof_,
              "the roof: fio, loop (pread and pwrite on threads), or auto: fio if it is "
              "installed")
        ->type_name("KIND");
  }

 private:
  Result<BenchReport> measure() override {
    RETURN_IF_ERROR(check_folder(directory_));
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
    add_bytes("bytes copied in a round; takes twice that memory");
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
    add_bytes("size of each of three arrays");
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
    add_bytes("size of gradients, weights and states together", "2GiB");
    add_threads("cores that update");
  }

 private:
  Result<BenchReport> measure() override {
    AdamBench bench;
    bench.rounds = rounds();
    ASSIGN_OR_RETURN(bench.threads, threads());
    bench.record_elements = {1 << 20, 5 << 19, 5 << 20};
    ASSIGN_OR_RETURN(bench.bytes, bytes(kMiB, kMaxArrayBytes));
    return run_adam_bench(bench);
  }

};

class BenchGemmCommand final : public BenchCommand {
 public:
  explicit BenchGemmCommand(CLI::App& bench)
      : BenchCommand(bench, "gemm", "Products of cold experts against processor and memory") {
    add_bytes("size of the weights, above the last cache's; takes up to 3.5 times that memory",
              std::to_string(cold_gemm_bytes() / kMiB) + "MiB");
    add_threads("cores that multiply");
    add_value(app(), "--hidden", hidden_, "width of an expert's input")->type_name("INT");
    add_value(app(), "--ffn", ffn_, "widths inside an expert")->type_name("INT")->delimiter(',');
    add_value(app(), "--tokens", tokens_, "tokens of an expert")->type_name("INT")->delimiter(',');
  }

 private:
  Result<BenchReport> measure() override {
    RETURN_IF_ERROR(check_range("--hidden", hidden_, kMaxGemmSize));
    for (const int64_t ffn : ffn_) RETURN_IF_ERROR(check_range("--ffn", ffn, kMaxGemmSize));
    for (const int64_t n : tokens_) RETURN_IF_ERROR(check_range("--tokens", n, kMaxGemmSize));
    GemmBench bench;
    bench.rounds = rounds();
    ASSIGN_OR_RETURN(bench.threads, threads());
    bench.hidden = hidden_;
    bench.ffn = ffn_;
    bench.tokens = tokens_;
    const int64_t least = std::max(kMiB, bench.threads * 16 * kIoAlign);  // each thread streams
    ASSIGN_OR_RETURN(bench.bytes, bytes(least, kMaxArrayBytes));
    return run_gemm_bench(bench);
  }

  int64_t hidden_ = 2048;
  std::vector<int64_t> ffn_ = {768, 1408};
  std::vector<int64_t> tokens_ = {16, 32, 64, 128, 256, 1024};
};

class BenchAttentionCommand final : public BenchCommand {
 public:
  explicit BenchAttentionCommand(CLI::App& bench)
      : BenchCommand(bench, "attention", "Causal attention against its own products") {
    add_value(app(), "--tokens", tokens_, "tokens of a call, in documents of one length")
        ->type_name("INT");
    add_value(app(), "--lengths", lengths_, "lengths of documents, each a divisor of --tokens")
        ->type_name("INT")
        ->delimiter(',');
    add_value(app(), "--heads", heads_, "heads of queries")->type_name("INT");
    add_value(app(), "--kv_heads", kv_heads_, "heads of keys and values, a divisor of --heads")
        ->type_name("INT");
    add_value(app(), "--head_dim", head_dim_, "width of a head, even")->type_name("INT");
    add_threads("cores that compute");
  }

 private:
  Result<BenchReport> measure() override {
    RETURN_IF_ERROR(check_range("--tokens", tokens_, kMaxTokens));
    RETURN_IF_ERROR(check_range("--heads", heads_, kMaxHeads));
    RETURN_IF_ERROR(check_range("--kv_heads", kv_heads_, heads_));
    RETURN_IF_ERROR(check_range("--head_dim", head_dim_, kMaxHeadDim));
    if (heads_ % kv_heads_ != 0 || head_dim_ % 2 != 0) {
      return Status(Exit::kUsage, "--heads must be a multiple of --kv_heads, --head_dim even");
    }
    for (const int64_t length : lengths_) {
      if (length > 0 && tokens_ % length == 0) continue;
      return Status(Exit::kUsage, strf("--lengths: %lld does not divide the %lld of --tokens",
                                       (long long)length, (long long)tokens_));
    }
    ASSIGN_OR_RETURN(const int cores, threads());
    AttentionBench bench{rounds(), cores, heads_, kv_heads_, head_dim_, tokens_, lengths_};
    std::sort(bench.lengths.begin(), bench.lengths.end());
    return run_attention_bench(bench);
  }

  int64_t tokens_ = 16384;
  std::vector<int64_t> lengths_ = {256, 512, 1024, 2048, 4096, 8192, 16384};
  int64_t heads_ = 8, kv_heads_ = 2, head_dim_ = 128;
};

class BenchStepCommand final : public BenchCommand {
 public:
  explicit BenchStepCommand(CLI::App& bench)
      : BenchCommand(bench, "step", "Training steps, resident and paged, against their products") {
    app()
        .add_option("--config", config_path_,
                    "config.json of the model (default: two of a quarter of 10^9 parameters)")
        ->type_name("FILE");
    app()
        .add_option("--dir", directory_, "folder on the drive that pages go to (default: here)")
        ->type_name("DIR");
    add_value(app(), "--tokens", tokens_, "tokens of a step")->type_name("INT");
    add_value(app(), "--sequence_len", sequence_len_, "sequence length, a divisor of --tokens")
        ->type_name("INT");
    add_threads("cores that compute");
  }

 private:
  Result<BenchReport> measure() override {
    RETURN_IF_ERROR(check_range("--tokens", tokens_, kMaxTokens));
    RETURN_IF_ERROR(check_range("--sequence_len", sequence_len_, tokens_));
    if (tokens_ % sequence_len_ != 0) {
      return Status(Exit::kUsage, "--tokens must be a multiple of --sequence_len");
    }
    RETURN_IF_ERROR(check_folder(directory_));
    ASSIGN_OR_RETURN(const int cores, threads());
    return run_step_bench({directory_, config_path_, rounds(), cores, tokens_, sequence_len_});
  }

  std::string config_path_, directory_ = ".";
  int64_t tokens_ = 4096, sequence_len_ = 1024;
};

}  // namespace

std::vector<CommandPtr> add_bench_commands(CLI::App& root) {
  CLI::App& bench = *root.add_subcommand(
      "bench",
      "How fast this machine is: disk, copy, memory, adam, gemm, attention, step, network, "
      "machine");
  std::vector<CommandPtr> commands;
  commands.push_back(std::make_unique<BenchDiskCommand>(bench));
  commands.push_back(std::make_unique<BenchCopyCommand>(bench));
  commands.push_back(std::make_unique<BenchMemoryCommand>(bench));
  commands.push_back(std::make_unique<BenchAdamCommand>(bench));
  commands.push_back(std::make_unique<BenchGemmCommand>(bench));
  commands.push_back(std::make_unique<BenchAttentionCommand>(bench));
  commands.push_back(std::make_unique<BenchStepCommand>(bench));
  commands.push_back(add_bench_network_command(bench));
  commands.push_back(add_bench_machine_command(bench));
  return commands;
}

}  // namespace pagoda
