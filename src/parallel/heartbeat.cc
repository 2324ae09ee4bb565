#include "parallel/heartbeat.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/check.h"
#include "base/log.h"
#include "parallel/heartbeat_loop.h"
#include "parallel/host_name.h"
#include "parallel/tcp.h"

namespace pagoda {
namespace {

constexpr size_t kMostAddresses = 8;  // of a rank

// What a rank tells all others at the start. The key of rank 0 counts.
struct Invitation {
  HeartbeatKey key{};
  HeartbeatLoop::Address address;

  std::string text() const;
  static Result<Invitation> parse(const std::string& text);
};

// The key as hexadecimal digits, then the host, the port and the addresses, divided by spaces.
std::string Invitation::text() const {
  std::string text;
  for (const std::byte byte : key) text += strf("%02x", static_cast<unsigned>(byte));
  text += " " + address.host + strf(" %d", address.port);
  for (const std::string& one : address.addresses) text += " " + one;
  return text;
}

Result<Invitation> Invitation::parse(const std::string& text) {
  Invitation found;
  std::istringstream in(text);
  std::string digits, one;
  in >> digits >> found.address.host >> found.address.port;
  while (found.address.addresses.size() < kMostAddresses && in >> one) {
    found.address.addresses.push_back(one);
  }
  bool good = digits.size() == 2 * found.key.size() && found.address.port > 0 &&
              found.address.port < 65536 && !found.address.addresses.empty();
  for (size_t i = 0; good && i < found.key.size(); ++i) {
    char* end = nullptr;
    const std::string byte = digits.substr(2 * i, 2);
    found.key[i] = static_cast<std::byte>(std::strtoul(byte.c_str(), &end, 16));
    good = end == byte.c_str() + 2;
  }
  found.address.host = printable(found.address.host);
  if (good) return found;
  return Status(Exit::kInternal, "a rank's address is none: " + printable(text));
}

HeartbeatKey make_key() {
  HeartbeatKey key{};
  CHECK(::getrandom(key.data(), key.size(), 0) == std::ssize(key), "no random bytes: %s",
        last_error().c_str());
  return key;
}

}  // namespace

Result<std::unique_ptr<Heartbeat>> Heartbeat::start(Communicator& all, const Options& options,
                                                    OnLoss on_loss) {
  Result<TcpListener> listener = listen_on(options.first_port, options.last_port);
  RETURN_IF_ERROR(agree(all, listener.status()));
  std::string host = host_name();
  std::replace(host.begin(), host.end(), ' ', '_');
  const Invitation mine{make_key(), {host, listener.value().port, own_addresses()}};
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(mine.text()));
  HeartbeatLoop::Setup setup;
  setup.rank = all.rank();
  setup.listener = listener.take();
  setup.period_s = options.period_s;
  setup.deadline_s = options.deadline_s;
  setup.on_loss = std::move(on_loss);
  setup.waits = options.waits;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(Invitation theirs, Invitation::parse(text));
    if (setup.ranks.empty()) setup.key = theirs.key;
    setup.ranks.push_back(std::move(theirs.address));
  }
  std::unique_ptr<Heartbeat> heartbeat(
      new Heartbeat(std::make_unique<HeartbeatLoop>(std::move(setup)), options.waits));
  heartbeat->thread_ = std::thread([loop = heartbeat->loop_.get()] { loop->run(); });
  RETURN_IF_ERROR(agree(all, heartbeat->loop_->wait_until_settled()));
  if (options.waits != nullptr) {
    options.waits->begin_beats(static_cast<int64_t>(1e6 * options.period_s),
                               [loop = heartbeat->loop_.get()](int rank) { loop->accuse(rank); });
  }
  return heartbeat;
}

Heartbeat::Heartbeat(std::unique_ptr<HeartbeatLoop> loop, RankWaits* waits)
    : loop_(std::move(loop)), waits_(waits) {}

Heartbeat::~Heartbeat() { stop(); }

void Heartbeat::stop() {
  if (!thread_.joinable()) return;
  if (waits_ != nullptr) waits_->end_beats();
  loop_->stop();
  thread_.join();
  if (refused() == 0) return;
  log_warn(
      strf("connections to port %d that were closed, since they came from no process of this "
           "run: %lld",
           port(), (long long)refused()));
}

void Heartbeat::progress(const std::string& word) { loop_->set_word(word); }
Status Heartbeat::status() const { return loop_->status(); }
int Heartbeat::port() const { return loop_->port(); }
int64_t Heartbeat::refused() const { return loop_->refused(); }

}  // namespace pagoda
