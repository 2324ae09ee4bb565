// What tools/bench/adam_peers.py times of pagoda. Not installed.
//
//   adam_probe FORMAT ELEMENTS RECORDS THREADS    for each line on stdin updates all records once
//                                                 and prints seconds
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "bench/adam_records.h"

namespace pagoda {
namespace {

int run(StateFormat format, int64_t elements, int64_t count, int threads) {
  const StateLayout layout(format, DType::kBF16, elements);
  auto memory = HostMemory::allocate(count * AdamRecords::bytes_of(layout));
  if (!memory.ok()) {
    std::fprintf(stderr, "adam_probe: %s\n", memory.status().message().c_str());
    return static_cast<int>(memory.status().code());
  }
  AdamRecords records(layout, count, memory.value().data());
  ThreadPool pool(threads);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << records.update(1, pool).seconds << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  pagoda::StateFormat format;
  const auto number = [&](int i) { return std::atoll(argv[i]); };
  if (argc != 5 || !pagoda::parse_state_format(argv[1], &format) || number(2) < 1 ||
      number(3) < 1 || number(4) < 1) {
    std::fprintf(stderr, "adam_probe: usage: adam_probe FORMAT ELEMENTS RECORDS THREADS\n");
    return 2;
  }
  return pagoda::run(format, number(2), number(3), static_cast<int>(number(4)));
}
