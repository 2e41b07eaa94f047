// Tests the server of a program's pages with readers that follow the protocol, and with those that do not.
#include "tapestry/apps/common/page_server.h"

#include <poll.h>

#include <chrono>
#include <thread>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/sockets.h"
#include "tests/support/catch.h"

namespace {

using apps::PageServer;
using namespace tapestry::distributed;
using std::chrono::seconds;

struct Url {
  int port;
  std::string host, path;
};
Url parts(const std::string& url) {
  const std::string start = "http://127.0.0.1:";
  REQUIRE(url.starts_with(start));
  const std::size_t slash = url.find('/', start.size());
  const std::string port = url.substr(start.size(), slash - start.size());
  return {std::stoi(port), "127.0.0.1:" + port, url.substr(slash)};
}

class Reader {
 public:
  explicit Reader(const PageServer& server) {
    const auto addresses = addresses_of("127.0.0.1", parts(server.url()).port);
    REQUIRE(start_connect(addresses.at(0), socket_) == 0);
    REQUIRE(wait_until(socket_.get(), POLLOUT, Clock::now() + seconds(10)));
  }
  void send(std::string_view bytes) {
    while (!bytes.empty() && send_some(socket_.get(), bytes) == 0)
      if (!bytes.empty()) REQUIRE(wait_until(socket_.get(), POLLOUT, Clock::now() + seconds(10)));
  }
  // Everything until the server closes the connection.
  std::string rest() {
    std::string all;
    while (receive(socket_.get(), all, all.size() + (1 << 20)) == 0)
      REQUIRE(wait_until(socket_.get(), POLLIN, Clock::now() + seconds(20)));
    return all;
  }

 private:
  Fd socket_;
};

std::string ask(const PageServer& server, const std::string& request) {
  Reader reader(server);
  reader.send(request);
  return reader.rest();
}
std::string get(const PageServer& server, const std::string& path, const std::string& headers,
                const std::string& method = "GET") {
  return ask(server, method + " " + path + " HTTP/1.1\r\n" + headers + "\r\n");
}
bool refused(const std::string& answer, const std::string& status) {
  return answer.starts_with("HTTP/1.1 " + status) && answer.find("the page") == std::string::npos;
}

}  // namespace

TEST_CASE("a page server answers a browser of this machine, and nobody else") {
  PageServer server;
  const Url url = parts(server.url());
  const std::string host = "Host: " + url.host + "\r\n";
  CHECK(refused(get(server, url.path, host), "404"));  // nothing is published yet
  server.publish("", "text/html; charset=utf-8", "the page");
  server.publish("data.json", "application/json", "[1]");

  const std::string answer = get(server, url.path, host);
  CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK_THAT(answer, ContainsSubstring("Content-Type: text/html; charset=utf-8\r\nContent-Length: 8\r\n"));
  CHECK_THAT(answer, ContainsSubstring("Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"));
  CHECK(answer.ends_with("\r\n\r\nthe page"));
  CHECK(get(server, url.path + "data.json?after=3", host).ends_with("\r\n\r\n[1]"));
  server.publish("data.json", "application/json", "[1, 2]");
  CHECK(get(server, url.path + "data.json", host).ends_with("\r\n\r\n[1, 2]"));
  // ssh -L shows the page at another port.
  CHECK(get(server, url.path, "host:\t localhost:8000 \r\nOrigin: http://localhost:8000\r\n")
            .ends_with("the page"));

  // A name that its owner points at 127.0.0.1, and pages of other sites.
  for (const std::string headers : {"Host: evil.example\r\n", "Host: 127.0.0.1.evil.example:80\r\n", "",
                                    "Host: localhost:80@evil.example\r\n", "Host: \r\n"})
    CHECK(refused(get(server, url.path, headers), "403"));
  for (const std::string origin : {"http://evil.example", "null", "http://localhost:1", "https://127.0.0.1"})
    CHECK(refused(get(server, url.path, host + "Origin: " + origin + "\r\n"), "403"));
  CHECK(refused(get(server, url.path, host + "Host: evil.example\r\n"), "400"));

  std::string wrong = url.path;
  wrong[5] = wrong[5] == '0' ? '1' : '0';
  for (const std::string& path :
       {wrong, std::string("/"), std::string("//"), url.path.substr(0, url.path.size() - 1), url.path + "no",
        url.path + "../" + url.path.substr(1), "http://" + url.host + url.path})
    CHECK(refused(get(server, path, host), "404"));
  for (const std::string method : {"POST", "PUT", "HEAD", "get"})
    CHECK(refused(get(server, url.path, host, method), "405"));
  CHECK(parts(PageServer().url()).path != url.path);
}

TEST_CASE("a page server survives readers that break the protocol or stop reading") {
  PageServer server;
  const Url url = parts(server.url());
  const std::string host = "Host: " + url.host + "\r\n";
  server.publish("", "text/html", "the page");
  CHECK(refused(ask(server, "\r\n\r\n"), "400"));
  CHECK(refused(ask(server, std::string(3, '\0') + " \xff\xfe\r\n\r\n"), "400"));
  CHECK(refused(ask(server, "GET " + url.path + "\r\n" + host + "\r\n"), "400"));
  CHECK(refused(get(server, url.path, host + "no colon\r\n"), "400"));
  CHECK(refused(ask(server, std::string(1 << 20, 'a')), "431"));
  CHECK(refused(get(server, "/" + std::string(40'000, 'a'), host), "431"));
  CHECK(ask(server, "GET /").empty());  // dropped after a while, without an answer

  // More readers than the server keeps: silent ones, and ones that ask and never read.
  server.publish("large", "text/plain", std::string(16 << 20, 'x'));
  std::vector<Reader> idle;
  for (int i = 0; i < 100; ++i) {
    idle.emplace_back(server);
    if (i % 2 == 0) idle.back().send("GET " + url.path + "large HTTP/1.1\r\n" + host + "\r\n");
  }
  CHECK(get(server, url.path, host).ends_with("the page"));
  CHECK(get(server, url.path + "large", host).size() > (16 << 20));

  // A text that is replaced while a reader receives it arrives whole.
  Reader slow(server);
  slow.send("GET " + url.path + "large HTTP/1.1\r\n" + host + "\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  server.publish("large", "text/plain", "small");
  const std::string rest = slow.rest();
  CHECK((rest.ends_with("xxx") ? rest.size() > (16 << 20) : rest.ends_with("\r\n\r\nsmall")));
}

TEST_CASE("a page server says why it cannot listen") {
  const PageServer first;
  const int port = parts(first.url()).port;
  CHECK_THROWS_WITH(PageServer(port), ContainsSubstring("[serve] cannot listen at 127.0.0.1, port ") &&
                                          ContainsSubstring("in use; choose another port"));
}
