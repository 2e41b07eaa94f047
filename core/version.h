#pragma once

namespace tapestry {

/// The library's version, "0.1.0" say: of what is linked, not of the headers.
const char* version();

}  // namespace tapestry
