// TCP as the heartbeat needs it: IPv4, never blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"

namespace pagoda {

struct TcpListener {
  Descriptor socket;
  int port = 0;
};
// Listens on all addresses of this host, on the first free port of [first, last]; 0: on any.
// kUnavailable names the ports.
Result<TcpListener> listen_on(int first_port, int last_port);

// The next one who connects, or none; `exhausted`: the system has no descriptor for it now.
struct TcpGuest {
  Descriptor socket;
  bool exhausted = false;
};
TcpGuest accept_guest(const Descriptor& listener);

// "10.0.0.7" of each network that is up, at most 8, this host's own one last.
std::vector<std::string> own_addresses();

// Begins to connect. The socket is writable when it has, or has failed: connect_error() tells.
Descriptor connect_to(const std::string& address, int port);
int connect_error(const Descriptor& socket);  // errno; 0: connected

// Sends what the system takes now, and receives what is there. Bytes; 0: none now; -1: the
// connection is over.
int64_t send_some(const Descriptor& socket, std::span<const std::byte> bytes);
int64_t receive_some(const Descriptor& socket, std::span<std::byte> bytes);

}  // namespace pagoda
