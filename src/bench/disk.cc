#include "bench/disk.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/disk_pages.h"
#include "offload/scratch_folder.h"
#include "offload/storage_posix.h"

namespace pagoda {
namespace {

using Op = IoRequest::Op;
constexpr int kSettingRounds = 3;
constexpr std::array<Op, 2> kDirections = {Op::kWrite, Op::kRead};

const char* direction_name(Op op) { return op == Op::kRead ? "read" : "write"; }

// What takes part in a race, in the order of the first round.
enum Candidate : size_t { kRoof, kStorage, kPageFile, kCandidates };

class DiskRace {
 public:
  DiskRace(const DiskBench& bench, DiskRoof* roof) : bench_(bench), roof_(roof) {}

  // The races over one page file, which must be as its last write() left it; so it is afterwards.
  Status run(int64_t page_bytes, DiskPages* pages) {
    if (!swept_) RETURN_IF_ERROR(find_settings(pages));
    std::vector<PairedRounds> races;
    for (const Op op : kDirections) {
      for (const char* path : {"page file", "storage"}) {
        Figure what;
        what.name = direction_name(op);
        what.path = path;
        what.page_bytes = page_bytes;
        races.emplace_back(what);
      }
    }
    for (int round = 0; round < bench_.rounds; ++round) {
      set_status_line(strf("bench disk: pages of %s, round %d of %d",
                           format_bytes(page_bytes).c_str(), round + 1, bench_.rounds));
      for (size_t d = 0; d < kDirections.size(); ++d) {
        std::array<Timing, kCandidates> timings;
        RETURN_IF_ERROR(run_round(kDirections[d], round, pages, timings));
        races[2 * d].add(timings[kPageFile], timings[kRoof]);
        races[2 * d + 1].add(timings[kStorage], timings[kRoof]);
      }
    }
    for (const PairedRounds& race : races) figures_.push_back(race.figure());
    return Status();
  }

  std::vector<Figure> take_figures() { return std::move(figures_); }
  const RoofSetting& setting(Op op) const { return settings_[op == Op::kRead]; }

 private:
  Status find_settings(DiskPages* pages) {
    for (const Op op : kDirections) {
      set_status_line(strf("bench disk: which setting %ss best", direction_name(op)));
      const int rounds = std::min(kSettingRounds, bench_.rounds);
      ASSIGN_OR_RETURN(settings_[op == Op::kRead], sweep(roof_, op, pages->region(), rounds));
    }
    swept_ = true;
    return pages->write().status();
  }

  Status run_round(Op op, int round, DiskPages* pages, std::array<Timing, kCandidates>& timings) {
    size_t last = kPageFile;
    for (size_t i = 0; i < kCandidates; ++i) {
      RETURN_IF_ERROR(stop_status("measuring"));
      last = (i + static_cast<size_t>(round)) % kCandidates;
      ASSIGN_OR_RETURN(timings[last], run_timing(static_cast<Candidate>(last), op, pages));
    }
    // What the others wrote are no pages.
    return op == Op::kWrite && last != kPageFile ? pages->write().status() : Status();
  }

  Result<Timing> run_timing(Candidate candidate, Op op, DiskPages* pages) {
    if (candidate == kRoof) return roof_->run(op, setting(op), pages->region());
    if (candidate == kStorage) return pages->move_plain(op);
    return op == Op::kRead ? pages->read() : pages->write();
  }

  const DiskBench& bench_;
  DiskRoof* roof_;
  bool swept_ = false;
  std::array<RoofSetting, 2> settings_;  // of writes, reads
  std::vector<Figure> figures_;
};

}  // namespace

Result<BenchReport> run_disk_bench(const DiskBench& bench) {
  CHECK(bench.rounds > 0 && !bench.page_bytes.empty());
  const bool direct = probe_direct_io(bench.directory) == kDirectAccess;
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_storage(bench.io, bench.directory));
  ScratchFolder scratch(bench.directory);
  RETURN_IF_ERROR(scratch.create());
  ASSIGN_OR_RETURN(std::unique_ptr<DiskRoof> roof,
                   choose_disk_roof(bench.roof, direct, scratch.path()));
  DiskRace race(bench, roof.get());
  for (const int64_t page_bytes : bench.page_bytes) {
    ASSIGN_OR_RETURN(
        const std::unique_ptr<DiskPages> pages,
        DiskPages::create(storage.get(), scratch.path(), page_bytes, bench.bytes));
    RETURN_IF_ERROR(race.run(page_bytes, pages.get()));
  }
  set_status_line("");
  BenchReport report;
  report.bench = "disk";
  report.facts = {{"directory", bench.directory},
                  {"storage", storage->describe()},
                  {"roof", roof->describe()},
                  {"roof_write", setting_text(race.setting(Op::kWrite))},
                  {"roof_read", setting_text(race.setting(Op::kRead))},
                  {"file", format_bytes(bench.bytes)}};
  report.figures = race.take_figures();
  return report;
}

}  // namespace pagoda
