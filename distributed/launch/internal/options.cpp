#include "tapestry/distributed/launch/internal/options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>

#include "tapestry/core/device.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/machine.h"

namespace tapestry::distributed::launch {
namespace {

constexpr int kMaxRanks = 4096;      // the limit per node, and the limit of nodes
constexpr int kDefaultPort = 29400;  // torchrun's default for several nodes

/// A value from the command line or from the corresponding variable.
struct Given {
  std::string value;
  std::string from;  // "--nnodes" or "PET_NNODES", for error messages
};

template <class T>
T number(const Given& given, T low, T high) {
  T value{};
  const char* const end = given.value.data() + given.value.size();
  const auto [stop, error] = std::from_chars(given.value.data(), end, value);
  // `value < low` would accept NaN.
  if (error != std::errc() || stop != end || !(value >= low && value <= high))
    fail("[tapestry-run] ", given.from, " takes a number from ", low, " to ", high, ", not '", given.value,
         "'");
  return value;
}

int processes(const Given& given, const Machine& machine) {
  if (given.value == "cpu") return machine.cores;
  if (given.value == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (given.value == "gpu") {
    check(machine.gpus > 0, "[tapestry-run] ", given.from,
          " gpu: no GPU is visible here; give a number, or see tapestry-run --doctor");
    return machine.gpus;
  }
  return number(given, 1, kMaxRanks);
}

/// Parses "3", and torchrun's "3:3".
int nodes(Given given) {
  const auto colon = given.value.find(':');
  if (colon != std::string::npos && given.value.substr(0, colon) == given.value.substr(colon + 1))
    given.value.resize(colon);
  check(given.value.find(':') == std::string::npos, "[tapestry-run] ", given.from, " ", given.value,
        ": elastic node ranges are not supported; give one number (restart a job that lost a node with "
        "less)");
  return number(given, 1, kMaxRanks);
}

/// Parses "host:port", "host" or "[::1]:port".
void set_endpoint(LaunchOptions& o, const Given& given) {
  std::string host = given.value;
  const auto colon = host.rfind(':');
  const bool bare_v6 = host.find(':') != colon && !host.starts_with('[');
  if (colon != std::string::npos && !bare_v6 && !host.ends_with(']')) {
    o.port = number(Given{host.substr(colon + 1), "the port in " + given.from}, 0, 65535);
    host.resize(colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  check(!host.empty(), "[tapestry-run] ", given.from, " takes host:port, not '", given.value, "'");
  o.host = host;
}

enum class Takes { value, nothing };

struct Option {
  std::string_view name;
  Takes takes;
};

// Options in the order of the help. Options of torchrun that have no effect here are accepted, so that
// torchrun's command lines work.
constexpr Option kOptions[] = {
    {"nproc-per-node", Takes::value}, {"nnodes", Takes::value},       {"node-rank", Takes::value},
    {"rdzv-endpoint", Takes::value},  {"master-addr", Takes::value},  {"master-port", Takes::value},
    {"standalone", Takes::nothing},   {"max-restarts", Takes::value}, {"grace", Takes::value},
    {"log-dir", Takes::value},        {"doctor", Takes::nothing},     {"help", Takes::nothing},
    {"version", Takes::nothing},      {"rdzv-backend", Takes::value}, {"rdzv-id", Takes::value},
    {"no-python", Takes::nothing},
};

using OptionMap = std::map<std::string, Given, std::less<>>;

/// Reads options into `given`; returns the index of the first argument that belongs to the program.
std::size_t read_arguments(const std::vector<std::string>& arguments, OptionMap& given) {
  std::size_t i = 0;
  for (; i < arguments.size() && arguments[i].starts_with('-'); ++i) {
    if (arguments[i] == "--") return i + 1;
    const std::string written = arguments[i].substr(0, arguments[i].find('='));
    std::string name = written == "-h" ? "help" : written.substr(std::min<std::size_t>(2, written.size()));
    std::replace(name.begin(), name.end(), '_', '-');
    check(name != "local-rank" && name != "use-env", "[tapestry-run] ", written,
          ": ranks read their numbers from variables such as LOCAL_RANK, which init_process_group() and "
          "read_environment() use; leave the option out");
    const auto option = std::find_if(std::begin(kOptions), std::end(kOptions),
                                     [&](const Option& o) { return o.name == name; });
    check(option != std::end(kOptions) && (written.starts_with("--") || written == "-h"),
          "[tapestry-run] unknown option '", written,
          "'; tapestry-run --help lists the options, those of the program go after its name");
    const bool has_value = written.size() < arguments[i].size();
    std::string value;
    if (option->takes == Takes::nothing) {
      check(!has_value, "[tapestry-run] ", written, " takes no value");
    } else if (has_value) {
      value = arguments[i].substr(written.size() + 1);
    } else {
      check(++i < arguments.size(), "[tapestry-run] ", written, " needs a value");
      value = arguments[i];
    }
    given.insert_or_assign(name, Given{value, written});
  }
  return i;
}

std::optional<Given> variable(const Variables& environment, const std::string& name) {
  const auto found = environment.find(name);
  if (found == environment.end() || found->second.empty()) return std::nullopt;
  return Given{found->second, name};
}

/// Reads PET_<OPTION>, as torchrun does. Kubernetes' training operators set these variables.
void read_variables(const Variables& environment, OptionMap& given) {
  for (const Option& option : kOptions) {
    if (option.takes == Takes::nothing) continue;
    std::string name = "PET_";
    for (const char c : option.name) name += c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
    if (const auto value = variable(environment, name)) given.try_emplace(std::string(option.name), *value);
  }
}

}  // namespace

Variables this_environment() {
  Variables variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Machine this_machine() { return {available_cores(), device_count(DeviceType::cuda)}; }

LaunchOptions parse_launch_options(const std::vector<std::string>& arguments, const Variables& environment,
                                   const Machine& machine) {
  OptionMap given;
  const std::size_t program = read_arguments(arguments, given);
  LaunchOptions o;
  o.host = loopback_host();
  o.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(program), arguments.end());
  o.help = given.count("help") > 0;
  o.version = given.count("version") > 0;
  if (o.help || o.version) return o;
  o.doctor = given.count("doctor") > 0;
  const bool standalone = given.count("standalone") > 0;
  read_variables(environment, given);

  const auto get = [&](std::string_view name) -> const Given* {
    const auto found = given.find(name);
    return found == given.end() ? nullptr : &found->second;
  };
  if (const Given* g = get("nproc-per-node")) o.nproc_per_node = processes(*g, machine);
  if (const Given* g = get("nnodes")) o.nnodes = nodes(*g);
  if (const Given* g = get("max-restarts")) o.max_restarts = number(*g, 0, 1'000'000);
  if (const Given* g = get("grace")) o.grace_s = number(*g, 0.0, 86400.0);
  if (const Given* g = get("log-dir")) o.log_dir = g->value;
  if (const Given* g = get("rdzv-backend"))
    check(g->value == "c10d" || g->value == "static", "[tapestry-run] ", g->from, " ", g->value,
          ": the rendezvous is at node 0's launcher, which torchrun calls c10d or static; leave the option "
          "out");
  check(!standalone || o.nnodes == 1, "[tapestry-run] --standalone is for one node, not for --nnodes ",
        o.nnodes);

  if (!standalone) {
    const bool several = o.nnodes > 1;
    const auto master = [&](std::string_view option, const char* name) -> std::optional<Given> {
      if (const Given* g = get(option)) return *g;
      return several ? variable(environment, name) : std::nullopt;
    };
    if (const Given* g = get("rdzv-endpoint")) {
      set_endpoint(o, *g);
    } else {
      if (const auto g = master("master-addr", "MASTER_ADDR")) o.host = g->value;
      else
        check(!several, "[tapestry-run] ", o.nnodes,
              " nodes need the address of node 0: pass --rdzv-endpoint host:port");
      if (const auto g = master("master-port", "MASTER_PORT")) o.port = number(*g, 0, 65535);
    }
    if (several && o.port == 0) o.port = kDefaultPort;
    if (const Given* g = get("node-rank")) {
      o.node_rank = number(*g, 0, o.nnodes - 1);
    } else if (several) {
      const auto slurm = variable(environment, "SLURM_NODEID");
      check(slurm.has_value(), "[tapestry-run] ", o.nnodes,
            " nodes: pass the number of this node, --node-rank 0 to ", o.nnodes - 1);
      o.node_rank = number(*slurm, 0, o.nnodes - 1);
    }
  }
  check(o.doctor || !o.command.empty(),
        "[tapestry-run] no program to start: tapestry-run --nproc-per-node 2 ./program arguments");
  return o;
}

std::string launch_help() {
  return R"(Starts a program as several ranks, watches them, and ends all of them together.

  tapestry-run --nproc-per-node 2 ./app --app-option
  tapestry-run --nnodes 2 --node-rank 0 --rdzv-endpoint host0:29400 --nproc-per-node 8 ./app    on each node

Options have torchrun's names (hyphens or underscores, --name value or --name=value):
  --nproc-per-node N   ranks on this node: a number, gpu (one per GPU), cpu (one per core), or auto; default 1
  --nnodes N           number of nodes; default 1
  --node-rank R        number of this node, from 0; default SLURM_NODEID
  --rdzv-endpoint H:P  address of node 0; for one node the default is a free port of 127.0.0.1 or ::1
  --master-addr H, --master-port P   the same as two options; default MASTER_ADDR, MASTER_PORT
  --standalone         one node; ignore variables of other launchers
  --max-restarts K     restart all ranks after a failure, at most K times; TAPESTRY_RESTART counts the restarts
  --log-dir D          write the output of rank N to D/rank_N.log; only rank 0 also writes to the terminal
  --grace S            seconds between asking ranks to end and killing them; default 30
  --doctor             check this machine for the job and start nothing
  --help               show this text
  --version            show the version, the libraries of this build and those of this machine
  --rdzv-backend, --rdzv-id, --no-python   accepted for compatibility with torchrun; no effect
Missing options are read from the variables PET_<OPTION>. A job on several nodes needs one TAPESTRY_SECRET.

Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT, and
OMP_NUM_THREADS (its share of the cores, unless it is set). If a rank fails, all ranks are ended, and the failed
rank's last lines are printed last. Exit status: that of the failed rank; 128 + N if signal N ended it; 130 after
Ctrl-C; 2 for wrong options.
)";
}

}  // namespace tapestry::distributed::launch
