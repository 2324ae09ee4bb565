// The speed of a network card's link, as the kernel reports it.
#pragma once

#include <string>

namespace pagoda {

struct NetworkLink {
  std::string name;   // "eth0", "mlx5_0"
  double gbit_s = 0;  // each way; 0: not reported, as by cards of virtual machines

  double gb_s() const { return gbit_s / 8; }
  std::string text() const;  // "eth0, 10 Gbit/s", or ""
};

// The fastest link that is up, of Ethernet in `net` and InfiniBand in `infiniband`.
NetworkLink fastest_network_link(const std::string& net = "/sys/class/net",
                                 const std::string& infiniband = "/sys/class/infiniband");

}  // namespace pagoda
