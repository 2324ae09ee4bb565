// What the scripts ask pagoda's tokenizer: tools/make_tokenizer_vectors.py --check and
// tools/bench/tokenizer_bench.py. Not installed.
//
//   tokenizer_probe encode DIR       a JSON string a line on stdin; a JSON object a line on stdout
//   tokenizer_probe time DIR TEXTS   TEXTS: a JSON list of texts; for each line on stdin encodes
//                                    them all and prints seconds and the number of ids
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "base/file.h"
#include "model/json.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {
namespace {

int fail(const Status& status) {
  std::fprintf(stderr, "tokenizer_probe: %s\n", status.message().c_str());
  return static_cast<int>(status.code());
}

int encode(const Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    const std::string text = Json::parse(line).get<std::string>();
    std::vector<uint32_t> ids;
    std::vector<TokenRange> ranges;
    if (const Status status = tokenizer.encode(text, &ids, &ranges); !status.ok()) {
      return fail(status);
    }
    std::vector<uint32_t> flat;
    for (const TokenRange& range : ranges) flat.insert(flat.end(), {range.begin, range.end});
    const Json result = {{"ids", ids},
                         {"ranges", flat},
                         {"text", tokenizer.decode(ids, false)},
                         {"plain", tokenizer.decode(ids, true)}};
    std::cout << result.dump() << "\n";
  }
  return 0;
}

int time(const Tokenizer& tokenizer, const std::string& path) {
  auto text = read_text_file(path, Links::kFollow, int64_t{1} << 30);
  if (!text.ok()) return fail(text.status());
  const auto texts = Json::parse(*text).get<std::vector<std::string>>();
  std::vector<uint32_t> ids;
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = std::chrono::steady_clock::now();
    size_t total = 0;
    for (const std::string& each : texts) {
      ids.clear();
      if (const Status status = tokenizer.encode(each, &ids); !status.ok()) return fail(status);
      total += ids.size();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << seconds.count() << " " << total << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (!(mode == "encode" && argc == 3) && !(mode == "time" && argc == 4)) {
    std::fprintf(stderr, "usage: tokenizer_probe encode DIR | time DIR TEXTS\n");
    return 2;
  }
  auto tokenizer = pagoda::Tokenizer::open(argv[2]);
  if (!tokenizer.ok()) return pagoda::fail(tokenizer.status());
  return mode == "encode" ? pagoda::encode(*tokenizer) : pagoda::time(*tokenizer, argv[3]);
}
