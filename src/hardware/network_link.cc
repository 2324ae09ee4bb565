#include "hardware/network_link.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/check.h"

namespace pagoda {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// A number in front, as of "100 Gb/sec (4X EDR)"; 0 where there is none above that.
double leading_number(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return number > 0 && number < 1e9 ? number : 0;
}

std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    found.push_back(entry.path());
  }
  return found;
}

void take_faster(NetworkLink& fastest, const std::string& name, double gbit_s) {
  if (gbit_s > fastest.gbit_s) fastest = {name, gbit_s};
}

}  // namespace

std::string NetworkLink::text() const {
  return gbit_s > 0 ? name + strf(", %g Gbit/s", gbit_s) : "";
}

NetworkLink fastest_network_link(const std::string& net, const std::string& infiniband) {
  NetworkLink fastest;
  for (const auto& card : folders_in(net)) {
    if (first_line(card / "operstate") != "up") continue;
    take_faster(fastest, card.filename(), leading_number(first_line(card / "speed")) / 1000);
  }
  for (const auto& card : folders_in(infiniband)) {
    for (const auto& port : folders_in(card / "ports")) {
      if (first_line(port / "state").find("ACTIVE") == std::string::npos) continue;
      take_faster(fastest, card.filename(), leading_number(first_line(port / "rate")));
    }
  }
  return fastest;
}

}  // namespace pagoda
