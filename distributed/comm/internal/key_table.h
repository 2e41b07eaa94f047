#pragma once
// The keys and values of a store, and the rules that all stores share.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// Throw ValueError if a key or a value exceeds the limits of Store.
void check_key(std::string_view key);
void check_value(std::string_view value);

/// Keys and their values. Not thread-safe.
class KeyTable {
 public:
  /// Null if the key is absent.
  const std::string* find(std::string_view key) const;
  /// True if the key holds `expected`. If `expected` is nullopt, true if the key is absent.
  bool holds(std::string_view key, std::optional<std::string_view> expected) const;
  /// The number under the key (0 if the key is absent) plus `amount`. Throws ValueError if the value is not a
  /// number, or if the sum overflows.
  std::int64_t sum(std::string_view key, std::int64_t amount) const;
  void set(std::string_view key, std::string_view value);
  bool erase(std::string_view key);
  /// The total size of keys and values.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::string, Hash, std::equal_to<>> values_;
  std::size_t bytes_ = 0;
};

}  // namespace tapestry::distributed
