#include "hardware/pci_link.h"

#include <cctype>
#include <fstream>

#include "base/check.h"

namespace pagoda {
namespace {

// The first number of a file; 0 when there is none.
double number_in(const std::string& path) {
  std::ifstream in(path);
  double number = 0;
  return in >> number ? number : 0;
}

// Each doubles the transfers a second of the one before, from 2.5 GT/s on; but 3 has 8.
int generation_of(double transfers) {
  int generation = 0;
  for (const double least : {2.5, 5.0, 8.0, 16.0, 32.0, 64.0}) generation += transfers >= least;
  return generation;
}

}  // namespace

PciLink pci_link(const std::string& address, const std::string& devices) {
  std::string folder = devices + "/";
  for (const char c : address) folder += static_cast<char>(std::tolower(c));  // CUDA's are capitals
  PciLink link;
  link.generation = generation_of(number_in(folder + "/current_link_speed"));
  link.width = static_cast<int>(number_in(folder + "/current_link_width"));
  link.most_generation = generation_of(number_in(folder + "/max_link_speed"));
  link.most_width = static_cast<int>(number_in(folder + "/max_link_width"));
  return link;
}

std::string PciLink::text() const {
  if (generation == 0 || width == 0) return "";
  const std::string now = strf("PCIe %d x%d", generation, width);
  if (most_generation <= generation && most_width <= width) return now;
  return now + strf(" now, up to %d x%d", most_generation, most_width);
}

}  // namespace pagoda
