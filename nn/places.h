#pragma once
// Work on gradients, and on what they belong to, where they are. Not in tapestry.h: for what changes many
// parameters at once (optimizers, clipping).
#include <functional>
#include <span>
#include <vector>

#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// What one replica has on one device.
struct Place {
  int replica = 0;
  Device device;

  bool has(const Parameter& p) const {
    return replica < p.replicas() && p.replica(replica).device() == device;
  }
  friend bool operator==(const Place&, const Place&) = default;
};

/// Adds to `places` where these parameters have gradients, each place once.
void add_places(std::span<const Parameter> params, std::vector<Place>& places);

/// Runs task(place) for each place. Of several replicas, or on several CPU devices: all at once, each on its
/// device's worker, in the caller's context; when all have ended, the first exception is rethrown with its
/// device in the text. Otherwise on the calling thread: GPUs that have been given work compute at once
/// anyway.
void at_places(std::span<const Place> places, const std::function<void(const Place&)>& task);

/// Tensor::zero_grad of every parameter, in all replicas.
void zero_gradients(std::span<const Parameter> params, bool set_to_none);

}  // namespace tapestry::nn
