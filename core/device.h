#pragma once
// Devices: `cpu` (= cpu:0), `cpu:1`, ... and `cuda:0`, ...
#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry {

enum class DeviceType : std::uint8_t { cpu, cuda };
inline constexpr int kNumDeviceTypes = 2;
/// Logical devices of one type, at most.
inline constexpr int kMaxDevices = 64;

/// "cpu" or "cuda"
const char* device_type_name(DeviceType type);

/// A logical device. `TAPESTRY_LOGICAL_DEVICES=4` makes cpu:0 to cpu:3, each with a share of the threads.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceType t, int i = 0)                                     // NOLINT
      : type(t), index(static_cast<std::int8_t>(i < 0 || i > 127 ? -1 : i)) {}  // -1: exists nowhere
  /// Parses "cpu", "cpu:1", "cuda", "cuda:0". Throws DeviceError for other text. Does not check that it
  /// exists.
  Device(std::string_view text);                                       // NOLINT
  Device(const char* text) : Device(std::string_view(text)) {}         // NOLINT
  Device(const std::string& text) : Device(std::string_view(text)) {}  // NOLINT

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  /// "cpu:0"
  std::string str() const;
  friend constexpr bool operator==(Device a, Device b) { return a.type == b.type && a.index == b.index; }
};

inline constexpr Device kCPU{DeviceType::cpu, 0};

/// How many logical devices of this type exist: for the CPU TAPESTRY_LOGICAL_DEVICES (1 when unset;
/// ValueError unless it is an integer from 1 to kMaxDevices), for CUDA those of the runtime (0 without a
/// driver).
int device_count(DeviceType type);
/// Throws DeviceError, naming `op`, unless the device exists.
void check_device(const char* op, Device device);

}  // namespace tapestry
