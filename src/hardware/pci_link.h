// A card's PCIe connection, as the kernel reports it.
#pragma once

#include <string>

namespace pagoda {

struct PciLink {
  int generation = 0, width = 0;            // now, which power saving may lower; 0: unknown
  int most_generation = 0, most_width = 0;  // the card's own limits

  std::string text() const;  // "PCIe 4 x16", "PCIe 1 x8 now, up to 4 x16", or ""
};

// The link of the card at `address` ("0000:3b:00.0"); zeros for one that is not in `devices`.
PciLink pci_link(const std::string& address, const std::string& devices = "/sys/bus/pci/devices");

}  // namespace pagoda
