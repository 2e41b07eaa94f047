#include "tapestry/tools/ptx/laboratory/run.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "tapestry/tools/ptx/counter_table.h"
#include "tapestry/tools/ptx/laboratory/program_file.h"
#include "tapestry/tools/ptx/laboratory/report.h"
#include "tapestry/tools/ptx/laboratory/resources.h"
#include "tapestry/tools/ptx/runtime/settings.h"

extern "C" char** environ;

namespace tapestry::ptx {

const char* const kRunHelp =
    R"(tapestry-ptx run [OPTIONS] [--] PROGRAM [ARGUMENTS...]
Runs a CUDA program without a GPU. Its kernels are interpreted from the PTX that nvcc embedded in it. Build it with
  nvcc -cudart shared --no-compress -lineinfo -gencode arch=compute_80,code=compute_80 ...

  --check[=LIST]        look for reads of memory that no one has written, and for races. LIST has some of the words
                        initialised, shared, races and leaks, or is all. Addresses, alignment, barriers and calls are
                        always checked.
  --allow KERNEL        do not report errors of kernels with this part of a symbol
  --allow FILE:LINE     do not report errors at this line, such as sum.cu:12
  --counters[=FILE]     print, for each kernel, what a GPU would count: sectors, bank conflicts, divergence, ...
  --schedule order      run blocks, warps and streams in order; this is the default
  --schedule random     run them in a random order
  --seed N              which random order; it implies --schedule random
  --trace KERNEL:BLOCK:THREAD
                        print the instructions of a thread, such as saxpy:0:5 or step:(1,0,0):(3,2,0)
  --approximate WHERE   low or high: approximate instructions give results at the edge of their documented errors
  --devices N           the number of GPUs (1)
  --memory BYTES        the memory of each GPU, such as 512M (4G)
  --limit N             end a launch after N instructions of warps (2^32)

Exit status: that of the program if there were no errors, 128 + N if signal N ended it; 70 if there were errors;
64 if the options are wrong or the program cannot run on the machine.
)";

namespace {

constexpr int kErrors = 70, kUsage = 64;

int usage(const std::string& what) {
  std::cerr << "[tapestry-ptx] " << what << "\n";
  return kUsage;
}

using Environment = std::map<std::string, std::string>;
/// The environment of this process, with changes.
std::vector<std::string> environment_with(const Environment& changes) {
  std::vector<std::string> all;
  for (char** e = environ; *e; ++e) {
    const std::string entry = *e;
    if (changes.find(entry.substr(0, entry.find('='))) == changes.end()) all.push_back(entry);
  }
  for (const auto& [name, value] : changes) all.push_back(name + "=" + value);
  return all;
}
std::string prepended(const char* variable, const std::string& value, char separator) {
  const char* const old = std::getenv(variable);
  return old && *old ? value + separator + old : value;
}

/// Starts a program. The descriptor `to` of the program is `from` of this process, if `to` is not negative.
int start(const std::vector<std::string>& command, const std::vector<std::string>& environment, int from,
          int to, pid_t& process) {
  std::vector<char*> arguments, variables;
  for (const std::string& s : command) arguments.push_back(const_cast<char*>(s.c_str()));
  for (const std::string& s : environment) variables.push_back(const_cast<char*>(s.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (to >= 0) posix_spawn_file_actions_adddup2(&actions, from, to);
  const int error =
      posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  return error;
}
int wait_for(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0)
    if (errno != EINTR) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
/// Calls f with each piece that the descriptor gives, to its end. Closes it.
template <class F>
void read_all(int descriptor, F f) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(descriptor, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    f(std::string(buffer, static_cast<std::size_t>(n)));
  }
  close(descriptor);
}

/// The file that the shell would start.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string path = folder + "/" + name; access(path.c_str(), X_OK) == 0) return path;
  return name;
}
/// The shared libraries that a dynamically linked program loads, as the dynamic linker finds them.
std::vector<std::string> libraries_of(const std::string& program, Environment changes) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  changes["LD_TRACE_LOADED_OBJECTS"] = "1";
  pid_t process = 0;
  const int error = start({program}, environment_with(changes), ends[1], STDOUT_FILENO, process);
  close(ends[1]);
  std::string text;
  read_all(ends[0], [&](const std::string& piece) { text += piece; });
  if (error != 0) return {};
  wait_for(process);
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find('/'), end = line.find(" (", begin == line.npos ? 0 : begin);
    if (begin != line.npos && end != line.npos) found.push_back(line.substr(begin, end - begin));
  }
  return found;
}

/// The library that stands in for the CUDA runtime. The build writes its name; an installed program finds it
/// beside itself.
std::string runtime_path() {
  if (const char* const chosen = std::getenv("TAPESTRY_PTX_RUNTIME")) return chosen;
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path installed = own.parent_path() / ".." / "lib" / "tapestry" / "ptx" /
                                          std::filesystem::path(TAPESTRY_PTX_RUNTIME).filename();
  return std::filesystem::exists(installed, error) ? installed.string() : TAPESTRY_PTX_RUNTIME;
}

struct Request {
  Environment settings;
  std::vector<std::string> command;
  std::string wrong;
};
Request parse(const std::vector<std::string>& arguments) {
  Request o;
  o.settings["TAPESTRY_PTX_CHECK"] = "none";
  std::size_t i = 0;
  for (; i < arguments.size() && arguments[i].substr(0, 2) == "--"; ++i) {
    if (arguments[i] == "--") {
      ++i;
      break;
    }
    const std::size_t equals = arguments[i].find('=');
    const std::string option = arguments[i].substr(2, equals == std::string::npos ? equals : equals - 2);
    const bool has_value = equals != std::string::npos;
    std::string value = has_value ? arguments[i].substr(equals + 1) : "", name;
    if (option == "check" || option == "counters") {
      name = option == "check" ? "CHECK" : "COUNTERS";
      if (!has_value) value = option == "check" ? "initialised,shared,races" : "-";
    } else if (option == "allow" || option == "schedule" || option == "seed" || option == "trace" ||
               option == "approximate" || option == "devices" || option == "memory" || option == "limit") {
      for (const char c : option) name += static_cast<char>(c - 'a' + 'A');
      if (!has_value && i + 1 == arguments.size()) {
        o.wrong = "--" + option + " needs a value";
        return o;
      }
      if (!has_value) value = arguments[++i];
    } else {
      o.wrong = "unknown option " + arguments[i];
      return o;
    }
    stand_in::Settings tried;
    if (const std::string wrong = stand_in::parse_setting(name, value, tried); !wrong.empty()) {
      o.wrong = "--" + option + " " + wrong;
      return o;
    }
    std::string& setting = o.settings["TAPESTRY_PTX_" + name];
    setting = name == "ALLOW" && !setting.empty() ? setting + "," + value : value;
  }
  o.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (o.command.empty()) o.wrong = "there is no program to run";
  return o;
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::cout << kRunHelp;
    return 0;
  }
  Request o = parse(arguments);
  if (!o.wrong.empty()) return usage(o.wrong + "; tapestry-ptx run --help lists the options");
  const std::string runtime = runtime_path(), program = find_program(o.command[0]);
  if (access(runtime.c_str(), R_OK) != 0)
    return usage("the runtime " + runtime +
                 " does not exist; build the target tapestry-ptx, or set TAPESTRY_PTX_RUNTIME");
  if (access(program.c_str(), X_OK) != 0) return usage("cannot run " + program + ": " + std::strerror(errno));
  Environment changes = o.settings;
  const std::filesystem::path library = runtime;
  // LD_PRELOAD comes before the DT_RPATH of a program, which LD_LIBRARY_PATH does not.
  changes["LD_LIBRARY_PATH"] = prepended("LD_LIBRARY_PATH", library.parent_path().string(), ':');
  if (const ProgramFile file = read_program_file(program); file.is_elf) {
    const std::vector<std::string> libraries =
        file.is_dynamic ? libraries_of(program, changes) : std::vector<std::string>();
    if (const std::string reason = why_not(program, libraries, library.filename().string()); !reason.empty())
      return usage(reason);
    if (file.has_rpath) changes["LD_PRELOAD"] = prepended("LD_PRELOAD", runtime, ' ');
  }

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return usage(std::string("cannot make a pipe: ") + std::strerror(errno));
  constexpr int kReports = 198;  // a descriptor that the program does not use itself
  changes["TAPESTRY_PTX_REPORT"] = "/dev/fd/" + std::to_string(kReports);
  changes["TAPESTRY_PTX_EXIT"] = "keep";
  std::string counters;  // a file for the table that is printed at the end
  if (const auto wanted = changes.find("TAPESTRY_PTX_COUNTERS");
      wanted != changes.end() && wanted->second == "-") {
    char name[] = "/tmp/tapestry-ptx-XXXXXX";
    const int file = mkstemp(name);
    if (file < 0) return usage(std::string("cannot make a file in /tmp: ") + std::strerror(errno));
    close(file);
    wanted->second = counters = name;
  }
  std::vector<std::string> command = o.command;
  command[0] = program;
  pid_t process = 0;
  const int error = start(command, environment_with(changes), ends[1], kReports, process);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return usage("cannot run " + program + ": " + std::strerror(error));
  }
  Reports reports;
  std::string unread;
  const auto take = [&](bool at_end) {
    // An error may have several lines. The next one begins with a bracket.
    for (std::size_t end; (end = unread.find("\n[")) != unread.npos; unread.erase(0, end + 1))
      std::cerr << reports.add(unread.substr(0, end));
    // What ends with a line is whole, because the runtime writes an error at once.
    if (!unread.empty() && (at_end || unread.back() == '\n')) {
      std::cerr << reports.add(unread);
      unread.clear();
    }
    std::cerr << std::flush;
  };
  read_all(ends[0], [&](const std::string& piece) {
    unread += piece;
    take(false);
  });
  take(true);
  const int status = wait_for(process);
  if (!counters.empty()) {
    std::ifstream in(counters);
    std::vector<KernelRow> rows = rows_from_text(std::string(std::istreambuf_iterator<char>(in), {}));
    const std::map<std::string, std::uint32_t> registers = registers_by_ptxas(program);
    for (KernelRow& row : rows)
      if (const auto found = registers.find(row.kernel); found != registers.end())
        row.registers = found->second;
    std::cerr << table(rows);
    unlink(counters.c_str());
  }
  std::cerr << "========= " << reports.summary() << "\n";
  return reports.count() > 0 ? kErrors : status;
}

}  // namespace tapestry::ptx
