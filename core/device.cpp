#include "tapestry/core/device.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"

namespace tapestry {
namespace {

// Parses digits only: no sign, no spaces, no leading zero.
std::optional<int> parse_number(std::string_view text) {
  int n = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9' || (text[0] == '0' && text.size() > 1)) return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return n;
}

int logical_cpu_devices() {
  const char* text = std::getenv("TAPESTRY_LOGICAL_DEVICES");
  if (!text) return 1;
  const std::optional<int> n = parse_number(text);
  check(n && *n >= 1 && *n <= kMaxDevices, "[device_count] TAPESTRY_LOGICAL_DEVICES is \"", text,
        "\"; set it to an integer from 1 to ", kMaxDevices, ", or unset it");
  return *n;
}

}  // namespace

const char* device_type_name(DeviceType type) {
  switch (type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return "cuda";
    case DeviceType::meta:
      break;
  }
  return "meta";
}

Device::Device(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  type = name == "cuda" ? DeviceType::cuda : name == "meta" ? DeviceType::meta : DeviceType::cpu;
  const std::optional<int> i = colon == std::string_view::npos ? 0 : parse_number(text.substr(colon + 1));
  check<DeviceError>(name == device_type_name(type) && i && *i < kMaxDevices, "[Device] \"", text,
                     "\" is not a device; write cpu, cuda, meta, or cpu or cuda with an index below ",
                     kMaxDevices, ", as in cuda:1");
  index = static_cast<std::int8_t>(*i);
}

std::string Device::str() const { return std::string(device_type_name(type)) + ":" + std::to_string(index); }

int device_count(DeviceType type) {
  if (type == DeviceType::cuda) return cuda::devices().count();
  if (type == DeviceType::meta) return 1;
  static const int count = logical_cpu_devices();
  return count;
}

void check_device(const char* op, Device device) {
  const int count = device_count(device.type);
  if (device.index >= 0 && device.index < count) [[likely]]
    return;
  if (device.is_cpu())
    fail<DeviceError>("[", op, "] device ", device, " does not exist: ", count, " CPU device(s); set ",
                      "TAPESTRY_LOGICAL_DEVICES to have more");
  if (device.is_meta())
    fail<DeviceError>("[", op, "] device ", device,
                      " does not exist: there is one meta device, meta:0; use it");
  if (count == 0)
    fail<DeviceError>("[", op, "] device ", device, " does not exist: 0 CUDA devices (",
                      cuda::why_no_device(), "); use cpu");
  fail<DeviceError>("[", op, "] device ", device, " does not exist: ", count,
                    " CUDA device(s), cuda:0 to cuda:", count - 1, "; use one of them");
}

}  // namespace tapestry
