#pragma once
// Names the ranks that did not come, for error messages.
#include <functional>
#include <string>

namespace tapestry::distributed {

/// Returns the ranks from `first` to `size` - 1 for which came(rank) is false: "3, 5", or "3, 5 and more" if
/// it did not ask about all of them. It stops after 16 names or half a second, because each call of `came` is
/// a request to a store. Returns an empty text if it found none.
std::string missing_ranks(int first, int size, const std::function<bool(int)>& came);

}  // namespace tapestry::distributed
