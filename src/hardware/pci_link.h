// How a card is connected, as the kernel tells it.
#pragma once

#include <string>

namespace pagoda {

struct PciLink {
  int generation = 0, width = 0;            // now, which saving power may lower; 0: not told
  int most_generation = 0, most_width = 0;  // of the card

  std::string text() const;  // "PCIe 4 x16", "PCIe 1 x8 now, up to 4 x16", or ""
};

// Of the card at `address` ("0000:3b:00.0"). Nothing is told of one that is not in `devices`.
PciLink pci_link(const std::string& address, const std::string& devices = "/sys/bus/pci/devices");

}  // namespace pagoda
