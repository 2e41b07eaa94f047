#include "tapestry/distributed/planner/profile.h"

#include <algorithm>
#include <cmath>
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
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RingMessages, count, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerCollectives, axis, what, all_reduce, all_gather, reduce_scatter,
                                   beside, beside_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BlockProfile, name, parameter_bytes, parts, forward_s, backward_s,
                                   accumulate_s, bucket_copy_s, update_s, saved_bytes, output_bytes,
                                   freed_input_bytes, unsaved_output_bytes, received_extra_bytes,
                                   forward_extra_bytes, backward, input_grad_s, weight_grad_s,
                                   weight_grad_accumulate_s, input_grad, weight_grad, weight_grad_accumulate,
                                   layers_forward, layers_backward)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DividedLayers, axes, blocks, loss, optimizer_state, input_sample_bytes,
                                   target_sample_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Contention, forward, backward, update)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StageContention, forward, backward, weights)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ZeroBubbleStage, contention, input_grad_s, weight_grad_s,
                                   weight_grad_accumulate_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Profile, blocks, loss, input_sample_bytes, target_sample_bytes,
                                   optimizer_state, contention, stages, zero_bubble_stages, dispatch_s,
                                   divided)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllReduce, message, gather_message, scatter_message, peer_message,
                                   overlap_slowdown, compute_stall, contention)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, copy, broadcast, add, master_contention, local, ranks, cross)

namespace {

constexpr int kProfileVersion = 3;

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

bool BlockProfile::is_part(std::size_t parameter) const {
  return std::find(parts.begin(), parts.end(), static_cast<int>(parameter)) != parts.end();
}

std::int64_t BlockProfile::part_bytes() const {
  std::int64_t bytes = 0;
  for (const int i : parts) bytes += parameter_bytes[static_cast<std::size_t>(i)];
  return bytes;
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

double LayerCollectives::seconds(const AllReduce& costs, double n) const {
  const TransferCost& gather = costs.gather_message.is_free() ? costs.message : costs.gather_message;
  const TransferCost& scatter = costs.scatter_message.is_free() ? costs.message : costs.scatter_message;
  const auto of = [&](const RingMessages& m, const TransferCost& cost) {
    return m.count > 0 ? m.count * cost.latency_s + m.bytes.at(n) * cost.s_per_byte : 0;
  };
  const double waits = of(all_reduce, costs.message) + of(all_gather, gather) + of(reduce_scatter, scatter);
  if (beside.count == 0) return waits;
  // Either the messages take longer than the attention, or they slow it down. The larger loss counts.
  const double passing =
      costs.overlap_slowdown * of(beside, costs.peer_message.is_free() ? costs.message : costs.peer_message);
  return waits + std::max(passing - beside_s.at(n), costs.compute_stall * passing);
}
double LayerCollectives::bytes(double n) const {
  return all_reduce.bytes.at(n) + all_gather.bytes.at(n) + reduce_scatter.bytes.at(n) + beside.bytes.at(n);
}
double LayerCollectives::whole_bytes(double n, int devices) const {
  const double halves = all_reduce.bytes.at(n) / 2 + all_gather.bytes.at(n) + reduce_scatter.bytes.at(n);
  return std::round(halves * devices / (devices - 1) + beside.bytes.at(n));  // rings round bytes down
}

std::string to_text(const Profile& profile) {
  json all = profile;
  all["version"] = kProfileVersion;
  return all.dump();
}
Profile profile_from_text(const std::string& text) {
  const json all = parsed<json>(text, "profile");
  const bool is_one = all.is_object() && all.contains("blocks") && all["blocks"].is_array();
  const int version = is_one ? all.value("version", 1) : kProfileVersion;
  check(version == kProfileVersion, "[planner] the text is a profile of version ", version,
        ", and this program reads version ", kProfileVersion, "; measure the model again");
  Profile profile = parsed<Profile>(text, "profile");
  const auto check_blocks = [](const std::vector<BlockProfile>& blocks) {
    for (const BlockProfile& b : blocks)
      for (const BackwardInterval& i : b.backward)
        check(i.parameter >= -1 && i.parameter < static_cast<int>(b.parameter_bytes.size()),
              "[planner] the text is not a profile: block ", b.name, " has ", b.parameter_bytes.size(),
              " parameters, and a gradient of parameter ", i.parameter);
    for (const BlockProfile& b : blocks)
      for (const int i : b.parts)
        check(i >= 0 && i < static_cast<int>(b.parameter_bytes.size()),
              "[planner] the text is not a profile: block ", b.name, " has ", b.parameter_bytes.size(),
              " parameters, and parts of parameter ", i);
  };
  check_blocks(profile.blocks);
  // Only the devices of these axes communicate inside the layers.
  const auto check_axes = [](const std::vector<BlockProfile>& blocks, const std::string& axes) {
    for (const BlockProfile& b : blocks)
      for (const auto* pass : {&b.layers_forward, &b.layers_backward})
        for (const LayerCollectives& c : *pass)
          check(!c.axis.empty() && concat({",", axes}).find(concat({",", c.axis, "="})) != std::string::npos,
                "[planner] the text is not a profile: block ", b.name, " communicates along ", c.axis,
                ", which is not one of the axes that divide its layers (", axes, ")");
  };
  check_axes(profile.blocks, "");
  check_axes({profile.loss}, "");
  for (const DividedLayers& d : profile.divided) {
    check(d.blocks.size() == profile.blocks.size(), "[planner] the text is not a profile: the model has ",
          profile.blocks.size(), " blocks, and ", d.blocks.size(), " when the devices of ", d.axes,
          " divide its layers");
    check_blocks(d.blocks);
    check_axes(d.blocks, d.axes);
    check_axes({d.loss}, d.axes);
  }
  return profile;
}
std::string to_text(const Link& link) { return json(link).dump(); }
Link link_from_text(const std::string& text) { return parsed<Link>(text, "link"); }

Profile median_of(const std::vector<Profile>& profiles) { return median_of_all(profiles, "profile"); }
Link median_of(const std::vector<Link>& links) { return median_of_all(links, "link"); }

}  // namespace tapestry::distributed::planner
