// The fuzz targets as a program of libFuzzer.
//   pagoda_fuzz --names          the targets, a line each
//   pagoda_fuzz --seeds FOLDER   FOLDER/TARGET/seed-K and FOLDER/TARGET.dict of each target
//   pagoda_fuzz TARGET ...       libFuzzer on the target; ... are its flags and folders
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"

namespace pagoda {
namespace {

const FuzzTarget* chosen = nullptr;

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The words of the seeds, as libFuzzer's dictionary: it would not guess names of fields.
std::string dictionary(const std::vector<std::string>& seeds) {
  constexpr size_t kShortest = 3, kLongest = 40, kMost = 400;
  std::set<std::string> words;
  for (const std::string& seed : seeds) {
    for (size_t at = 0; at < seed.size() && words.size() < kMost;) {
      size_t end = at;
      while (end < seed.size() && in_word(seed[end])) ++end;
      if (end - at >= kShortest && end - at <= kLongest) words.insert(seed.substr(at, end - at));
      at = end + 1;
    }
  }
  std::string text;
  for (const std::string& word : words) text += "\"" + word + "\"\n";
  return text;
}

void write_seeds(const std::string& folder) {
  for (const FuzzTarget& target : fuzz_targets()) {
    const std::string path = folder + "/" + target.name;
    std::filesystem::create_directories(path);
    const std::vector<std::string> seeds = target.seeds();
    for (size_t i = 0; i < seeds.size(); ++i) put_file(path + strf("/seed-%zu", i), seeds[i]);
    put_file(path + ".dict", dictionary(seeds));
  }
}

}  // namespace
}  // namespace pagoda

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace pagoda;
  const std::string word = *argc > 1 ? (*argv)[1] : "";
  if (word == "--names") {
    for (const FuzzTarget& target : fuzz_targets()) std::printf("%s\n", target.name);
    std::exit(0);
  }
  if (word == "--seeds" && *argc == 3) {
    write_seeds((*argv)[2]);
    std::exit(0);
  }
  for (const FuzzTarget& target : fuzz_targets()) {
    if (word == target.name) chosen = &target;
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "pagoda_fuzz: no target \"%s\"; --names lists them\n", word.c_str());
    std::exit(2);
  }
  for (int i = 1; i + 1 < *argc; ++i) (*argv)[i] = (*argv)[i + 1];
  --*argc;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pagoda::chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
