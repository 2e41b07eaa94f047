#include "tapestry/distributed/planner/profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tapestry/core/error.h"
#include "tapestry/distributed/planner/internal/timing.h"

namespace tapestry::distributed::planner {

using nlohmann::json;

// nlohmann::json finds these by argument-dependent lookup.
static void to_json(json& j, const Curve& c) { j = c.points(); }
static void from_json(const json& j, Curve& c) { c = Curve(j.get<std::vector<std::pair<double, double>>>()); }
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TransferCost, latency_s, s_per_byte)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BackwardInterval, parameter, peak_bytes, accumulate_bytes, end_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SplitPassMemory, peak, growth)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BlockProfile, name, parameter_bytes, forward_s, backward_s, accumulate_s,
                                   bucket_copy_s, update_s, saved_bytes, output_bytes, freed_input_bytes,
                                   unsaved_output_bytes, received_extra_bytes, forward_extra_bytes, backward,
                                   input_grad_s, weight_grad_s, weight_grad_accumulate_s, input_grad,
                                   weight_grad, weight_grad_accumulate)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Contention, forward, backward, update)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StageContention, forward, backward, weights)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ZeroBubbleStage, contention, input_grad_s, weight_grad_s,
                                   weight_grad_accumulate_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Profile, blocks, loss, input_sample_bytes, target_sample_bytes,
                                   optimizer_state, contention, stages, zero_bubble_stages, dispatch_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllReduce, message, gather_message, scatter_message, peer_message,
                                   overlap_slowdown, compute_stall, contention)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, copy, broadcast, add, master_contention, local, ranks, cross)

namespace {

template <class T>
T parsed(const std::string& text, const char* what) {
  try {
    return json::parse(text).get<T>();
  } catch (const std::exception& e) {
    fail("[planner] the text is not a ", what, ": ", e.what());
  }
}

// Takes the median of every number in JSON values that have the same structure.
json median_of_values(const std::vector<json>& values, const char* what) {
  const json& first = values.front();
  const auto alike = [&](const json& v) {
    return v.is_number() ? first.is_number() : v.type() == first.type() && v.size() == first.size();
  };
  check(std::all_of(values.begin(), values.end(), alike), "[planner] two measurements of a ", what,
        " have different parts; measure the same model with the same batch sizes");
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
  check(!all.empty(), "[planner] the list of ", what, "s is empty; pass one or more");
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

double AllReduce::gather_s(double bytes, int n) const {
  return half_ring_time(gather_message.is_free() ? message : gather_message, bytes, n);
}
double AllReduce::scatter_s(double bytes, int n) const {
  return half_ring_time(scatter_message.is_free() ? message : scatter_message, bytes, n);
}
double AllReduce::peer_s(double bytes) const {
  return (peer_message.is_free() ? message : peer_message).time(bytes);
}

std::string to_text(const Profile& profile) { return json(profile).dump(); }
Profile profile_from_text(const std::string& text) {
  Profile profile = parsed<Profile>(text, "profile");
  for (const BlockProfile& b : profile.blocks)
    for (const BackwardInterval& i : b.backward)
      check(i.parameter >= -1 && i.parameter < static_cast<int>(b.parameter_bytes.size()),
            "[planner] the text is not a profile: block ", b.name, " has ", b.parameter_bytes.size(),
            " parameters, and a gradient of parameter ", i.parameter);
  return profile;
}
std::string to_text(const Link& link) { return json(link).dump(); }
Link link_from_text(const std::string& text) { return parsed<Link>(text, "link"); }

Profile median_of(const std::vector<Profile>& profiles) { return median_of_all(profiles, "profile"); }
Link median_of(const std::vector<Link>& links) { return median_of_all(links, "link"); }

}  // namespace tapestry::distributed::planner
