#pragma once
// Devices: `cpu` (the same as `cpu:0`), `cpu:1`, ..., `cuda:0`, `cuda:1`, ... and `meta`.
#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry {

/// Tensors on `meta` have shapes, dtypes and strides, but no memory. Operations on them compute no elements.
enum class DeviceType : std::uint8_t { cpu, cuda, meta };
inline constexpr int kNumDeviceTypes = 3;
/// The largest number of logical devices of one type.
inline constexpr int kMaxDevices = 64;

/// "cpu", "cuda" or "meta"
const char* device_type_name(DeviceType type);

/// A logical device. `TAPESTRY_LOGICAL_DEVICES=4` creates cpu:0 to cpu:3 and divides the compute threads
/// among them.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceType t, int i = 0)                                     // NOLINT
      : type(t), index(static_cast<std::int8_t>(i < 0 || i > 127 ? -1 : i)) {}  // -1 never exists
  /// Parses "cpu", "cpu:1", "cuda", "cuda:0", "meta". Throws DeviceError for other text. Does not check that
  /// the device exists.
  Device(std::string_view text);                                       // NOLINT
  Device(const char* text) : Device(std::string_view(text)) {}         // NOLINT
  Device(const std::string& text) : Device(std::string_view(text)) {}  // NOLINT

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  bool is_meta() const { return type == DeviceType::meta; }
  /// "cpu:0"
  std::string str() const;
  friend constexpr bool operator==(Device a, Device b) { return a.type == b.type && a.index == b.index; }
};

inline constexpr Device kCPU{DeviceType::cpu, 0};
inline constexpr Device kMeta{DeviceType::meta, 0};

/// The number of logical devices of this type. For the CPU it is TAPESTRY_LOGICAL_DEVICES, or 1 if that
/// variable is not set; throws ValueError unless the value is an integer from 1 to kMaxDevices. For CUDA,
/// core/cuda/device.h describes the number. It is 0 if this process can use no GPU. There is one meta device.
int device_count(DeviceType type);
/// Throws DeviceError, naming `op`, unless the device exists.
void check_device(const char* op, Device device);

}  // namespace tapestry
