#include "parallel/tcp.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/check.h"

namespace pagoda {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kMostAddresses = 8;

Descriptor make_socket() {
  return Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

sockaddr_in address_of(uint32_t host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Returns the port, 0 if it is not free.
int try_to_listen(const Descriptor& socket, int port) {
  sockaddr_in address = address_of(INADDR_ANY, port);
  socklen_t bytes = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), any, bytes) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
      ::getsockname(socket.get(), any, &bytes) != 0) {
    return 0;
  }
  return ntohs(address.sin_port);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Result<TcpListener> listen_on(int first_port, int last_port) {
  for (int port = first_port; port <= std::max(first_port, last_port); ++port) {
    TcpListener listener{make_socket()};
    const int on = 1;
    if (listener.socket.ok() && ::setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on,
                                             sizeof(on)) == 0) {
      listener.port = try_to_listen(listener.socket, port);
    }
    if (listener.port != 0) return listener;
  }
  const std::string why = last_error();
  return Status(Exit::kUnavailable,
                strf("no port of %d to %d can be listened on: ", first_port, last_port) + why +
                    "; name others (parallel.ports)");
}

TcpGuest accept_guest(const Descriptor& listener) {
  TcpGuest guest{Descriptor(
      ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC))};
  guest.exhausted = !guest.socket.ok() && (errno == EMFILE || errno == ENFILE ||
                                           errno == ENOBUFS || errno == ENOMEM);
  return guest;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) first = nullptr;
  for (const ifaddrs* one = first; one != nullptr && found.size() + 1 < kMostAddresses;
       one = one->ifa_next) {
    const bool usable = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable || one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    char text[INET_ADDRSTRLEN] = {};
    if (::inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text)) != nullptr) {
      found.push_back(text);
    }
  }
  if (first != nullptr) ::freeifaddrs(first);
  found.push_back("127.0.0.1");
  return found;
}

Descriptor connect_to(const std::string& text, int port) {
  sockaddr_in address = address_of(0, port);
  if (::inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) return Descriptor();
  Descriptor socket = make_socket();
  if (!socket.ok()) return socket;
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.get(), to, sizeof(address)) == 0 || errno == EINPROGRESS) return socket;
  return Descriptor();
}

int connect_error(const Descriptor& socket) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
  return error;
}

int64_t send_some(const Descriptor& socket, std::span<const std::byte> bytes) {
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent < 0) return would_block() ? 0 : -1;
  return sent;
}

int64_t receive_some(const Descriptor& socket, std::span<std::byte> bytes) {
  const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return would_block() ? 0 : -1;
  return got == 0 ? -1 : got;
}

}  // namespace pagoda
