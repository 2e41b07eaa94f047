#include "tapestry/tools/ptx/runtime/callers.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "tapestry/tools/ptx/runtime/driver.h"
#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in {

Callers Callers::now() {
  Callers made;
  if (driver::epoch() > 0) return made;
  std::array<void*, 48> frames;
  const int n = backtrace(frames.data(), static_cast<int>(frames.size()));
  made.frames_.assign(frames.data(), frames.data() + n);
  return made;
}

std::string Callers::text() const {
  Dl_info own{}, info{};
  if (dladdr(reinterpret_cast<void*>(&Callers::now), &own) == 0) return "";
  std::string text;
  for (void* const frame : frames_) {
    // A return address is behind the call.
    const auto address = reinterpret_cast<std::uintptr_t>(frame) - 1;
    if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || !info.dli_fname) continue;
    if (info.dli_fbase == own.dli_fbase) continue;
    if (std::strstr(info.dli_fname, "/libc.so") || std::strstr(info.dli_fname, "/ld-linux")) break;
    text += (text.empty() ? "\nhost: " : " ") + std::string(info.dli_fname) + "+" +
            tapestry::ptx::hex(address - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  }
  return text;
}

}  // namespace stand_in
