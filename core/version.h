#pragma once

namespace tapestry {

/// The version of the linked library, for example "0.1.0".
const char* version();

}  // namespace tapestry
