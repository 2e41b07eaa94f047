#include "tapestry/nn/places.h"

#include <algorithm>

#include "tapestry/core/internal/worker.h"

namespace tapestry::nn {

namespace {
bool need_workers(std::span<const Place> places) {
  const Place* cpu = nullptr;
  for (const Place& p : places) {
    if (p.replica != places[0].replica) return true;
    if (!p.device.is_cpu()) continue;
    if (cpu && !(cpu->device == p.device)) return true;
    cpu = &p;
  }
  return false;
}
}  // namespace

void add_places(std::span<const Parameter> params, std::vector<Place>& places) {
  for (const Parameter& p : params)
    for (int r = 0; r < p.replicas(); ++r) {
      if (!p.replica(r).grad().defined()) continue;
      const Place place{r, p.replica(r).device()};
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
}

void at_places(std::span<const Place> places, const std::function<void(const Place&)>& task) {
  if (!need_workers(places)) {
    for (const Place& p : places) task(p);
    return;
  }
  std::vector<Device> devices;
  for (const Place& p : places) devices.push_back(p.device);
  on_workers(devices, [&](int i) { task(places[static_cast<std::size_t>(i)]); });
}

void zero_gradients(std::span<const Parameter> params, bool set_to_none) {
  if (set_to_none) {
    for (const Parameter& p : params)
      for (int r = 0; r < p.replicas(); ++r) p.replica(r).zero_grad();
    return;
  }
  std::vector<Place> places;
  add_places(params, places);
  at_places(places, [&](const Place& place) {
    for (const Parameter& p : params)
      if (place.has(p)) p.replica(place.replica).zero_grad(false);
  });
}

}  // namespace tapestry::nn
