#include "bench/copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/race/available_memory.h"
#include "bench/race/noise.h"
#include "device/device.h"
#include "device/past_cache.h"

namespace pagoda {
namespace {

constexpr int kSweepRounds = 3;

// A run of bytes copied on one thread.
struct Way {
  std::byte* target;
  const std::byte* source;
  int64_t bytes;
};

struct Traffic {
  const char* name;
  std::vector<Way> ways;  // at once, a thread each
};

struct BareCopy {
  const char* name;
  void (*run)(std::byte* target, const std::byte* source, int64_t bytes);
};

constexpr BareCopy kBareCopies[] = {
    {"memcpy",
     [](std::byte* target, const std::byte* source, int64_t bytes) {
       std::memcpy(target, source, static_cast<size_t>(bytes));
     }},
    {"bypassing the cache",
     [](std::byte* target, const std::byte* source, int64_t bytes) {
       copy_past_cache(target, source, bytes);
     }},
};

int64_t bytes_of(const Traffic& traffic) {
  int64_t bytes = 0;
  for (const Way& way : traffic.ways) bytes += way.bytes;
  return bytes;
}

Timing run_bare(const BareCopy& copy, const Traffic& traffic, ThreadPool& pool) {
  const auto ways = static_cast<int64_t>(traffic.ways.size());
  const TimingClock timer;
  pool.parallel_for(ways, [&](int64_t w) {
    const Way& way = traffic.ways[static_cast<size_t>(w)];
    copy.run(way.target, way.source, way.bytes);
  });
  return timer.finish(bytes_of(traffic));
}

using Streams = std::vector<std::unique_ptr<Stream>>;

Timing run_streams(const Streams& streams, const Traffic& traffic, int64_t page_bytes) {
  const TimingClock timer;
  std::vector<Event> done;
  for (size_t w = 0; w < traffic.ways.size(); ++w) {
    const Way& way = traffic.ways[w];
    for (int64_t begin = 0; begin < way.bytes; begin += page_bytes) {
      const int64_t bytes = std::min(page_bytes, way.bytes - begin);
      streams[w]->copy(way.target + begin, way.source + begin, bytes);
      done.push_back(streams[w]->record());
    }
  }
  for (const Event& event : done) event.wait();
  return timer.finish(bytes_of(traffic));
}

Result<const BareCopy*> best_bare_copy(const Traffic& traffic, ThreadPool& pool) {
  std::array<std::vector<double>, std::size(kBareCopies)> rates;
  for (int round = 0; round < kSweepRounds; ++round) {
    for (size_t i = 0; i < rates.size(); ++i) {
      RETURN_IF_ERROR(stop_status("measuring"));
      rates[i].push_back(run_bare(kBareCopies[i], traffic, pool).gb_per_s());
    }
  }
  return &kBareCopies[quantile(rates[0], 0.5) >= quantile(rates[1], 0.5) ? 0 : 1];
}

Status race_copies(const CopyBench& bench, const Streams& streams, const Traffic& traffic,
                   BenchReport& report) {
  ThreadPool pool(static_cast<int>(traffic.ways.size()));
  ASSIGN_OR_RETURN(const BareCopy* bare, best_bare_copy(traffic, pool));
  report.facts.emplace_back(std::string("roof_") + traffic.name, bare->name);
  for (const int64_t page_bytes : bench.page_bytes) {
    Figure what;
    what.name = traffic.name;
    what.path = "stream";
    what.page_bytes = page_bytes;
    what.threads = pool.threads();
    PairedRounds race(what);
    for (int round = 0; round < bench.rounds; ++round) {
      set_status_line(strf("bench copy: %s, pages of %s, round %d of %d", traffic.name,
                           format_bytes(page_bytes).c_str(), round + 1, bench.rounds));
      RETURN_IF_ERROR(stop_status("measuring"));
      std::array<Timing, 2> timings;  // ours, the roof's
      for (int i = 0; i < 2; ++i) {
        const bool ours = (round + i) % 2 == 0;
        timings[ours ? 0 : 1] =
            ours ? run_streams(streams, traffic, page_bytes) : run_bare(*bare, traffic, pool);
      }
      race.add(timings[0], timings[1]);
    }
    report.figures.push_back(race.figure());
  }
  return Status();
}

}  // namespace

Result<BenchReport> run_copy_bench(const CopyBench& bench) {
  CHECK(bench.rounds > 0 && !bench.page_bytes.empty());
  RETURN_IF_ERROR(check_available(2 * bench.bytes));
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, open_host_device({bench.bytes, 1}));
  ASSIGN_OR_RETURN(const HostMemory host, HostMemory::allocate(bench.bytes));
  fill_noise(host.data(), host.bytes());
  std::memcpy(device->arena(), host.data(), static_cast<size_t>(host.bytes()));
  Streams streams;
  streams.push_back(device->make_stream("upload 0", WorkKind::kUpload));
  streams.push_back(device->make_stream("download 0", WorkKind::kDownload));
  const int64_t half = bench.bytes / 2;
  std::byte* below = host.data();
  std::byte* above = device->arena();
  BenchReport report;
  report.bench = "copy";
  report.facts = {{"device", device->describe()}, {"bytes", format_bytes(bench.bytes)}};
  for (const Traffic& traffic :
       {Traffic{"upload", {{above, below, bench.bytes}}},
        Traffic{"download", {{below, above, bench.bytes}}},
        Traffic{"both", {{above, below, half}, {below + half, above + half, half}}}}) {
    RETURN_IF_ERROR(race_copies(bench, streams, traffic, report));
  }
  set_status_line("");
  return report;
}

}  // namespace pagoda
