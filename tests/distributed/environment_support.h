#pragma once
// Sets the environment variables of a job for the length of a scope, and unsets all other launcher variables.
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace tests {

class JobVariables {
 public:
  /// Variables with the value "" are unset.
  explicit JobVariables(const std::map<std::string, std::string>& variables) {
    for (const char* name : kNames) put(name, std::nullopt);
    for (const auto& [name, value] : variables)
      put(name, value.empty() ? std::nullopt : std::optional<std::string>(value));
  }
  ~JobVariables() {
    for (const auto& [name, value] : saved_) change(name, value);
  }
  JobVariables(const JobVariables&) = delete;
  JobVariables& operator=(const JobVariables&) = delete;

 private:
  static constexpr const char* kNames[] = {"RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TAPESTRY_LAUNCHER",
                                           "TAPESTRY_STORE_RUNNING",
                                           "TAPESTRY_SECRET",
                                           "TAPESTRY_PORT",
                                           "TAPESTRY_RESTART",
                                           "TAPESTRY_MAX_RESTARTS",
                                           "TAPESTRY_TIMEOUT_S",
                                           "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "TORCHELASTIC_MAX_RESTARTS",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "SLURM_PROCID",
                                           "SLURM_STEP_ID",
                                           "SLURM_STEPID"};

  void put(const std::string& name, const std::optional<std::string>& value) {
    const char* const old = std::getenv(name.c_str());
    saved_.emplace(name, old ? std::optional<std::string>(old)
                             : std::nullopt);  // emplace keeps the first value, which is the original one
    change(name, value);
  }
  static void change(const std::string& name, const std::optional<std::string>& value) {
    if (value) setenv(name.c_str(), value->c_str(), 1);
    else unsetenv(name.c_str());
  }

  std::map<std::string, std::optional<std::string>> saved_;
};

}  // namespace tests
