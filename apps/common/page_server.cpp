#include "tapestry/apps/common/page_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "tapestry/core/error.h"

namespace apps {
namespace page_server {  // a build may compile this file together with others

using tapestry::check;
using tapestry::IoError;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostConnections = 32, kLargestRequest = 16 << 10;
constexpr milliseconds kRequestTime{5'000};  // a browser may connect before it has something to ask
constexpr milliseconds kAnswerTime{30'000};
constexpr milliseconds kFarewellTime{1'000};
constexpr milliseconds kAcceptPause{50};  // after the last file descriptor was used up

struct File {
  int fd = -1;
  explicit File(int file) : fd(file) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

struct Text {
  std::string type, text;
};
struct Published {
  std::shared_ptr<const Text> latest;
  std::int64_t answered = 0;  // requests
};

struct Request {
  std::string_view method, path, host, origin;
  bool is_valid = false;
};

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

Request parse(std::string_view head) {
  Request r;
  const auto take = [&](std::string_view end) {
    const std::size_t at = std::min(head.find(end), head.size());
    const std::string_view taken = head.substr(0, at);
    head.remove_prefix(std::min(head.size(), at + end.size()));
    return taken;
  };
  r.method = take(" ");
  r.path = take(" ");
  r.path = r.path.substr(0, r.path.find('?'));
  r.is_valid = take("\r\n").starts_with("HTTP/1.");
  while (!head.empty()) {
    const std::string_view line = take("\r\n");
    const std::size_t colon = line.find(':');
    if (line.empty()) break;
    if (colon == std::string_view::npos) r.is_valid = false;
    for (const auto& [name, value] : {std::pair("host", &r.host), {"origin", &r.origin}}) {
      if (!same_name(line.substr(0, colon), name)) continue;
      r.is_valid = r.is_valid && value->empty();  // a second one would be open to interpretation
      const std::size_t begin = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
      *value = line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
    }
  }
  return r;
}

// The port may differ from the server's: ssh -L forwards another one.
bool is_here(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const std::string_view name = host.substr(0, colon), port = host.substr(std::min(colon, host.size()));
  const bool numeric = port.find_first_not_of("0123456789", 1) == std::string_view::npos;
  return numeric && (name == "127.0.0.1" || same_name(name, "localhost"));
}

// Takes the same time wherever the texts differ.
bool equal_secrets(std::string_view a, std::string_view b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return different == 0;
}

std::string new_secret() {
  std::array<unsigned char, 16> bytes{};
  const int error = getentropy(bytes.data(), bytes.size()) == 0 ? 0 : errno;
  check<IoError>(error == 0, "[serve] cannot get random bytes: ", std::strerror(error),
                 "; this program needs the system call getrandom");
  std::string text;
  for (const unsigned char byte : bytes)
    for (const int digit : {byte >> 4, byte & 15}) text += "0123456789abcdef"[digit];
  return text;
}

struct Connection {
  explicit Connection(int fd) : socket(fd) {}
  File socket;
  Clock::time_point deadline = Clock::now() + kRequestTime;
  std::string request, head;
  std::shared_ptr<const Text> body;
  std::size_t sent = 0;
  bool answers = false, ends = false;

  std::string_view unsent() const {
    if (sent < head.size()) return std::string_view(head).substr(sent);
    return std::string_view(body->text).substr(sent - head.size());
  }
};

struct Server {
  const File listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const File end{::eventfd(0, EFD_CLOEXEC)};  // becomes readable when the thread must end
  const std::string secret = new_secret();
  std::string url;
  std::list<Connection> connections;  // oldest first
  std::mutex mutex;                    // held to copy or to exchange a pointer
  std::map<std::string, Published> texts;
  std::thread thread;

  explicit Server(int port) {
    check<IoError>(listener.fd >= 0 && end.fd >= 0,
                   "[serve] cannot open a socket; raise the limit of open files (ulimit -n)");
    const int yes = 1;  // earlier connections may be in TIME_WAIT
    ::setsockopt(listener.fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    const bool listens = ::bind(listener.fd, any, length) == 0 && ::listen(listener.fd, SOMAXCONN) == 0 &&
                         ::getsockname(listener.fd, any, &length) == 0;
    const int error = listens ? 0 : errno;
    check<IoError>(listens, "[serve] cannot listen at 127.0.0.1, port ", port, ": ", std::strerror(error),
                   "; choose another port, or 0 for a free one");
    url = tapestry::concat({"http://127.0.0.1:", ntohs(address.sin_port), "/", secret, "/"});
    start();
  }
  ~Server() {
    static_cast<void>(::eventfd_write(end.fd, 1));
    thread.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The thread starts with all signals blocked, so that the program's own threads handle them.
  void start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::string why;
    try {
      thread = std::thread([this] { run(); });
    } catch (const std::system_error& e) {
      why = e.what();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    check<IoError>(why.empty(), "[serve] cannot start a thread: ", why,
                   "; raise the limit of processes (ulimit -u)");
  }

  void run() {
    for (bool ends = false; !ends;) {
      try {
        ends = turn();
      } catch (const std::exception&) {  // out of memory
        connections.clear();
      }
    }
  }

  // Waits for sockets and serves those that are ready. True if the thread must end.
  bool turn() {
    const auto now = Clock::now();
    std::vector<pollfd> polled = {{end.fd, POLLIN, 0}, {listener.fd, POLLIN, 0}};
    Clock::time_point next = now + std::chrono::hours(1);
    for (const Connection& c : connections) {
      polled.push_back({c.socket.fd, static_cast<short>(c.answers && !c.ends ? POLLOUT : POLLIN), 0});
      next = std::min(next, c.deadline);
    }
    const auto left = std::max(std::chrono::ceil<milliseconds>(next - now), milliseconds(0));
    ::poll(polled.data(), polled.size(), static_cast<int>(left.count()));
    std::size_t i = 2;
    for (auto at = connections.begin(); at != connections.end(); ++i) {
      const auto c = at++;
      const bool lives = polled[i].revents == 0 || step(*c);
      if (!lives || Clock::now() >= c->deadline) connections.erase(c);
    }
    if (polled[1].revents) accept();
    return polled[0].revents != 0;
  }

  void accept() {
    const int fd = ::accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const int error = fd >= 0 ? 0 : errno;
    const bool full = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
    if (full) std::this_thread::sleep_for(kAcceptPause);
    if (!connections.empty() && (full || connections.size() >= kMostConnections)) connections.pop_front();
    if (fd >= 0) connections.emplace_back(fd);
  }

  // Does what the socket is ready for. False if the connection is over.
  bool step(Connection& c) {
    if (c.ends) return receive(c, 0);
    if (!c.answers) {
      if (!receive(c, kLargestRequest)) return false;
      const bool complete = c.request.find("\r\n\r\n") != std::string::npos;
      if (!complete && c.request.size() < kLargestRequest) return true;
      answer(c, complete);
    }
    while (!c.unsent().empty()) {
      const std::string_view rest = c.unsent();
      const ssize_t n = ::send(c.socket.fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      c.sent += static_cast<std::size_t>(n);
    }
    // Closing a socket with bytes to read would discard the answer's end on its way. So the reader closes.
    ::shutdown(c.socket.fd, SHUT_WR);
    c.ends = true;
    c.deadline = Clock::now() + kFarewellTime;
    return true;
  }

  // Reads what has arrived, and keeps it up to `most` bytes. False if the reader has closed the connection.
  static bool receive(Connection& c, std::size_t most) {
    std::array<char, 4096> buffer;
    const ssize_t n = ::recv(c.socket.fd, buffer.data(), buffer.size(), 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    const std::size_t room = most - std::min(most, c.request.size());
    c.request.append(buffer.data(), std::min(static_cast<std::size_t>(n), room));
    return n > 0;
  }

  void answer(Connection& c, bool complete) {
    const Request r = parse(c.request);
    std::string status = "200 OK";
    std::shared_ptr<const Text> text;
    if (!complete) status = "431 Request Header Fields Too Large";
    else if (!r.is_valid) status = "400 Bad Request";
    else if (!is_here(r.host) || (!r.origin.empty() && r.origin != "http://" + std::string(r.host)))
      status = "403 Forbidden";
    else if (r.method != "GET") status = "405 Method Not Allowed\r\nAllow: GET";
    else if (text = find(r.path); !text) status = "404 Not Found";
    if (!text)
      text = std::make_shared<const Text>(Text{"text/plain", status.substr(0, status.find('\r')) + "\n"});
    // The secret must reach no other site and no cache, and no other site may frame or read the answer.
    c.head = tapestry::concat(
        {"HTTP/1.1 ", status, "\r\nContent-Type: ", text->type, "\r\nContent-Length: ", text->text.size(),
         "\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n",
         "X-Frame-Options: DENY\r\nCross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n\r\n"});
    c.body = std::move(text);
    c.answers = true;
    c.deadline = Clock::now() + kAnswerTime;
  }

  void publish(const std::string& name, const std::string& type, std::string text) {
    auto latest = std::make_shared<const Text>(Text{type, std::move(text)});
    const std::lock_guard lock(mutex);
    texts[name].latest.swap(latest);  // the earlier text, if any, is freed after the lock
  }

  std::shared_ptr<const Text> find(std::string_view path) {
    if (path.size() < secret.size() + 2) return nullptr;
    const std::string_view name = path.substr(secret.size() + 2);
    if (!equal_secrets(path.substr(0, secret.size() + 2), "/" + secret + "/")) return nullptr;
    const std::lock_guard lock(mutex);
    const auto found = texts.find(std::string(name));
    if (found == texts.end()) return nullptr;
    ++found->second.answered;
    return found->second.latest;
  }
};

}  // namespace page_server

struct PageServer::Impl : page_server::Server {
  using Server::Server;
};

PageServer::PageServer(int port) : impl_(std::make_unique<Impl>(port)) {}
PageServer::~PageServer() = default;

const std::string& PageServer::url() const { return impl_->url; }
std::int64_t PageServer::answered(const std::string& name) const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->texts.find(name);
  return found == impl_->texts.end() ? 0 : found->second.answered;
}

void PageServer::publish(const std::string& name, const std::string& type, std::string text) {
  impl_->publish(name, type, std::move(text));
}

}  // namespace apps
