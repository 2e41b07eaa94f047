#include "tapestry/core/version.h"

namespace tapestry {

const char* version() { return TAPESTRY_VERSION; }

}  // namespace tapestry
