#include "tapestry/apps/compare/mode.h"

#include <algorithm>

#include "tapestry/core/error.h"

namespace apps::compare {
namespace {

std::vector<Mode>& known() {
  static std::vector<Mode> all;  // a function-local static, because modes register before main
  return all;
}

}  // namespace

Registration::Registration(Mode mode) {
  const auto before = [](const Mode& a, const Mode& b) {
    return std::pair(a.name != "single", a.name) < std::pair(b.name != "single", b.name);
  };
  known().insert(std::upper_bound(known().begin(), known().end(), mode, before), mode);
}

const std::vector<Mode>& modes() { return known(); }

const Mode& mode_named(const std::string& name) {
  std::string names;
  for (const Mode& m : known()) {
    if (m.name == name) return m;
    names += (names.empty() ? "" : ", ") + m.name;
  }
  tapestry::fail("[compare] unknown mode ", name, "; choose one of ", names);
}

std::int64_t ring_bytes(std::int64_t bytes, int n) { return 2 * (n - 1) * bytes / n; }
std::int64_t half_ring_bytes(std::int64_t bytes, int n) { return (n - 1) * bytes / n; }

}  // namespace apps::compare
