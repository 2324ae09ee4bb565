#include "tests/testing/ranks/own_network.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "base/check.h"

namespace pagoda {
namespace {

constexpr int kConnected = 1, kListens = 10;  // states in /proc/net/tcp

struct Socket {
  int state = 0, own_port = 0, other_port = 0;
};

std::set<std::string> sockets_of(int process) {
  std::set<std::string> found;
  std::error_code gone;
  const std::string folder = strf("/proc/%d/fd", process);
  for (const auto& entry : std::filesystem::directory_iterator(folder, gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) found.insert(target.substr(8, target.size() - 9));
  }
  return found;
}

// The TCP sockets of a process, IPv4.
std::vector<Socket> tcp_of(int process) {
  const std::set<std::string> own = sockets_of(process);
  std::ifstream table(strf("/proc/%d/net/tcp", process));
  std::vector<Socket> found;
  std::string line;
  for (std::getline(table, line); std::getline(table, line);) {
    std::istringstream in(line);
    std::string word;
    std::vector<std::string> words;
    while (in >> word) words.push_back(word);
    if (words.size() < 10 || own.count(words[9]) == 0) continue;
    const auto port = [](const std::string& address) {
      return std::stoi(address.substr(address.find(':') + 1), nullptr, 16);
    };
    found.push_back({std::stoi(words[3], nullptr, 16), port(words[1]), port(words[2])});
  }
  return found;
}

bool done(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

}  // namespace

OwnNetwork::OwnNetwork() {
  before_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (before_ < 0 || ::unshare(CLONE_NEWNET) != 0) return;
  // Addresses of this machine come behind the rules that cut_off() makes.
  ok_ = done("ip link set lo up && ip rule add pref 10 lookup local && ip rule del pref 0");
  ::setenv("OMPI_MCA_btl", "tcp,self", 1);
  ::setenv("OMPI_MCA_btl_tcp_if_include", "lo", 1);
}

OwnNetwork::~OwnNetwork() {
  if (before_ < 0) return;
  if (::setns(before_, CLONE_NEWNET) != 0) ADD_FAILURE() << "setns";
  ::close(before_);
  ::unsetenv("OMPI_MCA_btl_tcp_if_include");
}

void OwnNetwork::cut_off(const std::vector<int>& processes, size_t lost) const {
  std::set<int> others;  // ports
  for (size_t i = 0; i < processes.size(); ++i) {
    if (i == lost) continue;
    for (const Socket& socket : tcp_of(processes[i])) others.insert(socket.own_port);
  }
  std::string rules;
  for (const Socket& socket : tcp_of(processes[lost])) {
    if (socket.state == kListens) {
      rules += strf("rule add pref 1 blackhole ipproto tcp dport %d\n", socket.own_port);
    }
    if (socket.state != kConnected || others.count(socket.other_port) == 0) continue;
    rules += strf("rule add pref 1 blackhole ipproto tcp sport %d dport %d\n", socket.own_port,
                  socket.other_port);
    rules += strf("rule add pref 1 blackhole ipproto tcp sport %d dport %d\n", socket.other_port,
                  socket.own_port);
  }
  CHECK(done("printf '" + rules + "' | ip -batch -"), "ip rules");
}

}  // namespace pagoda
