#include "tapestry/tools/ptx/runtime/callers.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "tapestry/tools/ptx/runtime/driver.h"
#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in {

std::string callers() {
  if (driver::epoch() > 0) return "";
  std::array<void*, 48> frames;
  const int n = backtrace(frames.data(), static_cast<int>(frames.size()));
  Dl_info own{}, info{};
  if (dladdr(reinterpret_cast<void*>(&callers), &own) == 0) return "";
  std::string text;
  for (int i = 0; i < n; ++i) {
    // A return address is behind the call.
    const auto address = reinterpret_cast<std::uintptr_t>(frames[static_cast<std::size_t>(i)]) - 1;
    if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || !info.dli_fname) continue;
    if (info.dli_fbase == own.dli_fbase) continue;
    if (std::strstr(info.dli_fname, "/libc.so") || std::strstr(info.dli_fname, "/ld-linux")) break;
    text += (text.empty() ? "\nhost: " : " ") + std::string(info.dli_fname) + "+" +
            tapestry::ptx::hex(address - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  }
  return text;
}

}  // namespace stand_in
