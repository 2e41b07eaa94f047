#pragma once
// For api_missing.cpp, which does not include CUDA's headers, because they declare its functions otherwise.

namespace stand_in::api {

/// Reports a call of a function that this runtime lacks. Returns cudaErrorNotSupported.
int missing(const char* name);

}  // namespace stand_in::api
