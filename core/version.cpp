#include "tapestry/core/version.h"

#include <dlfcn.h>

#include "tapestry/core/allocator.h"
#include "tapestry/core/cuda/libraries.h"
#include "tapestry/core/error.h"

#ifndef TAPESTRY_WITH  // cmake/version.cmake defines these
#define TAPESTRY_PROCESSORS "unknown"
#define TAPESTRY_WITH "unknown"
#define TAPESTRY_WITHOUT ""
#endif

namespace tapestry {

const char* version() { return TAPESTRY_VERSION; }

std::string version_text(const std::string& program) {
  const std::string without = TAPESTRY_WITHOUT;
  std::string text = concat({program, " (Tapestry) ", version(), "\nprocessors: ", TAPESTRY_PROCESSORS,
                             "\nlibraries: ", TAPESTRY_WITH, without.empty() ? "" : "; without ", without, "\n"});
  Dl_info file;  // there may be two libraries with the loops over numbers, for different processors
  if (dladdr(reinterpret_cast<const void*>(&allocator), &file)) text += concat({"loaded: ", file.dli_fname, "\n"});
#if TAPESTRY_HAS_CUDA
  for (const cuda::Library& library : cuda::libraries()) text += library.str() + "\n";
#endif
  return text;
}

}  // namespace tapestry
