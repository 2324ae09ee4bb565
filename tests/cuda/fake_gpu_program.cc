// pagoda on a GPU that is made up:
//
//   pagoda_fake_gpu "major=7 cudaMemcpyAsync=300" COMMAND...
//
// The first argument has fields of fake_cuda::Machine, and names calls that fail with
// cudaErrorIllegalAddress after a number of calls. "tell=1" says at the end how many there were of
// each, one a line: "call cudaMalloc 2".
#include <cstdio>
#include <map>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "cli/commands.h"
#include "tests/cuda/fake_cuda.h"

namespace pagoda {
namespace {

int tells = 0;

void make_up(const std::string& text) {
  fake_cuda::Machine machine;
  int peers = 1;
  const std::map<std::string, int*> numbers = {{"gpus", &machine.gpus},
                                               {"driver", &machine.driver},
                                               {"major", &machine.major},
                                               {"minor", &machine.minor},
                                               {"peers", &peers},
                                               {"tell", &tells}};
  const std::map<std::string, int64_t*> sizes = {{"memory_bytes", &machine.memory_bytes},
                                                 {"taken_bytes", &machine.taken_bytes}};
  std::map<std::string, int> failures;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    CHECK(equals != std::string::npos, "%s is not NAME=VALUE", word.c_str());
    const std::string name = word.substr(0, equals);
    const int value = std::stoi(word.substr(equals + 1));
    if (numbers.contains(name)) {
      *numbers.at(name) = value;
    } else if (sizes.contains(name)) {
      *sizes.at(name) = value;
    } else {
      failures[name] = value;
    }
  }
  machine.peers = peers != 0;
  fake_cuda::start(machine);
  for (const auto& [call, calls] : failures) {
    fake_cuda::fail(call, cudaErrorIllegalAddress, calls);
  }
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  CHECK(argc > 1, "the first argument says what machine it is");
  pagoda::make_up(argv[1]);
  argv[1] = argv[0];
  const int code = pagoda::run_command_line(argc - 1, argv + 1);
  if (pagoda::tells == 0) return code;
  for (const auto& [call, count] : pagoda::fake_cuda::calls()) {
    std::fprintf(stderr, "call %s %lld\n", call.c_str(), static_cast<long long>(count));
  }
  return code;
}
