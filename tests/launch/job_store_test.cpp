#include "tapestry/distributed/launch/internal/job_store.h"

#include <set>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry::distributed;
using namespace tapestry::distributed::launch;

namespace {

LaunchOptions at(int nnodes, const std::string& host) {
  LaunchOptions o;
  o.nnodes = nnodes;
  o.host = host;
  return o;
}

}  // namespace

TEST_CASE("random secrets differ") {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    const std::string secret = random_secret();
    CHECK(secret.size() == 32);
    CHECK(secret.find_first_not_of("0123456789abcdef") == std::string::npos);
    secrets.insert(secret);
  }
  CHECK(secrets.size() == 100);
}

TEST_CASE("secret_of uses TAPESTRY_SECRET, else a random secret for one node") {
  const Variables given = {{"TAPESTRY_SECRET", "mine"}};
  CHECK(secret_of(at(1, "127.0.0.1"), given) == "mine");
  CHECK(secret_of(at(2, "10.0.0.1"), given) == "mine");
  CHECK(secret_of(at(1, "127.0.0.1"), {}).size() == 32);
  CHECK(secret_of(at(1, "10.0.0.1"), {{"TAPESTRY_SECRET", ""}}).size() == 32);
  CHECK(secret_of(at(2, "localhost"), {}).empty());
  CHECK_THROWS_AS(secret_of(at(2, "127.example.org"), {}), tapestry::ValueError);
  CHECK_THROWS_AS(secret_of(at(2, "10.0.0.1"), {}), tapestry::ValueError);
  CHECK_THROWS_WITH(secret_of(at(2, "10.0.0.1"), {}), ContainsSubstring("TAPESTRY_SECRET"));
}

TEST_CASE("the store answers only clients with the secret") {
  const auto server = open_store(at(1, "127.0.0.1"), "right");
  const TcpOptions quick{.secret = "right", .connect_timeout = Milliseconds(5000)};
  const auto client = tcp_store("127.0.0.1", server->port(), quick);
  client->set("a", "b");
  CHECK(client->try_get("a") == "b");
  CHECK_THROWS_AS(
      tcp_store("127.0.0.1", server->port(), {.secret = "wrong", .connect_timeout = Milliseconds(5000)}),
      DistributedError);
}
