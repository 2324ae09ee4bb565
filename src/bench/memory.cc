#include "bench/memory.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/race/available_memory.h"
#include "bench/roofs/program.h"
#include "bench/roofs/streams.h"
#include "device/device.h"
#include "device/past_cache.h"
#include "hardware/machine.h"

namespace pagoda {
namespace {

// Three arrays that lie apart, and the share of each thread in them.
class Arrays {
 public:
  static Result<Arrays> allocate(int64_t bytes) {
    Arrays arrays;
    for (HostMemory& memory : arrays.memory_) {
      ASSIGN_OR_RETURN(memory, HostMemory::allocate(bytes));
      stream_fill(reinterpret_cast<double*>(memory.data()), 1.0, bytes);
    }
    return arrays;
  }
  double* part(size_t array, int64_t begin_bytes) const {
    return reinterpret_cast<double*>(memory_[array].data() + begin_bytes);
  }
  int64_t bytes() const { return memory_[0].bytes(); }

 private:
  std::array<HostMemory, 3> memory_;
};

struct MemoryStream {
  const char* name;
  int moves;  // bytes moved for a byte of an array
  // Over `bytes` bytes of each array from `begin` on.
  void (*run)(const Arrays& arrays, int64_t begin, int64_t bytes);
};

constexpr MemoryStream kReference = {"memcpy", 2, [](const Arrays& a, int64_t begin, int64_t n) {
                                       std::memcpy(a.part(0, begin), a.part(1, begin),
                                                   static_cast<size_t>(n));
                                     }};

constexpr MemoryStream kStreams[] = {
    {"read", 1,
     [](const Arrays& a, int64_t b, int64_t n) { use_result(stream_sum(a.part(1, b), n)); }},
    {"write", 1, [](const Arrays& a, int64_t b, int64_t n) { stream_fill(a.part(0, b), 1.0, n); }},
    {"copy", 2,
     [](const Arrays& a, int64_t b, int64_t n) { copy_past_cache(a.part(0, b), a.part(1, b), n); }},
    {"triad", 3,
     [](const Arrays& a, int64_t b, int64_t n) {
       stream_triad(a.part(0, b), a.part(1, b), a.part(2, b), 0.5, n);
     }},
    {"update", 2,
     [](const Arrays& a, int64_t b, int64_t n) { stream_update(a.part(2, b), 0.5, n); }},
};

Timing run_stream(const MemoryStream& stream, const Arrays& arrays, ThreadPool& pool) {
  const int threads = pool.threads();
  const int64_t share = arrays.bytes() / threads;
  const TimingClock timer;
  pool.parallel_for(threads, [&](int64_t t) { stream.run(arrays, t * share, share); });
  return timer.finish(arrays.bytes() * stream.moves);
}

Status race_streams(const MemoryBench& bench, const Arrays& arrays, int threads,
                    std::vector<Figure>& figures) {
  ThreadPool pool(threads);
  std::vector<PairedRounds> races;
  for (const MemoryStream& stream : kStreams) {
    Figure what;
    what.name = stream.name;
    what.path = "stream";
    what.threads = threads;
    races.emplace_back(what);
  }
  for (int round = 0; round < bench.rounds; ++round) {
    set_status_line(strf("bench memory: %d threads, round %d of %d", threads, round + 1,
                         bench.rounds));
    RETURN_IF_ERROR(stop_status("measuring"));
    const Timing reference = run_stream(kReference, arrays, pool);
    for (size_t i = 0; i < races.size(); ++i) {
      races[i].add(run_stream(kStreams[i], arrays, pool), reference);
    }
  }
  for (const PairedRounds& race : races) figures.push_back(race.figure());
  return Status();
}

// The average that mbw's own memcpy reaches, "10478.5 MiB/s copied"; why not, without it.
std::string mbw_text(int64_t bytes) {
  const int64_t mib = std::max<int64_t>(bytes / kMiB, 1);
  const auto run = run_program({"mbw", "-q", "-t", "0", "-n", "5", std::to_string(mib)});
  if (!run.ok() || run.value().code != 0) return "not installed";
  const std::string& text = run.value().output;
  const size_t average = text.rfind("AVG");
  const size_t begin = text.find("Copy:", average == std::string::npos ? text.size() : average);
  if (begin == std::string::npos) return "its report cannot be read";
  const size_t end = text.find('\n', begin);
  return text.substr(begin + 6, end - begin - 6) + " copied";
}

}  // namespace

Result<BenchReport> run_memory_bench(const MemoryBench& bench) {
  CHECK(bench.rounds > 0 && !bench.threads.empty());
  RETURN_IF_ERROR(check_available(3 * bench.bytes));
  BenchReport report;
  report.bench = "memory";
  {  // mbw wants room for arrays of its own
    ASSIGN_OR_RETURN(const Arrays arrays, Arrays::allocate(bench.bytes));
    for (const int threads : bench.threads) {
      RETURN_IF_ERROR(race_streams(bench, arrays, threads, report.figures));
    }
  }
  set_status_line("");
  report.facts = {{"processor", cpu_model()},
                  {"cores", std::to_string(usable_cores())},
                  {"arrays", "3 of " + format_bytes(bench.bytes)},
                  {"roof", "memcpy of the C library on the same threads"},
                  {"mbw", mbw_text(bench.bytes)}};
  return report;
}

}  // namespace pagoda
