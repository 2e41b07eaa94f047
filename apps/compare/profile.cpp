#include "tapestry/apps/compare/profile.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "tapestry/core/error.h"

namespace apps::compare {

using nlohmann::json;

// Found by nlohmann::json beside the types.
static void to_json(json& j, const Curve& c) { j = c.points(); }
static void from_json(const json& j, Curve& c) { c = Curve(j.get<std::vector<std::pair<double, double>>>()); }
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Line, latency_s, s_per_byte)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BlockProfile, name, parameter_bytes, forward_s, backward_s, accumulate_s,
                                   update_s, kept_bytes, output_bytes, forward_extra_bytes,
                                   backward_extra_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Contention, forward, backward, update)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Profile, blocks, loss, image_bytes, label_bytes, contention, handoff_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllReduce, message, stops_compute)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, copy, add, local, ranks)

namespace {

template <class T>
T parsed(const std::string& text, const char* what) {
  try {
    return json::parse(text).get<T>();
  } catch (const std::exception& e) {
    tapestry::fail("[compare] this is no ", what, ": ", e.what());
  }
}

}  // namespace

std::int64_t BlockProfile::all_parameter_bytes() const {
  return std::accumulate(parameter_bytes.begin(), parameter_bytes.end(), std::int64_t{0});
}

std::vector<double> Profile::costs(double samples) const {
  std::vector<double> all;
  for (const BlockProfile& b : blocks) all.push_back(b.forward_s.at(samples) + b.backward_s.at(samples));
  return all;
}

std::string to_text(const Profile& profile) { return json(profile).dump(); }
Profile profile_of(const std::string& text) { return parsed<Profile>(text, "profile"); }
std::string to_text(const Link& link) { return json(link).dump(); }
Link link_of(const std::string& text) { return parsed<Link>(text, "link"); }

}  // namespace apps::compare
