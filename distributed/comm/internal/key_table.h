#pragma once
// What every store does with its keys and values, once.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// Throws ValueError for what is over the limits of Store.
void check_key(std::string_view key);
void check_value(std::string_view value);

/// Keys and their values. Not thread-safe.
class KeyTable {
 public:
  /// Null if the key is absent.
  const std::string* find(std::string_view key) const;
  /// Whether the key holds `expected` (nullopt: is absent).
  bool holds(std::string_view key, std::optional<std::string_view> expected) const;
  /// The number under the key, or 0, plus `amount`. Throws ValueError for what is no number, or overflows.
  std::int64_t sum(std::string_view key, std::int64_t amount) const;
  void set(std::string_view key, std::string_view value);
  bool erase(std::string_view key);
  /// What the keys and values hold together.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::string, Hash, std::equal_to<>> values_;
  std::size_t bytes_ = 0;
};

}  // namespace tapestry::distributed
