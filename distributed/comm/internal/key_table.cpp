#include "tapestry/distributed/comm/internal/key_table.h"

#include <charconv>

namespace tapestry::distributed {

void check_key(std::string_view key) {
  check(key.size() <= Store::kMaxKey, "[store] a key has ", key.size(), " bytes; use at most ",
        Store::kMaxKey);
}

void check_value(std::string_view value) {
  check(value.size() <= Store::kMaxValue, "[store] a value has ", value.size(), " bytes; use at most ",
        Store::kMaxValue, ", and collectives for larger data");
}

const std::string* KeyTable::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool KeyTable::holds(std::string_view key, std::optional<std::string_view> expected) const {
  const std::string* const value = find(key);
  return value ? expected == *value : !expected;
}

std::int64_t KeyTable::sum(std::string_view key, std::int64_t amount) const {
  const std::string* const value = find(key);
  if (!value) return amount;
  const char* const last = value->data() + value->size();
  std::int64_t number = 0, sum = 0;
  const auto [end, error] = std::from_chars(value->data(), last, number);
  check(error == std::errc() && end == last, "[store] add to key \"", key, "\", which holds \"",
        std::string_view(*value).substr(0, 40), "\" instead of a number; use another key");
  check(!__builtin_add_overflow(number, amount, &sum), "[store] key \"", key, "\" holds ", number,
        ", and adding ", amount, " overflows 64 bits");
  return sum;
}

void KeyTable::set(std::string_view key, std::string_view value) {
  auto found = values_.find(key);
  if (found == values_.end()) {
    found = values_.emplace(key, std::string()).first;
    bytes_ += key.size();
  }
  bytes_ -= found->second.size();
  found->second = std::string(value);  // move-assigned, so that the memory of a longer value is freed
  bytes_ += value.size();
}

bool KeyTable::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return true;
}

}  // namespace tapestry::distributed
