#include "tapestry/core/device.h"

#include <cstdio>
#include <string>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("Device parses its text, and refuses other text") {
  CHECK(Device("cpu") == kCPU);
  CHECK(Device("cpu:0") == kCPU);
  CHECK(Device("cpu:63") == Device(DeviceType::cpu, 63));
  CHECK(Device(std::string("cuda")) == Device(DeviceType::cuda, 0));
  CHECK(Device("cuda:12").str() == "cuda:12");
  CHECK(kCPU.str() == "cpu:0");
  CHECK(Device("cuda").is_cuda());
  CHECK_FALSE(Device("cuda").is_cpu());
  CHECK_FALSE(Device("cpu:1") == kCPU);
  for (const char* text : {"", ":", "gpu", "cpu:", "cpu:-1", "cpu:+1", "cpu: 1", "cpu:1 ", "cpu:01", "cpu:64",
                           "cpu:1x", "CPU", "cpu:99999999999999999999", "cuda:0:0", " cpu", "cuda0"}) {
    INFO(text);
    CHECK_THROWS_AS(Device(text), DeviceError);
    CHECK_THROWS_WITH(Device(text), ContainsSubstring(std::string("\"") + text + "\" is not a device"));
  }
}

TEST_CASE("devices that do not exist are refused") {
  CHECK_NOTHROW(check_device("empty", kCPU));
  CHECK_THROWS_WITH(check_device("empty", Device("cpu:63")),
                    ContainsSubstring("[empty] device cpu:63 does not exist") &&
                        ContainsSubstring("TAPESTRY_LOGICAL_DEVICES"));
  CHECK_THROWS_AS(check_device("empty", Device(DeviceType::cpu, -1)), DeviceError);
  // 256 would wrap around to 0 in 8 bits.
  CHECK_THROWS_AS(check_device("empty", Device(DeviceType::cpu, 256)), DeviceError);
  CHECK_THROWS_AS(DeviceGuard(Device("cpu:63")), DeviceError);
  if (device_count(DeviceType::cuda) == 0)
    CHECK_THROWS_WITH(check_device("empty", "cuda"), ContainsSubstring("cuda:0 does not exist: 0 CUDA"));
}

TEST_CASE("child: device count", "[.]") {
  try {
    std::printf("count=%d;", device_count(DeviceType::cpu));
    check_device("x", Device(DeviceType::cpu, device_count(DeviceType::cpu) - 1));
  } catch (const ValueError& e) {
    std::printf("refused: %s;", e.what());
  }
}

TEST_CASE("TAPESTRY_LOGICAL_DEVICES is parsed strictly") {
  const auto with = [](const std::string& value) {
    return run_child("child: device count", "TAPESTRY_LOGICAL_DEVICES='" + value + "'").output;
  };
  CHECK_THAT(run_child("child: device count", "-u TAPESTRY_LOGICAL_DEVICES").output,
             ContainsSubstring("count=1;"));
  CHECK_THAT(with("4"), ContainsSubstring("count=4;"));
  CHECK_THAT(with("64"), ContainsSubstring("count=64;"));
  for (const char* bad :
       {"", "0", "65", "-1", "+2", " 2", "2 ", "2x", "two", "02", "2.0", "99999999999999999999"}) {
    INFO(bad);
    CHECK_THAT(with(bad), ContainsSubstring("refused: ") &&
                              ContainsSubstring(std::string("\"") + bad + "\"") &&
                              ContainsSubstring("1 to 64"));
  }
}

TEST_CASE("context guards restore what they changed") {
  const Context before = current_context();
  {
    const NoGradGuard off;
    CHECK_FALSE(grad_enabled());
    {
      const EnableGradGuard on;
      CHECK(grad_enabled());
    }
    CHECK_FALSE(grad_enabled());
    {
      const InferenceMode inference;
      CHECK(current_context().inference);
      CHECK_FALSE(grad_enabled());
    }
    CHECK_FALSE(current_context().inference);
    const DeviceGuard device(kCPU);
    Context other;
    other.replica = 3;
    other.stream = 9;
    {
      const ContextGuard guard(other);
      CHECK(current_context().replica == 3);
      CHECK(current_context().stream == 9);
      CHECK(grad_enabled());
    }
    CHECK(current_context().replica == before.replica);
    CHECK_FALSE(grad_enabled());
  }
  CHECK(grad_enabled() == before.grad_enabled);
  CHECK(current_context().inference == before.inference);
}
