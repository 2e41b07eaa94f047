#include "tapestry/distributed/comm/internal/missing_ranks.h"

#include <chrono>
#include <thread>

#include "tests/support/catch.h"

using namespace tapestry::distributed;

TEST_CASE("all missing ranks are named, up to sixteen") {
  const auto none = [](int) { return false; };
  CHECK(missing_ranks(0, 4, [](int) { return true; }).empty());
  CHECK(missing_ranks(0, 0, none).empty());
  CHECK(missing_ranks(2, 4, none) == "2, 3");
  CHECK(missing_ranks(0, 6, [](int rank) { return rank % 2 == 0; }) == "1, 3, 5");
  const std::string sixteen = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15";
  CHECK(missing_ranks(0, 15, none) == sixteen.substr(0, sixteen.rfind(',')));
  CHECK(missing_ranks(0, 16, none) == sixteen);
  CHECK(missing_ranks(0, 17, none) == sixteen + " and more");
}

TEST_CASE("slow requests stop the search after half a second, and what was found is named") {
  const auto began = std::chrono::steady_clock::now();
  int calls = 0;
  const auto slow = [&](bool came) {
    return [&calls, came](int) {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return came;
    };
  };
  const std::string found = missing_ranks(0, 1000, slow(false));
  CHECK_THAT(found, ContainsSubstring("0") && ContainsSubstring(" and more"));
  CHECK(calls >= 1);
  CHECK(calls <= 3);
  CHECK(missing_ranks(0, 1000, slow(true)).empty());
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(60));
}
