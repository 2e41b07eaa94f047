#include "tapestry/kernels/policy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/kernel_span_name.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/version.h"
#include "tapestry/kernels/choice_table.h"

namespace tapestry {
namespace kernels {
namespace {

// All objects in this file that kernels use while the program ends are never destroyed.

constinit const ChoicePoint* points = nullptr;

std::string names_of_points() {
  std::string names;
  for (const std::string& name : kernel_policy_ops()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

// ---- the policies

struct Settings {
  KernelPolicy all = KernelPolicy::automatic;
  std::map<std::string, KernelPolicy, std::less<>> of_op;  // exceptions
  bool wgmma = false;
};

KernelPolicy parse_policy(std::string_view text) {
  for (const KernelPolicy p : {KernelPolicy::custom, KernelPolicy::vendor, KernelPolicy::automatic})
    if (text == kernel_policy_name(p)) return p;
  fail("[TAPESTRY_KERNELS] \"", text,
       "\" is no policy; write custom, vendor or auto, for all operations or as ", "in auto,gemm=custom");
}

void check_op(std::string_view op, std::string_view who) {
  for (const ChoicePoint* p = points; p; p = p->next())
    if (op == p->name()) return;
  fail("[", who, "] no operation named \"", op, "\" has a policy; these have: ", names_of_points());
}

Settings parse_settings(std::string_view text) {
  Settings settings;
  bool has_default = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, end);
    text = text.substr(std::min(end + 1, text.size()));
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      check(!std::exchange(has_default, true), "[TAPESTRY_KERNELS] \"", entry,
            "\" is a second policy for all operations; write one, and exceptions as operation=policy");
      settings.all = parse_policy(entry);
      continue;
    }
    const std::string_view op = entry.substr(0, equals);
    check_op(op, "TAPESTRY_KERNELS");
    check(settings.of_op.emplace(op, parse_policy(entry.substr(equals + 1))).second, "[TAPESTRY_KERNELS] ",
          op, " has two policies; write one");
  }
  return settings;
}

std::mutex& settings_mutex() {
  static auto& one = *new std::mutex;
  return one;
}
/// The policies; settings_mutex() is locked. Throws again at each call while TAPESTRY_KERNELS is malformed.
std::optional<Settings>& stored_settings() {
  static auto& one = *new std::optional<Settings>;
  if (!one) {
    const char* const text = std::getenv("TAPESTRY_KERNELS");
    one = parse_settings(text ? text : "");
    const char* const wgmma = std::getenv("TAPESTRY_WGMMA");
    const std::string_view allowed = wgmma ? wgmma : "";
    if (!allowed.empty() && allowed != "0" && allowed != "1") {
      one.reset();
      fail("[TAPESTRY_WGMMA] \"", allowed,
           "\" is neither 0 nor 1; write 1 to allow the kernels that use wgmma");
    }
    one->wgmma = allowed == "1";
  }
  return one;
}
// The number of changes, so that a thread looks a policy up only after one.
constinit std::atomic<std::uint64_t> settings_version{1};

KernelPolicy known_policy(const ChoicePoint& point) {
  using Known = std::map<const ChoicePoint*, std::pair<std::uint64_t, KernelPolicy>>;
  thread_local const auto known = std::make_unique<Known>();  // a pointer, because static TLS is scarce
  const std::uint64_t version = settings_version.load(std::memory_order_acquire);
  auto& [at, policy] = (*known)[&point];
  if (at != version) {
    policy = kernel_policy(point.name());
    at = version;
  }
  return policy;
}

constinit std::atomic<bool> deterministic{false}, tf32_matmul{false}, tf32_convolution{true};
constinit std::atomic<NewShapes> new_shapes{NewShapes::measure};
thread_local constinit int measuring_forbidden = 0;

// ---- the choices

struct Choices {
  std::mutex mutex;
  ChoiceTable used, later;                   // `later`: of NewShapes::measure_for_later
  std::set<ChoiceKey> loaded;                // choices of `used` that set_kernel_choices() gave
  std::map<std::string, ChoiceTable> files;  // what was read, by owner
  std::set<std::string> warned;
  // Held while candidates are measured, so that two threads do not disturb each other. A trial may itself
  // call choose().
  std::recursive_mutex measuring;
};
Choices& choices() {
  static auto& one = *new Choices;
  return one;
}

void warn_once(const std::string& text) {
  {
    const std::lock_guard lock(choices().mutex);
    if (!choices().warned.insert(text).second) return;
  }
  std::fprintf(stderr, "[kernels] warning: %s\n", text.c_str());
}

/// The version of NVIDIA's driver. It can change the machine code of kernels.
const std::string& driver_version() {
  static const auto& one = *new std::string([] {
    std::string line;
    std::ifstream in("/proc/driver/nvidia/version");
    std::getline(in, line);
    for (char& c : line)
      if (c < ' ' || c > '~') c = ' ';
    return line.empty() ? std::string("unknown driver") : line.substr(0, 200);
  }());
  return one;
}

struct Place {
  std::string device, owner, file;
};
Place place_of(Device device) {
  Place place{.device = "CPU", .owner = "CPU", .file = {}};
  if (device.is_cuda()) {
    const cuda::DeviceProperties about = cuda::device_properties(device);
    place.device = about.name.empty() ? "GPU" : about.name;
    std::replace(place.device.begin(), place.device.end(), '\t', ' ');
    place.owner = concat({place.device, ", compute capability ", about.major, ".", about.minor, ", ",
                          about.multiprocessors, " multiprocessors, ", driver_version()});
  }
  place.owner += concat({", Tapestry ", version()});
  if (const std::string folder = cache_folder(); !folder.empty())
    place.file = choices_file(folder, place.owner);
  return place;
}
/// What this thread has chosen, so that a call with known shapes takes no lock. Valid until any setting or
/// any choice changes.
struct Memo {
  std::uint64_t version = 0;
  std::unordered_map<std::string, std::size_t> index;
};
constexpr std::size_t kMostMemos = 4096;

/// The GPU's model is looked up once for each device, because the properties are strings.
const Place& known_place(Device device) {
  using Known = std::map<std::pair<int, int>, std::pair<std::uint64_t, Place>>;
  thread_local const auto known = std::make_unique<Known>();  // a pointer, because static TLS is scarce
  const std::uint64_t version = settings_version.load(std::memory_order_acquire);
  auto& [at, place] = (*known)[{static_cast<int>(device.type), device.index}];
  if (at != version) {
    place = place_of(device);
    at = version;
  }
  return place;
}

std::string names_of(std::span<const Candidate> candidates, const std::vector<std::size_t>& usable) {
  std::string names;
  for (const std::size_t i : usable) {
    if (!names.empty()) names += ',';
    names += candidates[i].name;
    if (!candidates[i].version.empty()) names += concat({" ", candidates[i].version});
  }
  return names;
}

std::optional<std::size_t> index_of(const std::string& name, std::span<const Candidate> candidates,
                                    const std::vector<std::size_t>& usable) {
  for (const std::size_t i : usable)
    if (name == candidates[i].name) return i;
  return std::nullopt;
}

/// A choice that was made before: in this process, by set_kernel_choices(), or in the file.
std::optional<std::size_t> remembered(const ChoiceKey& key, const Place& place,
                                      std::span<const Candidate> candidates,
                                      const std::vector<std::size_t>& usable) {
  Choices& all = choices();
  const NewShapes how = new_shapes.load();
  const std::string names = names_of(candidates, usable);
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.used.find(key); found != all.used.end()) {
    // A loaded choice holds for other versions too: it says what the run did before.
    if (all.loaded.contains(key) || found->second.candidates == names)
      if (const auto i = index_of(found->second.name, candidates, usable)) return i;
  }
  if (how == NewShapes::own || place.file.empty()) return std::nullopt;
  auto file = all.files.find(place.owner);
  if (file == all.files.end())
    file = all.files.emplace(place.owner, read_choices(place.file, place.owner)).first;
  const auto found = file->second.find(key);
  if (found == file->second.end() || found->second.candidates != names) return std::nullopt;
  const auto i = index_of(found->second.name, candidates, usable);
  if (!i) return std::nullopt;
  if (how == NewShapes::measure_for_later) {
    all.later[key] = found->second;
    return std::nullopt;
  }
  all.used[key] = found->second;
  all.loaded.erase(key);
  return i;
}

// ---- measuring

/// The milliseconds that the device takes for `calls` calls of f.
double milliseconds(const Stream& stream, int calls, const std::function<void()>& f) {
  if (!stream.device().is_cuda()) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) f();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  Event begin(true), end(true);
  begin.record(stream);
  for (int i = 0; i < calls; ++i) f();
  end.record(stream);
  end.synchronize();
  return end.milliseconds_since(begin);
}

/// The median duration of one call. The first call warms up: it loads code and grows the memory pool. Short
/// calls are timed in groups of about half a millisecond, because the host takes a few microseconds for each.
double duration(const Stream& stream, const std::function<void()>& f) {
  constexpr int kGroups = 5;
  constexpr double kGroup = 0.5;
  f();
  const double once = milliseconds(stream, 1, f);
  const int calls = once * 20 <= kGroup ? 20 : std::max(1, static_cast<int>(kGroup / once));
  std::array<double, kGroups> times{};
  for (double& t : times) t = milliseconds(stream, calls, f) / calls;
  std::nth_element(times.begin(), times.begin() + kGroups / 2, times.end());
  return times[kGroups / 2];
}

std::size_t measured(const ChoicePoint& point, const LaunchContext& context, const ChoiceKey& key,
                     const Place& place, std::span<const Candidate> candidates,
                     const std::vector<std::size_t>& usable, const std::function<void(std::size_t)>& trial) {
  Choices& all = choices();
  const std::lock_guard measuring(all.measuring);
  {
    const std::lock_guard lock(all.mutex);
    if (all.later.contains(key)) return usable[0];  // another thread, or an earlier call of this rank
  }
  if (const auto i = remembered(key, place, candidates, usable)) return *i;
  const Stream stream = current_stream(context.device);
  std::size_t best = usable[0];
  std::optional<double> fastest;
  bool all_ran = true;
  for (const std::size_t i : usable) try {
      const double time = duration(stream, [&] { trial(i); });
      if (fastest && time >= *fastest) continue;
      fastest = time;
      best = i;
    } catch (const Error& e) {
      all_ran = false;
      warn_once(concat({point.name(), " [", candidates[i].name, "] failed when it was measured for ",
                        std::get<2>(key), ", and is not used there: ", e.what()}));
    }
  const Choice choice{names_of(candidates, usable), candidates[best].name};
  {
    const std::lock_guard lock(all.mutex);
    if (new_shapes.load() == NewShapes::measure_for_later) {
      all.later[key] = choice;
      best = usable[0];
    } else {
      all.used[key] = choice;
      all.loaded.erase(key);
    }
    all.files[place.owner][key] = choice;
  }
  // A failure may be passing (no memory), so what it decided is forgotten with the process.
  if (all_ran && !place.file.empty()) add_choices(place.file, place.owner, {{key, choice}});
  return best;
}

std::size_t chosen(const ChoicePoint& point, const LaunchContext& context,
                   std::span<const Candidate> candidates, const std::function<std::string()>& key,
                   const std::function<void(std::size_t)>& trial) {
  const bool only_deterministic = deterministic.load(std::memory_order_relaxed);
  const auto usable = [&](const Candidate& c) {
    return c.why_not.empty() && (c.deterministic || !only_deterministic);
  };
  std::optional<std::size_t> own, vendor;
  int count = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!usable(candidates[i])) continue;
    ++count;
    std::optional<std::size_t>& first = candidates[i].vendor ? vendor : own;
    if (!first) first = i;
  }
  if (count == 0) {
    std::string why;
    for (const Candidate& c : candidates)
      why += concat({"; ", c.name, ": ", c.why_not.empty() ? "is not deterministic" : c.why_not});
    fail<MissingKernelError>("[", point.name(), "] no implementation can compute this on ", context.device,
                             why);
  }
  const std::size_t preferred = own ? *own : *vendor;
  switch (known_policy(point)) {
    case KernelPolicy::custom:
      return preferred;
    case KernelPolicy::vendor:
      if (vendor) return *vendor;
      for (const Candidate& c : candidates)
        if (c.vendor)
          warn_once(concat({point.name(), " has the policy vendor, but ", c.name,
                            " cannot be used: ", c.why_not.empty() ? "it is not deterministic" : c.why_not,
                            ". Tapestry's own kernels run instead"}));
      return preferred;
    case KernelPolicy::automatic:
      break;
  }
  if (count == 1) return preferred;
  std::vector<std::size_t> list{preferred};
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (i != preferred && usable(candidates[i])) list.push_back(i);
  const std::string shapes = key();
  thread_local const auto memo_of_thread =
      std::make_unique<Memo>();  // a pointer, because static TLS is scarce
  Memo& memo = *memo_of_thread;
  if (const std::uint64_t version = settings_version.load(std::memory_order_acquire);
      memo.version != version || memo.index.size() > kMostMemos) {
    memo.index.clear();
    memo.version = version;
  }
  const std::string name = concat({point.name(), " ", context.device.index, " ", shapes});
  if (const auto found = memo.index.find(name); found != memo.index.end())
    for (const std::size_t i : list)
      if (i == found->second) return i;
  const Place& place = known_place(context.device);
  const ChoiceKey full_key{place.device, point.name(), shapes};
  if (const auto i = remembered(full_key, place, candidates, list)) {
    memo.index[name] = *i;
    return *i;
  }
  if (only_deterministic || measuring_forbidden > 0 || new_shapes.load() == NewShapes::own) return preferred;
  return measured(point, context, full_key, place, candidates, list, trial);
}

}  // namespace

ChoicePoint::ChoicePoint(const char* name) : name_(name), next_(std::exchange(points, this)) {}

std::size_t choose(const ChoicePoint& point, const LaunchContext& context,
                   std::span<const Candidate> candidates, const std::function<std::string()>& key,
                   const std::function<void(std::size_t)>& trial) {
  const std::size_t i = chosen(point, context, candidates, key, trial);
  if (tapestry::detail::keep_kernel_spans.load(std::memory_order_relaxed))
    tapestry::detail::name_kernel_span(candidates[i].name);
  return i;
}

NoMeasuring::NoMeasuring() { ++measuring_forbidden; }
NoMeasuring::~NoMeasuring() { --measuring_forbidden; }

void set_new_shapes(NewShapes how) {
  new_shapes = how;
  ++settings_version;
}

KernelPolicy policy_of(const ChoicePoint& point) { return known_policy(point); }

bool wgmma_allowed() {
  const std::lock_guard lock(settings_mutex());
  return stored_settings()->wgmma;
}

void reset_policy() {
  const std::lock_guard lock(settings_mutex());
  try {
    stored_settings().reset();
  } catch (const Error&) {
  }
  {
    Choices& all = choices();
    const std::lock_guard all_lock(all.mutex);
    all.used.clear(), all.later.clear(), all.loaded.clear(), all.files.clear(), all.warned.clear();
  }
  deterministic = false, tf32_matmul = false, tf32_convolution = true;
  new_shapes = NewShapes::measure;
  ++settings_version;
}

}  // namespace kernels

using namespace kernels;

const char* kernel_policy_name(KernelPolicy policy) {
  switch (policy) {
    case KernelPolicy::custom:
      return "custom";
    case KernelPolicy::vendor:
      return "vendor";
    case KernelPolicy::automatic:
      break;
  }
  return "auto";
}

std::vector<std::string> kernel_policy_ops() {
  std::vector<std::string> names;
  for (const ChoicePoint* p = points; p; p = p->next()) names.emplace_back(p->name());
  std::sort(names.begin(), names.end());
  return names;
}

void set_kernel_policy(KernelPolicy policy) {
  const std::lock_guard lock(settings_mutex());
  stored_settings() = Settings{.all = policy, .of_op = {}, .wgmma = stored_settings()->wgmma};
  ++settings_version;
}

void set_kernel_policy(std::string_view op, KernelPolicy policy) {
  check_op(op, "set_kernel_policy");
  const std::lock_guard lock(settings_mutex());
  stored_settings()->of_op.insert_or_assign(std::string(op), policy);
  ++settings_version;
}

KernelPolicy kernel_policy(std::string_view op) {
  check_op(op, "kernel_policy");
  const std::lock_guard lock(settings_mutex());
  const Settings& settings = *stored_settings();
  const auto found = settings.of_op.find(op);
  return found == settings.of_op.end() ? settings.all : found->second;
}

void use_deterministic_algorithms(bool on) { deterministic = on; }
bool are_deterministic_algorithms_enabled() { return deterministic; }
void set_allow_tf32_matmul(bool on) { tf32_matmul = on; }
bool allow_tf32_matmul() { return tf32_matmul; }
void set_allow_tf32_convolution(bool on) { tf32_convolution = on; }
bool allow_tf32_convolution() { return tf32_convolution; }

std::string kernel_choices() {
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  ChoiceTable table = all.used;
  for (const auto& [key, choice] : all.later) table[key] = choice;
  return choices_text(table, concat({"Tapestry ", version()}));
}

void set_kernel_choices(const std::string& text) {
  ChoiceTable table = parse_choices(text);
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  all.used = std::move(table);
  all.later.clear();
  all.loaded.clear();
  for (const auto& [key, choice] : all.used) all.loaded.insert(key);
  ++settings_version;
}

}  // namespace tapestry
