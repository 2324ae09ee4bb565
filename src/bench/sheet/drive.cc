#include "bench/sheet/drive.h"

#include <functional>
#include <vector>

#include "base/stop_signal.h"
#include "bench/race/noise.h"
#include "bench/race/timing.h"
#include "device/device.h"

namespace pagoda {
namespace {

using Op = IoRequest::Op;

// All pages at once, each with its own operation.
Result<Timing> move_pages(Storage* storage, int file, const HostMemory& memory, int64_t page_bytes,
                          int pages, const std::function<Op(int)>& op_of) {
  RETURN_IF_ERROR(stop_status("measuring"));
  std::vector<IoRequest> requests(static_cast<size_t>(pages));
  std::vector<Event> done;
  const TimingClock timer;
  for (int i = 0; i < pages; ++i) {
    Event event = Event::make();
    const int64_t at = i * page_bytes;
    IoRequest& request = requests[static_cast<size_t>(i)];
    request = {op_of(i), file, at, memory.data() + at, page_bytes, {},
               [event](IoRequest&) mutable { event.signal(); }};
    done.push_back(event);
    storage->submit(&request);
  }
  for (const Event& event : done) event.wait();
  const Timing timing = timer.finish(pages * page_bytes);
  for (const IoRequest& request : requests) RETURN_IF_ERROR(request.status);
  return timing;
}

Result<DriveRates> rates_of(Storage* storage, int file, const HostMemory& memory,
                            int64_t page_bytes, int pages, int rounds) {
  std::vector<double> writes, reads, both, one, cpu_s_per_gb;
  for (int round = 0; round < rounds; ++round) {
    const auto pass = [&](std::vector<double>& times, int count, auto op_of) -> Status {
      ASSIGN_OR_RETURN(const Timing timing,
                       move_pages(storage, file, memory, page_bytes, count, op_of));
      times.push_back(timing.seconds);
      if (count > 1) cpu_s_per_gb.push_back(timing.cpu_s_per_billion());
      return Status();
    };
    RETURN_IF_ERROR(pass(writes, pages, [](int) { return Op::kWrite; }));
    RETURN_IF_ERROR(pass(reads, pages, [](int) { return Op::kRead; }));
    RETURN_IF_ERROR(pass(both, pages, [](int i) { return i % 2 == 0 ? Op::kRead : Op::kWrite; }));
    RETURN_IF_ERROR(pass(one, 1, [](int) { return Op::kRead; }));
  }
  const double bytes = 1e-9 * static_cast<double>(pages * page_bytes);
  const double read_s = quantile(reads, 0.5);
  DriveRates rates;
  rates.read_gb_s = bytes / read_s;
  rates.write_gb_s = bytes / quantile(writes, 0.5);
  rates.both_gb_s = bytes / quantile(both, 0.5);
  rates.cpu_s_per_gb = quantile(cpu_s_per_gb, 0.5);
  rates.latency_us = std::max(0.0, 1e6 * (quantile(one, 0.5) - read_s / pages));
  return rates;
}

}  // namespace

bool DriveRates::half_duplex() const {
  const double apart_s = 0.5 / read_gb_s + 0.5 / write_gb_s;
  return 1 / both_gb_s > 0.75 * apart_s;
}

Result<DriveRates> measure_drive(Storage* storage, const std::string& directory,
                                 int64_t page_bytes, int pages, int rounds) {
  ASSIGN_OR_RETURN(const HostMemory memory, HostMemory::allocate(pages * page_bytes));
  fill_noise(memory.data(), memory.bytes());
  const std::string path = directory + "/drive";
  ASSIGN_OR_RETURN(const int file, storage->open(path, memory.bytes(), FileUse::kCreate));
  auto rates = rates_of(storage, file, memory, page_bytes, pages, rounds);
  storage->close(file);
  RETURN_IF_ERROR(storage->remove_file(path));
  return rates;
}

}  // namespace pagoda
