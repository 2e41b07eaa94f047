#include "tapestry/tools/ptx/runtime/settings.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>

namespace stand_in {
namespace {

bool parse_number(std::string_view text, std::uint64_t& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string parse_setting(const std::string& name, const std::string& value, Settings& to) {
  std::uint64_t number = 0;
  const auto must_be = [&](const std::string& what) { return "must be " + what + ", not '" + value + "'"; };
  if (name == "DEVICES") {
    if (!parse_number(value, number) || number > 64) return must_be("a number of GPUs from 0 to 64");
    to.devices = static_cast<int>(number);
  } else if (name == "MEMORY") {
    std::string digits = value;
    std::uint64_t unit = 1;
    if (const auto letter = std::string_view("KMG").find(value.empty() ? ' ' : value.back());
        letter != std::string_view::npos) {
      unit = std::uint64_t{1} << (10 * (letter + 1));
      digits.pop_back();
    }
    if (!parse_number(digits, number) || number == 0 || number > (std::uint64_t{1} << 40) / unit)
      return must_be("a number of bytes, such as 4G");
    to.memory = number * unit;
  } else if (name == "CHECK") {
    to.initialised = to.shared = to.races = to.leaks = value == "all";
    std::istringstream words(value == "all" || value == "none" ? "" : value);
    for (std::string word; std::getline(words, word, ',');) {
      if (word == "initialised") to.initialised = true;
      else if (word == "shared") to.shared = true;
      else if (word == "races") to.races = true;
      else if (word == "leaks") to.leaks = true;
      else return must_be("all, none, or a list of initialised, shared, races and leaks");
    }
  } else if (name == "ALLOW") {
    std::istringstream words(value);
    to.allowed.clear();
    for (std::string word; std::getline(words, word, ',');)
      if (!word.empty()) to.allowed.push_back(word);
    if (to.allowed.empty()) return must_be("a list of kernels or of FILE:LINE");
  } else if (name == "SCHEDULE") {
    if (value != "order" && value != "random") return must_be("order or random");
    if (value == "order") to.seed = 0;
    else if (to.seed == 0) to.seed = 1;
  } else if (name == "SEED") {
    if (!parse_number(value, to.seed)) return must_be("a number");
  } else if (name == "APPROXIMATE") {
    using tapestry::ptx::Approximate;
    if (value == "nearest") to.approximate = Approximate::kNearest;
    else if (value == "low") to.approximate = Approximate::kLow;
    else if (value == "high") to.approximate = Approximate::kHigh;
    else return must_be("nearest, low or high");
  } else if (name == "LIMIT") {
    if (!parse_number(value, to.max_instructions) || to.max_instructions == 0)
      return must_be("a number of instructions");
  } else if (name == "TRACE") {
    to.trace = value;
  } else if (name == "COUNTERS") {
    to.counters = value;
  } else if (name == "LAUNCHES") {
    to.launches = value;
  } else if (name == "SPEED") {
    to.speed = value;
  } else if (name == "REPORT") {
    to.report = value;
  } else if (name == "EXIT") {
    if (value != "keep") return must_be("keep, or not be set");
    to.keep_exit_status = true;
  } else {
    return "is not a setting";
  }
  return "";
}

const Settings& settings() {
  // Never destroyed, because the check at the end of the process reads it.
  static const Settings& read = *new Settings([] {
    Settings s;
    for (const char* const name : {"DEVICES", "MEMORY", "CHECK", "ALLOW", "SEED", "SCHEDULE", "APPROXIMATE",
                                   "LIMIT", "TRACE", "COUNTERS", "LAUNCHES", "SPEED", "REPORT", "EXIT"}) {
      const std::string variable = std::string("TAPESTRY_PTX_") + name;
      const char* const value = std::getenv(variable.c_str());
      if (!value) continue;
      if (const std::string wrong = parse_setting(name, value, s); !wrong.empty()) {
        std::fprintf(stderr, "[ptx] %s %s. There are no GPUs.\n", variable.c_str(), wrong.c_str());
        s.devices = 0;
        break;
      }
    }
    return s;
  }());
  return read;
}

}  // namespace stand_in
