#include "tapestry/apps/compare/profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tapestry/apps/compare/timing.h"
#include "tapestry/core/error.h"

namespace apps::compare {

using nlohmann::json;

// Found by nlohmann::json beside the types.
static void to_json(json& j, const Curve& c) { j = c.points(); }
static void from_json(const json& j, Curve& c) { c = Curve(j.get<std::vector<std::pair<double, double>>>()); }
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Line, latency_s, s_per_byte)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BlockProfile, name, parameter_bytes, forward_s, backward_s, accumulate_s,
                                   copy_s, update_s, kept_bytes, output_bytes, forward_extra_bytes,
                                   backward_extra_bytes, inputs_s, weights_s, weights_added_s,
                                   postponed_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Contention, forward, backward, update)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartContention, forward, backward, weights)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartInHalves, contention, inputs_s, weights_s, weights_added_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Profile, blocks, loss, image_bytes, label_bytes, contention, parts,
                                   parts_in_halves, handoff_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllReduce, message, slower_beside, stops_compute, contention)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, copy, broadcast, add, master, local, ranks)

namespace {

template <class T>
T parsed(const std::string& text, const char* what) {
  try {
    return json::parse(text).get<T>();
  } catch (const std::exception& e) {
    tapestry::fail("[compare] this is no ", what, ": ", e.what());
  }
}

// Of values of one form: numbers are replaced by their medians, down to the leaves.
json median_of_values(const std::vector<json>& values, const char* what) {
  const json& first = values.front();
  const auto alike = [&](const json& v) {
    return v.is_number() ? first.is_number() : v.type() == first.type() && v.size() == first.size();
  };
  tapestry::check(std::all_of(values.begin(), values.end(), alike), "[compare] one ", what,
                  " has other parts than another; measure the same model at the same sizes");
  if (first.is_number()) return median(std::vector<double>(values.begin(), values.end()));
  json medians = first;
  if (!first.is_structured()) return medians;
  for (auto item = medians.begin(); item != medians.end(); ++item) {
    std::vector<json> parts;
    for (const json& v : values)
      parts.push_back(first.is_object() ? v.at(item.key())
                                        : v[static_cast<std::size_t>(item - medians.begin())]);
    *item = median_of_values(parts, what);
  }
  return medians;
}

template <class T>
T median_of_all(const std::vector<T>& all, const char* what) {
  tapestry::check(!all.empty(), "[compare] there is no ", what, " to take the median of");
  return median_of_values(std::vector<json>(all.begin(), all.end()), what).template get<T>();
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

Profile median_of(const std::vector<Profile>& profiles) { return median_of_all(profiles, "profile"); }
Link median_of(const std::vector<Link>& links) { return median_of_all(links, "link"); }

}  // namespace apps::compare
