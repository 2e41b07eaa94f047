#include "tapestry/apps/classifier/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tapestry/apps/common/precision.h"

namespace apps {

using tapestry::fail;
using tapestry::IoError;

namespace {

constexpr const char* kOverridden = "overridden";

bool one_of_names(const std::string& option, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return option == name; });
}

// True if the results do not depend on the option.
bool is_free(const std::string& option) {
  return one_of_names(option, {"data_dir", "workers", "allow_nan", "checkpoint_every", "tensorboard"});
}

// True if the command line may change the option when it resumes a run.
bool may_change(const std::string& option, const Options& run) {
  return one_of_names(option, {"device", "threads", "parallel", "compress"}) ||
         (option == "epochs" && run.schedule == "constant");
}

// Stores a JSON value in the option `name` of `o`. Returns the error, or an empty string.
template <class T>
std::string assign(Options& o, const std::string& name, T Options::*member, const nlohmann::json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return "it must be true or false";
    o.*member = value.get<bool>();
    return "";
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) return "it must be a string";
    const std::string text = value.get<std::string>();
    if (name == "data_dir" && text.empty()) return "";  // the default, which the command line cannot select
    return apply_arguments({flag_of(name), text}, o);
  } else {
    if (!value.is_number()) return "it must be a number";
    return apply_arguments({flag_of(name), value.dump()}, o);
  }
}

// Returns the value as it is written on the command line.
template <class T>
std::string argument(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) return value;
  else return nlohmann::json(value).dump();
}

}  // namespace

std::string to_json(const Options& o) {
  nlohmann::ordered_json json;
  each_option([&](const char* name, auto member) { json[name] = o.*member; });
  for (const auto& [name, value] : o.overridden) json[kOverridden][name] = nlohmann::json::parse(value);
  return json.dump(2) + "\n";
}

Options options_from_json(const std::string& text, const std::string& source, const Options& overrides) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  tapestry::check<IoError>(json.is_object(), "[classifier] ", source,
                           " is not the config of a run: it is not a JSON object; restore the file, or "
                           "start a new run in another --run-dir");
  Options o;
  std::set<std::string> known;
  each_option([&](const std::string& name, auto member) {
    known.insert(name);
    const auto found = json.find(name);
    if (found == json.end() && may_lack(name)) return;
    const std::string fault = found == json.end() ? "it is missing" : assign(o, name, member, *found);
    if (fault.empty()) return;
    if (!overrides.given.contains(name))
      fail<IoError>("[classifier] ", source, " is not the config of a run: \"", name, "\"",
                    found == json.end() ? "" : " is " + found->dump(), ": ", fault,
                    "; restore the file, or pass ", flag_of(name));
    o.*member = overrides.*member;
  });
  if (const auto overridden = json.find(kOverridden); overridden != json.end() && overridden->is_object())
    for (const auto& [name, value] : overridden->items()) o.overridden[name] = value.dump();
  known.insert(kOverridden);
  for (const auto& [name, value] : json.items())
    tapestry::check<IoError>(known.contains(name), "[classifier] ", source,
                             " is not the config of a run: the classifier has no option \"", name,
                             "\"; restore the file");
  return o;
}

void check_same_run(Options& now, const Options& run, const std::string& source) {
  each_option([&](const std::string& name, auto member) {
    if (run.*member == now.*member || is_free(name)) return;
    const bool changeable = may_change(name, run);
    const std::string was = nlohmann::json(run.*member).dump(), is = nlohmann::json(now.*member).dump();
    if (changeable && now.given.contains(name)) now.overridden[name] = is;
    const auto recorded = now.overridden.find(name);
    if (changeable && recorded != now.overridden.end() && recorded->second == is) return;
    if (now.given.contains(name)) {
      const std::string why =
          name == "epochs" ? " (its " + run.schedule + " schedule depends on the number of epochs)" : "";
      fail<UsageError>("[classifier] the run in ", now.run_dir, " has ", flag_of(name), " ", was, why,
                       " and cannot be resumed with ", is, "; leave ", flag_of(name),
                       " out, or start a new run in another --run-dir");
    }
    const std::string value = argument(changeable ? now.*member : run.*member);
    fail<IoError>("[classifier] ", now.run_dir, "/config.json has \"", name, "\": ", is, ", but ", source,
                  " has ", was, "; restore the value in the file, or pass ", flag_of(name), "=", value,
                  changeable ? " to continue with the new one" : "");
  });
}

void check_same_as_rank_0(const Options& own, const Options& rank_0) {
  each_option([&](const std::string& name, auto member) {
    if (one_of_names(name, {"data_dir", "device", "threads", "workers"})) return;
    if (own.*member == rank_0.*member) return;
    fail<UsageError>("[classifier] this rank has ", flag_of(name), " ", argument(own.*member),
                     " and rank 0 has ", argument(rank_0.*member), "; start all ranks with the same options");
  });
}

}  // namespace apps
