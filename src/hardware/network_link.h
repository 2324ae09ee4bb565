// How fast a machine's network card says that its link is, as the kernel tells it.
#pragma once

#include <string>

namespace pagoda {

struct NetworkLink {
  std::string name;   // "eth0", "mlx5_0"
  double gbit_s = 0;  // each way; 0: not told, as by cards of virtual machines

  double gb_s() const { return gbit_s / 8; }
  std::string text() const;  // "eth0, 10 Gbit/s", or ""
};

// The fastest that is up: of Ethernet in `net` and of InfiniBand in `infiniband`.
NetworkLink fastest_network_link(const std::string& net = "/sys/class/net",
                                 const std::string& infiniband = "/sys/class/infiniband");

}  // namespace pagoda
