#include "tapestry/apps/gpt/train_options.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "tapestry/apps/common/checkpoint_interval.h"
#include "tapestry/apps/common/run_folder.h"

namespace apps::gpt {

using tapestry::check;
using tapestry::fail;
using tapestry::IoError;
using Json = nlohmann::ordered_json;

void add_train_options(CommandLine& line, TrainOptions& o) {
  each_train_option([&](const char* name, auto member, const char* help, OptionRules rules, bool) {
    if (std::string(name) == "--checkpoint-every")
      rules.check = {[](const std::string& text) -> std::string {
        return CheckpointInterval::parse(text) ? "" : text + " is not an interval such as 200steps or none";
      }};
    line.add(name, o.*member, help, rules);
  });
  line.add("--run-dir", o.run_dir,
           "Folder for checkpoints, metrics, the curve and the model [runs/gpt-<time>]");
  line.add("--live", o.live, kLiveHelp);
  line.add("--resume", o.resume, "Continue the run in --run-dir; with auto, start one if the folder has none",
           {.check = one_of({"auto", ""}), .bare = true});
}

std::string to_json(const TrainOptions& o) {
  Json json;
  each_train_option([&](const char* name, auto member, const char*, const OptionRules&, bool) {
    json[name + 2] = o.*member;
  });
  each_train_fact([&](const char* name, auto member) { json[name] = o.*member; });
  return json.dump(2) + "\n";
}

TrainOptions train_options_from_json(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  const auto broken = [&](const std::string& why) {
    fail<IoError>("[gpt train] ", source, " is not the config of a run: ", why,
                  "; restore the file, or start a new run in another --run-dir");
  };
  if (!json.is_object()) broken("it is not a JSON object");
  TrainOptions o;
  const auto read = [&](const std::string& name, auto member) {
    const auto found = json.find(name);
    if (found == json.end() && may_lack(name)) return;
    if (found == json.end()) broken("\"" + name + "\" is missing");
    using T = std::remove_reference_t<decltype(o.*member)>;
    const bool fits = std::is_same_v<T, bool>          ? found->is_boolean()
                      : std::is_same_v<T, std::string> ? found->is_string()
                      : std::is_arithmetic_v<T>        ? found->is_number()
                                                       : found->is_array();
    if (!fits) broken("\"" + name + "\" is " + found->dump());
    try {
      o.*member = found->template get<T>();
    } catch (const nlohmann::json::exception&) {
      broken("\"" + name + "\" is " + found->dump());
    }
  };
  each_train_option([&](const char* name, auto member, const char*, const OptionRules& rules, bool) {
    read(name + 2, member);
    if constexpr (std::is_arithmetic_v<std::remove_reference_t<decltype(o.*member)>> &&
                  !std::is_same_v<std::remove_reference_t<decltype(o.*member)>, bool>)
      if (rules.check.fault)
        if (const std::string fault = rules.check.fault(Json(o.*member).dump()); !fault.empty())
          broken(std::string("\"") + (name + 2) + "\": " + fault);
  });
  each_train_fact(read);
  return o;
}

void resume_options(const CommandLine& line, TrainOptions& o) {
  if (!line.given("--resume")) return;
  if (o.run_dir.empty())
    throw UsageError("[gpt train] --resume needs --run-dir, the folder of the run to resume");
  const std::string path = o.run_dir + "/config.json";
  if (o.resume == "auto" && !std::filesystem::exists(path)) return;
  TrainOptions run = train_options_from_json(read_text(path), path);
  each_train_option([&](const char* name, auto member, const char*, const OptionRules&, bool fixed) {
    if (!line.given(name) || o.*member == run.*member) return;
    if (fixed)
      fail<UsageError>("[gpt train] the run in ", o.run_dir, " has ", name, " ", Json(run.*member).dump(),
                       " and cannot be resumed with ", Json(o.*member).dump(), "; leave ", name,
                       " out, or start a new run in another --run-dir");
    run.*member = o.*member;
  });
  run.run_dir = o.run_dir;
  run.resume = o.resume;
  run.live = o.live;
  run.resumed = true;
  o = run;
}

}  // namespace apps::gpt
